"""Functions and conversions of the CPU backend, compiled alone: accuracy, edges, rounding, narrow types."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
import scipy.special as special
import torch
import triton

from braidwork.kernels.cpu.convert import convert
from braidwork.kernels.cpu.emit import Builder, storage, vtype
from braidwork.kernels.cpu.mathlib import extern_call, math_call

from .harness import rng

NUMPY = {"f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64, "i1": np.bool_}
NUMPY |= {f"i{bits}": np.dtype(f"int{bits}").type for bits in (8, 16, 32, 64)}
FP8 = {
    "f8E5M2": torch.float8_e5m2,
    "f8E4M3FN": torch.float8_e4m3fn,
    "f8E5M2FNUZ": torch.float8_e5m2fnuz,
    "f8E4M3FNUZ": torch.float8_e4m3fnuz,
}
INF, NAN = math.inf, math.nan
# On scalars; on a vector that is written out lane by lane where a C function is called; on one that is looped over
WIDTHS = [1, 4, 32]

Body = Callable[[Builder, list[str]], str]


def native(body: Body, sources: list[str], result: str, n: int) -> Callable[..., np.ndarray]:
    """`body`, compiled for `n` lanes, as a function of numpy arrays whose length is a multiple of n."""
    L = Builder()

    def block(i: str) -> None:
        texts = []
        for k, elt in enumerate(sources):
            at = L.emit(f"getelementptr {vtype(elt, n)}, ptr %in{k}, i64 {i}")
            texts.append(L.emit(f"load {vtype(elt, n)}, ptr {at}, align 1"))
        out = body(L, texts)
        at = L.emit(f"getelementptr {vtype(result, n)}, ptr %out, i64 {i}")
        L.do(f"store {vtype(result, n)} {out}, ptr {at}, align 1")

    L.loop("%count", block)
    params = ", ".join([*(f"ptr %in{k}" for k in range(len(sources))), "ptr %out", "i64 %count"])
    lines = [*sorted(L.declares), *L.globals, f"define void @run({params}) {{", "entry:", *L.allocas, *L.lines]
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly("\n".join([*lines, "  ret void", "}"]))
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(sources) + 1), ctypes.c_int64)(
        engine.get_function_address("run")
    )

    def call(*arrays: np.ndarray, engine: llvm.ExecutionEngine = engine) -> np.ndarray:
        arrays = tuple(np.ascontiguousarray(a) for a in arrays)
        count = arrays[0].size
        assert count % n == 0, "whole vectors only"
        out = np.zeros(count, NUMPY.get(result, np.uint8))
        run(*(a.ctypes.data for a in arrays), out.ctypes.data, count // n)
        return out

    return call


def function(name: str, elt: str, n: int, operands: int = 1) -> Callable[..., np.ndarray]:
    return native(lambda L, xs: math_call(L, name, xs, elt, n), [elt] * operands, elt, n)


def libdevice(symbol: str, sources: list[str], result: str, n: int) -> Callable[..., np.ndarray]:
    def body(L: Builder, xs: list[str]) -> str:
        text = extern_call(L, f"__nv_{symbol}", list(zip(xs, sources, strict=True)), result, n)
        assert text is not None, f"{symbol} is unknown"
        return text

    return native(body, sources, result, n)


def conversion(src: str, dst: str, n: int, rounding: str | None = None, signed: bool = True) -> Callable:
    return native(lambda L, xs: convert(L, xs[0], src, dst, n, rounding, signed), [src], dst, n)


def bad(got: np.ndarray, want: np.ndarray, ulps: float = 0) -> np.ndarray:
    """Where `got` is further from `want` (of a wider type) than allowed, or has the wrong sign of zero; NaN is NaN."""
    with np.errstate(all="ignore"):
        near = want.astype(got.dtype)
        unit = np.spacing(np.maximum(np.abs(near), np.finfo(got.dtype).tiny))
        close = np.abs(got.astype(want.dtype) - want) <= ulps * unit
        same = (got == near) & ((got != 0) | (np.signbit(got) == np.signbit(near)))
        return np.flatnonzero(~(same | (np.isnan(got) & np.isnan(near)) | (close & np.isfinite(near) & (near != 0))))


def check(got: np.ndarray, want: np.ndarray, ulps: float, *inputs: np.ndarray) -> None:
    where = bad(got, want, ulps)
    shown = [(*(x[i] for x in inputs), got[i], want[i]) for i in where[:4]]
    assert where.size == 0, f"{where.size} of {got.size} wrong: (inputs..., got, expected) = {shown}"


def floats(elt: str, count: int, *seed: object) -> np.ndarray:
    """Bit patterns: all magnitudes, signs, subnormals, infinities and NaNs."""
    gen, bits = rng("floats", elt, *seed), 32 if elt == "f32" else 64
    x = gen.integers(0, 2**bits, count, dtype=np.uint64, endpoint=False) if bits == 32 else gen.bytes(8 * count)
    patterns = x.astype(np.uint32) if bits == 32 else np.frombuffer(x, np.uint64).copy()
    tiny = float(np.finfo(NUMPY[elt]).tiny)
    odd = [0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, tiny, tiny / 4, -tiny / 8, 2.0, 0.5, 128.0, -126.0, -149.0, 1024.0]
    out = patterns.view(NUMPY[elt])
    out[: len(odd)] = odd
    return out


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


# -- conversions -------------------------------------------------------------------------------------------------------
def as_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def around(codes: np.ndarray) -> np.ndarray:
    """The finite values, all points half way between two of them, and the floats next to those."""
    exact = np.unique(codes[np.isfinite(codes)]).astype(np.float32)
    middle = (exact[1:] + exact[:-1]) / 2
    towards = [np.nextafter(middle, np.float32(to)) for to in (INF, -INF)]
    return np.concatenate([exact, middle, *towards, [-0.0]]).astype(np.float32)


def singles(*codes: np.ndarray) -> np.ndarray:
    """f32 of all kinds, in a number that vectors divide."""
    big = np.float32([65519, 65520, -65520, 3.39e38, -3.4e38, 448, 464, 465, 57344, 61440, 1e30, -1e30])
    x = np.concatenate([floats("f32", 1 << 16), big, *(around(c) for c in codes)])
    return np.resize(x, -(-x.size // 32) * 32)


def value(codes: np.ndarray, fmt: str) -> np.ndarray:
    return torch.from_numpy(codes.copy()).view(FP8[fmt]).float().numpy()


HALVES = np.arange(1 << 16, dtype=np.uint16)
BYTES = np.arange(256, dtype=np.uint8)


@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("fmt", FP8)
def test_fp8(fmt: str, n: int) -> None:
    """Every code, and every rounding, saturated as on NVIDIA: e5m2 alone keeps infinities."""
    codes = value(BYTES, fmt)
    check(conversion(fmt, "f32", n)(BYTES), codes, 0, BYTES)
    x, dtype, top = singles(codes), FP8[fmt], torch.finfo(FP8[fmt]).max
    t = torch.from_numpy(x)
    want = torch.where(t.isnan() | (t.isinf() & (fmt == "f8E5M2")), t, t.clamp(-top, top)).to(dtype).float().numpy()
    check(value(conversion("f32", fmt, n)(x), fmt), want, 0, x)
    steps = np.unique(np.abs(codes[np.isfinite(codes)]))
    down = steps[np.searchsorted(steps, np.nan_to_num(np.abs(x), nan=0.0), side="right") - 1]
    down = np.where(np.isnan(x) | (np.isinf(x) & (fmt == "f8E5M2")), x, np.copysign(down, x))
    down = np.where(down == 0, 0.0, down) if "FNUZ" in fmt else down
    check(value(conversion("f32", fmt, n, "rtz")(x), fmt), down.astype(np.float32), 0, x)
    for src, given in (("f16", HALVES.view(np.float16)), ("bf16", HALVES)):
        wide = given.astype(np.float32) if src == "f16" else as_bf16(given)
        assert conversion(src, fmt, n)(given).tobytes() == conversion("f32", fmt, n)(wide).tobytes()


def test_fp8_without_nan() -> None:
    """Triton's e4m3 of bias 15: 256 numbers of which the largest is 1.875."""
    magnitude = [m / 8 * 2.0**-14 if e == 0 else (1 + m / 8) * 2.0 ** (e - 15) for e in range(16) for m in range(8)]
    codes = np.float32([s * v for s in (1.0, -1.0) for v in magnitude])
    check(conversion("f8E4M3B11FNUZ", "f32", 32)(BYTES), codes, 0, BYTES)
    assert conversion("f32", "f8E4M3B11FNUZ", 32)(codes).tolist() == BYTES.tolist()
    edges = np.float32([1.9, INF, -INF, NAN])
    assert [c & 0x7F for c in conversion("f32", "f8E4M3B11FNUZ", 4)(edges).tolist()] == [0x7F] * 4


