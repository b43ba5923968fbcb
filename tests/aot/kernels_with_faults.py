"""Kernels that break each rule of the ahead-of-time check, so that the check itself is tested."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_one(x):
    return x + 1.0


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """y[i] = x[i] + 1."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, add_one(tl.load(x_ptr + offs, mask=offs < n)), mask=offs < n)


@triton.jit
def sum_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """y[0] = sum of x, in a loop: the loads in the loop are the hot ones, the load of y is not."""
    offs = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        acc += tl.load(x_ptr + start + offs, mask=start + offs < n, other=0.0)
    tl.store(y_ptr, tl.load(y_ptr) + tl.sum(acc, axis=0))


@triton.jit
def spill_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    """y = sorted x, with far more values a thread than there are registers."""
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    tl.store(y_ptr + offs, tl.sort(x) + tl.cumsum(x, 0) * tl.flip(x, 0))
