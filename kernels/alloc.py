"""Output memory for kernels.

A large output is fresh memory: the kernel's first write to each page traps into the operating system, and with pages of
4 KiB that costs more than the kernel itself (a product of 60 MB took 20 ms, of which 16 were page faults). Linux gives
pages of 2 MiB to who asks with `madvise`, which is what the default setting of most distributions waits for.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from collections.abc import Callable, Sequence

import torch

# Below this the allocator hands out memory that it has already touched, and the call would be overhead.
_LEAST_BYTES = 8 << 20


@functools.cache
def _advise() -> Callable[[int, int], int] | None:
    """`madvise(address, bytes, MADV_HUGEPAGE)`, or None where there is no such thing."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if sys.platform != "linux" or advice is None:
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return lambda address, nbytes: madvise(address, nbytes, advice)


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """`torch.empty`, on large pages where it is large and lives in main memory.

    Advice is only advice: where it is refused the memory is as `torch.empty` made it.
    """
    out = torch.empty(shape, dtype=dtype, device=device)
    nbytes = out.numel() * out.element_size()
    if nbytes >= _LEAST_BYTES and device.type == "cpu":
        advise = _advise()
        if advise is not None:
            first = -(-out.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
            advise(first, out.data_ptr() + nbytes - first)
    return out
