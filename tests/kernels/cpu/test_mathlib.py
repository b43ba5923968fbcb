"""Functions of the CPU backend, compiled alone: accuracy, edges, rounding."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
import scipy.special as special
import triton

from braidwork.kernels.cpu.emit import Builder
from braidwork.kernels.cpu.mathlib import extern_call
from braidwork.kernels.cpu.values import vtype

from .harness import rng
from .native import INF, NAN, NUMPY, WIDTHS, check, floats, function, libdevice

# -- accuracy ----------------------------------------------------------------------------------------------------------

# name: reference, span of ordinary arguments, ulps allowed
Case = tuple[Callable, tuple[float, float], float]
POLYNOMIALS: dict[str, Case] = {
    "exp": (np.exp, (-104, 89), 1.05),
    "exp2": (np.exp2, (-150, 128), 1.05),
    "log": (np.log, (0.25, 4), 1.05),
    "log2": (np.log2, (0.25, 4), 1.6),
    "log10": (np.log10, (0.25, 4), 1.6),
}
OF_F32: dict[str, Case] = {
    "sin": (np.sin, (-200, 200), 1.7),
    "cos": (np.cos, (-200, 200), 1.7),
    "tanh": (np.tanh, (-10, 10), 1.5),
    "erf": (special.erf, (-4.5, 4.5), 1.3),
}
SPECIAL: dict[str, Case] = {
    "acos": (np.arccos, (-1, 1), 2),
    "acosh": (np.arccosh, (1, 50), 2),
    "asin": (np.arcsin, (-1, 1), 2),
    "asinh": (np.arcsinh, (-50, 50), 2),
    "atan": (np.arctan, (-50, 50), 2),
    "atanh": (np.arctanh, (-1, 1), 2),
    "cbrt": (np.cbrt, (-50, 50), 4),
    "cosh": (np.cosh, (-50, 50), 2),
    "cospi": (lambda x: np.cos(np.pi * x), (-0.4, 0.4), 4),
    "erfc": (special.erfc, (-4, 0.5), 4),
    "erfcinv": (special.erfcinv, (0.01, 1.99), 4),
    "erfcx": (special.erfcx, (-4, 50), 8),
    "erfinv": (special.erfinv, (-1, 1), 4),
    "exp10": (lambda x: np.power(10.0, x), (-30, 30), 4),
    "expm1": (np.expm1, (-5, 5), 2),
    "j0": (special.j0, (-2, 2), 8),
    "j1": (special.j1, (-3, 3), 8),
    "lgamma": (special.gammaln, (2.5, 50), 8),
    "log1p": (np.log1p, (-0.9, 50), 2),
    "normcdf": (special.ndtr, (-5, 5), 40),
    "normcdfinv": (special.ndtri, (0.01, 0.45), 8),
    "rcbrt": (lambda x: 1 / np.cbrt(x), (0.1, 50), 4),
    "rsqrt": (lambda x: 1 / np.sqrt(x), (0.1, 50), 2),
    "sinh": (np.sinh, (-50, 50), 2),
    "sinpi": (lambda x: np.sin(np.pi * x), (-0.5, 0.5), 4),
    "tan": (np.tan, (-1.5, 1.5), 2),
    "tgamma": (special.gamma, (0.5, 20), 16),
    "y0": (special.y0, (1, 3), 16),
    "y1": (special.y1, (0.1, 2), 16),
}


def reference(f: Callable, elt: str, *xs: np.ndarray) -> np.ndarray:
    """In f64 for f32, and in extended precision for f64 as far as numpy has the function in it."""
    with np.errstate(all="ignore"):
        wide = np.longdouble if elt == "f64" and isinstance(f, np.ufunc) and "g->g" in f.types else np.float64
        return np.asarray(f(*(x.astype(wide) for x in xs)))


@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize(
    "name, elt", [(f, e) for f in POLYNOMIALS for e in ("f32", "f64")] + [(f, "f32") for f in OF_F32]
)
def test_polynomials(name: str, elt: str, n: int) -> None:
    """Within 1 or 2 ulps over the range of the type, as results become subnormal too; edges exactly."""
    f, span, ulps = {**POLYNOMIALS, **OF_F32}[name]
    usual = rng(name, elt).uniform(*span, 1 << 15).astype(NUMPY[elt])
    x = np.concatenate([floats(elt, 1 << 15, name), usual])
    check(function(name, elt, n)(x), reference(f, elt, x), ulps, x)


@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("elt", ["f32", "f64"])
@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions(name: str, elt: str, n: int) -> None:
    f, span, ulps = SPECIAL[name]
    x = rng(name, elt).uniform(*span, 512).astype(NUMPY[elt])
    check(function(name, elt, n)(x), reference(f, elt, x), ulps, x)


@pytest.mark.parametrize("name", ["exp", "log"])
def test_long_vectors(name: str) -> None:
    """The widest row, whose registers LLVM splits."""
    x = rng("long", name).uniform(0.1, 80, 64 * 8).astype(np.float32)
    check(function(name, "f32", 64)(x), reference(POLYNOMIALS[name][0], "f32", x), 1.05, x)


def test_huge_angles_beside_small_ones() -> None:
    """One lane beyond the range of the fast reduction must not spoil its neighbours."""
    x = np.float32([0.5, 1e20, -3.0, 3e38, INF, 1e-30, -(2.0**51), 2.0**50 - 2.0**26])
    for name, f in (("sin", math.sin), ("cos", math.cos)):
        want = np.array([f(v) if math.isfinite(v) else NAN for v in x.tolist()])
        check(function(name, "f32", 8)(x), want, 1.7, x)


@pytest.mark.parametrize("elt", ["f32", "f64"])
def test_ends_of_inverse_functions(elt: str) -> None:
    x = NUMPY[elt]([0.0, -0.0, 1.0, -1.0, NAN, 2.0, -1e-30, 1e-20])
    check(function("erfinv", elt, 8)(x), np.copysign(special.erfinv(x.astype(np.float64)), x), 2, x)
    q = NUMPY[elt]([0.0, 2.0, 1.0, NAN, 3.0, 1e-30, 1e-37, 0.5])
    check(function("erfcinv", elt, 8)(q), special.erfcinv(q.astype(np.float64)) + 0.0, 2, q)
    y = NUMPY[elt]([0.0, 1.0, -1.0, 2.5, -1.5, 1e30, INF, 0.25])
    check(function("sinpi", elt, 8)(y), np.array([0, 0, -0.0, 1, 1, 0, NAN, math.sqrt(0.5)]), 1, y)
    z = NUMPY[elt]([0.0, 0.5, -0.5, 1.5, -1.0, 1e30, INF, 0.25])
    check(function("cospi", elt, 8)(z), np.array([1, 0, 0, 0, -1, 1, NAN, math.sqrt(0.5)]), 1, z)


@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("elt", ["f32", "f64"])
def test_functions_of_two(elt: str, n: int) -> None:
    gen = rng("two", elt)
    x, y = (gen.uniform(0.1, 9, 128).astype(NUMPY[elt]) * gen.choice([-1, 1], 128).astype(NUMPY[elt]) for _ in range(2))
    x[:6], y[:6] = [0.0, 1.0, INF, NAN, -8.0, 0.0], [0.0, NAN, INF, 0.0, 3.0, -0.0]
    exact: dict[str, Callable] = {
        "fmod": np.fmod,
        "copysign": np.copysign,
        "fdim": lambda a, b: np.where(a <= b, 0, a - b),
    }
    exact |= {
        "remainder": lambda a, b: np.array([math.remainder(*p) if abs(p[0]) < INF and p[1] else NAN for p in zip(a, b)])
    }
    for name, f in exact.items():
        with np.errstate(invalid="ignore"):
            want = f(x, y)
        check(function(name, elt, n, 2)(x, y), want, 0, x, y)
    for name, f in {"atan2": np.arctan2, "hypot": np.hypot, "pow": np.power, "nextafter": None}.items():
        want = np.nextafter(x, y) if f is None else reference(f, elt, x, y)
        check(function(name, elt, n, 2)(x, y), want, 0 if f is None else 2, x, y)


@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("elt", ["f32", "f64"])
def test_rounding_to_whole_numbers(elt: str, n: int) -> None:
    x = np.concatenate([floats(elt, 256), np.arange(-16, 16) / 4, np.arange(-16, 16) + 0.5]).astype(NUMPY[elt])
    away = lambda v: np.where(np.abs(v) < 2.0**52, np.copysign(np.trunc(np.abs(v) + 0.5), v), v)  # noqa: E731
    known = {"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "rint": np.rint, "nearbyint": np.rint}
    for name, f in {**known, "round": away}.items():
        check(function(name, elt, n)(x), f(x.astype(np.float64)), 0, x)


# -- libdevice ---------------------------------------------------------------------------------------------------------
def test_every_symbol_of_libdevice() -> None:
    """All that Triton's module names, in the types that it names, compile, on scalars and vectors."""
    words = {"int32": "i32", "uint32": "i32", "int64": "i64", "uint64": "i64", "fp32": "f32", "fp64": "f64"}
    source = (Path(triton.__file__).parent / "language/extra/cuda/libdevice.py").read_text()
    found = re.findall(r'\(\s*((?:core\.dtype\("\w+"\),?\s*)+)\):\s*\("__nv_(\w+)",\s*core\.dtype\("(\w+)"\)', source)
    assert len(found) == len(set(re.findall(r"__nv_\w+", source))) > 300
    unknown = set()
    for n in (1, 16):
        L = Builder()
        for operands, symbol, result in found:
            sources = [words[w] for w in re.findall(r'"(\w+)"', operands)]
            args = [(f"%{elt}", elt) for elt in sources]
            if extern_call(L, f"__nv_{symbol}", args, words[result], n) is None:
                unknown.add(symbol)
        params = ", ".join(f"{vtype(elt, n)} %{elt}" for elt in ("i32", "i64", "f32", "f64"))
        head = [*sorted(L.declares), *L.globals, f"define void @all({params}) {{", "entry:", *L.allocas]
        llvm.parse_assembly("\n".join([*head, *L.lines, "  ret void", "}"])).verify()
    assert unknown == {f"cyl_bessel_i{order}{f}" for order in (0, 1) for f in ("", "f")}


