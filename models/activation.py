"""Dropout that spends one random byte a value, and ReLU fused with it.

`torch.nn.functional.dropout` draws its mask on one CPU thread, which on a graph of 100,000 nodes takes longer than the
matrix products around it. Here the mask comes from 64 random bits at a time, compared byte by byte, so a rate is
rounded to the nearest 1/256 (`drop_rate` gives the value in force).
"""

from __future__ import annotations

import torch
from torch import Tensor

_LEVELS = 256


def drop_rate(p: float) -> float:
    """The dropout rate in force for a requested one: the nearest multiple of 1/256.

    Raises:
        ValueError: `p` outside [0, 1).
    """
    if not 0.0 <= p < 1.0:
        raise ValueError(f"dropout: the rate must be in [0, 1), got {p}")
    return min(round(p * _LEVELS), _LEVELS - 1) / _LEVELS


def keep_mask(shape: torch.Size, p: float, device: torch.device) -> Tensor:
    """A random boolean mask of `shape`: True, with probability `1 - drop_rate(p)`, where a value stays.

    Drawn from torch's default generator of the device, so `torch.manual_seed` makes it reproducible.
    """
    count = shape.numel()
    bits = torch.empty((count + 7) // 8, dtype=torch.int64, device=device).random_(-(2**63), None)
    kept = round((1.0 - drop_rate(p)) * _LEVELS)
    return (bits.view(torch.uint8)[:count] < kept).view(shape)


def dropout(x: Tensor, p: float) -> Tensor:
    """`x` with each value zeroed at rate `p` and the rest scaled by 1 / (1 - rate); differentiable."""
    rate = drop_rate(p)
    return x * keep_mask(x.shape, p, x.device) * (1.0 / (1.0 - rate)) if rate else x


class _ReluDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, p: float) -> Tensor:
        ctx.mark_dirty(x)
        rate = drop_rate(p)
        ctx.scale = 1.0 / (1.0 - rate)
        x.relu_()
        if rate:
            x.mul_(keep_mask(x.shape, p, x.device).view(torch.uint8)).mul_(ctx.scale)  # bytes convert faster
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        # The output is positive exactly where the input was and the value was kept: it is its own mask.
        (y,) = ctx.saved_tensors
        grad = torch.ops.aten.threshold_backward(grad, y, 0)
        return grad.mul_(ctx.scale) if ctx.scale != 1.0 else grad, None


def relu_dropout_(x: Tensor, p: float) -> Tensor:
    """ReLU, then dropout at rate `p`, in place; differentiable.

    Args:
        x: any shape, floating point. Overwritten: it must not be needed by another gradient (torch raises if it is).
        p: rate in [0, 1), rounded to 1/256.
    """
    return _ReluDropout.apply(x, p)
