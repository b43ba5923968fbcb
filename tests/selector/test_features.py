"""Features against what conversion really finds, and what they cost."""

from __future__ import annotations

import statistics
import time

import pytest
import torch

from braidwork.kernels.sparse import FORMATS, SparseMatrix
from braidwork.kernels.testing import graph_zoo
from braidwork.selector import CANDIDATES, features
from braidwork.selector.corpus import matrix
from braidwork.selector.features import bound_bytes, matrix_bytes, padding


def test_every_format_is_a_candidate() -> None:
    assert {candidate.format for candidate in CANDIDATES.values()} == set(FORMATS)
    for candidate in CANDIDATES.values():
        A = matrix("stencil", nnz=500, dims=1, corners=True).to(candidate.format, **candidate.params)
        assert A.pattern.has(candidate.format, False, candidate.key())


@pytest.mark.parametrize(
    ("family", "params"),
    [
        ("banded", {"nnz": 40_000, "diagonals": 9, "reach": 30}),
        ("stencil", {"nnz": 30_000, "dims": 2, "corners": True}),
        ("blocks", {"nnz": 40_000, "side": 8, "per_row": 3}),
        ("power_law", {"nnz": 40_000, "degree": 8, "exponent": 0.8}),
        ("sampled_block", {"nnz": 30_000, "fanout": 10, "exponent": 0.4}),
        ("mesh", {"nnz": 30_000, "dims": 2, "ordered": True}),
    ],
)
def test_padding_is_what_conversion_finds(family: str, params: dict) -> None:
    """Exactly where it is counted, within a fifth where a sample stands for the whole; both ways round."""
    A = matrix(family, **params)
    for B in (A, A.T):
        found = features(B)
        counts = torch.bincount(B.row, minlength=B.shape[0]).double()
        assert found["rows"] == B.shape[0] and found["cols"] == B.shape[1] and found["nnz"] == B.nnz
        assert found["longest"] == counts.max()
        assert found["mean"] == pytest.approx(float(counts.mean()))
        assert found["cv"] == pytest.approx(float(counts.std(correction=0) / counts.mean()), abs=1e-6)
        assert found["empty"] == pytest.approx(float((counts == 0).double().mean()))
        for name, places in _places(B).items():
            real = places / B.nnz
            # Whether beyond all use a bit or a lot does not matter.
            assert padding(found, name) == pytest.approx(real, rel=0.2) or min(real, padding(found, name)) > 12, name
        for name, candidate in CANDIDATES.items():
            try:
                stored = B.to(candidate.format, **candidate.params)
            except ValueError:
                continue
            moved = stored.traffic("spmm", 16)
            assert matrix_bytes(found, name, True) == pytest.approx(moved.matrix, rel=0.25), name
            assert bound_bytes(found, name, True, 16, 4) == pytest.approx(moved.bytes, rel=0.4), name


def _places(B: SparseMatrix) -> dict[str, int]:
    counts = torch.bincount(B.row, minlength=B.shape[0])
    out = {"ell": B.shape[0] * int(counts.max())}
    out["sell"] = B.to("sell").storage().tensors[3].numel()
    offsets = (B.col.long() - B.row.long()).unique().shape[0]
    if offsets < 100:
        out["dia"] = offsets * B.shape[0]
    for block in (4, 8, 16, 32):
        keys = (B.row.long() // block) * (1 << 32) + B.col.long() // block
        out[f"bsr{block}"] = keys.unique().shape[0] * block**2
    return out


@pytest.mark.parametrize("graph", list(graph_zoo()))
def test_awkward_graphs_give_finite_numbers(graph: str) -> None:
    coo = graph_zoo()[graph]
    A = SparseMatrix.from_coo(coo.row, coo.col, shape=coo.shape, duplicates="keep")
    for B in (A, A.T):
        numbers = features(B).of_product(16, torch.float32, False)
        assert all(value == value and abs(value) != float("inf") for value in numbers.values())


def test_computed_once_for_a_pattern_and_a_direction() -> None:
    A = matrix("uniform", nnz=500, degree=5)
    assert features(A) is features(A.with_values(None)) and features(A) is not features(A.T)


@pytest.mark.slow
def test_cost() -> None:
    """Under 1 ms and 5 ns for each entry: the best of many, since a neighbour may hold the core."""
    for nnz in (1_000, 100_000, 4_000_000):
        seconds = []
        for _ in range(20 if nnz < 1_000_000 else 5):
            A = matrix("uniform", nnz=nnz, degree=8.0)
            start = time.perf_counter()
            features(A)
            seconds.append(time.perf_counter() - start)
        assert min(seconds) < 1e-3 + 5e-9 * nnz, (nnz, statistics.median(seconds))
