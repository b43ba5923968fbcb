"""Block quantisation to int8: one fp32 scale for every block of consecutive values.

The scheme is the linear (uniform) block-wise quantisation of T. Dettmers et al., "8-bit Optimizers via
Block-wise Quantization", ICLR 2022, section 2, with the block's largest magnitude mapped to 127.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .. import alloc
from ..launch import launch
from ..target import AotCase, backend_of
from ..timing import Cost


@triton.jit
def quantize_int8_kernel(x_ptr, q_ptr, scale_ptr, n, BLOCK: tl.constexpr, TILE_BLOCKS: tl.constexpr):
    """scale[j] = max |x[i]| / 127 over the block j of BLOCK values, q[i] = round(x[i] / scale[j]), ties to
    even.

    x: [n], q: int8 [n], scale: fp32 [ceil(n / BLOCK)]. A program owns TILE_BLOCKS blocks. A block with no
    magnitude of 2**-119 or more has codes 0; so has one with a NaN or an infinity, whose scale is that: it
    decodes to NaN.
    """
    pid = tl.program_id(0).to(tl.int64)
    offs_j = pid * TILE_BLOCKS + tl.arange(0, TILE_BLOCKS)
    offs = offs_j[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    m = offs < n
    x = tl.load(x_ptr + offs, mask=m, other=0.0).to(tl.float32)
    # The maximum of magnitudes is taken over their bit patterns: the order is the same, and a NaN is above
    # infinity.
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    top = tl.max(bits, axis=1)
    largest = top.to(tl.float32, bitcast=True)
    # Finite, and large enough that 127 / largest is finite too.
    codable = (top >= 0x04000000) & (top < 0x7F800000)
    inverse = tl.where(codable, 127.0 / tl.where(codable, largest, 1.0), 0.0)
    scaled = tl.where(codable[:, None], x, 0.0) * inverse[:, None]
    # Adding 1.5 * 2**23 leaves no bits for a fraction: the addition itself rounds to the nearest integer,
    # ties to even.
    q = (scaled + 12582912.0) - 12582912.0
    tl.store(q_ptr + offs, q.to(tl.int8), mask=m)
    tl.store(scale_ptr + offs_j, largest / 127.0, mask=offs_j * BLOCK < n)


@triton.jit
def dequantize_int8_kernel(q_ptr, scale_ptr, x_ptr, n, BLOCK: tl.constexpr, TILE_BLOCKS: tl.constexpr):
    """x[i] = q[i] scale[i // BLOCK]. q: int8 [n], scale: fp32 [ceil(n / BLOCK)], x: [n].

    A program owns TILE_BLOCKS blocks.
    """
    pid = tl.program_id(0).to(tl.int64)
    offs_j = pid * TILE_BLOCKS + tl.arange(0, TILE_BLOCKS)
    offs = offs_j[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    m = offs < n
    q = tl.load(q_ptr + offs, mask=m, other=0).to(tl.float32)
    scale = tl.load(scale_ptr + offs_j, mask=offs_j * BLOCK < n, other=0.0)
    tl.store(x_ptr + offs, (q * scale[:, None]).to(x_ptr.dtype.element_ty), mask=m)


def _meta(backend: str, block: int) -> dict[str, int]:
    """A tile of whole blocks: on a CPU a few vectors, on a GPU at least 16 bytes of codes a thread."""
    if backend == "cpu":
        return {"BLOCK": block, "TILE_BLOCKS": max(1, 256 // block)}
    return {"BLOCK": block, "TILE_BLOCKS": max(1, 4096 // block), "num_warps": 4}


def cost(n: int, element_bytes: int, block: int) -> Cost:
    """Work on n values of `element_bytes`: each is read, a byte and its share of a scale written."""
    return Cost(bytes=n * (element_bytes + 1 + 4 / block), flops=4.0 * n)


def _check_block(block: int) -> None:
    if not 16 <= block <= 4096 or block & (block - 1):
        raise ValueError(f"block: need a power of two from 16 to 4096, got {block}")


def quantize_int8(x: torch.Tensor, block: int = 256) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise to int8 with one scale a block of consecutive values (row-major order).

    Args:
        x: any shape; fp32, bf16 or fp16.
        block: values that share a scale, a power of two from 16 to 4096.

    Returns:
        (q, scale): int8 codes in -127..127, shape of x, contiguous, and fp32 scales [ceil(x.numel() /
        block)], with |x - q * scale| <= scale / 2 up to rounding in fp32 (or below 2**-119). A block that
        holds a NaN or an infinity decodes to NaN.

    Raises:
        TypeError: another dtype.
        ValueError: another block length.
    """
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise TypeError(f"x: need float32, bfloat16 or float16, got {x.dtype}")
    _check_block(block)
    n = x.numel()
    q = alloc.empty(x.shape, torch.int8, x.device)
    scale = torch.empty(triton.cdiv(n, block), dtype=torch.float32, device=x.device)
    if n:
        meta = _meta(backend_of(x.device), block)
        grid = (triton.cdiv(n, meta["BLOCK"] * meta["TILE_BLOCKS"]),)
        launch(quantize_int8_kernel, grid, x.contiguous(), q, scale, n, **meta)
    return q, scale


def dequantize_int8(
    q: torch.Tensor, scale: torch.Tensor, block: int = 256, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Decode what `quantize_int8` gave, to `dtype` (fp32, bf16 or fp16) in the shape of q.

    Raises:
        TypeError: q is not int8, scale not fp32, or dtype another.
        ValueError: another block length, or a number of scales that does not fit q.
    """
    if q.dtype != torch.int8 or scale.dtype != torch.float32:
        raise TypeError(f"q, scale: need int8 and float32, got {q.dtype} and {scale.dtype}")
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise TypeError(f"dtype: need float32, bfloat16 or float16, got {dtype}")
    _check_block(block)
    n = q.numel()
    if scale.shape != (triton.cdiv(n, block),) or scale.device != q.device:
        raise ValueError(
            f"scale: need shape ({triton.cdiv(n, block)},) on {q.device} for {n} codes in blocks of {block}, "
            f"got {tuple(scale.shape)} on {scale.device}"
        )
    x = alloc.empty(q.shape, dtype, q.device)
    if n:
        meta = _meta(backend_of(q.device), block)
        grid = (triton.cdiv(n, meta["BLOCK"] * meta["TILE_BLOCKS"]),)
        launch(dequantize_int8_kernel, grid, q.contiguous(), scale.contiguous(), x, n, **meta)
    return x


AOT_CASES = [
    case
    for dtype in ("fp32", "bf16")
    for case in (
        AotCase(
            name=f"quantize_int8-{dtype}",
            kernel=quantize_int8_kernel,
            signature={"x_ptr": f"*{dtype}", "q_ptr": "*i8", "scale_ptr": "*fp32", "n": "i32"},
            meta=lambda backend: _meta(backend, 256),
            divisible=("n",),
        ),
        AotCase(
            name=f"dequantize_int8-{dtype}",
            kernel=dequantize_int8_kernel,
            signature={"q_ptr": "*i8", "scale_ptr": "*fp32", "x_ptr": f"*{dtype}", "n": "i32"},
            meta=lambda backend: _meta(backend, 256),
            divisible=("n",),
        ),
    )
]