DIRECTED: dict[str, tuple[int, Callable[..., Fraction]]] = {
    "add": (2, lambda a, b: a + b),
    "sub": (2, lambda a, b: a - b),
    "mul": (2, lambda a, b: a * b),
    "div": (2, lambda a, b: a / b),
    "rcp": (1, lambda a: 1 / a),
    "fma": (3, lambda a, b, c: a * b + c),
}


def directed_names(op: str, mode: str) -> list[tuple[str, str]]:
    if op == "fma":
        return [(f"fmaf_{mode}", "f32"), (f"fma_{mode}", "f64")]
    return [(f"f{op}_{mode}", "f32"), (f"d{op}_{mode}", "f64")]


def is_rounded(got: float, exact: Fraction, mode: str, elt: str) -> bool:
    """Is `got` the float that `mode` rounds `exact` to?"""
    up, down = (Fraction(float(np.nextafter(NUMPY[elt](got), NUMPY[elt](to)))) for to in (INF, -INF))
    value = Fraction(got)
    if mode == "rn":
        return abs(value - exact) <= min(abs(up - exact), abs(down - exact))
    lower = mode == "rd" or (mode == "rz" and exact > 0)
    return value <= exact < up if lower else down < exact <= value


@pytest.mark.parametrize("mode", ["rn", "rz", "rd", "ru"])
@pytest.mark.parametrize("op", DIRECTED)
def test_directed_rounding(op: str, mode: str) -> None:
    operands, f = DIRECTED[op]
    for symbol, elt in directed_names(op, mode):
        gen = rng(op, mode, elt)
        xs = [
            (gen.standard_normal(256) * 2.0 ** gen.integers(-30, 30, 256)).astype(NUMPY[elt]) for _ in range(operands)
        ]
        xs[-1][:64] = -xs[0][:64] * NUMPY[elt](1 + 1e-6)  # cancellation
        got = libdevice(symbol, [elt] * operands, elt, 8)(*xs)
        for g, *point in zip(got.tolist(), *(x.tolist() for x in xs), strict=True):
            assert is_rounded(g, f(*map(Fraction, point)), mode, elt), (symbol, point, g)


