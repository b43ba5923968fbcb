"""ReLU and dropout in one pass, forward and backward, without a stored mask."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .. import alloc
from ..launch import launch
from ..target import AotCase, backend_of

_LEVELS = 256


@triton.jit
def relu_dropout_kernel(x_ptr, y_ptr, n, seed, kept, GROUP: tl.constexpr):
    """y[i] = max(x[i], 0) * 256 / kept where a random byte is below `kept`, else 0; all [n].

    A program owns 16 * GROUP consecutive elements. One call of Philox gives a counter 16 random bytes, one for the
    same place in each of the 16 groups.
    """
    dtype: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    scale = 256.0 / kept.to(dtype)
    pid = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, GROUP)
    words = tl.randint4x(seed, (pid * GROUP + lane).to(tl.int32))
    for k in tl.static_range(16):
        offs = (pid * 16 + k) * GROUP + lane
        m = offs < n
        x = tl.load(x_ptr + offs, mask=m, other=0.0).to(dtype)
        byte = (words[k // 4].to(tl.uint32, bitcast=True) >> (8 * (k % 4))) & 0xFF
        y = tl.where(x <= 0, 0.0, x * scale)  # a NaN is not below zero and stays
        tl.store(y_ptr + offs, tl.where(byte.to(tl.int32) < kept, y, 0.0).to(y_ptr.dtype.element_ty), mask=m)


@triton.jit
def relu_dropout_backward_kernel(gy_ptr, y_ptr, gx_ptr, n, kept, BLOCK: tl.constexpr):
    """gx[i] = gy[i] * 256 / kept where y[i] != 0, else 0; all [n]. A program owns BLOCK consecutive elements.

    y is not zero exactly where the input was positive and the value was kept: the output is its own mask.
    """
    dtype: tl.constexpr = tl.float64 if gy_ptr.dtype.element_ty == tl.float64 else tl.float32
    scale = 256.0 / kept.to(dtype)
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = offs < n
    y = tl.load(y_ptr + offs, mask=m, other=0.0)
    gy = tl.load(gy_ptr + offs, mask=m, other=0.0).to(dtype)
    tl.store(gx_ptr + offs, tl.where(y != 0, gy * scale, 0.0).to(gx_ptr.dtype.element_ty), mask=m)


def _meta(backend: str) -> dict[str, int]:
    return {"GROUP": 64} if backend == "cpu" else {"GROUP": 128, "num_warps": 4}


def _backward_meta(backend: str) -> dict[str, int]:
    return {"BLOCK": 1024} if backend == "cpu" else {"BLOCK": 2048, "num_warps": 4}


def drop_rate(p: float) -> float:
    """The dropout rate in force for a requested one: the nearest multiple of 1/256.

    Raises:
        ValueError: `p` outside [0, 1).
    """
    if not 0.0 <= p < 1.0:
        raise ValueError(f"dropout: the rate must be in [0, 1), got {p}")
    return min(round(p * _LEVELS), _LEVELS - 1) / _LEVELS


class _ReluDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, p: float) -> torch.Tensor:
        ctx.kept = _LEVELS - round(drop_rate(p) * _LEVELS)
        seed = int(torch.randint(1 << 31, ())) if ctx.kept < _LEVELS else 0
        x = x.contiguous()
        y = alloc.empty(x.shape, x.dtype, x.device)
        n = x.numel()
        if n:
            meta = _meta(backend_of(x.device))
            launch(relu_dropout_kernel, (triton.cdiv(n, 16 * meta["GROUP"]),), x, y, n, seed, ctx.kept, **meta)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gy: torch.Tensor) -> tuple[torch.Tensor, None]:
        (y,) = ctx.saved_tensors
        gy = gy.contiguous()
        gx = alloc.empty(gy.shape, gy.dtype, gy.device)
        n = gy.numel()
        if n:
            meta = _backward_meta(backend_of(gy.device))
            launch(relu_dropout_backward_kernel, (triton.cdiv(n, meta["BLOCK"]),), gy, y, gx, n, ctx.kept, **meta)
        return gx, None


def relu_dropout(x: torch.Tensor, p: float) -> torch.Tensor:
    """ReLU, then dropout at rate `p`: each value is kept with probability 1 - p and divided by it; differentiable once.

    Args:
        x: any shape, floating point; fp32 arithmetic inside (fp64 for fp64). A NaN stays where it is kept.
        p: rate in [0, 1), rounded to a multiple of 1/256 (`drop_rate`), since a value gets one random byte.

    Returns:
        A contiguous tensor of the shape and dtype of x. The random numbers (Philox, J. K. Salmon et al., SC 2011)
        follow from torch's default CPU generator, so `torch.manual_seed` makes them reproducible on any device.

    Raises:
        TypeError: x is not floating point.
        ValueError: `p` outside [0, 1).
    """
    if not x.dtype.is_floating_point:
        raise TypeError(f"x: need a floating-point dtype, got {x.dtype}")
    return _ReluDropout.apply(x, p)


AOT_CASES = [
    AotCase(
        name=f"relu_dropout-{dtype}",
        kernel=relu_dropout_kernel,
        signature={"x_ptr": f"*{dtype}", "y_ptr": f"*{dtype}", "n": "i32", "seed": "i32", "kept": "i32"},
        meta=_meta,
        wide_loads=False,  # a thread owns one element of each group, so that its random bytes are its own
    )
    for dtype in ("fp32", "bf16")
] + [
    AotCase(
        name=f"relu_dropout_backward-{dtype}",
        kernel=relu_dropout_backward_kernel,
        signature={"gy_ptr": f"*{dtype}", "y_ptr": f"*{dtype}", "gx_ptr": f"*{dtype}", "n": "i32", "kept": "i32"},
        meta=_backward_meta,
        divisible=("n",),
    )
    for dtype in ("fp32", "bf16")
]
