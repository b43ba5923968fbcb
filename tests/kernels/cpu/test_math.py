"""Mathematical functions: accuracy against a wider type, edges of their domains; random numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from .harness import TORCH, Interpreter, Kernel, Tol, check_native, differ, rng, values

N = 1024
LOAD = f"i = tl.arange(0, {N})\nx = tl.load(x_ptr + i)"
INF, NAN = float("inf"), float("nan")


def erf(x: np.ndarray) -> np.ndarray:
    return torch.special.erf(torch.from_numpy(x.astype(np.float64))).numpy()


# function: (reference, range of ordinary inputs, ulps allowed, of the largest result?, edges)
EDGES = [0.0, -0.0, INF, -INF, NAN, 1.0, -1.0]
FUNCTIONS: dict[str, tuple[Callable, tuple[float, float], float, bool, list[float]]] = {
    "tl.exp(x)": (np.exp, (-87, 88), 2, False, [*EDGES, 89.0, -104.0, 1e30, -1e30]),
    "tl.exp2(x)": (np.exp2, (-126, 127.9), 2, False, [*EDGES, 128.0, -150.0, 10.0, -3.0]),
    "tl.log(x)": (np.log, (1e-6, 1e6), 2, False, [*EDGES, 1e-37, 3e38, 1e-42]),
    "tl.log2(x)": (np.log2, (1e-6, 1e6), 2, False, [*EDGES, 8.0, 0.25, 1e-42]),
    "tl.sin(x)": (np.sin, (-100, 100), 2, True, EDGES),
    "tl.cos(x)": (np.cos, (-100, 100), 2, True, EDGES),
    "tl.sqrt(x)": (np.sqrt, (0, 1e6), 1, False, [*EDGES, 4.0, 1e-40]),
    "tl.rsqrt(x)": (lambda x: 1 / np.sqrt(x), (1e-6, 1e6), 2, False, [*EDGES, 4.0]),
    "tl.erf(x)": (erf, (-4, 4), 4, False, [*EDGES, 6.0, -6.0, 1e-6]),
    "tl.abs(x)": (np.abs, (-1e3, 1e3), 0, False, EDGES),
    "tl.floor(x)": (np.floor, (-1e3, 1e3), 0, False, [*EDGES, 1e30, -0.5, 0.5, 2.0**23 + 1]),
    "tl.ceil(x)": (np.ceil, (-1e3, 1e3), 0, False, [*EDGES, 1e30, -0.5, 0.5, 2.0**23 + 1]),
    "tl.sigmoid(x)": (lambda x: 1 / (1 + np.exp(-x)), (-30, 30), 4, False, EDGES),
}
LIBDEVICE: dict[str, tuple[Callable, tuple[float, float], float, bool, list[float]]] = {
    "tanh": (np.tanh, (-9, 9), 4, False, [*EDGES, 40.0, -40.0, 1e-7]),
    "exp": FUNCTIONS["tl.exp(x)"],
    "exp2": FUNCTIONS["tl.exp2(x)"],
    "log": FUNCTIONS["tl.log(x)"],
    "log2": FUNCTIONS["tl.log2(x)"],
    "log10": (np.log10, (1e-6, 1e6), 3, False, [*EDGES, 100.0]),
    "log1p": (np.log1p, (-0.9, 100), 4, False, [0.0, -0.0, INF, NAN, 1e-8, -1.0]),
    "expm1": (np.expm1, (-10, 10), 4, False, [*EDGES, 1e-8]),
    "sin": FUNCTIONS["tl.sin(x)"],
    "cos": FUNCTIONS["tl.cos(x)"],
    "tan": (np.tan, (-1.5, 1.5), 4, False, EDGES),
    "sinh": (np.sinh, (-10, 10), 4, False, EDGES),
    "cosh": (np.cosh, (-10, 10), 4, False, EDGES),
    "asin": (np.arcsin, (-1, 1), 4, False, [*EDGES, 2.0]),
    "acos": (np.arccos, (-1, 1), 4, False, [*EDGES, 2.0]),
    "atan": (np.arctan, (-10, 10), 4, False, EDGES),
    "sqrt": FUNCTIONS["tl.sqrt(x)"],
    "rsqrt": FUNCTIONS["tl.rsqrt(x)"],
    "erf": FUNCTIONS["tl.erf(x)"],
    "abs": FUNCTIONS["tl.abs(x)"],
    "floor": FUNCTIONS["tl.floor(x)"],
    "ceil": FUNCTIONS["tl.ceil(x)"],
    "trunc": (np.trunc, (-1e3, 1e3), 0, False, [*EDGES, -0.5, 2.5]),
    "rint": (np.rint, (-1e3, 1e3), 0, False, [*EDGES, 0.5, 1.5, 2.5, -0.5]),
    "nearbyint": (np.rint, (-1e3, 1e3), 0, False, [*EDGES, 0.5, 1.5, 2.5, -0.5]),
    "round": (lambda x: np.trunc(x + np.copysign(0.5, x)), (-1e3, 1e3), 0, False, [0.0, 0.5, 1.5, 2.5, -0.5, INF, NAN]),
}


def inputs(dtype: str, span: tuple[float, float], edges: list[float]) -> torch.Tensor:
    """Uniform over the range, densely near its small end too, then the edges."""
    gen = rng("math", dtype, span)
    lo, hi = span
    x = np.where(gen.random(N) < 0.5, gen.uniform(lo, hi, N), gen.uniform(lo, hi, N) * 10.0 ** gen.uniform(-5, 0, N))
    if lo > 0:
        x = np.exp(gen.uniform(np.log(lo), np.log(hi), N))
    x[: len(edges)] = edges
    return torch.from_numpy(x).to(TORCH[dtype])


def expected(function: Callable, x: torch.Tensor) -> torch.Tensor:
    """In a wider type than `x`'s, rounded once."""
    with np.errstate(all="ignore"):
        wide = function(x.double().numpy() if x.dtype == torch.float32 else x.numpy().astype(np.longdouble))
    return torch.from_numpy(np.asarray(wide).astype(np.float64)).to(x.dtype)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("expr", FUNCTIONS)
