"""Dense matrix product through `tl.dot`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .. import alloc
from ..launch import launch
from ..target import AotCase, backend_of
from ..timing import Cost


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr,
    M, N, K,
    stride_am, stride_bk, stride_cm,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TAIL_K: tl.constexpr,
    GROUP_M: tl.constexpr, EVEN_MN: tl.constexpr, EVEN_K: tl.constexpr, OVERLAP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """c[m, n] = sum over k of a[m, k] b[k, n].

    a: [M, K], b: [K, N], c: [M, N], unit stride along rows. A program owns a tile [BLOCK_M, BLOCK_N] of c;
    programs walk down GROUP_M tiles of one column of tiles before they move to the next, so that a panel of b
    is reused from cache. EVEN_MN: no tile reaches beyond the matrix, so loads and stores need no mask there:
    the tiles divide it, or with OVERLAP (BLOCK_M <= M, BLOCK_N <= N) the last ones are moved back inside and
    compute some elements a second time. What BLOCK_K leaves of K (nothing if EVEN_K) is done in masked steps
    of TAIL_K. Sums in fp32 (fp64 for fp64).
    """
    pid = tl.program_id(0)
    num_m = tl.cdiv(M, BLOCK_M)
    num_n = tl.cdiv(N, BLOCK_N)
    group = pid // (GROUP_M * num_n)
    in_group = pid % (GROUP_M * num_n)
    group_rows = tl.minimum(num_m - group * GROUP_M, GROUP_M)
    start_m = (group * GROUP_M + in_group % group_rows).to(tl.int64) * BLOCK_M
    start_n = (in_group // group_rows).to(tl.int64) * BLOCK_N
    if OVERLAP:
        start_m = tl.minimum(start_m, M - BLOCK_M)
        start_n = tl.minimum(start_n, N - BLOCK_N)

    offs_m = start_m + tl.arange(0, BLOCK_M)
    offs_n = start_n + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    a_tile = offs_m[:, None] * stride_am + offs_k[None, :]
    b_tile = offs_k[:, None].to(tl.int64) * stride_bk + offs_n[None, :]
    m_m = (offs_m < M)[:, None]
    m_n = (offs_n < N)[None, :]

    dtype: tl.constexpr = tl.float64 if a_ptr.dtype.element_ty == tl.float64 else tl.float32
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype)
    whole = K // BLOCK_K * BLOCK_K
    for _ in range(0, whole, BLOCK_K):
        if EVEN_MN:
            a = tl.load(a_ptr + a_tile)
            b = tl.load(b_ptr + b_tile)
        else:
            a = tl.load(a_ptr + a_tile, mask=m_m, other=0.0)
            b = tl.load(b_ptr + b_tile, mask=m_n, other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=dtype)
        a_ptr += BLOCK_K
        b_ptr += BLOCK_K * stride_bk
    if not EVEN_K:
        offs_t = tl.arange(0, TAIL_K)
        a_tile = offs_m[:, None] * stride_am + offs_t[None, :]
        b_tile = offs_t[:, None].to(tl.int64) * stride_bk + offs_n[None, :]
        for k in range(whole, K, TAIL_K):
            m_k = k + offs_t < K
            a = tl.load(a_ptr + a_tile, mask=m_m & m_k[None, :], other=0.0)
            b = tl.load(b_ptr + b_tile, mask=m_k[:, None] & m_n, other=0.0)
            a_ptr += TAIL_K
            b_ptr += TAIL_K * stride_bk
            acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=dtype)

    c_ptrs = c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :]
    c = acc.to(c_ptr.dtype.element_ty)
    if EVEN_MN:
        tl.store(c_ptrs, c)
    else:
        tl.store(c_ptrs, c, mask=m_m & m_n)


def _meta(backend: str, dtype: torch.dtype, M: int, N: int, K: int) -> dict[str, int | bool | str]:
    """Tile shapes and precision. Products of fp32 keep fp32 accuracy everywhere: NVIDIA's tensor cores take
    them as three TF32 products ("tf32x3"), AMD's matrix cores and the CPU multiply fp32 as it is."""
    if backend == "cpu":
        # The operands of a step, 64 KiB each in fp32, stay in L2 together; 64 is the widest row of the backend.
        tile = {
            "BLOCK_M": min(64, 1 << (M.bit_length() - 1)),
            "BLOCK_N": min(64, 1 << (N.bit_length() - 1)),
            "BLOCK_K": 256 if K % 256 == 0 else 64,
            "TAIL_K": 16,
            "GROUP_M": 1 << 20,
        }
    elif dtype == torch.float64:
        tile = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 16, "GROUP_M": 8, "num_warps": 4, "num_stages": 2}
    elif dtype == torch.float32:
        tile = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8, "num_warps": 4, "num_stages": 2}
    else:
        tile = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32, "GROUP_M": 8, "num_warps": 8, "num_stages": 2}
    even = M % tile["BLOCK_M"] == 0 and N % tile["BLOCK_N"] == 0
    return {"TAIL_K": tile["BLOCK_K"]} | tile | {
        "EVEN_MN": even or backend == "cpu",
        "EVEN_K": K % tile["BLOCK_K"] == 0,
        "OVERLAP": not even and backend == "cpu",
        "PRECISION": "tf32x3" if backend == "cuda" and dtype == torch.float32 else "ieee",
    }


def cost(M: int, N: int, K: int, element_bytes: int) -> Cost:
    """Work of one product: every matrix moved once, a multiplication and an addition for each (m, n, k)."""
    return Cost(bytes=float(element_bytes) * (M * K + K * N + M * N), flops=2.0 * M * N * K)


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Matrix product a @ b.

    Args:
        a: [M, K], floating point.
        b: [K, N], dtype and device of a.

    Returns:
        [M, N], dtype of a; sums are kept in fp32 (fp64 for fp64).

    Raises:
        ValueError: not two matrices with a common K on one device.
        TypeError: dtypes that differ or are not floating point.
    """
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"a, b: need [M, K] and [K, N], got {tuple(a.shape)} and {tuple(b.shape)}")
    if a.device != b.device:
        raise ValueError(f"b: must be on the device of a, {a.device}, got {b.device}")
    if a.dtype != b.dtype or not a.dtype.is_floating_point:
        raise TypeError(f"a, b: need one floating-point dtype, got {a.dtype} and {b.dtype}")
    a = a if a.stride(1) == 1 else a.contiguous()
    b = b if b.stride(1) == 1 else b.contiguous()
    (M, K), N = a.shape, b.shape[1]
    c = alloc.empty((M, N), a.dtype, a.device)
    if c.numel():
        meta = _meta(backend_of(a.device), a.dtype, M, N, K)
        grid = (triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"]),)
        launch(matmul_kernel, grid, a, b, c, M, N, K, a.stride(0), b.stride(0), c.stride(0), **meta)
    return c


AOT_CASES = [
    AotCase(
        name=f"matmul-{name}",
        kernel=matmul_kernel,
        signature={"a_ptr": f"*{name}", "b_ptr": f"*{name}", "c_ptr": f"*{name}"}
        | dict.fromkeys(("M", "N", "K", "stride_am", "stride_bk", "stride_cm"), "i32"),
        meta=lambda backend, dtype=dtype: _meta(backend, dtype, 1024, 1024, 512),
        divisible=("M", "N", "K", "stride_am", "stride_bk", "stride_cm"),
        matrix=True,
    )
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16))
]
