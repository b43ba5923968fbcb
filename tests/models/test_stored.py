"""A run's storage format: every format gives the same model, and "auto" picks one for each width."""

from __future__ import annotations

import pytest
import torch

from braidwork.kernels.sparse import SparseMatrix
from braidwork.kernels.testing import assert_close
from braidwork.models import GCN, Coo, coalesce, get_backend
from braidwork.models.stored import Stored


@pytest.fixture
def graph() -> tuple[Coo, Coo]:
    """Edges near the diagonal and sparse features."""
    row = torch.arange(120).repeat(3)
    edges = coalesce(row, (row + torch.tensor([1, 2, 5]).repeat_interleave(120)) % 120, None, (120, 120))
    features = coalesce(*torch.randint(40, (2, 600)), torch.rand(600), (120, 40))
    return edges, features


@pytest.mark.parametrize("format", ["csr", "coo", "csc", "ell", "sell", "hyb", "dia", "bsr4", "bsr16", "auto"])
def test_the_same_model_in_every_format(graph: tuple[Coo, Coo], format: str) -> None:
    edges, features = graph
    backend = get_backend("braidwork")
    model = GCN(40, 16, 5, input_dropout=0.25).double().eval()

    def gradients(*stored: object) -> list[torch.Tensor]:
        x, operators = backend.features(features, *stored), backend.graph(edges, (), *stored)
        model.zero_grad()
        model(x, operators).square().sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    for ours, exact in zip(gradients(format, 1000), gradients(), strict=True):
        assert_close("gradient", ours, exact, rms=1e-12, max=1e-9)


def test_auto_keeps_to_what_it_picked(graph: tuple[Coo, Coo], monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Stored(SparseMatrix.from_coo(*graph[0]), "auto", 1000)
    first = stored.at(16)
    stored.at(3)
    changing = stored.with_values(torch.rand(stored.matrix.nnz))
    assert changing.at(16).format in ("csr", "coo", "csc") and changing.values_change
    assert set(stored.chosen) == {"16", "3", "16*"}
    # A run that goes on from a checkpoint.
    again = Stored(SparseMatrix.from_coo(*graph[0]), "auto", 1000)
    again.chosen = {"16": ("dia", "coo")}
    monkeypatch.setattr(SparseMatrix, "auto", None)
    assert stored.at(16).format == first.format
    assert (again.at(16).format, again.at(16).T.format) == ("dia", "coo")


def test_refused(graph: tuple[Coo, Coo]) -> None:
    A = SparseMatrix.from_coo(*graph[0])
    with pytest.raises(ValueError, match="format: need one of .* got 'cbr'"):
        Stored(A, "cbr")
    with pytest.raises(ValueError, match="format: csr has no parameter, got 'csr8'"):
        Stored(A, "csr8")
    with pytest.raises(ValueError, match="block"):
        Stored(A, "bsr5")
