"""`edge_softmax` against `torch.softmax` row by row in fp64: results and gradients."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from braidwork.kernels.sparse import SparseMatrix, edge_softmax
from braidwork.kernels.testing import FLOAT_DTYPES, assert_close, devices, graph_zoo

_spec = importlib.util.spec_from_file_location("sparse_reference", Path(__file__).with_name("reference.py"))
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)

DEVICE = devices()[0]


def define(A: SparseMatrix, logits: torch.Tensor) -> torch.Tensor:
    out = logits * 0
    row = A.row.cpu()
    for i in row.unique().tolist():
        mine = (row == i).nonzero().squeeze(1)
        out = out.index_copy(0, mine, logits[mine].softmax(0))
    return out


def check(A: SparseMatrix, H: int | None, dtype: torch.dtype, spread: float = 3.0) -> None:
    shape = (A.nnz,) if H is None else (A.nnz, H)
    logits = (spread * torch.randn(shape, dtype=torch.float64)).to(DEVICE, dtype).requires_grad_()
    p = edge_softmax(A, logits)
    g = torch.randn(shape, dtype=torch.float64).to(dtype)
    (got,) = torch.autograd.grad(p, logits, g.to(DEVICE))
    leaf = logits.detach().cpu().double().requires_grad_()
    exact = define(A, leaf)
    (ref,) = torch.autograd.grad(exact, leaf, g.double())
    assert p.dtype == got.dtype == dtype and p.shape == shape
    eps = torch.finfo(dtype).eps
    assert_close("p", p, exact, rms=8 * eps, max=64 * eps)
    assert float((got.cpu().double() - ref).abs().max() if A.nnz else 0) <= 32 * eps


@pytest.mark.parametrize("graph", list(graph_zoo()))
def test_awkward_graphs(graph: str) -> None:
    A = reference.matrix(graph_zoo()[graph], weighted=False, duplicates="keep", device=DEVICE)
    check(A, 3, torch.float32)
    check(A.T, None, torch.float32)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("H", [None, 1, 5, 8, 40])
def test_dtypes_and_heads(H: int | None, dtype: torch.dtype) -> None:
    for name in ("wide", "hub_row"):
        check(reference.matrix(graph_zoo()[name], weighted=False, device=DEVICE), H, dtype)


def test_gradcheck_and_no_second_derivative() -> None:
    A = SparseMatrix.from_coo([0, 0, 1, 3, 3, 3], [1, 4, 4, 0, 1, 2], shape=(4, 5)).to(DEVICE)
    logits = torch.randn(6, 2, dtype=torch.float64, device=DEVICE, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: edge_softmax(A, x), logits)
    (g,) = torch.autograd.grad(edge_softmax(A, logits).sin().sum(), logits, create_graph=True)
    with pytest.raises(NotImplementedError, match="once, not twice"):
        g.sum().backward()


@pytest.mark.parametrize("long", [False, True])
def test_large_logits_infinities_and_nan(long: bool) -> None:
    """As `torch.softmax`, in rows that fit a tile and in rows that do not."""
    inf, nan = float("inf"), float("nan")
    n = 300 if long else 3
    rows = [[1e4, -1e4, 9999.0], [-inf, -inf, -inf], [-inf, 0.0, 1.0], [nan, 0.0, 1.0], [inf, 0.0, 1.0]]
    table = torch.tensor(rows).repeat(1, n // 3)
    row = torch.arange(5).repeat_interleave(n)
    A = SparseMatrix.from_coo(row, torch.arange(n).repeat(5), shape=(6, n)).to(DEVICE)
    for dtype in (torch.float32, torch.float64):
        p = edge_softmax(A, table.flatten().to(DEVICE, dtype)).cpu().view(5, n)
        assert torch.allclose(p, table.to(dtype).softmax(1), equal_nan=True)
        assert p[1].isnan().all() and p[3].isnan().all() and not p[2, 0].any()


def test_hub_of_a_hundred_thousand_and_single_entries() -> None:
    n = 100_000
    row = torch.cat([torch.zeros(n, dtype=torch.long), torch.arange(1, 4)])
    A = SparseMatrix.from_coo(row, torch.arange(n + 3), shape=(5, n + 3)).to(DEVICE)
    logits = torch.randn(n + 3, 8, device=DEVICE)
    p = edge_softmax(A, logits)
    assert_close("p", p[:n], logits[:n].cpu().double().softmax(0), rms=1e-6, max=1e-5)
    assert torch.equal(p[n:], torch.ones_like(p[n:]))
    assert torch.equal(p, edge_softmax(A, logits))
    strided = torch.randn(8, n + 3, device=DEVICE).T
    assert torch.equal(edge_softmax(A, strided), edge_softmax(A, strided.contiguous()))


def test_opcheck_and_compile() -> None:
    A = reference.matrix(graph_zoo()["wide"], weighted=False, device=DEVICE)
    logits = torch.randn(A.nnz, 3, device=DEVICE, requires_grad=True)
    storage = A.to("csr").storage().tensors
    torch.library.opcheck(torch.ops.braidwork.edge_softmax.default, (logits, storage))
    p = edge_softmax(A, logits.detach())
    torch.library.opcheck(torch.ops.braidwork.edge_softmax_backward.default, (p, torch.randn_like(p), storage))

    def run(f):
        p = f(logits)
        return [p, *torch.autograd.grad(p.square().sum(), logits)]

    for a, b in zip(
        run(torch.compile(lambda x: edge_softmax(A, x.sin()), fullgraph=True)), run(lambda x: edge_softmax(A, x.sin()))
    ):
        assert_close("compiled", a, b.double(), rms=1e-6, max=1e-5)


def test_errors_name_the_argument() -> None:
    A = SparseMatrix.from_coo([0, 1], [1, 2], shape=(2, 3)).to(DEVICE)
    x = torch.ones(2, device=DEVICE)
    for error, message, call in (
        (TypeError, "A: need a SparseMatrix", lambda: edge_softmax(x, x)),
        (TypeError, "logits: need a torch.Tensor", lambda: edge_softmax(A, 1.0)),
        (TypeError, "logits: need a dense tensor", lambda: edge_softmax(A, x.long())),
        (ValueError, r"logits: need shape \[2\] or", lambda: edge_softmax(A, torch.ones(3, device=DEVICE))),
        (ValueError, "logits: A is on", lambda: edge_softmax(A, x.to("meta"))),
    ):
        with pytest.raises(error, match=message):
            call()
