"""What every test of the project gets: fixed seeds, poisoned buffers, its own cache of compiled kernels.

Kernels run on the GPU where there is one and on the CPU backend elsewhere. Nothing here sets TRITON_INTERPRET:
tests that compare with Triton's interpreter run it in a process of its own.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from braidwork.kernels import alloc

# Set before any test module is collected: kernels that are compiled anew in every run cannot be hidden behind a
# stale object, and the coverage of the compiler does not depend on what an earlier run left behind.
_KERNEL_CACHE = tempfile.mkdtemp(prefix="braidwork-kernels-")
os.environ["TRITON_CACHE_DIR"] = _KERNEL_CACHE

POISONED_INTEGER = 90  # no test expects it, and as an index it stays near the start of a buffer
ALLOCATORS = (
    (alloc, "empty"),
    (torch, "empty"),
    (torch, "empty_like"),
    (torch, "empty_strided"),
    (torch.Tensor, "new_empty"),
    (torch.Tensor, "new_empty_strided"),
)


def pytest_unconfigure() -> None:
    shutil.rmtree(_KERNEL_CACHE, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU that torch can see"))


@pytest.fixture(autouse=True)
def seeds() -> None:
    """The same random numbers in every test, whichever tests run before it."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  third-party code draws from the global generator
    torch.manual_seed(0)


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Fill ``tensor`` with values that spoil every result computed from them."""
    with torch.no_grad():
        if tensor.is_floating_point() or tensor.is_complex():
            tensor.fill_(float("nan"))
        else:
            tensor.fill_(True if tensor.dtype is torch.bool else POISONED_INTEGER)
    return tensor


def _poisoning(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def wrapper(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensor = allocate(*args, **kwargs)
        if torch.compiler.is_compiling() or isinstance(tensor, FakeTensor) or tensor.is_meta:
            return tensor
        if sys._getframe(1).f_globals.get("__name__", "").startswith("braidwork.kernels"):
            poison(tensor)
        return tensor

    return wrapper


@pytest.fixture(autouse=True)
def poisoned_buffers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What ``braidwork.kernels`` allocates without a value holds NaN (integers: 90) until a kernel writes it.

    So an element that no program of a kernel writes fails a comparison instead of passing on a page of zeros.
    Callers outside the package, and traced or fake tensors, get torch's own functions.
    """
    for owner, name in ALLOCATORS:
        monkeypatch.setattr(owner, name, _poisoning(getattr(owner, name)))
    yield
