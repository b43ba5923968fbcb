"""Matrix products, 2-D and 3-D, in every dtype combination, against fp64 and the interpreter."""

from __future__ import annotations

import pytest
import torch

from .harness import EXACT, TL, TORCH, Interpreter, Kernel, Tol, differ, rng, values

DTYPES = ("i8", "f8e5", "f8e4nv", "f16", "bf16", "f32", "f64")
SHAPES = [
    (1, 1, 1),
    (1, 16, 8),
    (16, 1, 4),
    (2, 2, 64),
    (16, 16, 16),
    (4, 64, 8),
    (64, 4, 32),
    (8, 32, 128),
    (32, 128, 16),
]


def operands(dtype: str, m: int, n: int, k: int, batch: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    lead = (batch,) if batch else ()
    a = values(dtype, (*lead, m, k), 1, special=False, small=dtype == "i8")
    b = values(dtype, (*lead, k, n), 2, special=False, small=dtype == "i8")
    return (a.clamp(-3, 3), b.clamp(-3, 3)) if dtype in ("f16", "bf16", "f32", "f64") else (a, b)


def kernel(
    dtype: str, m: int, n: int, k: int, dot: str, batch: int = 0, tol: Tol = EXACT, **args
) -> tuple[Kernel, torch.Tensor]:
    """A kernel that stores `dot` of blocks `a` and `b`, and a @ b in fp64."""
    a, b = operands(dtype, m, n, k, batch)
    lead = [batch] if batch else []
    numel_a, numel_b = a.numel(), b.numel()
    setup = f"a = tl.load(a_ptr + tl.reshape(tl.arange(0, {numel_a}), {[*lead, m, k]}))\n"
    setup += f"b = tl.load(b_ptr + tl.reshape(tl.arange(0, {numel_b}), {[*lead, k, n]}))\n"
    return Kernel(setup, [(dot, tol)], {"a_ptr": a, "b_ptr": b, **args}), a.double() @ b.double()


def tolerance(out: torch.dtype, k: int) -> Tol:
    return Tol(0) if not out.is_floating_point else Tol(2.0 + k / 2, of_max=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dot(interpreter: Interpreter, dtype: str, shape: tuple[int, int, int]) -> None:
    if dtype not in ("f32", "f16") and shape not in ((1, 16, 8), (16, 16, 16), (8, 32, 128)):
        shape = shape[::-1]  # the same sizes, other roles: every dtype meets other corners
    m, n, k = shape
    out = {"i8": torch.int32, "f64": torch.float64}.get(dtype, torch.float32)
    case, want = kernel(dtype, m, n, k, "tl.dot(a, b)", tol=tolerance(out, k))
    differ(interpreter, case, {0: lambda: want.to(out).flatten()})


@pytest.mark.parametrize("dtype", DTYPES)
def test_batched(interpreter: Interpreter, dtype: str) -> None:
    out = {"i8": torch.int32, "f64": torch.float64}.get(dtype, torch.float32)
    case, want = kernel(dtype, 8, 16, 32, "tl.dot(a, b)", batch=4, tol=tolerance(out, 32))
    differ(interpreter, case, {0: lambda: want.to(out).flatten()})


@pytest.mark.parametrize(
    "m, n, k", [(128, 128, 64), pytest.param(256, 128, 32, marks=pytest.mark.slow), (64, 256, 16), (16, 32, 512)]
)
@pytest.mark.parametrize(
    "dtype", ["f32", "bf16", pytest.param("f64", marks=pytest.mark.slow), pytest.param("i8", marks=pytest.mark.slow)]
)
def test_large(interpreter: Interpreter, dtype: str, m: int, n: int, k: int) -> None:
    """Tiles whose full unrolling would be megabytes of code."""
    out = {"i8": torch.int32, "f64": torch.float64}.get(dtype, torch.float32)
    case, want = kernel(dtype, m, n, k, "tl.dot(a, b)", tol=tolerance(out, k))
    differ(interpreter, case, {0: lambda: want.to(out).flatten()})


@pytest.mark.parametrize("acc", ["f32", "f16"])
@pytest.mark.parametrize("dtype", ["f16", "f8e5", "f8e4nv"])
def test_out_dtype_and_accumulator(interpreter: Interpreter, dtype: str, acc: str) -> None:
    c = values(acc, (16, 32), 3, special=False)
    case, want = kernel(dtype, 16, 32, 64, "", c_ptr=c)
    case.setup += "c = tl.load(c_ptr + tl.reshape(tl.arange(0, 512), [16, 32]))\n"
    tol = tolerance(TORCH[acc], 64)
    case.exprs = [
        (f"tl.dot(a, b, out_dtype={TL[acc]})", tol),
        (f"tl.dot(a, b, c, out_dtype={TL[acc]})", tol),
        ("tl.dot(a, b, acc=c)", tol),
    ]
    both = (want + c.double()).to(TORCH[acc]).flatten()
    differ(interpreter, case, {0: lambda: want.to(TORCH[acc]).flatten(), 1: lambda: both, 2: lambda: both})


@pytest.mark.parametrize("dtype", ["i8", "bf16", "f32", "f64"])
def test_accumulator(interpreter: Interpreter, dtype: str) -> None:
    out = {"i8": "i32", "f64": "f64"}.get(dtype, "f32")
    c = values(out, (32, 16), 3, special=False, small=out == "i32")
    case, want = kernel(dtype, 32, 16, 8, "", c_ptr=c)
    case.setup += "c = tl.load(c_ptr + tl.reshape(tl.arange(0, 512), [32, 16]))\n"
    precisions = (
        [f'tl.dot(a, b, c, input_precision="{p}")' for p in ("ieee", "tf32", "tf32x3")] if dtype == "f32" else []
    )
    # tf32 keeps ten bits of each operand; a CPU has no reason to, and may.
    loose = Tol(2**14, of_max=True)
    exprs = [("tl.dot(a, b, c)", tolerance(TORCH[out], 8) if dtype != "f32" else loose)]
    case.exprs = exprs + [(e, tolerance(torch.float32, 8) if "ieee" in e else loose) for e in precisions]
    both = (want + c.double()).to(TORCH[out]).flatten()
    differ(interpreter, case, {k: lambda: both for k in range(len(case.exprs))})


def test_dot_in_a_loop_with_masks(interpreter: Interpreter) -> None:
    """The usual matmul over a ragged problem, transposed operand, epilogue fused."""
    m, n, k = 37, 45, 70
    gen = rng("matmul")
    a = torch.from_numpy(gen.standard_normal((m, k))).float()
    b = torch.from_numpy(gen.standard_normal((n, k))).float()
    setup = """
        offs_m = tl.program_id(0) * 16 + tl.arange(0, 16)
        offs_n = tl.program_id(1) * 32 + tl.arange(0, 32)
        offs_k = tl.arange(0, 32)
        acc = tl.zeros([16, 32], tl.float32)
        for start in range(0, k, 32):
            m_k = start + offs_k < k
            at = start + offs_k[None, :]
            a = tl.load(a_ptr + offs_m[:, None] * k + at, (offs_m < m)[:, None] & m_k[None, :], 0.0)
            b = tl.load(b_ptr + offs_n[:, None] * k + at, (offs_n < n)[:, None] & m_k[None, :], 0.0)
            acc = tl.dot(a, tl.trans(b), acc, input_precision="ieee")
        acc = tl.maximum(acc + 1.0, 0.0)
        tl.store(c_ptr + offs_m[:, None] * n + offs_n[None, :], acc, (offs_m < m)[:, None] & (offs_n < n)[None, :])
    """
    args = {"a_ptr": a, "b_ptr": b, "c_ptr": torch.full((m, n), torch.nan), "m": m, "n": n, "k": k}
    got = differ(interpreter, Kernel(setup, [], args, grid=(3, 2), arg_tol=Tol(64, of_max=True)))
    want = (a.double() @ b.double().T + 1).clamp(min=0)
    torch.testing.assert_close(got["args"]["c_ptr"].double(), want, rtol=1e-5, atol=1e-5)


def test_nan_and_inf(interpreter: Interpreter) -> None:
    """No operand is skipped for being zero: 0 * inf and NaN reach their row and column only."""
    a, b = torch.zeros(16, 16), torch.ones(16, 16)
    a[3, 2], a[5, 5], b[7, 9] = torch.inf, torch.nan, -torch.inf
    case, _ = kernel("f32", 16, 16, 16, "tl.dot(a, b, input_precision='ieee')")
    case.args = {"a_ptr": a, "b_ptr": b}
    differ(interpreter, case, {0: lambda: (a @ b).flatten()})


@pytest.mark.parametrize(
    "formats", [("e2m1", "e2m1"), ("e4m3", "e4m3"), ("e5m2", "e2m1"), ("bf16", "e4m3"), ("e4m3", "fp16")], ids="-".join
)
def test_dot_scaled(interpreter: Interpreter, formats: tuple[str, str]) -> None:
    """Microscaling formats: one exponent for 32 elements of K, fp4 packed two to a byte."""
    m, n, k = 16, 32, 64
    names = {"e4m3": "f8e4nv", "e5m2": "f8e5", "bf16": "bf16", "fp16": "f16", "e2m1": "u8"}
    gen = rng("dot_scaled", formats)
    sides = []
    for seed, (fmt, rows) in enumerate(zip(formats, (m, n), strict=True)):
        if fmt == "e2m1":
            sides.append(torch.from_numpy(gen.integers(0, 256, (rows, k // 2)).astype("uint8")))
        else:
            sides.append(values(names[fmt], (rows, k), seed, small=True, special=False))
    has_scale = [f not in ("bf16", "fp16") for f in formats]
    scales = [torch.from_numpy(gen.integers(124, 130, (rows, k // 32)).astype("uint8")) for rows in (m, n)]
    ka, kb = sides[0].shape[1], sides[1].shape[1]
    setup = f"""
        a = tl.load(a_ptr + tl.reshape(tl.arange(0, {m * ka}), [{m}, {ka}]))
        b = tl.trans(tl.load(b_ptr + tl.reshape(tl.arange(0, {n * kb}), [{n}, {kb}])))
        sa = tl.load(sa_ptr + tl.reshape(tl.arange(0, {m * k // 32}), [{m}, {k // 32}]))
        sb = tl.load(sb_ptr + tl.reshape(tl.arange(0, {n * k // 32}), [{n}, {k // 32}]))
    """
    first, second = ("sa" if has_scale[0] else "None"), ("sb" if has_scale[1] else "None")
    expr = f'tl.dot_scaled(a, {first}, "{formats[0]}", b, {second}, "{formats[1]}")'
    args = {"a_ptr": sides[0], "b_ptr": sides[1], "sa_ptr": scales[0], "sb_ptr": scales[1]}
    differ(interpreter, Kernel(setup, [(expr, Tol(64, of_max=True))], args))
