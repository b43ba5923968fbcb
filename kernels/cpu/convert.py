"""Conversions between element types.

Floats round to nearest even unless "rtz" is asked for, and round once: f64 reaches f16, bf16 and fp8 through an f32
that is rounded to odd. fp8 saturates to its largest finite value; only f8E5M2 keeps infinities, and a NaN becomes the
NaN of the format.
"""

from __future__ import annotations

from typing import NamedTuple

from .emit import Builder
from .lanes import Lanes
from .values import is_float


class Format(NamedTuple):
    """A fp8 format: bits of mantissa, bias of the exponent, codes of the largest finite value and of NaN (without the
    sign); is there an infinity (the code after `top`), is there a negative zero?
    """

    mantissa: int
    bias: int
    top: int
    nan: int
    infinite: bool = False
    signed_zero: bool = True


# In the FNUZ formats the code of the negative zero is the NaN. Triton's fp8e4b15, which its IR spells f8E4M3B11FNUZ,
# has the bias 15 and neither NaN nor infinity: every code is a number, and NaN saturates.
FP8 = {
    "f8E5M2": Format(2, 15, 0x7B, 0x7F, infinite=True),
    "f8E4M3FN": Format(3, 7, 0x7E, 0x7F),
    "f8E4M3FNUZ": Format(3, 8, 0x7F, 0x80, signed_zero=False),
    "f8E5M2FNUZ": Format(2, 16, 0x7F, 0x80, signed_zero=False),
    "f8E4M3B11FNUZ": Format(3, 15, 0x7F, 0x7F),
}


def convert(L: Builder, v: str, src: str, dst: str, n: int, rounding: str | None = None, signed: bool = True) -> str:
    """`v`, `n` lanes of `src`, as `dst`; one of the two is a float.

    Args:
        rounding: "rtne" (default) or "rtz", for floats that become narrower.
        signed: how to read the integer type.
    A float that its integer type cannot hold gives the bits that x86 gives in C: no trap, no poison.
    """
    if src == dst:
        return v
    x = Lanes(L, v, src, n)
    if not is_float(src):
        return from_f32(x.cast("sitofp" if signed else "uitofp", "f64" if dst == "f64" else "f32"), dst).text
    if src != "f64":
        x = to_f32(x)
    if not is_float(dst):
        return to_int(x, dst, signed).text
    if dst == "f64":
        return x.cast("fpext", "f64").text
    toward_zero = rounding == "rtz"
    if x.elt == "f64":
        if dst == "f32":
            return (_toward_zero(x, "f32") if toward_zero else x.cast("fptrunc", "f32")).text
        x = _to_odd(x)
    return from_f32(x, dst, toward_zero).text


def to_f32(x: Lanes) -> Lanes:
    """Exactly the value of a narrower float."""
    if x.elt == "f32":
        return x
    if x.elt in FP8:
        return _decode(x.like(x.text, "i8"), FP8[x.elt])
    if x.elt == "bf16":
        return (x.like(x.text, "i16").resize("i32") << 16).cast("bitcast", "f32")
    return x.cast("bitcast", "half").cast("fpext", "f32")


def from_f32(x: Lanes, dst: str, toward_zero: bool = False) -> Lanes:
    """An f32 as a narrower float (f32 and f64 pass unchanged)."""
    if dst in ("f32", "f64"):
        return x
    if dst in FP8:
        return _encode(x, FP8[dst], toward_zero)
    if dst == "f16":
        return (_toward_zero(x, "half") if toward_zero else x.cast("fptrunc", "half")).cast("bitcast", "f16")
    b = x.bits()
    kept = b.op("lshr", 16)
    quiet = kept | 0x40
    if not toward_zero:
        kept = (b + ((kept & 1) + 0x7FFF)).op("lshr", 16)
    return x.isnan().where(quiet, kept).resize("i16")


def _toward_zero(x: Lanes, dst: str) -> Lanes:
    """A float as the next narrower one, truncated: overflow gives the largest finite value."""
    near = x.cast("fptrunc", dst)
    bits = near.bits()
    too_big = near.cast("fpext", x.elt).abs() > x.abs()
    return too_big.where(bits - 1, bits).cast("bitcast", dst)


def _to_odd(x: Lanes) -> Lanes:
    """f64 to f32, the last bit set when inexact: rounding once more, to at most 22 bits, is then rounding once."""
    low = _toward_zero(x, "f32")
    inexact = low.cast("fpext", "f64").cmp("one", x).resize("i32")
    return (low.bits() | inexact).cast("bitcast", "f32")


def _encode(x: Lanes, f: Format, toward_zero: bool) -> Lanes:
    """f32 to a code of fp8."""
    b = x.bits()
    a = b & 0x7FFFFFFF
    drop = 23 - f.mantissa
    rounded = a if toward_zero else a + ((a.op("lshr", drop) & 1) + ((1 << (drop - 1)) - 1))
    code = rounded.op("lshr", drop) - ((127 - f.bias) << f.mantissa)
    # Below the smallest normal number the codes count multiples of the smallest subnormal one.
    small = a < (128 - f.bias) << 23
    steps = small.where(x.abs(), 0.0) * 2.0 ** (f.bias - 1 + f.mantissa)
    steps = steps if toward_zero else steps.fn("roundeven")
    code = small.where(steps.cast("fptosi", "i32"), code).fn("umin", f.top)
    if f.infinite:
        code = a.eq(0x7F800000).where(f.top + 1, code)
    sign = b.op("lshr", 24) & 0x80
    if not f.signed_zero:
        sign = code.eq(0).where(0, sign)
    nan = f.nan if not f.signed_zero else sign | f.nan
    return x.isnan().where(nan, code | sign).resize("i8")


def _decode(x: Lanes, f: Format) -> Lanes:
    """A code of fp8 to f32."""
    c = x.resize("i32")
    a = c & 0x7F
    normal = ((a << (23 - f.mantissa)) + ((127 - f.bias) << 23)).cast("bitcast", "f32")
    tiny = a.cast("uitofp", "f32") * 2.0 ** (1 - f.bias - f.mantissa)
    value = (a < 1 << f.mantissa).where(tiny, normal)
    if f.infinite:
        value = a.eq(f.top + 1).where(float("inf"), value)
    value = (value.bits() | ((c & 0x80) << 24)).cast("bitcast", "f32")
    if not f.signed_zero:
        return c.eq(f.nan).where(float("nan"), value)
    if f.nan == f.top:
        return value
    return (a > f.top + f.infinite).where(float("nan"), value)


def to_int(x: Lanes, dst: str, signed: bool) -> Lanes:
    """Truncation. `freeze` because LLVM's conversion of a value out of range is poison."""
    wide = "i64" if dst == "i64" else "i32"
    half = 2.0 ** (63 if wide == "i64" else 31)
    upper = None
    if not signed and dst in ("i32", "i64"):  # shift the upper half of the range down and its bits up
        upper = x >= half
        x = upper.where(x - half, x)
    i = x.cast("fptosi", wide).op("freeze")
    if upper is not None:
        i = i ^ (upper.resize(wide) << (63 if wide == "i64" else 31))
    return i.resize(dst)
