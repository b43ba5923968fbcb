"""SparseMatrix: what the constructors accept and refuse, and what they make of it."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from braidwork.kernels.sparse import FORMATS, SparseMatrix, spmm
from braidwork.kernels.sparse.formats import register
from braidwork.kernels.testing import graph_zoo

_spec = importlib.util.spec_from_file_location("sparse_reference", Path(__file__).with_name("reference.py"))
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)


@pytest.mark.parametrize("graph", list(graph_zoo()))
def test_entries_are_sorted_and_summed(graph: str) -> None:
    coo = graph_zoo()[graph]
    A = reference.matrix(coo, torch.float64)
    assert torch.allclose(A.to_dense(), coo.dense())
    assert torch.equal(A.T.to_dense(), A.to_dense().T)
    assert A.shape == coo.shape and A.T.shape == coo.shape[::-1]
    key = A.row.long() * max(A.shape[1], 1) + A.col
    assert bool((key.diff() > 0).all())
    assert A.row.dtype == A.col.dtype == torch.int32
    ours, theirs = A.to_scipy(), scipy.sparse.coo_array((coo.value, (coo.row, coo.col)), coo.shape).tocsr()
    assert ours.shape == theirs.shape and abs(ours - theirs).sum() < 1e-9


def test_duplicates() -> None:
    row, col = [2, 0, 2, 2, 0], [1, 3, 1, 0, 3]
    summed = SparseMatrix.from_coo(row, col, [1.0, 2.0, 4.0, 8.0, 16.0])
    assert summed.nnz == 3 and summed.shape == (3, 4)
    assert summed.values.tolist() == [18.0, 8.0, 5.0] and summed.col.tolist() == [3, 0, 1]
    kept = SparseMatrix.from_coo(row, col, [1.0, 2.0, 4.0, 8.0, 16.0], duplicates="keep")
    assert kept.nnz == 5 and kept.values.tolist() == [2.0, 16.0, 8.0, 1.0, 4.0]
    assert torch.equal(kept.to_dense(), summed.to_dense())
    counted = SparseMatrix.from_coo(row, col)
    assert counted.values.tolist() == [2.0, 1.0, 2.0] and counted.dtype == torch.float32
    multigraph = SparseMatrix.from_coo(row, col, duplicates="keep")
    assert multigraph.values is None and multigraph.dtype is None and multigraph.nnz == 5
    assert torch.equal(multigraph.to_dense(), counted.to_dense())
    unique = SparseMatrix.from_coo([1, 0], [0, 1])
    assert unique.values is None


def test_sums_of_half_precision_values_are_rounded_once() -> None:
    value = torch.ones(4000, dtype=torch.float16)
    A = SparseMatrix.from_coo(torch.zeros(4000, dtype=torch.int64), torch.zeros(4000, dtype=torch.int64), value)
    assert A.values.tolist() == [4000.0] and A.dtype == torch.float16


def test_gradients_reach_the_values_given() -> None:
    value = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    A = SparseMatrix.from_coo([1, 0, 1], [0, 0, 0], value, (2, 1))
    assert "requires_grad" in repr(A)
    y = spmm(A, torch.tensor([[10.0]]))
    (y * torch.tensor([[1.0], [2.0]])).sum().backward()
    assert value.grad.tolist() == [20.0, 10.0, 20.0]
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]], requires_grad=True)
    spmm(SparseMatrix.from_torch(dense), torch.tensor([[1.0], [10.0]])).sum().backward()
    assert dense.grad.tolist() == [[0.0, 10.0], [1.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_index_dtypes(dtype: torch.dtype) -> None:
    A = SparseMatrix.from_coo(torch.tensor([3, 0, 2], dtype=dtype), torch.tensor([0, 1, 2], dtype=dtype))
    assert A.row.tolist() == [0, 2, 3] and A.row.dtype == torch.int32


def test_sizes_that_need_int64() -> None:
    big = 2**33
    A = SparseMatrix.from_coo([0, 1, 0], [big - 1, 5, 7], [1.0, 2.0, 3.0], (2, big))
    assert A.row.dtype == torch.int64 and A.col.tolist() == [7, big - 1, 5]
    assert "index=int64" in repr(A)
    # The product of the sides passes 2^63, so that row and column do not fit one key.
    B = SparseMatrix.from_coo([2**40, 1, 2**40, 1], [3, 2**40, 1, 5], [1.0, 2.0, 3.0, 4.0], (2**41, 2**41))
    assert B.row.tolist() == [1, 1, 2**40, 2**40] and B.values.tolist() == [4.0, 2.0, 3.0, 1.0]
    assert SparseMatrix.from_coo([2**31 - 2], [0]).row.dtype == torch.int32
    assert SparseMatrix.from_coo([2**31 - 1], [0]).row.dtype == torch.int64


def test_from_csr() -> None:
    A = SparseMatrix.from_csr([0, 2, 2, 3], [4, 1, 0], [1.0, 2.0, 3.0])
    assert A.shape == (3, 5) and A.col.tolist() == [1, 4, 0] and A.values.tolist() == [2.0, 1.0, 3.0]
    assert SparseMatrix.from_csr([0], [], shape=(0, 3)).shape == (0, 3)
    for rowptr in ([], [1, 3], [0, 2], [0, 2, 1, 3]):
        with pytest.raises(ValueError, match="rowptr: "):
            SparseMatrix.from_csr(rowptr, [0, 1, 2])
    with pytest.raises(ValueError, match="shape: rowptr has 1 rows"):
        SparseMatrix.from_csr([0, 1], [0], shape=(2, 3))


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "dia", "lil", "dok"])
def test_from_scipy(layout: str) -> None:
    array = scipy.sparse.random_array((12, 8), density=0.3, rng=np.random.default_rng(0), dtype=np.float32)
    for matrix in (array.asformat(layout), scipy.sparse.csr_matrix(array).asformat(layout)):
        A = SparseMatrix.from_scipy(matrix)
        assert A.dtype == torch.float32
        assert np.array_equal(A.to_dense().numpy(), matrix.todense())
        assert np.array_equal(A.to_scipy().todense(), matrix.todense())


def test_to_scipy_of_other_values() -> None:
    A = SparseMatrix.from_coo([0, 1], [1, 0], torch.tensor([1.5, 2.5], dtype=torch.bfloat16))
    assert A.to_scipy().dtype == np.float32 and A.to_scipy().todense().tolist() == [[0, 1.5], [2.5, 0]]
    assert A.with_values(None).T.to_scipy().todense().tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("layout", ["dense", "coo", "uncoalesced", "csr", "csc", "bsr"])
def test_from_torch(layout: str) -> None:
    dense = torch.tensor([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 3.0, 0.0]])
    matrix = {
        "dense": lambda: dense,
        "coo": dense.to_sparse_coo,
        "uncoalesced": lambda: torch.sparse_coo_tensor([[0, 0, 0, 1], [1, 3, 1, 2]], [0.5, 2.0, 0.5, 3.0], (2, 4)),
        "csr": dense.to_sparse_csr,
        "csc": dense.to_sparse_csc,
        "bsr": lambda: dense.to_sparse_bsr((2, 2)),
    }[layout]()
    A = SparseMatrix.from_torch(matrix)
    assert torch.equal(A.to_dense(), dense)


def test_from_edge_index() -> None:
    # 0 -> 1, 0 -> 2, 2 -> 1: node 1 hears from 0 and 2.
    edge_index = torch.tensor([[0, 0, 2], [1, 2, 1]])
    A = SparseMatrix.from_edge_index(edge_index, num_nodes=4)
    x = torch.tensor([[1.0], [10.0], [100.0], [1000.0]])
    assert A.shape == (4, 4) and spmm(A, x).squeeze(1).tolist() == [0, 101, 1, 0]
    assert SparseMatrix.from_edge_index(edge_index).shape == (3, 3)
    assert SparseMatrix.from_edge_index(torch.empty(2, 0, dtype=torch.long)).shape == (0, 0)
    bipartite = SparseMatrix.from_edge_index(edge_index, torch.tensor([[1.0], [2.0], [3.0]]), (5, 3))
    assert bipartite.shape == (3, 5)
    assert spmm(bipartite, torch.cat([x, x[:1]])).squeeze(1).tolist() == [0, 301, 2]
    twice = torch.cat([edge_index, edge_index[:, :1]], 1)
    assert SparseMatrix.from_edge_index(twice).nnz == 4
    assert spmm(SparseMatrix.from_edge_index(twice, num_nodes=4), x, "mean")[1].item() == 34
    assert SparseMatrix.from_edge_index(twice, duplicates="sum").values.tolist() == [2, 1, 1]


def test_views_share_what_they_can() -> None:
    A = SparseMatrix.from_coo([0, 1, 2], [1, 2, 0], [1.0, 2.0, 3.0])
    at_first = A.nbytes
    assert at_first == 3 * (4 + 4 + 4)
    A.to("csr")
    assert A.nbytes == at_first + 4 * 4
    B = A.T.with_values(torch.tensor([4.0, 5.0, 6.0]))
    assert B.pattern is A.pattern and B.T.to_dense()[0, 1] == 4.0
    assert A.T.T.values is A.values and A.T.row is A.col
    assert A.T.with_values(None).nbytes == A.nbytes - 12
    assert A.to(torch.float64).dtype == torch.float64 and A.to("cpu").pattern is A.pattern
    assert A.with_values(None).to(torch.float64).values is None
    assert repr(A) == "SparseMatrix(3 x 3, nnz=3, float32, csr, index=int32, device=cpu)"
    assert "unweighted" in repr(A.with_values(None))


def test_each_direction_has_its_own_format() -> None:
    built = []

    csr = FORMATS["csr"]

    def build(pattern, transposed, params, limit):
        built.append(transposed)
        return csr.build(pattern, transposed, params, limit)

    spy = dataclasses.replace(csr, name="spy", build=build)
    register(spy)
    try:
        with pytest.raises(ValueError, match="already registered"):
            register(spy)
        A = SparseMatrix.from_coo([0, 1, 2], [1, 2, 2], [1.0, 2.0, 3.0], (3, 4))
        B = A.T.to("spy").T
        assert (B.format, B.T.format, A.T.format, built) == ("csr", "spy", "csr", [True])
        x = torch.randn(4, 2, requires_grad=True)
        spmm(B, x).sum().backward()
        assert torch.equal(x.grad, A.to_dense().sum(0)[:, None].expand(4, 2))
        assert A.to("spy").format == "spy" and built == [True, False]
        assert torch.equal(spmm(A.to("spy"), x), spmm(A, x))
    finally:
        del FORMATS["spy"]


@settings(deadline=None, max_examples=50)
@given(data=st.data(), rows=st.integers(1, 9), cols=st.integers(1, 9), nnz=st.integers(0, 40))
def test_any_triples(data: st.DataObject, rows: int, cols: int, nnz: int) -> None:
    row = data.draw(st.lists(st.integers(0, rows - 1), min_size=nnz, max_size=nnz))
    col = data.draw(st.lists(st.integers(0, cols - 1), min_size=nnz, max_size=nnz))
    value = data.draw(st.lists(st.integers(-8, 8), min_size=nnz, max_size=nnz))
    expected = np.zeros((rows, cols))
    np.add.at(expected, (row, col), value)
    for duplicates in ("sum", "keep"):
        A = SparseMatrix.from_coo(row, col, np.array(value, dtype=np.float64), (rows, cols), duplicates)
        assert np.array_equal(A.to_dense().numpy(), expected)
        assert np.array_equal(A.T.to_dense().numpy(), expected.T)
        assert A.is_symmetric() == (
            A.shape[0] == A.shape[1]
            and A.pattern.is_symmetric()
            and torch.equal(A.values, A.values[A.pattern.sorted(True)[2]])
        )
        if duplicates == "sum":
            assert A.is_symmetric() == (rows == cols and _equals_its_transpose(A))


def _equals_its_transpose(A: SparseMatrix) -> bool:
    entries = {(i, k): v for i, k, v in zip(A.row.tolist(), A.col.tolist(), A.values.tolist(), strict=True)}
    return all(entries.get((k, i)) == v for (i, k), v in entries.items())


def test_refused_at_the_door() -> None:
    make = SparseMatrix.from_coo
    indices = torch.tensor([0, 1])
    for error, message, call in (
        (TypeError, "row: need integers, got torch.float32", lambda: make(torch.ones(2), indices)),
        (TypeError, "row: need integers, got bool", lambda: make([True, False], indices)),
        (TypeError, "col: need integers, got float64", lambda: make(indices, [0.5, 1])),
        (ValueError, "row: need one dimension", lambda: make(indices[None], indices)),
        (ValueError, "col: need as many as the 2", lambda: make(indices, [1])),
        (ValueError, "col: need all tensors on one device", lambda: make(indices, indices.to("meta"))),
        (ValueError, "row: index -1 is negative", lambda: make([-1, 0], indices)),
        (ValueError, r"col: index 1 is out of bounds for shape \(2, 1\)", lambda: make(indices, indices, shape=(2, 1))),
        (ValueError, "row: index .* is out of bounds", lambda: make(np.array([2**63], np.uint64), [0])),
        (ValueError, "shape: need", lambda: make(indices, indices, shape=(2,))),
        (ValueError, "shape: need", lambda: make(indices, indices, shape=(-2, 2))),
        (ValueError, "shape: need", lambda: make(indices, indices, shape=(2.5, 2))),
        (ValueError, "shape: need", lambda: make(indices, indices, shape="wide")),
        (TypeError, "value: complex", lambda: make(indices, indices, torch.ones(2, dtype=torch.complex64))),
        (TypeError, "value: need values of dtype", lambda: make(indices, indices, [1, 2])),
        (TypeError, "value: need values of dtype", lambda: make(indices, indices, torch.ones(2, dtype=torch.bool))),
        (ValueError, "value: need one value for each", lambda: make(indices, indices, torch.ones(3))),
        (ValueError, "value: need one value for each", lambda: make(indices, indices, torch.ones(2, 1))),
        (ValueError, "value: need all tensors on one", lambda: make(indices, indices, torch.ones(2, device="meta"))),
        (ValueError, "duplicates: need", lambda: make(indices, indices, duplicates="drop")),
        (TypeError, "matrix: need a SciPy", lambda: SparseMatrix.from_scipy(np.eye(2))),
        (TypeError, "value: complex", lambda: SparseMatrix.from_scipy(scipy.sparse.eye_array(2, dtype=complex))),
        (TypeError, "value: need values", lambda: SparseMatrix.from_scipy(scipy.sparse.eye_array(2, dtype=int))),
        (ValueError, "matrix: need two", lambda: SparseMatrix.from_scipy(scipy.sparse.coo_array([1.0, 2.0]))),
        (TypeError, "matrix: need a torch", lambda: SparseMatrix.from_torch(np.eye(2))),
        (ValueError, "matrix: need two", lambda: SparseMatrix.from_torch(torch.ones(2, 2, 2))),
        (ValueError, "matrix: need two", lambda: SparseMatrix.from_torch(torch.ones(2, 2).to_sparse(1))),
        (ValueError, "edge_index: need shape", lambda: SparseMatrix.from_edge_index(torch.ones(3, 2))),
        (TypeError, "edge_index: need integers", lambda: SparseMatrix.from_edge_index(torch.ones(2, 3))),
        (ValueError, "edge_weight: need one value", lambda: SparseMatrix.from_edge_index([[0], [1]], torch.ones(3))),
        (ValueError, "num_nodes: need", lambda: SparseMatrix.from_edge_index(torch.eye(2).long(), num_nodes=-1)),
        (ValueError, "target: need a format", lambda: make(indices, indices).to("crs")),
        (TypeError, "target: values can be", lambda: make(indices, indices).to(torch.int32)),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            call()


def test_nan_is_allowed() -> None:
    A = SparseMatrix.from_coo([0, 0], [0, 0], [float("nan"), 1.0])
    assert A.values.isnan().all() and not A.is_symmetric()
