"""`gat_aggregate` beside PyTorch Geometric's `GATConv`, forward and backward: time in turns, and memory.

The peer gets the same x and scores and does what `GATConv.forward` does after its linear layer, without self loops,
dropout and bias. Floors catch a regression, not a busy machine: they lie below what was measured when they were set.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch_geometric.nn import GATConv

from braidwork.experiments.datasets import load
from braidwork.experiments.settings import settings
from braidwork.kernels.sparse import SparseMatrix, gat_aggregate
from braidwork.kernels.testing import assert_close
from braidwork.kernels.timing import compare

HEADS, WIDTH = 8, 8
FLOOR_TIME, FLOOR_MEMORY = 4.0, 4.0


def _peak_bytes(call: Callable[[], object]) -> int:
    """Most bytes that `call` holds at once beyond what was there before, as the allocator saw it."""
    call()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as records:
        kept = call()
    del kept
    now = peak = 0
    for event in sorted(records.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


@pytest.mark.parametrize("name", ["wordnet", "email-Enron"])
def test_forward_and_backward(benchmark, capsys, name):
    edges = load(settings("train", [f"dataset={name}"])["dataset"]).edges
    A = SparseMatrix.from_coo(edges.row, edges.col, shape=edges.shape).with_values(None)
    targets, sources = A.shape
    x = torch.randn(sources, HEADS, WIDTH, requires_grad=True)
    source_score = torch.randn(sources, HEADS, requires_grad=True)
    target_score = torch.randn(targets, HEADS, requires_grad=True)
    leaves = (x, source_score, target_score)
    gy = torch.randn(targets, HEADS, WIDTH)

    layer = GATConv(WIDTH, WIDTH, heads=HEADS, add_self_loops=False, bias=False)
    edge_index, size = torch.stack([A.col, A.row]).long(), (sources, targets)

    def peer(x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        alpha = layer.edge_updater(edge_index, alpha=(source, target), edge_attr=None, size=size)
        return layer.propagate(edge_index, x=(x, None), alpha=alpha, size=size)

    def both(forward: Callable[..., torch.Tensor], *operands: torch.Tensor, g: torch.Tensor = gy) -> list[torch.Tensor]:
        y = forward(*operands)
        return [y, *torch.autograd.grad(y, operands, g)]

    ours, theirs = (lambda: both(lambda *t: gat_aggregate(A, *t), *leaves)), (lambda: both(peer, *leaves))
    exact = both(peer, *(t.detach().double().requires_grad_() for t in leaves), g=gy.double())
    for quantity, got, ref, plain in zip(("y", "gx", "gsource", "gtarget"), ours(), exact, theirs()):
        assert_close(quantity, got, ref, baseline=plain, factor=4.0)

    timings = compare({"braidwork": ours, "pyg": theirs}, rounds=7, min_time_s=1.0, device="cpu")
    with torch.no_grad():
        forward = compare(
            {"braidwork forward": lambda: gat_aggregate(A, *leaves), "pyg forward": lambda: peer(*leaves)},
            rounds=5, device="cpu",
        )  # fmt: skip
    peaks = {"braidwork": _peak_bytes(ours), "pyg": _peak_bytes(theirs)}
    with capsys.disabled():
        print(f"\n{name}, {targets} rows, {A.nnz} entries, {HEADS} heads of {WIDTH}, forward and backward")
        print(timings.table(over="pyg"))
        print(forward.table(over="pyg forward"))
        print("peak memory: " + ", ".join(f"{peer} {peak / 1e6:.1f} MB" for peer, peak in peaks.items()))
    faster, leaner = timings.speedup("braidwork", over="pyg"), peaks["pyg"] / peaks["braidwork"]
    benchmark.extra_info.update({"over_pyg": faster, "memory_over_pyg": leaner})
    benchmark(ours)
    assert faster >= FLOOR_TIME and leaner >= FLOOR_MEMORY