@pytest.mark.parametrize("elt, f", [("f32", "f"), ("f64", "d")])
def test_directed_overflow_and_infinities(elt: str, f: str) -> None:
    top = float(np.finfo(NUMPY[elt]).max)
    a, b = NUMPY[elt]([top, -top, INF, 1.0]), NUMPY[elt]([top, -top, 1.0, -1.0])
    want = {"rz": [top, -top, INF, 0], "rd": [top, -INF, INF, 0], "ru": [INF, -top, INF, 0], "rn": [INF, -INF, INF, 0]}
    for mode, sums in want.items():
        assert libdevice(f"{f}add_{mode}", [elt] * 2, elt, 4)(a, b).tolist() == sums
        assert libdevice(f"{f}mul_{mode}", [elt] * 2, elt, 4)(a, np.abs(b)).tolist() == [*sums[:3], 1.0]


@pytest.mark.parametrize("mode", ["rn", "rz", "rd", "ru"])
def test_directed_square_root(mode: str) -> None:
    for elt, f in (("f32", "f"), ("f64", "d")):
        x = rng("root", elt).uniform(1e-3, 1e3, 256).astype(NUMPY[elt])
        for g, v in zip(libdevice(f"{f}sqrt_{mode}", [elt], elt, 8)(x).tolist(), x.tolist(), strict=True):
            up, down = (Fraction(float(np.nextafter(NUMPY[elt](g), NUMPY[elt](to)))) for to in (INF, 0))
            low, high = (Fraction(g) ** 2, up**2) if mode in ("rz", "rd") else (down**2, Fraction(g) ** 2)
            if mode == "rn":
                low, high = ((Fraction(g) + down) / 2) ** 2, ((Fraction(g) + up) / 2) ** 2
            assert low <= Fraction(v) <= high, (elt, v, g)


