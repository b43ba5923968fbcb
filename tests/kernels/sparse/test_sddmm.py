"""`sddmm` against its definition in fp64: results and both gradients."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from braidwork.kernels.sparse import SparseMatrix, sddmm
from braidwork.kernels.testing import FLOAT_DTYPES, assert_close, devices, graph_zoo

_spec = importlib.util.spec_from_file_location("sparse_reference", Path(__file__).with_name("reference.py"))
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)

DEVICE = devices()[0]


def define(A: SparseMatrix, x: torch.Tensor, y: torch.Tensor, op: str) -> torch.Tensor:
    a, b = x[A.row.cpu().long()], y[A.col.cpu().long()]
    return (a * b).sum(-1) if op == "dot" else a + b


def check(A: SparseMatrix, x_shape, y_shape, op: str, dtype: torch.dtype) -> None:
    rows, cols = A.shape
    wide = [torch.randn(n, *s, dtype=torch.float64) for n, s in ((rows, x_shape), (cols, y_shape))]
    ours = [t.to(DEVICE, dtype).requires_grad_() for t in wide]
    out = sddmm(A, *ours, op)
    g = torch.randn(out.shape, dtype=torch.float64).to(dtype)
    got = [out, *torch.autograd.grad(out, ours, g.to(DEVICE))]

    def in_dtype(wider: torch.dtype) -> list[torch.Tensor]:
        leaves = [t.detach().cpu().to(wider).requires_grad_() for t in ours]
        out = define(A, *leaves, op)
        return [out, *torch.autograd.grad(out, leaves, g.to(wider))]

    exact = in_dtype(torch.float64)
    plain = exact if dtype == torch.float64 else in_dtype(torch.float32)
    for name, a, ref, base in zip(("out", "x", "y"), got, exact, plain, strict=True):
        assert a.dtype == dtype
        bounds = {"rms": 1e-14, "max": 1e-12} if dtype == torch.float64 else {}
        # A shared head collects rounded gradients of all heads.
        if dtype in (torch.bfloat16, torch.float16) and x_shape != y_shape:
            bounds = {"rms": 2e-2, "max": 0.2}
        assert_close(name, a, ref, baseline=base.to(dtype), factor=4.0, **bounds)


@pytest.mark.parametrize("op", ["dot", "add"])
@pytest.mark.parametrize("graph", list(graph_zoo()))
def test_awkward_graphs(graph: str, op: str) -> None:
    A = reference.matrix(graph_zoo()[graph], weighted=False, duplicates="keep", device=DEVICE)
    check(A, (3, 5) if op == "dot" else (3,), (3, 5) if op == "dot" else (3,), op, torch.float32)
    check(A.T, (7,) if op == "dot" else (), (7,) if op == "dot" else (), op, torch.float32)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize(
    "shapes", [((1,), (1,)), ((64,), (64,)), ((8, 8), (8, 8)), ((3, 100), (1, 100)), ((1, 4), (6, 4))], ids=str
)
def test_dtypes_and_widths(shapes, dtype: torch.dtype) -> None:
    A = reference.matrix(graph_zoo()["wide"], weighted=False, device=DEVICE)
    check(A, *shapes, "dot", dtype)
    if len(shapes[0]) == 2:
        check(A, shapes[0][:1], shapes[1][:1], "add", dtype)


def test_gradcheck() -> None:
    A = SparseMatrix.from_coo([0, 0, 1, 3, 3, 3], [1, 4, 4, 0, 1, 2], shape=(4, 5)).to(DEVICE)
    for hx, hy in ((3, 3), (1, 3), (3, 1)):
        x, y = (
            torch.randn(n, h, 2, dtype=torch.float64, device=DEVICE, requires_grad=True) for n, h in ((4, hx), (5, hy))
        )
        assert torch.autograd.gradcheck(lambda x, y: sddmm(A, x, y), (x, y))
        assert torch.autograd.gradgradcheck(lambda x, y: sddmm(A, x, y), (x, y))
        assert torch.autograd.gradcheck(lambda x, y: sddmm(A, x[..., 0], y[..., 0], "add").sin(), (x, y))


def test_layouts_and_no_features() -> None:
    A = reference.matrix(graph_zoo()["uniform"], weighted=False, device=DEVICE)
    base = torch.randn(97, 12, 8, dtype=torch.float64, device=DEVICE)
    for x in (base[:, :4], base[:, :8].transpose(1, 2)[:, :4, :8], base[:, ::3], base[:1, :4].expand(97, 4, 8)):
        assert_close("out", sddmm(A, x, base[:, 8:]), define(A, x.cpu(), base[:, 8:].cpu(), "dot"))
    assert not sddmm(A, base[:, 0, :0], base[:, 0, :0]).any()


def test_same_bits_in_every_run() -> None:
    A = reference.matrix(graph_zoo()["power_law"], weighted=False, device=DEVICE)
    x, y = (torch.randn(700, 4, 16, device=DEVICE, requires_grad=True) for _ in range(2))
    runs = []
    for _ in range(3):
        out = sddmm(A, x, y)
        runs.append([out, *torch.autograd.grad(out.square().sum(), [x, y])])
    assert all(torch.equal(a, b) for again in runs[1:] for a, b in zip(runs[0], again))


def test_opcheck_and_compile() -> None:
    A = reference.matrix(graph_zoo()["wide"], weighted=False, device=DEVICE)
    x, y = (torch.randn(n, 3, 5, device=DEVICE, requires_grad=True) for n in A.shape)
    pattern = (A.row, A.col, A.to("csr").storage().tensors, A.T.to("csr").storage().tensors)
    torch.library.opcheck(torch.ops.braidwork.sddmm_dot.default, (x, y, False, *pattern))
    torch.library.opcheck(torch.ops.braidwork.sddmm_add.default, (x[..., 0], y[..., 0], *pattern))

    def run(f):
        out = f(x, y)
        return [out, *torch.autograd.grad(out.square().sum(), [x, y])]

    def scores(x, y):
        return sddmm(A, x.sin(), y) + sddmm(A, x[..., 0], y[..., 0], "add")

    for a, b in zip(run(torch.compile(scores, fullgraph=True)), run(scores)):
        assert_close("compiled", a, b.double(), rms=1e-6, max=1e-5)


def test_errors_name_the_argument() -> None:
    A = SparseMatrix.from_coo([0, 1], [1, 2], shape=(2, 3)).to(DEVICE)
    x, y = torch.ones(2, 4, device=DEVICE), torch.ones(3, 4, device=DEVICE)
    for error, message, call in (
        (TypeError, "A: need a SparseMatrix", lambda: sddmm(x, x, y)),
        (ValueError, "op: need one of dot, add", lambda: sddmm(A, x, y, "mul")),
        (TypeError, "x: need a torch.Tensor", lambda: sddmm(A, [1.0], y)),
        (TypeError, "y: need a dense tensor", lambda: sddmm(A, x, y.long())),
        (ValueError, r"x: need shape \[2, F\]", lambda: sddmm(A, y, y)),
        (ValueError, r"y: need shape \[3\] or", lambda: sddmm(A, x, y[None], "add")),
        (ValueError, "y: need as many dimensions", lambda: sddmm(A, x, y[:, None])),
        (ValueError, "y: need as many features", lambda: sddmm(A, x, y[:, :3])),
        (ValueError, "y: need as many heads", lambda: sddmm(A, x, y[:, :3], "add")),
        (TypeError, "y: need the dtype of x", lambda: sddmm(A, x, y.double())),
        (ValueError, "x: A is on", lambda: sddmm(A, x.to("meta"), y)),
    ):
        with pytest.raises(error, match=message):
            call()
