"""Arithmetic, comparisons and selection over every pair of dtypes, with Triton's promotion rules."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from .harness import ALL, FLOATS, INTS, NUMBERS, TORCH, UINTS, Interpreter, Kernel, Tol, differ, values

N = 32
ULP = Tol(1)
ARITHMETIC = ("x + y", "x - y", "x * y")
COMPARISONS = ("x == y", "x != y", "x < y", "x <= y", "x > y", "x >= y")
# Where the operands are equal but for the sign of zero, either may be returned.
EXTREMA = (("tl.minimum(x, y)", Tol(1e-9)), ("tl.maximum(x, y)", Tol(1e-9)))
BITWISE = ("x & y", "x | y", "x ^ y")
LOAD_XY = "i = tl.arange(0, 32)\nx = tl.load(x_ptr + i)\ny = tl.load(y_ptr + i)"
PAIRS = list(itertools.product(ALL, ALL))
# One of each width and kind; the rest of the pairs runs with the slow tests.
COMMON = ("i1", "i8", "i32", "i64", "u8", "u32", "u64", "f16", "bf16", "f32", "f64")
QUICK_PAIRS = {
    (a, b) for a, b in PAIRS if a in COMMON and b in COMMON and (a == b or "f32" in (a, b) or "i32" in (a, b))
}


def pair_params(keep: Callable[[str, str], bool] = lambda a, b: True) -> list:
    quick = QUICK_PAIRS | {
        ("u8", "i8"),
        ("i16", "u16"),
        ("f16", "bf16"),
        ("u64", "i64"),
        ("f64", "u16"),
        ("bf16", "i8"),
        ("i1", "i1"),
    }
    return [pytest.param(a, b, marks=() if (a, b) in quick else pytest.mark.slow) for a, b in PAIRS if keep(a, b)]


def is_int(dtype: str) -> bool:
    return dtype in INTS + UINTS


def nonzero(dtype: str, seed: int) -> torch.Tensor:
    """Divisors: neither 0 nor -1 (whose quotient with the least integer does not exist)."""
    y = values(dtype, N, seed, special=not is_int(dtype))
    if dtype == "i1":
        return torch.ones(N, dtype=torch.bool)
    if is_int(dtype):
        bad = (y.to(torch.int64) == 0) | (y.to(torch.int64) == -1)
        y = torch.where(bad, torch.full_like(y.to(torch.int64), 3), y.to(torch.int64)).to(y.dtype)
    return y


@pytest.mark.parametrize("b, a", pair_params())
def test_pairs(interpreter: Interpreter, a: str, b: str) -> None:
    exprs: list = [*ARITHMETIC, *COMPARISONS, *EXTREMA, "tl.where(x > y, x, y)"]
    if not (a in FLOATS or b in FLOATS):
        exprs += BITWISE
    differ(interpreter, Kernel(LOAD_XY, exprs, {"x_ptr": values(a, N, 1), "y_ptr": values(b, N, 2)}))


def divides(a: str, b: str) -> bool:
    """Triton refuses to divide integers of different signedness, and bools."""
    return a in FLOATS or b in FLOATS or (a in INTS and b in INTS) or (a in UINTS and b in UINTS)


@pytest.mark.parametrize("b, a", pair_params(divides))
def test_division(interpreter: Interpreter, a: str, b: str) -> None:
    exprs: list = [("x / y", ULP), "x % y"]
    if is_int(a) and is_int(b):
        exprs += ["x // y", "tl.cdiv(x // 2, y)"]
    differ(interpreter, Kernel(LOAD_XY, exprs, {"x_ptr": values(a, N, 1), "y_ptr": nonzero(b, 2)}))


@pytest.mark.parametrize("b, a", pair_params(lambda a, b: is_int(a) and is_int(b)))
def test_shifts(interpreter: Interpreter, a: str, b: str) -> None:
    bits = min(torch.iinfo(TORCH[a]).bits, torch.iinfo(TORCH[b]).bits)
    amount = (torch.arange(N) % (bits - 1)).to(TORCH[b])
    differ(interpreter, Kernel(LOAD_XY, ["x << y", "x >> y"], {"x_ptr": values(a, N, 1), "y_ptr": amount}))


@pytest.mark.parametrize("dtype", ALL)
def test_unary(interpreter: Interpreter, dtype: str) -> None:
    exprs = ["tl.abs(x)"] if dtype != "i1" else []
    if dtype in FLOATS:
        exprs += ["-x", "x == x", "x != x", "not_inlined(s, s)", "inlined(x, x)[0]"]
    elif dtype == "i1":
        exprs += ["~x", "x ^ True", "x & False", "x | True"]
    else:
        exprs += ["-x", "~x", "not_inlined(s, s)"]
    # A function that is not inlined takes scalars only.
    setup = "i = tl.arange(0, 32)\nx = tl.load(x_ptr + i)\ns = tl.load(x_ptr + 3)"
    differ(interpreter, Kernel(setup, exprs, {"x_ptr": values(dtype, N, 3)}))


@pytest.mark.parametrize("dtype", NUMBERS)
def test_constants_and_scalars(interpreter: Interpreter, dtype: str) -> None:
    """Python constants adapt to the tensor; scalar arguments and scalar loads promote as tensors do."""
    setup = """
        i = tl.arange(0, 32)
        x = tl.load(x_ptr + i)
        s = tl.load(x_ptr + 3)
    """
    exprs: list = [
        "x + 2",
        "x * 3",
        "x - 1",
        "5 - x",
        "x > 1",
        "1 <= x",
        "x * True",
        "s + 2",
        "s * s",
        "x + s",
        "x == s",
    ]
    exprs += ["x + 1.5", "2.5 * x", "x < 0.5", "x + n", "x.to(tl.float32) * f", "s - n", "x + big", "x + BOOL", "x > C"]
    exprs += [
        ("tl.maximum(x, 2)", Tol(1e-9)),
        ("tl.minimum(s, x)", Tol(1e-9)),
        "tl.where(x > 1, x, 0)",
        "tl.where(x > s, 1, 0)",
    ]
    if dtype in FLOATS:
        exprs += [("x / 3", ULP), ("1 / x", ULP), "x % 2.5", "x + float('inf')", "x * float('nan')"]
    else:
        exprs += ["x // 3", "x % 7", "x << 2", "x >> 3", "x & 5", "x | 8", "x ^ 9", ("x / 3", ULP)]
    args = {"x_ptr": values(dtype, N, 4), "n": 7, "f": 0.75, "big": 2**40 + 3}
    differ(interpreter, Kernel(setup, exprs, args, {"BOOL": True, "C": 3}))


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_of_extrema(interpreter: Interpreter, dtype: str) -> None:
    """NaN is lost by minimum, maximum and clamp unless it is asked to propagate."""
    odd = torch.tensor([float("nan"), 1.0, float("inf"), float("-inf"), -2.0, 0.25, 3.0, 7.5], dtype=TORCH[dtype])
    x, y = odd.repeat_interleave(8), odd.repeat(8)
    setup = "i = tl.arange(0, 64)\nx = tl.load(x_ptr + i)\ny = tl.load(y_ptr + i)"
    lose, keep = "propagate_nan=tl.PropagateNan.NONE", "propagate_nan=tl.PropagateNan.ALL"
    exprs = [f"tl.{f}(x, y, {k})" for f in ("minimum", "maximum") for k in (lose, keep)]
    exprs += [f"tl.clamp(x, -1.0, 2.0, {k})" for k in (lose, keep)]
    exprs += [f"tl.clamp(x, tl.minimum(y, 0.5), tl.maximum(y, 1.0), {k})" for k in (lose, keep)]
    references = {
        0: lambda: torch.fmin(x, y),
        1: lambda: torch.minimum(x, y),
        2: lambda: torch.fmax(x, y),
        3: lambda: torch.maximum(x, y),
        4: lambda: torch.fmin(torch.fmax(x, torch.tensor(-1.0, dtype=x.dtype)), torch.tensor(2.0, dtype=x.dtype)),
        5: lambda: torch.clamp(x, -1.0, 2.0),
    }
    if dtype == "bf16":  # computed and returned in fp32
        del references[4], references[5]
        exprs[4:6] = [f"({e}).to(tl.bfloat16)" for e in exprs[4:6]]
    differ(interpreter, Kernel(setup, exprs, {"x_ptr": x, "y_ptr": y}), references)


@pytest.mark.parametrize("dtype", ALL)
def test_where(interpreter: Interpreter, dtype: str) -> None:
    """Selection moves bits: NaN payloads aside, nothing changes; conditions of any integer type, and broadcast."""
    setup = """
        i = tl.arange(0, 32)
        x = tl.load(x_ptr + i)
        y = tl.load(y_ptr + i)
        c = tl.load(c_ptr + i)
        s = tl.load(c_ptr + 1)
        m = tl.arange(0, 4)
    """
    exprs = [
        "tl.where(c, x, y)",
        "tl.where(s, x, y)",
        "tl.where(i < 5, x, y)",
        "tl.where(c[None, :] & (m > 1)[:, None], x[None, :], y[None, :])",
        "tl.where(~c, x, tl.load(y_ptr + 2))",
        "tl.where(tl.load(n_ptr + i) != 0, x, y)",
    ]
    args = {
        "x_ptr": values(dtype, N, 5),
        "y_ptr": values(dtype, N, 6),
        "c_ptr": values("i1", N),
        "n_ptr": values("i32", N, small=True),
    }
    differ(interpreter, Kernel(setup, exprs, args))


@pytest.mark.parametrize(
    "shape",
    [(1,), (2,), (4,), (256,), (2048,), (1, 1), (1, 64), (64, 1), (8, 128), (128, 8), (2, 4, 8), (2, 1, 4, 16)],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["f32", "i8", "f64"])
def test_shapes(interpreter: Interpreter, dtype: str, shape: tuple[int, ...]) -> None:
    """Rows shorter and longer than any register, broadcast along every axis."""
    numel = torch.Size(shape).numel()
    ones = ["1"] * len(shape)
    setup = [f"i = tl.reshape(tl.arange(0, {numel}), {list(shape)})", "x = tl.load(x_ptr + i)"]
    exprs = ["x + x", "x * 2 - i.to(x.dtype)"]
    for axis, size in enumerate(shape):
        view = ones[:axis] + [str(size)] + ones[axis + 1 :]
        setup.append(f"b{axis} = tl.reshape(tl.load(x_ptr + tl.arange(0, {size})), [{', '.join(view)}])")
        exprs += [f"x + b{axis}", f"tl.broadcast_to(b{axis}, {list(shape)})", f"x > b{axis}"]
    differ(interpreter, Kernel("\n".join(setup), exprs, {"x_ptr": values(dtype, numel, 7)}))
