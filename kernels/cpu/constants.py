"""Constants, as MLIR prints them."""

from __future__ import annotations

import re
import struct

import numpy as np

from .lower import Lowering, lowers
from .ttir import Op
from .values import Literal, Row, Tensor, float_text, is_float, size_of, storage, width, wrap


@lowers("arith.constant")
def _constant(L: Lowering, op: Op) -> Tensor:
    ty = op.types[0]
    body = re.sub(r"^dense<(.*)>$", r"\1", op.text.rsplit(" : ", 1)[0].strip())
    if body.startswith(("[", '"')):
        values = _dense(body, ty.elt)
        w = width(ty.shape)
        rows = [
            Row(w, ty.elt, vec="<" + ", ".join(f"{storage(ty.elt)} {v}" for v in values[i : i + w]) + ">")
            for i in range(0, len(values), w)
        ]
        return Tensor(ty.shape, ty.elt, rows, w)
    w = width(ty.shape)
    row = Row(w, ty.elt, base=_literal(body, ty.elt))
    return Tensor(ty.shape, ty.elt, [row] * (ty.numel // w), w)


def _dense(body: str, elt: str) -> list[Literal]:
    """The elements of a `dense` constant that is not a splat: a list, or the bytes in hexadecimal."""
    if body.startswith("["):
        return [_literal(t, elt) for t in re.findall(r"[^\[\],\s]+", body)]
    raw, size = bytes.fromhex(body.strip('"')[2:]), size_of(elt)
    bits = [int.from_bytes(raw[i : i + size], "little") for i in range(0, len(raw), size)]
    return [_from_bits(b, elt) for b in bits]


def _from_bits(bits: int, elt: str) -> Literal:
    if elt == "f64":
        return f"0x{bits:016X}"
    if elt == "f32":
        if bits & 0x7FFFFFFF > 0x7F800000:  # LLVM writes a NaN in 64 bits, with its payload
            return f"0x{(bits >> 31) << 63 | 0x7FF << 52 | (bits & 0x7FFFFF) << 29:016X}"
        return float_text(struct.unpack("<f", struct.pack("<I", bits))[0], "f32")
    return wrap(bits, elt)


def _literal(text: str, elt: str) -> Literal:
    if text in ("true", "false"):
        return int(text == "true")
    if not is_float(elt):
        return wrap(int(text, 0), elt)
    if text.startswith("0x"):
        return _from_bits(int(text, 16), elt)
    value = float(text)
    if elt in ("f32", "f64"):
        return float_text(value, elt)
    if elt == "f16":
        return wrap(int(np.float16(value).view(np.uint16)), elt)
    if elt == "bf16":
        bits = int(np.float32(value).view(np.uint32))
        return wrap((bits + 0x7FFF + (bits >> 16 & 1)) >> 16, elt)
    return wrap(_fp8_bits(value, elt), elt)


_FP8 = {  # exponent bits, mantissa bits, exponent bias
    "f8E5M2": (5, 2, 15), "f8E4M3FN": (4, 3, 7), "f8E5M2FNUZ": (5, 2, 16),
    "f8E4M3FNUZ": (4, 3, 8), "f8E4M3B11FNUZ": (4, 3, 11),
}  # fmt: skip


def _fp8_bits(value: float, elt: str) -> int:
    """Bits of a value that the fp8 format `elt` holds exactly (special values are printed as bits)."""
    _, mant, bias = _FP8[elt]
    sign, value = (128, -value) if np.signbit(value) else (0, value)
    if value == 0:
        return sign
    exp = max(int(np.floor(np.log2(value))) + bias, 1)
    scaled = int(value * 2.0 ** (mant - (exp - bias)))  # with the hidden bit if normal
    return sign | (((exp - 1) << mant) + scaled)


@lowers("ub.poison")
def _poison(L: Lowering, op: Op) -> Tensor:
    ty = op.types[0]
    w = width(ty.shape)
    zero: Literal = float_text(0.0, ty.elt) if ty.elt in ("f32", "f64") else "null" if ty.elt.startswith("ptr") else 0
    return Tensor(ty.shape, ty.elt, [Row(w, ty.elt, base=zero)] * (ty.numel // w), w)