@pytest.mark.parametrize("n", WIDTHS)
def test_f16_and_bf16(n: int) -> None:
    """All codes into wider types and each other; f32 by both roundings; f64 rounded once."""
    f16, bf16 = HALVES.view(np.float16), as_bf16(HALVES)
    with np.errstate(all="ignore"):
        for dst in ("f32", "f64"):
            check(conversion("f16", dst, n)(f16), f16.astype(NUMPY[dst]), 0, f16)
            check(conversion("bf16", dst, n)(HALVES), bf16.astype(NUMPY[dst]), 0, HALVES)
        check(conversion("bf16", "f16", n)(HALVES), bf16.astype(np.float16), 0, HALVES)
        x = singles(f16.astype(np.float32))
        check(conversion("f32", "f16", n)(x), x.astype(np.float16), 0, x)
        near = x.astype(np.float16)
        zero = np.where(np.abs(near) > np.abs(x), np.nextafter(near, np.float16(0)), near)
        check(conversion("f32", "f16", n, "rtz")(x), zero, 0, x)
        for y in (x, f16.astype(np.float32)):
            want = torch.from_numpy(y).bfloat16().float().numpy()
            check(as_bf16(conversion("f32", "bf16", n)(y)), want, 0, y)
        cut = np.where(np.isnan(x), x, (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32))
        check(as_bf16(conversion("f32", "bf16", n, "rtz")(x)), cut, 0, x)
        d = np.concatenate([x.astype(np.float64) * k for k in (1.0, 1 + 2.0**-40, 1 - 2.0**-50)])
        check(conversion("f64", "f16", n)(d), d.astype(np.float16), 0, d)
        check(conversion("f64", "f32", n)(d), d.astype(np.float32), 0, d)


