"""Reductions and scans: every dtype, rank and axis, custom combine functions, several operands; sorting."""

from __future__ import annotations

import pytest
import torch

from .harness import FLOATS, INTS, NUMBERS, UINTS, Interpreter, Kernel, Tol, differ, values

SHAPES = [(1,), (2,), (64,), (512,), (4, 32), (32, 4), (1, 16), (16, 1), (2, 4, 8), (4, 8, 1), (2, 2, 4, 4)]
# Sums depend on the order of the additions.
SUM, PRODUCT, ZERO_SIGN = Tol(32, of_max=True), Tol(64), Tol(1e-9)


def block(shape: tuple[int, ...], name: str = "x") -> str:
    """Load a block of this shape, row-major, from `<name>_ptr`."""
    numel = torch.Size(shape).numel()
    return f"{name} = tl.load({name}_ptr + tl.reshape(tl.arange(0, {numel}), {list(shape)}))"


def data(dtype: str, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Values whose sums stay far from overflow and cancellation."""
    return values(dtype, shape, seed, small=True, special=False)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_axes(interpreter: Interpreter, shape: tuple[int, ...]) -> None:
    """Every axis, None, and negative ones, with and without keep_dims."""
    exprs: list = []
    for axis in (*range(len(shape)), None):
        for keep in (False, True):
            at = f"axis={axis}, keep_dims={keep}"
            exprs += [
                f"tl.sum(x, {at})",
                f"tl.max(x, {at})",
                f"tl.min(x, {at})",
                f"tl.xor_sum(n, {at})",
                f"tl.reduce_or(n, {at})",
            ]
            if axis is not None:
                exprs += [
                    f"tl.argmax(x, {at})",
                    f"tl.argmin(x, {at})",
                    f"tl.reduce(n, {axis}, mul_xor_combine, {keep})",
                ]
    args = {"x_ptr": data("f32", shape, 1), "n_ptr": values("i32", shape, 2)}
    differ(interpreter, Kernel(block(shape) + "\n" + block(shape, "n"), exprs, args))


@pytest.mark.parametrize("dtype", NUMBERS)
def test_dtypes(interpreter: Interpreter, dtype: str) -> None:
    """Sums promote small integers; max and min of small types come back wider; small values make every sum exact."""
    exprs: list = []
    for axis in (0, 1, None):
        exprs += [f"tl.sum(x, axis={axis})", f"tl.max(x, axis={axis})", f"tl.min(x, axis={axis})"]
        exprs += [
            f"tl.reduce(x, {axis}, max_combine)",
            f"tl.reduce(x, {axis}, add_combine)",
            f"tl.reduce(x, {axis}, select_combine)",
        ]
        if axis is not None:
            exprs += [f"tl.argmax(x, {axis})", f"tl.argmin(x, {axis})", f"tl.max(x, {axis}, return_indices=True)[0]"]
    exprs += [
        "tl.sum(x, 0, dtype=tl.float32)",
        "tl.sum(x > 0)",
        "tl.sum(x > 0, axis=1)",
        "tl.max((x > 0).to(tl.int1), axis=0)",
    ]
    if dtype in INTS + UINTS:
        exprs += ["tl.xor_sum(x, 0)", "tl.xor_sum(x, 1)", "tl.reduce_or(x, 1)", "tl.sum(x, 1, dtype=tl.int64)"]
    differ(interpreter, Kernel(block((8, 16)), exprs, {"x_ptr": data(dtype, (8, 16), 3)}))


@pytest.mark.parametrize("dtype", INTS + UINTS)
def test_integer_extremes(interpreter: Interpreter, dtype: str) -> None:
    """The whole range: signed and unsigned order, wrap-around of sums and products."""
    exprs = [f"{f}(x, axis={a})" for f in ("tl.sum", "tl.max", "tl.min", "tl.cumsum", "tl.cumprod") for a in (0, 1)]
    exprs += ["tl.max(x)", "tl.min(x)", "tl.argmax(x, 0)", "tl.argmin(x, 1)", "tl.sum(x)"]
    differ(interpreter, Kernel(block((16, 8)), exprs, {"x_ptr": values(dtype, (16, 8), 4)}))


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_sums(interpreter: Interpreter, dtype: str) -> None:
    """Against fp64: the error of any order of additions is bounded."""
    x = values(dtype, (16, 64), 5, special=False)
    exprs = [
        ("tl.sum(x, 0)", SUM),
        ("tl.sum(x, 1)", SUM),
        ("tl.sum(x)", Tol(64, of_max=True)),
        ("tl.cumsum(x, 1)", SUM),
    ]
    exprs += [("tl.sum(x.to(tl.float32), 1)", SUM), ("tl.cumprod(1 + x * 0.01, 1)", Tol(128))]
    d = x.double()
    want = [
        d.sum(0).to(x.dtype),
        d.sum(1).to(x.dtype),
        d.sum().to(x.dtype),
        d.cumsum(1).to(x.dtype).flatten(),
        d.sum(1).float(),
    ]
    differ(interpreter, Kernel(block((16, 64)), exprs, {"x_ptr": x}), {k: lambda w=w: w for k, w in enumerate(want)})


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_and_inf(interpreter: Interpreter, dtype: str) -> None:
    """max and min ignore NaN unless all is NaN; sums keep it. Signs of zero are not ordered."""
    x = values(dtype, (8, 16), 6)
    x[2] = torch.nan
    x[3] = torch.inf
    x[4, ::2] = -torch.inf
    x[5] = torch.tensor([0.0, -0.0] * 8)
    exprs = [(f"tl.{f}(x, 1)", ZERO_SIGN) for f in ("max", "min")] + [
        ("tl.max(x, 0)", ZERO_SIGN),
        ("tl.min(x)", ZERO_SIGN),
    ]
    exprs += [("tl.sum(x, 1)", SUM)]
    differ(interpreter, Kernel(block((8, 16)), exprs, {"x_ptr": x}), {4: lambda: x.double().sum(1).to(x.dtype)})


@pytest.mark.parametrize("dtype", ["i32", "u8", "i64", "f16", "f32", "bf16"])
def test_ties(interpreter: Interpreter, dtype: str) -> None:
    """The leftmost of equal elements wins where the tie break asks for it, and any of them where it does not."""
    x = (values("i32", (16, 32), 8, small=True) % 3).to(data(dtype, (1,)).dtype)
    exprs = [f"tl.arg{f}(x, {a}, tie_break_left=True)" for f in ("max", "min") for a in (0, 1)]
    exprs += [f"tl.{f}(x, {a}, return_indices=True)[{k}]" for f in ("max", "min") for a in (0, 1) for k in (0, 1)]
    for f in ("max", "min"):  # look the element up: it must be the extreme one
        exprs += [f"tl.gather(x, tl.expand_dims(tl.arg{f}(x, 1, tie_break_left=False), 1), 1)"]
    differ(interpreter, Kernel(block((16, 32)), exprs, {"x_ptr": x}))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_custom_reduce(interpreter: Interpreter, axis: int) -> None:
    """Combine functions of several operands, of different dtypes, with control flow, and not commutative."""
    shape = (4, 8, 16)
    setup = f"""
        {block(shape)}
        {block(shape, "n")}
        a, b = tl.reduce((n, n + 1), {axis}, linear_combine)
        hi, lo = tl.reduce((x, n), {axis}, max_and_min_combine)
        one = tl.full({list(shape)}, 1.0, tl.float32)
        mean, m2, count = tl.reduce((x, x * 0, one), {axis}, welford_combine)
        first, last = tl.reduce((x, n), {axis}, max_and_min_combine, keep_dims=True)
    """
    exprs = [
        "a",
        "b",
        "hi",
        "lo",
        ("mean", Tol(64, of_max=True)),
        ("m2", Tol(64, of_max=True)),
        "count",
        "first",
        "last",
    ]
    exprs += [
        f"tl.reduce(n, {axis}, last_combine)",
        f"tl.reduce(x, {axis}, select_combine)",
        f"tl.reduce(x > 0, {axis}, last_combine)",
    ]
    args = {"x_ptr": data("f32", shape, 9), "n_ptr": values("i32", shape, 10)}
    differ(interpreter, Kernel(setup, exprs, args))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scan_axes(interpreter: Interpreter, shape: tuple[int, ...], reverse: bool) -> None:
    exprs: list = []
    for axis in range(len(shape)):
        at = f"axis={axis}, reverse={reverse}"
        exprs += [
            f"tl.cumsum(x, {at})",
            f"tl.cumprod(n, {at})",
            f"tl.associative_scan(n, {axis}, mul_xor_combine, {reverse})",
        ]
        exprs += [f"tl.associative_scan(x, {axis}, max_combine, reverse={reverse})"]
    args = {"x_ptr": data("f32", shape, 11), "n_ptr": values("i32", shape, 12)}
    differ(interpreter, Kernel(block(shape) + "\n" + block(shape, "n"), exprs, args))


@pytest.mark.parametrize("dtype", NUMBERS)
def test_scan_dtypes(interpreter: Interpreter, dtype: str) -> None:
    exprs: list = [f"tl.cumsum(x, {a}, reverse={r})" for a in (0, 1) for r in (False, True)]
    exprs += [
        f"tl.associative_scan(x, {a}, {f})" for a in (0, 1) for f in ("max_combine", "select_combine", "last_combine")
    ]
    exprs += ["tl.cumsum(x, 1, dtype=tl.float32)", "tl.cumprod(tl.where(x > 0, 1, -1).to(x.dtype), 1)"]
    differ(interpreter, Kernel(block((8, 16)), exprs, {"x_ptr": data(dtype, (8, 16), 13)}))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_custom_scan(interpreter: Interpreter, axis: int, reverse: bool) -> None:
    shape = (2, 8, 4)
    setup = f"""
        {block(shape)}
        {block(shape, "n")}
        a, b = tl.associative_scan((n, n + 1), {axis}, linear_combine, {reverse})
        hi, lo = tl.associative_scan((x, n), {axis}, max_and_min_combine, {reverse})
    """
    args = {"x_ptr": data("f32", shape, 14), "n_ptr": values("i32", shape, 15)}
    differ(interpreter, Kernel(setup, ["a", "b", "hi", "lo", f"tl.cumsum(x > 0, {axis}, {reverse})"], args))


@pytest.mark.parametrize("dtype", ["i8", "i32", "i64", "u8", "u32", "f16", "bf16", "f32", "f64"])
def test_sort(interpreter: Interpreter, dtype: str) -> None:
    """sort, topk and flip over the last axis; the values are distinct from NaN and of one zero."""
    x = values(dtype, (4, 32), 16, special=False)
    exprs = [
        "tl.sort(x)",
        "tl.sort(x, descending=True)",
        "tl.topk(x, 4)",
        "tl.flip(x)",
        "tl.flip(x, 0)",
        "tl.flip(x, 1)",
    ]
    exprs += ["tl.sort(tl.reshape(x, [128]))", "tl.bitonic_merge(tl.join(tl.sort(x), tl.sort(x)).reshape(4, 64))"]
    want = (
        {0: x.sort(1).values, 1: x.sort(1, descending=True).values, 3: x.flip(1), 4: x.flip(0)}
        if dtype != "u32"
        else {}
    )
    if dtype == "u32":
        want = {0: x.long().sort(1).values.to(x.dtype)}
    references = {k: lambda w=w: w.flatten() for k, w in want.items()}
    differ(interpreter, Kernel(block((4, 32)), exprs, {"x_ptr": x}), references)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_softmax(interpreter: Interpreter, dtype: str) -> None:
    x = values(dtype, (8, 64), 17, special=False)
    setup = block((8, 64)) + "\ny = tl.exp(x - tl.max(x, 1)[:, None])"
    exprs = [
        ("tl.softmax(x)", Tol(16)),
        ("tl.softmax(x, 1)", Tol(16)),
        ("y / tl.sum(y, 1)[:, None]", Tol(16)),
        ("tl.sigmoid(x)", Tol(4)),
    ]
    want = [x.softmax(0), x.softmax(1), x.softmax(1), x.sigmoid()]
    differ(interpreter, Kernel(setup, exprs, {"x_ptr": x}), {k: lambda w=w: w.flatten() for k, w in enumerate(want)})


def test_reduction_in_a_loop(interpreter: Interpreter) -> None:
    """A running maximum and sum, as an online softmax keeps them."""
    setup = """
        m = tl.full([8], -float("inf"), tl.float32)
        d = tl.zeros([8], tl.float32)
        rows = tl.arange(0, 8)
        for start in range(0, 96, 32):
            x = tl.load(x_ptr + rows[:, None] * 96 + start + tl.arange(0, 32)[None, :])
            new = tl.maximum(m, tl.max(x, 1))
            d = d * tl.exp(m - new) + tl.sum(tl.exp(x - new[:, None]), 1)
            m = new
    """
    x = values("f32", (8, 96), 18, special=False)
    want = [x.max(1).values, (x.double() - x.double().max(1, keepdim=True).values).exp().sum(1).float()]
    differ(
        interpreter, Kernel(setup, ["m", ("d", Tol(16))], {"x_ptr": x}), {k: lambda w=w: w for k, w in enumerate(want)}
    )