@pytest.mark.parametrize("mode", ["rn", "rz", "rd", "ru"])
def test_directed_conversions(mode: str) -> None:
    gen = rng("conversions", mode)
    x = gen.standard_normal(256) * 10.0 ** gen.integers(-44, 30, 256)
    for g, v in zip(libdevice(f"double2float_{mode}", ["f64"], "f32", 8)(x).tolist(), x.tolist(), strict=True):
        assert is_rounded(g, Fraction(v), mode, "f32"), (v, g)
    for bits, word in ((32, "int"), (64, "ll")):
        for u in ("", "u"):
            kind = np.dtype(f"{u}int{bits}")
            i = gen.integers(np.iinfo(kind).min, np.iinfo(kind).max, 256, kind, endpoint=True) >> kind.type(2)
            for elt, c in (("f32", "float"), ("f64", "double")):
                got = libdevice(f"{u}{word}2{c}_{mode}", [f"i{bits}"], elt, 8)(i)
                assert all(is_rounded(g, Fraction(v), mode, elt) for g, v in zip(got.tolist(), i.tolist(), strict=True))
                whole = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}[mode]
                y = (gen.uniform(-1, 1, 64) * 10.0 ** gen.integers(0, 25, 64)).astype(NUMPY[elt])
                back = libdevice(f"{c}2{u}{word}_{mode}", [elt], f"i{bits}", 8)(y).view(kind)
                top, bottom = int(np.iinfo(kind).max), int(np.iinfo(kind).min)
                assert back.tolist() == [min(max(int(w), bottom), top) for w in whole(y).tolist()]


