"""An elementwise chain over three inputs in one pass: bound by memory bandwidth and nothing else."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .. import alloc
from ..launch import launch
from ..target import AotCase, backend_of
from ..timing import Cost


@triton.jit
def multiply_add_relu_kernel(a_ptr, b_ptr, c_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """y[i] = max(a[i] * b[i] + c[i], 0), i < n; all [n]. A program owns BLOCK consecutive elements.

    Arithmetic in fp32 (fp64 for fp64).
    """
    pid = tl.program_id(0).to(tl.int64)
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    m = offs < n
    dtype: tl.constexpr = tl.float64 if a_ptr.dtype.element_ty == tl.float64 else tl.float32
    a = tl.load(a_ptr + offs, mask=m).to(dtype)
    b = tl.load(b_ptr + offs, mask=m).to(dtype)
    c = tl.load(c_ptr + offs, mask=m).to(dtype)
    y = tl.maximum(a * b + c, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(y_ptr + offs, y.to(y_ptr.dtype.element_ty), mask=m)


def _meta(backend: str) -> dict[str, int]:
    if backend == "cpu":
        return {"BLOCK": 256}
    # 16 bytes of the narrowest dtype a thread: 4 warps are 128 threads on NVIDIA and 256 on AMD.
    return {"BLOCK": 2048, "num_warps": 4}


def cost(n: int, element_bytes: int) -> Cost:
    """Work on n elements: three reads and a write of each."""
    return Cost(bytes=4.0 * n * element_bytes, flops=3.0 * n)


def multiply_add_relu(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """max(a * b + c, 0) in one pass over memory.

    Args:
        a, b, c: same shape, dtype (floating point) and device. A NaN is propagated, as by `torch.relu`.

    Returns:
        A new contiguous tensor of that shape and dtype.

    Raises:
        TypeError: a dtype that is not floating point, or dtypes that differ.
        ValueError: shapes or devices that differ.
    """
    for name, x in (("b", b), ("c", c)):
        if x.shape != a.shape or x.device != a.device:
            raise ValueError(
                f"{name}: shape and device must be those of a, {tuple(a.shape)} on {a.device}, "
                f"got {tuple(x.shape)} on {x.device}"
            )
        if x.dtype != a.dtype:
            raise TypeError(f"{name}: dtype must be that of a, {a.dtype}, got {x.dtype}")
    if not a.dtype.is_floating_point:
        raise TypeError(f"a: need a floating-point dtype, got {a.dtype}")
    y = alloc.empty(a.shape, a.dtype, a.device)
    n = a.numel()
    if n:
        meta = _meta(backend_of(a.device))
        grid = (triton.cdiv(n, meta["BLOCK"]),)
        launch(multiply_add_relu_kernel, grid, a.contiguous(), b.contiguous(), c.contiguous(), y, n, **meta)
    return y


AOT_CASES = [
    AotCase(
        name=f"multiply_add_relu-{dtype}",
        kernel=multiply_add_relu_kernel,
        signature={
            "a_ptr": f"*{dtype}",
            "b_ptr": f"*{dtype}",
            "c_ptr": f"*{dtype}",
            "y_ptr": f"*{dtype}",
            "n": "i32",
        },
        meta=_meta,
        divisible=("n",),
    )
    for dtype in ("fp32", "bf16")
]
