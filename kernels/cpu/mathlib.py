"""The functions that kernels can name: those of `tl.math`, and CUDA's libdevice with its roundings and integers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from .emit import Builder
from .functions import (
    INF,
    Function,
    circular_pi,
    cos,
    erf,
    erfcinv,
    erfcx,
    erfinv,
    exp,
    exp2,
    fdim,
    hypot,
    in_f64,
    intrinsic,
    libm,
    log,
    log2,
    log10,
    reciprocal,
    saturate,
    sin,
    tanh,
)
from .lanes import Lanes
from .values import mangle, size_of, vtype


def math_call(L: Builder, name: str, args: list[str], elt: str, n: int) -> str:
    """`name` (C's, without suffix) of `n` lanes of f32 or f64.

    Raises:
        KeyError: no such function.
    """
    return FUNCTIONS[name](*(Lanes(L, a, elt, n) for a in args)).text


def extern_call(L: Builder, symbol: str, args: list[tuple[str, str]], result_elt: str, n: int) -> str | None:
    """Call of a libdevice function on (text, element type) pairs of `n` lanes; None: the symbol is unknown."""
    function = NV.get(symbol.removeprefix("__nv_"))
    if function is None:
        return None
    out = function(*(Lanes(L, text, elt, n) for text, elt in args))
    return out.text if out.elt == result_elt else out.resize(result_elt).text


# -- directed rounding: the nearest float and the sign of its error say which neighbour it is --------------------------
def two_sum(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """a + b rounded, and the error of that, exactly."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def step(y: Lanes, error: Lanes, mode: str) -> Lanes:
    """y + error, rounded, given that `y` is the nearest float: "rn" nearest, "rz" to zero, "rd" down, "ru" up."""
    if mode == "rn":
        return y
    bits = y.bits()
    negative = bits < 0
    if mode == "rz":
        moves, out = negative.where(error > 0.0, error < 0.0), bits - 1
    else:
        moves = error < 0.0 if mode == "rd" else error > 0.0
        out = negative.where(bits + 1, bits - 1) if mode == "rd" else negative.where(bits - 1, bits + 1)
    return moves.where(out, bits).cast("bitcast", y.elt)


def overflowed(y: Lanes, error: Lanes, *xs: Lanes) -> Lanes:
    """The error, and -y where finite `xs` have become an infinite `y`."""
    return y.abs().eq(INF).where(functools.reduce(lambda a, b: a + b, (x * 0.0 for x in xs)) - y, error)


def add(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    y, error = two_sum(a, b)
    return y, overflowed(y, error, a, b)


def mul(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    return a * b, a.fma(b, -(a * b))


def div(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    rest = (-(a / b)).fma(b, a)
    return a / b, (b < 0.0).where(-rest, rest)


def root(x: Lanes) -> tuple[Lanes, Lanes]:
    y = x.fn("sqrt")
    return y, (-y).fma(y, x)


def fma(a: Lanes, b: Lanes, c: Lanes) -> tuple[Lanes, Lanes]:
    y, (p, p_error) = a.fma(b, c), mul(a, b)
    s, s_error = two_sum(c, p)
    high, low = two_sum(s - y, s_error)
    return y, overflowed(y, high + (low + p_error), a, b, c)


def narrow(x: Lanes) -> tuple[Lanes, Lanes]:
    y = x.cast("fptrunc", "f32")
    return y, x - y.cast("fpext", "f64")


def rounded(function: Callable[..., tuple[Lanes, Lanes]], mode: str) -> Function:
    return lambda *xs: step(*function(*xs), mode)


def to_float(elt: str, signed: bool, mode: str) -> Function:
    """Integers of 32 or 64 bits to a float."""
    opcode = "sitofp" if signed else "uitofp"

    def call(x: Lanes) -> Lanes:
        wide = x.resize("i64", signed)
        y = wide.cast(opcode, elt)
        upper = wide.op("ashr" if signed else "lshr", 32).cast(opcode, "f64")
        high, low = two_sum(upper * 2.0**32, (wide & 0xFFFFFFFF).cast("sitofp", "f64"))
        return step(y, (high - y.cast("fpext", "f64")) + low, mode)

    return call


ROUNDED = {"rn": "roundeven", "rz": "trunc", "rd": "floor", "ru": "ceil"}


def to_integer(elt: str, signed: bool, rounding: str) -> Function:
    """Floats to integers by an intrinsic that makes them whole; out of range gives the nearest integer, NaN 0."""

    def call(x: Lanes) -> Lanes:
        name = f"llvm.fpto{'s' if signed else 'u'}i.sat.{mangle(elt, x.n)}.{mangle(x.elt, x.n)}"
        return x.like(x.L.call(vtype(elt, x.n), name, f"{x.type} {x.fn(rounding).text}"), elt)

    return call


# -- integers ----------------------------------------------------------------------------------------------------------
def count(name: str) -> Function:
    """Leading or trailing zeros; of 0, the number of bits."""

    def call(x: Lanes) -> Lanes:
        return x.like(x.L.call(x.type, f"llvm.{name}.{mangle(x.elt, x.n)}", f"{x.type} {x.text}, i1 false"))

    return call


def high_product(wide: str, signed: bool) -> Function:
    def call(x: Lanes, y: Lanes) -> Lanes:
        product = x.resize(wide, signed) * y.resize(wide, signed)
        return product.op("lshr", 8 * size_of(x.elt)).resize(x.elt)

    return call


def average(signed: bool, up: int) -> Function:
    return lambda x, y: ((x.resize("i64", signed) + y.resize("i64", signed) + up) >> 1).resize("i32")


def byte_perm(x: Lanes, y: Lanes, selector: Lanes) -> Lanes:
    """Byte i of the result: the byte of y:x that the low three bits of nibble i of `selector` name."""
    both, s = x.resize("i64") | (y.resize("i64") << 32), selector.resize("i64")
    picked = [(both.op("lshr", (s.op("lshr", 4 * i) & 7) << 3) & 0xFF) << (8 * i) for i in range(4)]
    return functools.reduce(lambda a, b: a | b, picked).resize("i32")


def signed_24(x: Lanes) -> Lanes:
    return (x << 8) >> 8


def cast(opcode: str, elt: str) -> Function:
    return lambda x: x.cast(opcode, elt)


C_NAMES = """acos acosh asin asinh atan atan2 atanh cbrt cosh erfc exp10 expm1 fmod j0 j1 jn ldexp lgamma log1p logb
nextafter pow remainder scalbn sinh tan tgamma y0 y1 yn""".split()
LLVM_NAMES = "ceil copysign fabs floor fma round sqrt trunc".split()
FUNCTIONS: dict[str, Function] = {
    **{name: libm(name) for name in C_NAMES},
    **{name: intrinsic(name) for name in LLVM_NAMES},
    **{name: intrinsic("roundeven") for name in ("rint", "nearbyint")},
    "cos": cos,
    "cospi": in_f64(circular_pi(1)),
    "erf": erf,
    "erfcinv": in_f64(erfcinv),
    "erfcx": in_f64(erfcx),
    "erfinv": in_f64(erfinv),
    "exp": exp,
    "exp2": exp2,
    "fdim": fdim,
    "hypot": in_f64(hypot),
    "log": log,
    "log10": log10,
    "log2": log2,
    "normcdf": in_f64(lambda x: libm("erfc")(x * -math.sqrt(0.5)) * 0.5),
    "normcdfinv": in_f64(lambda p: erfcinv(p * 2.0) * -math.sqrt(2.0)),
    "rcbrt": in_f64(reciprocal(libm("cbrt"))),
    "rsqrt": reciprocal(intrinsic("sqrt")),
    "saturate": saturate,
    "sin": sin,
    "sinpi": in_f64(circular_pi(0)),
    "tanh": tanh,
}

# libdevice's names: functions of f32 end in f, others stand for themselves. Absent: the modified Bessel functions.
NV: dict[str, Function] = {
    **{name + suffix: f for name, f in FUNCTIONS.items() for suffix in ("", "f")},
    **{f"fast_{name}f": FUNCTIONS[name] for name in "sin cos log2 log exp tan exp10 log10 pow".split()},
    **{f"norm{d}d{f}": in_f64(hypot) for d in (3, 4) for f in ("", "f")},
    **{f"r{name}{f}": in_f64(reciprocal(hypot)) for name in ("hypot", "norm3d", "norm4d") for f in ("", "f")},
    **{f"powi{f}": in_f64(lambda x, k: libm("pow")(x, k.cast("sitofp", "f64"))) for f in ("", "f")},
    **{f"ilogb{f}": libm("ilogb", "i32") for f in ("", "f")},
    **{f"llrint{f}": to_integer("i64", True, "roundeven") for f in ("", "f")},
    **{f"llround{f}": to_integer("i64", True, "round") for f in ("", "f")},
    **{f"isnan{f}": Lanes.isnan for f in "fd"},
    **{f"isinf{f}": lambda x: x.abs().eq(INF) for f in "fd"},
    **{name: lambda x: x.abs() < INF for name in ("finitef", "isfinited")},
    **{f"signbit{f}": lambda x: x.bits() < 0 for f in "fd"},
    "fast_fdividef": Lanes.__truediv__,
    "frsqrt_rn": in_f64(reciprocal(intrinsic("sqrt"))),
    "rcp64h": lambda x: ((1.0 / x).bits() & -(2**32)).cast("bitcast", "f64"),
    **{f"{u}int_as_float": cast("bitcast", "f32") for u in ("", "u")},
    **{f"float_as_{u}int": cast("bitcast", "i32") for u in ("", "u")},
    "longlong_as_double": cast("bitcast", "f64"),
    "double_as_longlong": cast("bitcast", "i64"),
    "hiloint2double": lambda high, low: ((high.resize("i64") << 32) | low.resize("i64")).cast("bitcast", "f64"),
    "double2hiint": lambda x: x.bits().op("lshr", 32),
    "double2loint": lambda x: x.bits(),
    "clz": count("ctlz"),
    "clzll": count("ctlz"),
    **{name: lambda x: x.eq(0).where(0, count("cttz")(x) + 1) for name in ("ffs", "ffsll")},
    **{name: intrinsic("ctpop") for name in ("popc", "popcll")},
    **{name: intrinsic("bitreverse") for name in ("brev", "brevll")},
    **{name: lambda x: x.fn("smax", -x) for name in ("abs", "llabs")},
    "byte_perm": byte_perm,
    "mulhi": high_product("i64", True),
    "umulhi": high_product("i64", False),
    "mul64hi": high_product("i128", True),
    "umul64hi": high_product("i128", False),
    "mul24": lambda x, y: signed_24(x) * signed_24(y),
    "umul24": lambda x, y: (x & 0xFFFFFF) * (y & 0xFFFFFF),
    "sad": lambda x, y, z: x.fn("smax", y) - x.fn("smin", y) + z,
    "usad": lambda x, y, z: x.fn("umax", y) - x.fn("umin", y) + z,
    "hadd": average(True, 0),
    "uhadd": average(False, 0),
    "rhadd": average(True, 1),
    "urhadd": average(False, 1),
}
for mode, whole in ROUNDED.items():
    for f in "fd":
        NV[f"{f}add_{mode}"] = rounded(add, mode)
        NV[f"{f}sub_{mode}"] = rounded(lambda a, b: add(a, -b), mode)
        NV[f"{f}mul_{mode}"] = rounded(mul, mode)
        NV[f"{f}div_{mode}"] = rounded(div, mode)
        NV[f"{f}rcp_{mode}"] = rounded(lambda x: div(x.const(1.0), x), mode)
        NV[f"{f}sqrt_{mode}"] = rounded(root, mode)
        NV[f"fma{f}_{mode}".replace("fmad", "fma")] = rounded(fma, mode)
    NV[f"double2float_{mode}"] = rounded(narrow, mode)
    for integer, bits in (("int", "i32"), ("ll", "i64")):
        for u in ("", "u"):
            for source in ("float", "double"):
                NV[f"{source}2{u}{integer}_{mode}"] = to_integer(bits, not u, whole)
                NV[f"{u}{integer}2{source}_{mode}"] = to_float("f32" if source == "float" else "f64", not u, mode)
