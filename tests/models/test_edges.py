"""Edge lists against SciPy and a loop over dictionaries."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from braidwork.models import Coo, coalesce, undirected, with_self_loops
from braidwork.models.edges import symmetric_scale, take_rows


@st.composite
def edge_lists(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, int]:
    n = draw(st.integers(1, 8))
    node = st.integers(0, n - 1)
    pairs = draw(st.lists(st.tuples(node, node, st.integers(1, 9)), max_size=25))
    row, col, value = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 3).T
    return row, col, value.float() if draw(st.booleans()) else None, n


def entries(edges: Coo) -> dict[tuple[int, int], float]:
    value = torch.ones(edges.nnz) if edges.value is None else edges.value
    return dict(zip(zip(edges.row.tolist(), edges.col.tolist(), strict=True), value.tolist(), strict=True))


@given(edge_lists())
@settings(max_examples=60, deadline=None)
def test_coalesce_sorts_and_merges(given_edges) -> None:
    row, col, value, n = given_edges
    merged = coalesce(row, col, value, (n, n))
    expected: dict[tuple[int, int], float] = {}
    for i, j, v in zip(row.tolist(), col.tolist(), [1.0] * len(row) if value is None else value.tolist(), strict=True):
        expected[i, j] = 1.0 if value is None else expected.get((i, j), 0.0) + v
    assert entries(merged) == expected
    assert list(entries(merged)) == sorted(expected)


@given(edge_lists())
@settings(max_examples=60, deadline=None)
def test_undirected_keeps_the_larger_weight_and_is_its_own_transpose(given_edges) -> None:
    row, col, value, n = given_edges
    edges = coalesce(row, col, value, (n, n))
    both, before = entries(undirected(edges)), entries(edges)
    assert set(both) == {pair for i, j in before for pair in ((i, j), (j, i))}
    for (i, j), v in both.items():
        assert v == both[j, i] == max(before.get((i, j), -1.0), before.get((j, i), -1.0))


@given(edge_lists())
@settings(max_examples=60, deadline=None)
def test_self_loops_are_added_where_there_are_none(given_edges) -> None:
    row, col, value, n = given_edges
    edges = coalesce(row, col, value, (n, n))
    looped = entries(with_self_loops(edges))
    assert looped == {(i, i): 1.0 for i in range(n)} | entries(edges)


@pytest.mark.parametrize("weighted", [False, True])
def test_symmetric_scale_normalises_as_the_formula_says(weighted: bool) -> None:
    rng = np.random.default_rng(0)
    matrix = scipy.sparse.random_array((30, 30), density=0.1, rng=rng, format="coo")
    value = torch.from_numpy(matrix.data).float() if weighted else None
    row, col = (torch.from_numpy(ends.astype(np.int64)) for ends in matrix.coords)
    edges = with_self_loops(undirected(coalesce(row, col, value, (30, 30))))
    scale = symmetric_scale(edges, torch.float64)
    dense = torch.zeros(30, 30, dtype=torch.float64)
    dense[edges.row, edges.col] = torch.tensor(list(entries(edges).values()), dtype=torch.float64)
    inverse_root = torch.linalg.inv(torch.diag(dense.sum(1).sqrt()))
    torch.testing.assert_close(scale[:, None] * dense * scale, inverse_root @ dense @ inverse_root)


def test_a_row_without_positive_weight_scales_to_zero() -> None:
    edges = Coo(torch.tensor([1, 2]), torch.tensor([0, 0]), torch.tensor([-2.0, 4.0]), (3, 3))
    assert symmetric_scale(edges).tolist() == [0.0, 0.0, 0.5]


@given(edge_lists(), st.data())
def test_rows_are_taken_in_the_order_asked_for(case: tuple, data: st.DataObject) -> None:
    row, col, value, n = case
    matrix = coalesce(row, col, value, (n, n))
    rows = torch.tensor(data.draw(st.lists(st.integers(0, n - 1), max_size=10)), dtype=torch.int64)
    taken = take_rows(matrix, rows)
    assert taken.shape == (rows.numel(), n) and (taken.value is None) == (value is None)
    kept = entries(matrix)
    expected = {(k, j): v for k, i in enumerate(rows.tolist()) for (at, j), v in kept.items() if at == i}
    assert entries(taken) == expected
    assert list(entries(taken)) == sorted(expected)