def test_f64_to_bf16_rounds_once() -> None:
    """Just above half way: through a nearest f32 it would become the tie and go down to even."""
    x = np.float64([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8 - 2.0**-40, 1 + 2.0**-8, 1 + 3 * 2.0**-8 - 2.0**-40])
    want = [1 + 2.0**-7, 1.0, 1.0, 1 + 2.0**-7]
    assert as_bf16(conversion("f64", "bf16", 4)(x)).tolist() == want


@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_integers(bits: int, n: int) -> None:
    """Both signs, both ways; a float beyond the type gives the low bits of the wider result, as C does on x86."""
    gen, elt = rng("integers", bits), f"i{bits}"
    for signed, kind in ((True, np.dtype(f"int{bits}")), (False, np.dtype(f"uint{bits}"))):
        info = np.iinfo(kind)
        i = gen.integers(info.min, info.max, 64, kind, endpoint=True)
        i[:4] = [info.min, info.max, 0, 1]
        for src in ("f32", "f64", "f16", "bf16"):
            got, want = conversion(elt, src, n, signed=signed)(i), torch.from_numpy(i.astype(np.float64))
            if src in ("f32", "f64"):
                check(got, i.astype(NUMPY[src]), 0, i)
            elif bits <= 16:
                codes = want.to(torch.float16 if src == "f16" else torch.bfloat16).float().numpy()
                check(got.astype(np.float32) if src == "f16" else as_bf16(got), codes, 0, i)
            if src in ("f32", "f64"):
                x = np.trunc(np.linspace(float(info.min), float(info.max), 64) * (1 - 2.0**-20)).astype(NUMPY[src])
                x[:4] = [0.999, 0.0, -0.0, 1.5]
                assert conversion(src, elt, n, signed=signed)(x).view(kind).tolist() == [int(v) for v in x.tolist()]
    if bits == 8 and n != 1:
        assert conversion("f32", "i8", 4)(np.float32([300, -1, -129, 255.9])).tolist() == [44, -1, 127, -1]


@pytest.mark.parametrize("dst", ["i8", "i32", "i64"])
def test_out_of_range_is_harmless(dst: str) -> None:
    """Neither a trap nor, for constants, a value that spoils what is computed from it."""
    x = np.float32([NAN, INF, -INF, 3e38])
    assert conversion("f32", dst, 4)(x).tolist() == ([0] * 4 if dst == "i8" else [np.iinfo(NUMPY[dst]).min] * 4)

    def doubtful(L: Builder, xs: list[str]) -> str:
        i = convert(L, "0x7FF8000000000000", "f32", "i32", 1)
        return L.emit(f"mul i32 {L.emit(f'and i32 {i}, 0')}, {xs[0]}")

    assert native(doubtful, ["i32"], "i32", 1)(np.int32([7])).tolist() == [0]


def test_no_conversion_no_instruction() -> None:
    L = Builder()
    assert convert(L, "%x", "bf16", "bf16", 8) == "%x" and storage("bf16") == "i16"
    assert not L.lines
