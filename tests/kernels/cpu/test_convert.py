"""Conversions between all dtypes, rounding modes, bitcasts and the fp8 formats."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from .harness import ALL, FLOATS, INTS, NUMBERS, TL, TORCH, UINTS, Interpreter, Kernel, Tol, differ, rng, values

N = 64
LOAD = f"i = tl.arange(0, {N})\nx = tl.load(x_ptr + i)"
FP8 = ("f8e5", "f8e4nv")
FP8_FNUZ = ("f8e5b16", "f8e4b8")
INT_FLOATS = {8: ("f8e5", "f8e4nv"), 16: ("f16", "bf16"), 32: ("f32",), 64: ("f64",)}


@pytest.mark.parametrize("src", ALL)
def test_to_float_and_bool(interpreter: Interpreter, src: str) -> None:
    exprs = [f"x.to({TL[dst]})" for dst in (*FLOATS, "i1")] + [
        f"tl.cast(tl.load(x_ptr + 5), {TL[dst]})" for dst in (*FLOATS, "i1")
    ]
    differ(interpreter, Kernel(LOAD, exprs, {"x_ptr": values(src, N, 1)}))


@pytest.mark.parametrize("src", ALL)
def test_to_integer(interpreter: Interpreter, src: str) -> None:
    """Integers wrap and extend by the signedness of the source; floats are truncated toward zero."""
    if src in FLOATS:
        gen = rng("to_integer", src)
        x = torch.from_numpy(gen.uniform(-120, 120, N)).to(TORCH[src])
        x[:6] = torch.tensor([0.0, -0.0, 0.5, -0.5, 1.999, -1.999])
        setup = LOAD + "\np = tl.abs(x)"
        exprs = [f"x.to({TL[dst]})" for dst in INTS] + [f"p.to({TL[dst]})" for dst in UINTS]
    else:
        x, setup = values(src, N, 2), LOAD
        exprs = [f"x.to({TL[dst]})" for dst in INTS + UINTS]
    differ(interpreter, Kernel(setup, exprs, {"x_ptr": x}))


@pytest.mark.parametrize("src", ["f32", "f64"])
def test_large_float_to_integer(interpreter: Interpreter, src: str) -> None:
    """The far ends of the 64- and 32-bit ranges, signed and unsigned."""
    x = torch.tensor(
        [2.0**62, -(2.0**62), 2.0**31, -(2.0**31), 123456789.0, -98765432.0, 2.0**53, 0.0], dtype=TORCH[src]
    )
    y = torch.tensor([2.0**63, 1.5 * 2.0**63, 2.0**31, 2.0**32, 2.0**40, 3e9, 1.0, 0.0], dtype=TORCH[src])
    z = torch.tensor([2.0**31, 4e9, 3.0, 0.0, 2.0**31 + 256, 65536.0, 1e9, 2.0**32 - 256], dtype=TORCH[src])
    setup = "i = tl.arange(0, 8)\nx = tl.load(x_ptr + i)\ny = tl.load(y_ptr + i)\nz = tl.load(z_ptr + i)"
    exprs = ["x.to(tl.int64)", "y.to(tl.uint64)", "z.to(tl.uint32)"]
    references = {k: lambda k=k, t=t: t.double().numpy() for k, t in enumerate((x, y, z))}
    wanted = {0: np.int64, 1: np.uint64, 2: np.uint32}
    differ(
        interpreter,
        Kernel(setup, exprs, {"x_ptr": x, "y_ptr": y, "z_ptr": z}),
        {k: lambda k=k: torch.from_numpy(references[k]().astype(wanted[k])) for k in references},
    )


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_bitcast(interpreter: Interpreter, bits: int) -> None:
    types = (f"i{bits}", f"u{bits}", *INT_FLOATS[bits])
    for src in types:
        exprs = [f"x.to({TL[dst]}, bitcast=True)" for dst in types if dst != src]
        exprs += [f"tl.load(x_ptr + 3).to({TL[dst]}, bitcast=True)" for dst in types if dst != src]
        x = values(f"u{bits}", N, 3).view(TORCH[src])
        differ(interpreter, Kernel(LOAD, exprs, {"x_ptr": x}))


@pytest.mark.parametrize("mode", ["rtne", "rtz"])
@pytest.mark.parametrize("src, dst", [("f32", "f16"), ("f32", "bf16")])
def test_rounding_modes(interpreter: Interpreter, src: str, dst: str, mode: str) -> None:
    """Both modes on values around the halfway points, subnormals and the overflow threshold of the narrow type."""
    gen = rng("rounding", src, dst)
    narrow = torch.from_numpy(gen.standard_normal(N - 12) * 10.0 ** gen.uniform(-8, 4, N - 12)).to(TORCH[dst]).float()
    above = torch.nextafter(narrow.to(TORCH[dst]).float(), torch.tensor(torch.inf))
    half = narrow * (1 + torch.finfo(TORCH[dst]).eps / torch.from_numpy(gen.choice([2.0, 4.0, 1.5], N - 12)).float())
    x = torch.cat([torch.where(torch.arange(N - 12) % 3 == 0, above, half), values(src, 12, 9)])
    big = torch.tensor([65519.0, 65520.0, 3.39e38, -3.4e38, 6e-8, -3e-8, 1e-40, -1e-45])
    x[: len(big)] = big
    differ(interpreter, Kernel(LOAD, [f'x.to({TL[dst]}, fp_downcast_rounding="{mode}")'], {"x_ptr": x}))


@pytest.mark.parametrize("dtype", FP8 + FP8_FNUZ)
def test_fp8_decode(interpreter: Interpreter, dtype: str) -> None:
    """All 256 codes."""
    x = torch.arange(256).to(torch.uint8).view(TORCH[dtype])
    setup = "i = tl.arange(0, 256)\nx = tl.load(x_ptr + i)"
    differ(interpreter, Kernel(setup, [f"x.to({TL[dst]})" for dst in FLOATS] + ["x"], {"x_ptr": x}))


@pytest.mark.parametrize("src", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("dtype", FP8 + FP8_FNUZ)
def test_fp8_encode(interpreter: Interpreter, dtype: str, src: str) -> None:
    """Every representable value, every halfway point (ties to even), both sides of it, NaN, saturation."""
    exact = torch.arange(256).to(torch.uint8).view(TORCH[dtype]).float()
    exact = exact[exact.isfinite()].sort().values
    middle = (exact[1:] + exact[:-1]) / 2
    top = torch.finfo(TORCH[dtype]).max
    x = torch.cat(
        [
            exact,
            middle,
            middle * (1 + 2**-7),
            middle * (1 - 2**-7),
            torch.tensor([top * 1.1, -top * 1.5, torch.nan, -0.0]),
        ]
    )
    x = torch.nn.functional.pad(x, (0, 1024 - len(x))).to(TORCH[src])
    setup = "i = tl.arange(0, 1024)\nx = tl.load(x_ptr + i)"
    differ(interpreter, Kernel(setup, [f"x.to({TL[dtype]})"], {"x_ptr": x}))


@pytest.mark.parametrize("dtype", FP8)
def test_fp8_store_converts(interpreter: Interpreter, dtype: str) -> None:
    """A store converts to the type of its pointer, a load of fp8 can be stored again, and `where` selects it."""
    setup = """
        i = tl.arange(0, 64)
        x = tl.load(x_ptr + i)
        tl.store(y_ptr + i, x, mask=i < 50)
        z = tl.load(z_ptr + i, mask=i > 3, other=0.0)
        tl.store(z_ptr + i, tl.where(i % 2 == 0, z, tl.load(z_ptr + 7)))
    """
    args = {
        "x_ptr": values("f32", N, 4, small=True, special=False),
        "y_ptr": values(dtype, N, 5),
        "z_ptr": values(dtype, N, 6),
    }
    differ(interpreter, Kernel(setup, [], args))


@pytest.mark.parametrize("dtype", NUMBERS)
def test_scalar_arguments_and_stores(interpreter: Interpreter, dtype: str) -> None:
    """A store casts its value implicitly to the element type, for scalars and tensors."""
    setup = """
        i = tl.arange(0, 64)
        tl.store(x_ptr + i, i - 3 * BASE, mask=i < 40)
        tl.store(y_ptr, n)
        tl.store(y_ptr + 1, f)
        tl.store(y_ptr + i + 2, i * f, mask=i < 20)
        tl.store(y_ptr + 30, 1)
        tl.store(y_ptr + 31, True)
        tl.store(y_ptr + 32 + i, i > 4, mask=i < 8)
    """
    base = 1 if dtype in INTS + FLOATS else 0
    args = {"x_ptr": values(dtype, N, 7), "y_ptr": values(dtype, N, 8), "n": 5, "f": 2.75}
    differ(interpreter, Kernel(setup, [], args, {"BASE": base}))


def test_pointer_casts(interpreter: Interpreter) -> None:
    """Pointers to integers and back, and a pointer read as another type."""
    setup = """
        i = tl.arange(0, 32)
        bits = tl.load(x_ptr.to(tl.pointer_type(tl.int32), bitcast=True) + i)
        low = tl.load((x_ptr + i).to(tl.pointer_type(tl.uint8)))
        address = x_ptr.to(tl.int64)
        again = tl.load((address + 4 * i).to(tl.pointer_type(tl.float32)))
        other = tl.load((address + 8).to(tl.pointer_type(tl.float32)))
        far = (x_ptr + i).to(tl.int64) - address
    """
    exprs = ["bits", "low", "again", "other", "far", "address % 16", "x_ptr.to(tl.int1)"]
    differ(interpreter, Kernel(setup, exprs, {"x_ptr": values("f32", 32, 1)}))


@pytest.mark.parametrize("dtype", FLOATS)
def test_constants(interpreter: Interpreter, dtype: str) -> None:
    """tl.full, tl.zeros and typed constants, the extreme ones of each type included."""
    info = torch.finfo(TORCH[dtype])
    odd = (
        "float('inf')",
        "-float('inf')",
        "float('nan')",
        "-0.0",
        f"{info.max!r}",
        # Triton's front end makes the smallest numbers of bf16 zero.
        f"{info.smallest_normal!r}" if dtype != "bf16" else "0.0",
        "0.1",
        "1e-3",
    )
    exprs: list = [f"tl.full([8], {v}, {TL[dtype]})" for v in odd] + [
        f"tl.zeros([4, 4], {TL[dtype]})",
        f"tl.full([], 0.3, {TL[dtype]})",
    ]
    differ(interpreter, Kernel("", exprs, {}))


@pytest.mark.parametrize("dtype", INTS + UINTS)
def test_integer_constants(interpreter: Interpreter, dtype: str) -> None:
    info = torch.iinfo(TORCH[dtype])
    exprs: list = [f"tl.full([8], {v}, {TL[dtype]})" for v in (info.max, info.min, 1, 100)]
    exprs += [f"tl.full([], {info.max}, {TL[dtype]}) + tl.arange(0, 4).to({TL[dtype]})"]
    differ(interpreter, Kernel("", exprs, {}))


def test_bf16_arithmetic_rounds_once(interpreter: Interpreter) -> None:
    """Against torch: the interpreter's own bfloat16 is not used."""
    x, y = values("bf16", N, 10), values("bf16", N, 11)
    setup = LOAD + "\ny = tl.load(y_ptr + i)"
    exprs = ["x + y", "x - y", "x * y", ("x / y", Tol(1)), "x < y", "-x", "tl.abs(x)", "x.to(tl.float16)"]
    want = [x + y, x - y, x * y, x.float() / y.float(), x < y, -x, x.abs(), x.float().half()]
    differ(interpreter, Kernel(setup, exprs, {"x_ptr": x, "y_ptr": y}), {k: lambda w=w: w for k, w in enumerate(want)})