def test_functions(interpreter: Interpreter, expr: str, dtype: str) -> None:
    function, span, ulps, of_max, edges = FUNCTIONS[expr]
    x = inputs(dtype, span, edges)
    loads = LOAD + "\ns = tl.load(x_ptr + 100)\nz = tl.load(x_ptr + tl.arange(0, 4))"
    exprs = [
        (expr.replace("(x)", f"({name})"), Tol(ulps, of_max)) for name in "xsz"
    ]  # a long vector, a scalar, a short vector
    want = expected(function, x)
    differ(
        interpreter, Kernel(loads, exprs, {"x_ptr": x}), {0: lambda: want, 1: lambda: want[100], 2: lambda: want[:4]}
    )


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_large_angles(interpreter: Interpreter, dtype: str) -> None:
    """Argument reduction far from zero."""
    x = torch.from_numpy(rng("angles").uniform(-1e6, 1e6, N)).to(TORCH[dtype])
    exprs = [("tl.sin(x)", Tol(4, of_max=True)), ("tl.cos(x)", Tol(4, of_max=True))]
    want = [expected(f, x) for f in (np.sin, np.cos)]
    differ(interpreter, Kernel(LOAD, exprs, {"x_ptr": x}), {k: lambda w=w: w for k, w in enumerate(want)})


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", LIBDEVICE)
def test_libdevice(interpreter: Interpreter, name: str, dtype: str) -> None:
    """`triton.language.extra.libdevice`, which the interpreter does not have: against numpy alone."""
    function, span, ulps, of_max, edges = LIBDEVICE[name]
    x = inputs(dtype, span, edges)
    kernel = Kernel(LOAD, [(f"libdevice.{name}(x)", Tol(ulps, of_max))], {"x_ptr": x})
    check_native(interpreter, kernel, [expected(function, x)])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_libdevice_of_two(interpreter: Interpreter, dtype: str) -> None:
    gen = rng("pow", dtype)
    x, y = (torch.from_numpy(gen.uniform(0.01, 20, N)).to(TORCH[dtype]) for _ in range(2))
    y[::3] = -y[::3] / 4
    x[:8] = torch.tensor([0.0, 1.0, -2.0, -2.0, INF, NAN, 2.0, -8.0])
    y[:8] = torch.tensor([2.0, NAN, 3.0, 2.0, 1.0, 0.0, -1.0, 0.5])
    setup = LOAD + "\ny = tl.load(y_ptr + i)"
    exprs = [
        ("libdevice.pow(x, y)", Tol(16)),
        ("libdevice.atan2(y, x)", Tol(4)),
        ("libdevice.fmod(x, y)", Tol(0)),
        ("libdevice.hypot(x, y)", Tol(2)),
    ]
    exprs += [("libdevice.copysign(x, y)", Tol(0))]
    wide = np.float64 if dtype == "f32" else np.longdouble
    a, b = x.numpy().astype(wide), y.numpy().astype(wide)
    with np.errstate(all="ignore"):
        want = [np.power(a, b), np.arctan2(b, a), np.fmod(a, b), np.hypot(a, b), np.copysign(a, b)]
    check_native(
        interpreter,
        Kernel(setup, exprs, {"x_ptr": x, "y_ptr": y}),
        [torch.from_numpy(w.astype(np.float64)).to(x.dtype) for w in want],
    )


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_half_precision_through_fp32(interpreter: Interpreter, dtype: str) -> None:
    """The language's functions take fp32 and fp64: halves are widened and rounded by hand."""
    x = values(dtype, N, 2)
    names = ("exp", "sin", "sigmoid", "floor", "ceil", "erf")
    exprs = [(f"tl.{f}(x.to(tl.float32)).to(x.dtype)", Tol(1)) for f in names]
    differ(interpreter, Kernel(LOAD, exprs, {"x_ptr": x}))


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
def test_fma_and_division(interpreter: Interpreter, dtype: str) -> None:
    """fma rounds once: x * y - (x * y rounded) is the exact remainder. div_rn and sqrt_rn are correctly rounded."""
    x, y, z = (values(dtype, N, s) for s in (3, 4, 5))
    setup = LOAD + "\ny = tl.load(y_ptr + i)\nz = tl.load(z_ptr + i)"
    exprs: list = [
        "tl.fma(x, y, z)",
        "tl.fma(x, y, -(x * y))",
        "tl.fma(x, 2.0, z)",
        ("tl.fdiv(x.to(tl.float32), y.to(tl.float32))", Tol(1)),
    ]
    if dtype == "f32":
        exprs += ["tl.div_rn(x, y)", "tl.sqrt_rn(tl.abs(x))", "tl.math.fdiv(x, y, ieee_rounding=True)"]
    differ(interpreter, Kernel(setup, exprs, {"x_ptr": x, "y_ptr": y, "z_ptr": z}))


