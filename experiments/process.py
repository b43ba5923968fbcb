"""Settings of the running process that every backend is measured under."""

from __future__ import annotations

import ctypes
import sys

# Names and numbers from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_freed_memory() -> bool:
    """Have malloc keep what torch frees, so that a training step does not fault in the same pages again and again.

    A step on a graph of 100,000 nodes allocates and frees some dozens of buffers of tens of megabytes; by default glibc
    maps each anew and the kernel zeroes its pages, which takes up to a third of the step. Every backend gains alike.

    Returns:
        Whether the C library took the settings (glibc does; others are left as they are).
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