def integer_functions(bits: int) -> dict[str, tuple[int, Callable[..., int]]]:
    """symbol: number of operands, what it computes on signed numbers of that width (modulo its width)."""
    ending, mask = ("", "ll")[bits == 64], (1 << bits) - 1
    both = {
        f"clz{ending}": (1, lambda a: bits - (a & mask).bit_length()),
        f"popc{ending}": (1, lambda a: (a & mask).bit_count()),
        f"ffs{ending}": (1, lambda a: (a & -a).bit_length()),
        f"brev{ending}": (1, lambda a: int(f"{a & mask:0{bits}b}"[::-1], 2)),
        "llabs" if ending else "abs": (1, abs),
        "mul64hi" if ending else "mulhi": (2, lambda a, b: a * b >> bits),
        "umul64hi" if ending else "umulhi": (2, lambda a, b: (a & mask) * (b & mask) >> bits),
    }
    if bits == 64:
        return both

    def low(a: int) -> int:
        return ((a & 0xFFFFFF) ^ 0x800000) - 0x800000

    def pick(a: int, b: int, selector: int) -> int:
        source = (b & mask) << 32 | a & mask
        return sum((source >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i for i in range(4))

    return both | {
        "mul24": (2, lambda a, b: low(a) * low(b)),
        "umul24": (2, lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF)),
        "hadd": (2, lambda a, b: (a + b) >> 1),
        "rhadd": (2, lambda a, b: (a + b + 1) >> 1),
        "uhadd": (2, lambda a, b: ((a & mask) + (b & mask)) >> 1),
        "urhadd": (2, lambda a, b: ((a & mask) + (b & mask) + 1) >> 1),
        "sad": (3, lambda a, b, c: abs(a - b) + c),
        "usad": (3, lambda a, b, c: abs((a & mask) - (b & mask)) + c),
        "byte_perm": (3, pick),
    }


@pytest.mark.parametrize("bits", [32, 64])
def test_integers_of_libdevice(bits: int) -> None:
    gen, elt = rng("integers", bits), f"i{bits}"
    least = -(2 ** (bits - 1))
    xs = [gen.integers(least, -least - 1, 64, np.int64, endpoint=True).astype(NUMPY[elt]) for _ in range(3)]
    xs[0][:4] = [0, 1, -1, least]
    for symbol, (arity, f) in integer_functions(bits).items():
        result = "i32" if symbol[:3] in ("clz", "pop", "ffs") else elt
        got = libdevice(symbol, [elt] * arity, result, 16)(*xs[:arity])
        want = [f(*point) for point in zip(*(x.tolist() for x in xs[:arity]), strict=True)]
        mask = (1 << int(result[1:])) - 1
        assert [g & mask for g in got.tolist()] == [w & mask for w in want], symbol


def test_bits_and_predicates_of_libdevice() -> None:
    x = np.float64([0.0, -0.0, 1.5, -INF, INF, NAN, -3e-310, 1e30])
    for symbol, want in {
        "isnand": np.isnan(x),
        "isinfd": np.isinf(x),
        "isfinited": np.isfinite(x),
        "signbitd": np.signbit(x),
        "double2hiint": (x.view(np.int64) >> 32).astype(np.int32),
        "double2loint": x.view(np.int64).astype(np.int32),
    }.items():
        got = libdevice(symbol, ["f64"], "i32", 8)(x)
        assert got.tolist() == want.astype(np.int32).tolist(), symbol
    high, low = (x.view(np.int64) >> 32).astype(np.int32), x.view(np.int64).astype(np.int32)
    assert libdevice("hiloint2double", ["i32", "i32"], "f64", 8)(high, low).tobytes() == x.tobytes()
    f = x.astype(np.float32)
    assert libdevice("float_as_int", ["f32"], "i32", 8)(f).tobytes() == f.tobytes()
    assert libdevice("saturatef", ["f32"], "f32", 8)(f).tolist() == [0, 0, 1, 0, 1, 0, 0, 1]
    y = np.float64([0.5, 1.5, -2.5, 2.0**62, 8.0, -0.75, 1e3, 3.3])
    assert libdevice("llrint", ["f64"], "i64", 8)(y).tolist() == np.rint(y).astype(np.int64).tolist()
    assert libdevice("llround", ["f64"], "i64", 8)(y).tolist() == [1, 2, -3, 2**62, 8, -1, 1000, 3]
    assert libdevice("ilogb", ["f64"], "i32", 8)(y).tolist() == [math.frexp(v)[1] - 1 for v in y.tolist()]
    k = np.int32([0, 1, -2, -61, 3, 10, 7, 2])
    assert libdevice("ldexp", ["f64", "i32"], "f64", 8)(y, k).tolist() == np.ldexp(y, k).tolist()
    check(libdevice("powi", ["f64", "i32"], "f64", 8)(y, k), y.astype(np.longdouble) ** k, 1, y)
    norm = libdevice("norm4df", ["f32"] * 4, "f32", 8)(*(y.astype(np.float32) for _ in range(4)))
    check(norm, 2 * np.abs(y.astype(np.float32).astype(np.float64)), 0, y)
