"""`spgemm` against SciPy and dense products: pattern, values and gradients."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from braidwork.kernels.sparse import SparseMatrix, spgemm
from braidwork.kernels.testing import FLOAT_DTYPES, assert_close, devices, graph_zoo

_spec = importlib.util.spec_from_file_location("sparse_reference", Path(__file__).with_name("reference.py"))
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)

DEVICE = devices()[0]

module = importlib.import_module("braidwork.kernels.sparse.spgemm")


def pair(name: str, dtype: torch.dtype, weights: tuple[bool, bool]) -> tuple[SparseMatrix, SparseMatrix]:
    A = reference.matrix(graph_zoo()[name], dtype, weights[0], "keep", device=DEVICE)
    return A, reference.matrix(graph_zoo()[name], dtype, weights[1], "keep", device=DEVICE).T


@pytest.mark.parametrize("weights", [(True, True), (True, False), (False, False)], ids=str)
@pytest.mark.parametrize("graph", list(graph_zoo()))
def test_against_scipy(graph: str, weights: tuple[bool, bool]) -> None:
    A, B = pair(graph, torch.float64, weights)
    C = spgemm(A, B)
    ones = [m if m.values is not None else m.with_values(torch.ones(m.nnz, device=DEVICE)) for m in (A, B)]
    ref = ones[0].to_scipy() @ ones[1].to_scipy()
    assert C.shape == ref.shape and C.dtype == (torch.float64 if any(weights) else torch.float32)
    assert_close("values", C.to_dense(), torch.from_numpy(ref.toarray()).double(), rms=1e-12, max=1e-10)
    counts = [m.with_values(torch.ones(m.nnz, device=DEVICE)).to_dense() for m in (A, B)]
    assert C.nnz == int(((counts[0] @ counts[1]) > 0).sum())


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("limit", [7, 100, 1 << 25])
def test_gradients_in_chunks_of_any_size(limit: int, dtype: torch.dtype) -> None:
    A, B = pair("wide", dtype, (True, True))
    leaves = [m.values.detach().clone().requires_grad_() for m in (A, B)]
    C = module._spgemm(A.with_values(leaves[0]), B.with_values(leaves[1]), limit)
    g = torch.randn(C.nnz, dtype=torch.float64).to(DEVICE, dtype)
    got = torch.autograd.grad(C.values, leaves, g)
    wide = [t.detach().double().requires_grad_() for t in leaves]
    dense = A.with_values(wide[0]).to_dense() @ B.with_values(wide[1]).to_dense()
    picked = dense[C.row.long(), C.col.long()]
    ref = torch.autograd.grad(picked, wide, g.double())
    bounds = {"rms": 1e-13, "max": 1e-11} if dtype == torch.float64 else {}
    for name, a, b in zip(("C", "A", "B"), (C.values, *got), (picked, *ref), strict=True):
        assert a.dtype == dtype
        assert_close(name, a, b, factor=4.0, **bounds)
    again = module._spgemm(A.with_values(leaves[0]), B.with_values(leaves[1]), limit)
    assert torch.equal(again.values, C.values)
    assert all(torch.equal(a, b) for a, b in zip(got, torch.autograd.grad(again.values, leaves, g)))


def test_gradcheck() -> None:
    A = SparseMatrix.from_coo([0, 0, 1, 3, 3], [1, 2, 2, 0, 1], shape=(4, 3)).to(DEVICE)
    B = SparseMatrix.from_coo([0, 1, 1, 2], [4, 0, 3, 3], shape=(3, 5)).to(DEVICE)
    a, b = (torch.randn(n, dtype=torch.float64, device=DEVICE, requires_grad=True) for n in (5, 4))
    for left, right in ((A, B), (B.T, A.T)):
        values = (a, b) if left is A else (b, a)
        assert torch.autograd.gradcheck(
            lambda u, v, left=left, right=right: spgemm(left.with_values(u), right.with_values(v)).values, values
        )
    assert torch.autograd.gradcheck(lambda u: spgemm(A.with_values(u), B).values, a)


def test_errors_name_the_argument() -> None:
    A = SparseMatrix.from_coo([0, 1], [1, 2], [1.0, 2.0], (2, 3)).to(DEVICE)
    far = SparseMatrix.from_coo([], [], shape=(1, 2**62)).to(DEVICE)
    for error, message, call in (
        (TypeError, "A: need a SparseMatrix", lambda: spgemm(1, A)),
        (TypeError, "B: need a SparseMatrix", lambda: spgemm(A, A.to_dense())),
        (ValueError, "B: need 3 rows", lambda: spgemm(A, A)),
        (TypeError, "B: need values of the dtype of A", lambda: spgemm(A, A.T.to(torch.float64))),
        (ValueError, "A, B: the product", lambda: spgemm(far.T, far)),
    ):
        with pytest.raises(error, match=message):
            call()
