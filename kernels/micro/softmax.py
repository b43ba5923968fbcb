"""Softmax over the rows of a matrix."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .. import alloc
from ..launch import launch
from ..target import AotCase, backend_of
from ..timing import Cost


@triton.jit
def softmax_rows_kernel(x_ptr, y_ptr, n_cols, stride_x, stride_y, BLOCK: tl.constexpr, ONE_TILE: tl.constexpr):
    """y[r, :] = exp(x[r, :] - max x[r, :]) / sum exp(x[r, :] - max x[r, :]).

    x, y: [rows, n_cols], unit stride along a row. A program owns row r = pid. With ONE_TILE (BLOCK >= n_cols)
    the row is read once and kept; else it is walked three times in tiles of BLOCK (maximum; exponentials,
    kept in y, and their sum; scaling), which is meant for rows that stay in cache between the walks.
    """
    pid = tl.program_id(0).to(tl.int64)
    x_ptr += pid * stride_x
    y_ptr += pid * stride_y
    dtype: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    offs = tl.arange(0, BLOCK)
    if ONE_TILE:
        m = offs < n_cols
        x = tl.load(x_ptr + offs, mask=m, other=-float("inf")).to(dtype)
        e = tl.exp(x - tl.max(x, axis=0))
        y = e / tl.sum(e, axis=0)
        tl.store(y_ptr + offs, y.to(y_ptr.dtype.element_ty), mask=m)
    else:
        peak = tl.full((BLOCK,), -float("inf"), dtype)
        for start in range(0, n_cols, BLOCK):
            m = start + offs < n_cols
            x = tl.load(x_ptr + start + offs, mask=m, other=-float("inf")).to(dtype)
            peak = tl.maximum(peak, x)
        top = tl.max(peak, axis=0)
        total = tl.zeros((BLOCK,), dtype)
        for start in range(0, n_cols, BLOCK):
            m = start + offs < n_cols
            x = tl.load(x_ptr + start + offs, mask=m, other=-float("inf")).to(dtype)
            e = tl.exp(x - top)
            total += e
            tl.store(y_ptr + start + offs, e.to(y_ptr.dtype.element_ty), mask=m)
        scale = 1.0 / tl.sum(total, axis=0)
        for start in range(0, n_cols, BLOCK):
            m = start + offs < n_cols
            e = tl.load(y_ptr + start + offs, mask=m, other=0.0).to(dtype)
            tl.store(y_ptr + start + offs, (e * scale).to(y_ptr.dtype.element_ty), mask=m)


# A GPU keeps a row of up to this many elements in registers (32 of them a thread at 16 warps).
_ONE_TILE_MAX = 16384


def _meta(backend: str, n_cols: int) -> dict[str, int | bool]:
    if backend == "cpu":
        block = min(128, triton.next_power_of_2(n_cols))
        return {"BLOCK": block, "ONE_TILE": block >= n_cols}
    block = triton.next_power_of_2(n_cols)
    if block > _ONE_TILE_MAX:
        return {"BLOCK": 4096, "ONE_TILE": False, "num_warps": 8}
    return {"BLOCK": block, "ONE_TILE": True, "num_warps": min(16, max(1, block // 512))}


def cost(rows: int, cols: int, element_bytes: int) -> Cost:
    """Work on [rows, cols]: one read and one write of each element."""
    return Cost(bytes=2.0 * rows * cols * element_bytes, flops=5.0 * rows * cols)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax along the last dimension.

    Args:
        x: [rows, cols], floating point; fp32 arithmetic inside (fp64 for fp64).

    Returns:
        [rows, cols], dtype of x. As in PyTorch a row that is all -inf, or holds NaN or +inf, becomes NaN.

    Raises:
        ValueError: x is not a matrix.
        TypeError: x is not floating point.
    """
    if x.dim() != 2:
        raise ValueError(f"x: need a matrix [rows, cols], got shape {tuple(x.shape)}")
    if not x.dtype.is_floating_point:
        raise TypeError(f"x: need a floating-point dtype, got {x.dtype}")
    if x.stride(1) != 1:
        x = x.contiguous()
    y = alloc.empty(x.shape, x.dtype, x.device)
    rows, cols = x.shape
    if rows and cols:
        meta = _meta(backend_of(x.device), cols)
        launch(softmax_rows_kernel, (rows,), x, y, cols, x.stride(0), y.stride(0), **meta)
    return y


AOT_CASES = [
    AotCase(
        name=f"softmax_rows-{dtype}-{cols}",
        kernel=softmax_rows_kernel,
        signature={
            "x_ptr": f"*{dtype}",
            "y_ptr": f"*{dtype}",
            "n_cols": "i32",
            "stride_x": "i32",
            "stride_y": "i32",
        },
        meta=lambda backend, cols=cols: _meta(backend, cols),
        divisible=("n_cols", "stride_x", "stride_y"),
    )
    for dtype in ("fp32", "bf16")
    for cols in (4096, 100_000)
]
