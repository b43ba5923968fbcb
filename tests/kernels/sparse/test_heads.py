"""`spmm_heads` against its definition in fp64: results and both gradients."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from braidwork.kernels.sparse import SparseMatrix, spmm_heads
from braidwork.kernels.testing import FLOAT_DTYPES, assert_close, devices, graph_zoo

_spec = importlib.util.spec_from_file_location("sparse_reference", Path(__file__).with_name("reference.py"))
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)

DEVICE = devices()[0]


def define(A: SparseMatrix, values: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    terms = x[A.col.cpu().long()] * (1 if values is None else values[:, :, None])
    return torch.zeros(A.shape[0], *terms.shape[1:], dtype=terms.dtype).index_add(0, A.row.cpu().long(), terms)


def check(A: SparseMatrix, hv: int | None, hx: int, D: int, dtype: torch.dtype) -> None:
    x = torch.randn(A.shape[1], hx, D, dtype=torch.float64).to(DEVICE, dtype).requires_grad_()
    values = None
    if hv is not None:
        values = torch.randn(A.nnz, hv, dtype=torch.float64).to(DEVICE, dtype).requires_grad_()
    ours = [t for t in (values, x) if t is not None]
    y = spmm_heads(A, values, x)
    g = torch.randn(y.shape, dtype=torch.float64).to(dtype)
    got = [y, *torch.autograd.grad(y, ours, g.to(DEVICE))]

    def in_dtype(wider: torch.dtype) -> list[torch.Tensor]:
        leaves = [t.detach().cpu().to(wider).requires_grad_() for t in ours]
        y = define(A, leaves[0] if hv is not None else None, leaves[-1])
        return [y, *torch.autograd.grad(y, leaves, g.to(wider))]

    exact = in_dtype(torch.float64)
    plain = exact if dtype == torch.float64 else in_dtype(torch.float32)
    for name, a, ref, base in zip(("y", "first", "second"), got, exact, plain):
        assert a.dtype == dtype
        bounds = {"rms": 1e-14, "max": 1e-12} if dtype == torch.float64 else {}
        if dtype in (torch.bfloat16, torch.float16) and hv != hx:
            bounds = {"rms": 2e-2, "max": 0.2}  # a shared head collects rounded gradients of all heads
        assert_close(name, a, ref, baseline=base.to(dtype), factor=4.0, **bounds)


@pytest.mark.parametrize("graph", list(graph_zoo()))
def test_awkward_graphs(graph: str) -> None:
    A = reference.matrix(graph_zoo()[graph], weighted=False, duplicates="keep", device=DEVICE)
    check(A, 3, 3, 5, torch.float32)
    check(A.T, 3, 3, 8, torch.float32)
    check(A, None, 2, 3, torch.float32)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("hv, hx, D", [(1, 1, 1), (8, 8, 8), (1, 3, 4), (3, 1, 4), (2, 2, 300), (40, 40, 3)])
def test_dtypes_and_widths(hv: int, hx: int, D: int, dtype: torch.dtype) -> None:
    check(reference.matrix(graph_zoo()["tall"], weighted=False, device=DEVICE), hv, hx, D, dtype)


def test_fp32_values_with_bf16_features() -> None:
    A = reference.matrix(graph_zoo()["uniform"], weighted=False, device=DEVICE)
    values = torch.randn(A.nnz, 4, device=DEVICE, requires_grad=True)
    x = torch.randn(97, 4, 8, device=DEVICE).bfloat16()
    y = spmm_heads(A, values, x)
    assert_close("y", y, define(A, values.detach().cpu().double(), x.cpu().double()))
    y.float().sum().backward()
    assert_close("values", values.grad, x.cpu().double().sum(2)[A.col.cpu().long()])


def test_gradcheck() -> None:
    A = SparseMatrix.from_coo([0, 0, 1, 3, 3, 3], [1, 4, 4, 0, 1, 2], shape=(4, 5)).to(DEVICE)
    for hv, hx in ((3, 3), (1, 3), (3, 1)):
        leaves = [
            torch.randn(*s, dtype=torch.float64, device=DEVICE, requires_grad=True) for s in ((6, hv), (5, hx, 2))
        ]
        assert torch.autograd.gradcheck(lambda v, x: spmm_heads(A, v, x), leaves)
        assert torch.autograd.gradgradcheck(lambda v, x: spmm_heads(A, v, x), leaves)


def test_layouts_and_nothing_to_do() -> None:
    A = reference.matrix(graph_zoo()["uniform"], weighted=False, device=DEVICE)
    base = torch.randn(97, 12, 8, dtype=torch.float64, device=DEVICE)
    values = torch.randn(4, A.nnz, dtype=torch.float64, device=DEVICE).T
    for x in (base[:, :4], base.transpose(1, 2)[:, :4], base[:, ::3], base[:1, :4].expand(97, 4, 8)):
        assert_close("y", spmm_heads(A, values, x), define(A, values.cpu(), x.cpu()))
    assert spmm_heads(A, values, base[:, :4, :0]).shape == (97, 4, 0)


def test_same_bits_in_every_run() -> None:
    A = reference.matrix(graph_zoo()["power_law"], weighted=False, device=DEVICE)
    values = torch.randn(A.nnz, 4, device=DEVICE, requires_grad=True)
    x = torch.randn(700, 4, 16, device=DEVICE, requires_grad=True)
    runs = []
    for _ in range(3):
        y = spmm_heads(A, values, x)
        runs.append([y, *torch.autograd.grad(y.square().sum(), [values, x])])
    assert all(torch.equal(a, b) for again in runs[1:] for a, b in zip(runs[0], again))


def test_opcheck_and_compile() -> None:
    A = reference.matrix(graph_zoo()["wide"], weighted=False, device=DEVICE)
    values = torch.randn(A.nnz, 3, device=DEVICE, requires_grad=True)
    x = torch.randn(501, 3, 5, device=DEVICE, requires_grad=True)
    storages = (A.to("csr").storage().tensors, A.T.to("csr").storage().tensors)
    torch.library.opcheck(torch.ops.braidwork.spmm_heads.default, (values, x, 13, A.row, A.col, *storages))
    torch.library.opcheck(torch.ops.braidwork.entry_sum.default, (values, 13, A.row, storages[0]))

    def run(f):
        y = f(values, x)
        return [y, *torch.autograd.grad(y.square().sum(), [values, x])]

    def layer(values, x):
        return spmm_heads(A, values.sin(), x).relu()

    for a, b in zip(run(torch.compile(layer, fullgraph=True)), run(layer)):
        assert_close("compiled", a, b.double(), rms=1e-6, max=1e-5)


def test_errors_name_the_argument() -> None:
    A = SparseMatrix.from_coo([0, 1], [1, 2], shape=(2, 3)).to(DEVICE)
    values, x = torch.ones(2, 4, device=DEVICE), torch.ones(3, 4, 2, device=DEVICE)
    for error, message, call in (
        (TypeError, "A: need a SparseMatrix", lambda: spmm_heads(x, values, x)),
        (TypeError, "x: need a torch.Tensor", lambda: spmm_heads(A, values, 1.0)),
        (ValueError, r"x: need shape \[3, H, D\]", lambda: spmm_heads(A, values, x[:, 0])),
        (TypeError, "values: need the dtype of x", lambda: spmm_heads(A, values.double(), x)),
        (ValueError, r"values: need shape \[2, H\]", lambda: spmm_heads(A, values[:, 0], x)),
        (ValueError, "values: need as many heads", lambda: spmm_heads(A, values[:, :3], x)),
        (ValueError, "values: A is on", lambda: spmm_heads(A, values.to("meta"), x)),
    ):
        with pytest.raises(error, match=message):
            call()
