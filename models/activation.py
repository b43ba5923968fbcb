"""Dropout that spends one random byte a value.

`torch.nn.functional.dropout` draws its mask on one CPU thread, which on a graph of 100,000 nodes takes longer than the
matrix products around it. Here the mask comes from 64 random bits at a time, compared byte by byte, so a rate is
rounded to the nearest 1/256 (`drop_rate` gives the value in force).
"""

from __future__ import annotations

import torch
from torch import Tensor

from braidwork.kernels.fused import drop_rate


def keep_mask(shape: torch.Size, p: float, device: torch.device) -> Tensor:
    """A random boolean mask of `shape`: True, with probability `1 - drop_rate(p)`, where a value stays.

    Drawn from torch's default generator of the device, so `torch.manual_seed` makes it reproducible.
    """
    count = shape.numel()
    bits = torch.empty((count + 7) // 8, dtype=torch.int64, device=device).random_(-(2**63), None)
    kept = round((1.0 - drop_rate(p)) * 256)
    return (bits.view(torch.uint8)[:count] < kept).view(shape)


def dropout(x: Tensor, p: float) -> Tensor:
    """`x` with each value zeroed at rate `p` and the rest scaled by 1 / (1 - rate); differentiable."""
    rate = drop_rate(p)
    return x * keep_mask(x.shape, p, x.device) * (1.0 / (1.0 - rate)) if rate else x
