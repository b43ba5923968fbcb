"""Conversions of the CPU backend, compiled alone, over every value of the narrow types."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from braidwork.kernels.cpu.convert import convert
from braidwork.kernels.cpu.emit import Builder
from braidwork.kernels.cpu.values import storage

from .harness import rng
from .native import FP8, INF, NAN, NUMPY, WIDTHS, check, conversion, floats, native


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