@pytest.mark.parametrize("dtype", ["i32", "u32", "i64", "u64"])
def test_umulhi(interpreter: Interpreter, dtype: str) -> None:
    x, y = values(dtype, N, 6), values(dtype, N, 7)
    bits = torch.iinfo(x.dtype).bits
    mask = (1 << bits) - 1
    high = [((int(a) & mask) * (int(b) & mask)) >> bits for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    want = torch.from_numpy(np.array(high, dtype=f"uint{bits}").view(str(x.dtype).removeprefix("torch.")))
    setup = LOAD + "\ny = tl.load(y_ptr + i)"
    differ(
        interpreter,
        Kernel(setup, ["tl.umulhi(x, y)", "tl.umulhi(tl.load(x_ptr), tl.load(y_ptr))"], {"x_ptr": x, "y_ptr": y}),
        {0: lambda: want},
    )


@pytest.mark.parametrize("seed", [0, 42, 2**31 - 1, 2**40 + 7])
def test_random(interpreter: Interpreter, seed: int) -> None:
    """Philox bit for bit; uniform numbers exactly; normal ones within the accuracy of log, sin and cos."""
    setup = f"i = tl.arange(0, {N})\na, b, c, d = tl.randint4x(seed, i)\ne, f, g, h = tl.rand4x(seed, i)"
    setup += "\nu, v, w, z = tl.randn4x(seed, i)\nr, s = tl.pair_uniform_to_normal(e, f)"
    exprs = [
        "tl.rand(seed, i)",
        "tl.randint(seed, i)",
        "tl.randint(seed, i, 7)",
        "tl.rand(seed, i * 3 + 1)",
        *"abcdefgh",
    ]
    near = Tol(16, of_max=True)
    exprs += [("tl.randn(seed, i)", near), ("u", near), ("v", near), ("w", near), ("z", near), ("r", near), ("s", near)]
    exprs += ["tl.rand(seed, i.to(tl.int64) + 5)", "tl.uint_to_uniform_float(a)"]
    differ(interpreter, Kernel(setup, exprs, {"seed": seed}))


def test_random_scalars(interpreter: Interpreter) -> None:
    """One number a program."""
    setup = "pid = tl.program_id(0)\ntl.store(y_ptr + pid, tl.rand(seed, pid))\n"
    setup += "tl.store(n_ptr + pid, tl.randint(seed, pid))"
    args = {"seed": 5, "y_ptr": torch.zeros(16), "n_ptr": torch.zeros(16, dtype=torch.int32)}
    differ(interpreter, Kernel(setup, [], args, grid=(16,)))


@pytest.mark.parametrize("n_bits", ["i8", "i32", "i64"])
def test_swizzle_and_cdiv(interpreter: Interpreter, n_bits: str) -> None:
    setup = "i = tl.arange(0, 64)\na, b = tl.swizzle2d(i // 8, i % 8, 8, 8, 2)\nx = tl.load(x_ptr + i)\n"
    setup += "c, d = tl.swizzle2d(tl.load(x_ptr) * 0 + 5, 3, 7, 8, 3)"
    exprs = ["a", "b", "c", "d", "tl.cdiv(i, 7)", "tl.cdiv(x // 8, 3)"]
    differ(interpreter, Kernel(setup, exprs, {"x_ptr": values(n_bits, 64, 8)}))
