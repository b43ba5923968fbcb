"""Output memory for kernels.

A large output is fresh memory: the kernel's first write to each page traps into the operating system, which clears the
page, and the C library gives memory of this size back as soon as it is freed, so that the next call pays again (of a
product of 64 MB in 18 ms, 12 were this). So large outputs on a CPU come from blocks that are kept when their tensor is
freed, as PyTorch's own allocator does for GPUs, on pages of 2 MiB where Linux grants them.
"""

from __future__ import annotations

import functools
import mmap
import sys
import threading
import weakref
from collections.abc import Sequence

import numpy as np
import torch

# Below this the C library hands out memory that it has already touched, and a pool would be overhead.
_LEAST_BYTES = 8 << 20
_PAGE_BYTES = 2 << 20

IDLE_LIMIT_BYTES = 1 << 30
"""Blocks that no tensor uses are kept up to this many bytes in all; the oldest go first."""


class _Pool:
    """Blocks of main memory by size, in the order in which they were given back."""

    def __init__(self) -> None:
        self.idle: list[np.ndarray] = []
        self.idle_bytes = 0
        # A tensor may be freed on any thread, and by a garbage collection in the middle of `take`.
        self.lock = threading.RLock()

    def take(self, nbytes: int) -> np.ndarray:
        """A block of nbytes or a little more."""
        size = -(-nbytes // _PAGE_BYTES) * _PAGE_BYTES
        with self.lock:
            # The last one back is the one most likely to be in cache still.
            for at in range(len(self.idle) - 1, -1, -1):
                if size <= self.idle[at].nbytes <= size + size // 8:
                    self.idle_bytes -= self.idle[at].nbytes
                    return self.idle.pop(at)
        return _map(size)

    def give(self, block: np.ndarray) -> None:
        with self.lock:
            self.idle.append(block)
            self.idle_bytes += block.nbytes
            while self.idle_bytes > IDLE_LIMIT_BYTES:
                self.idle_bytes -= self.idle.pop(0).nbytes

    def clear(self) -> None:
        with self.lock:
            self.idle.clear()
            self.idle_bytes = 0


_pool = _Pool()


def _map(nbytes: int) -> np.ndarray:
    """Fresh memory, uint8 [nbytes], on large pages if they are to be had: advice is only advice."""
    mapped = mmap.mmap(-1, nbytes + _PAGE_BYTES)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(mapped, np.uint8)
    first = -whole.ctypes.data % _PAGE_BYTES
    return whole[first : first + nbytes]


@functools.cache
def _pooled() -> bool:
    return sys.platform == "linux"


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """`torch.empty`, from a pool of blocks where it is large and lives in main memory.

    A block goes back to the pool when the last tensor on it is gone. Its storage cannot be resized.
    """
    nbytes = dtype.itemsize
    for side in shape:
        nbytes *= side
    if nbytes < _LEAST_BYTES or device.type != "cpu" or not _pooled():
        return torch.empty(shape, dtype=dtype, device=device)
    block = _pool.take(nbytes)
    # PyTorch holds on to the array that it is given, and so it lives as long as the storage.
    lease = block[:nbytes]
    back = weakref.finalize(lease, _pool.give, block)
    back.atexit = False
    # Not by views: autograd forbids its user to write into an output that is one.
    whole = torch.empty(0, dtype=dtype)
    return whole.set_(torch.from_numpy(lease).untyped_storage(), 0, tuple(shape), _strides(shape))


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for place in range(len(shape) - 1, 0, -1):
        strides[place - 1] = strides[place] * shape[place]
    return tuple(strides)


def release() -> None:
    """Give the blocks that no tensor uses back to the operating system."""
    _pool.clear()
