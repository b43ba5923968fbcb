"""Memory that outlives its tensor: who gets it next, and that nobody gets it too early."""

from __future__ import annotations

import gc
import sys
import threading

import pytest
import torch

from braidwork.kernels import alloc
from braidwork.kernels.sparse import SparseMatrix, spmm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pooled on Linux only")
CPU = torch.device("cpu")
SIDE = 2048  # a square of this side in fp32 takes 16 MiB


@pytest.fixture(autouse=True)
def _empty_pool():
    gc.collect()
    alloc.release()
    yield
    alloc.release()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.int64])
def test_is_what_torch_empty_is(dtype):
    out = alloc.empty((3, 1500, SIDE), dtype, CPU)
    like = torch.empty((3, 1500, SIDE), dtype=dtype)
    assert (out.shape, out.dtype, out.stride(), out.device) == (like.shape, like.dtype, like.stride(), like.device)
    assert out.data_ptr() % (2 << 20) == 0


def test_a_large_result_may_be_written_into_by_autograd():
    """As a layer does that adds its bias in place, on a graph of as many nodes as it takes."""
    assert not alloc.empty((SIDE, SIDE), torch.float32, CPU)._is_view()
    A = SparseMatrix.from_coo(torch.arange(SIDE), torch.arange(SIDE), shape=(SIDE, SIDE))
    x = torch.randn(SIDE, SIDE, requires_grad=True)
    y = spmm(A, x).add_(torch.ones(SIDE))
    (g,) = torch.autograd.grad(y.sum(), x)
    assert bool((g == 1).all()) and torch.equal(y.detach(), x.detach() + 1)


def test_block_is_used_again_once_every_tensor_on_it_is_gone():
    first = alloc.empty((SIDE, SIDE), torch.float32, CPU)
    address = first.data_ptr()
    row = first[-1]
    del first
    second = alloc.empty((SIDE, SIDE), torch.float32, CPU)
    assert second.data_ptr() != address
    second.fill_(1.0)
    row.fill_(2.0)
    assert bool((second == 1.0).all())
    del row
    assert alloc.empty((SIDE, SIDE), torch.float32, CPU).data_ptr() == address


def test_a_block_is_not_spent_on_a_much_smaller_tensor():
    address = alloc.empty((SIDE, SIDE), torch.float32, CPU).data_ptr()
    half = alloc.empty((SIDE // 2 + 64, SIDE), torch.float32, CPU)
    assert half.data_ptr() != address
    nearly = alloc.empty((SIDE - 64, SIDE), torch.float32, CPU)
    assert nearly.data_ptr() == address


def test_idle_blocks_are_bounded(monkeypatch):
    monkeypatch.setattr(alloc, "IDLE_LIMIT_BYTES", 40 << 20)
    held = [alloc.empty((SIDE, SIDE), torch.float32, CPU) for _ in range(4)]
    last = held[-1].data_ptr()
    while held:
        held.pop(0)
    assert alloc._pool.idle_bytes == sum(block.nbytes for block in alloc._pool.idle) == 32 << 20
    assert alloc.empty((SIDE, SIDE), torch.float32, CPU).data_ptr() == last
    alloc.release()
    assert alloc._pool.idle_bytes == 0 and not alloc._pool.idle


def test_small_tensors_are_torch_s_own():
    del_me = alloc.empty((8, 8), torch.float32, CPU)
    del del_me
    assert not alloc._pool.idle
    assert alloc.empty((0, SIDE), torch.float32, CPU).shape == (0, SIDE)


def test_threads_never_share_a_block():
    wrong = []

    def work(number: int) -> None:
        for _ in range(20):
            mine = alloc.empty((SIDE, SIDE), torch.float32, CPU)
            mine[::64].fill_(number)
            if not bool((mine[::64] == number).all()):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(alloc._pool.idle) <= 8


def test_gradients_and_sharing_work_on_pooled_memory():
    leaf = alloc.empty((SIDE, SIDE), torch.float32, CPU).fill_(3.0).requires_grad_()
    (leaf * leaf).sum().backward()
    assert bool((leaf.grad == 6.0).all())
    shared = leaf.detach().share_memory_()
    assert shared.is_shared() and bool((shared == 3.0).all())
