"""`spmm` against its definition in fp64: results and every gradient, over graphs, reductions, dtypes and widths."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from braidwork.kernels.sparse import SparseMatrix, spmm
from braidwork.kernels.testing import FLOAT_DTYPES, assert_close, devices, graph_zoo

_spec = importlib.util.spec_from_file_location("sparse_reference", Path(__file__).with_name("reference.py"))
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)

DEVICE = devices()[0]
REDUCTIONS = ("sum", "mean", "max", "min")


def inputs(A: SparseMatrix, F: int, dtype: torch.dtype, scales: bool) -> list[torch.Tensor | None]:
    """Random value, x, row_scale, col_scale that require gradients; None for what A or the case has not."""
    rows, cols = A.shape
    generator = torch.Generator().manual_seed(F)

    def leaf(*shape: int) -> torch.Tensor:
        x = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return x.to(DEVICE, dtype).requires_grad_()

    return [
        None if A.values is None else A.values.detach().clone().requires_grad_(),
        leaf(cols, F),
        leaf(rows) if scales else None,
        leaf(cols) if scales else None,
    ]


def check(A: SparseMatrix, F: int, dtype: torch.dtype, reduce: str, scales: bool) -> None:
    """y and the gradients to all inputs against the reference on the same, already rounded, inputs."""
    ours = inputs(A, F, dtype, scales)
    value, x, row_scale, col_scale = ours
    y = spmm(A.with_values(value), x, reduce, row_scale=row_scale, col_scale=col_scale)

    gy = torch.randn(y.shape, dtype=torch.float64).to(dtype)
    present = [i for i, t in enumerate(ours) if t is not None]
    got = [y, *torch.autograd.grad(y, [ours[i] for i in present], gy.to(DEVICE))]

    def reference_in(wide: torch.dtype) -> list[torch.Tensor]:
        leaves = [t if t is None else t.detach().cpu().to(wide).requires_grad_() for t in ours]
        result = reference.spmm(A, leaves[0], leaves[1], reduce, leaves[2], leaves[3])
        return [result, *torch.autograd.grad(result, [leaves[i] for i in present], gy.to(wide))]

    exact = reference_in(torch.float64)
    # The tolerance is what the definition loses in fp32, rounded at the end to the dtype of the result.
    plain = exact if dtype == torch.float64 else reference_in(torch.float32)
    names = ["y", *(("value", "x", "row_scale", "col_scale")[i] for i in present)]
    for name, a, a_ref, a_plain in zip(names, got, exact, plain, strict=True):
        assert a.dtype == (A.dtype if name == "value" else dtype)
        bounds = {"rms": 1e-14, "max": 1e-12} if a.dtype == torch.float64 else {}
        assert_close(name, a, a_ref, baseline=a_plain.to(a.dtype), factor=4.0, **bounds)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("weighted", [True, False], ids=["weighted", "unweighted"])
@pytest.mark.parametrize("graph", list(graph_zoo()))
def test_awkward_graphs(graph: str, weighted: bool, reduce: str) -> None:
    A = reference.matrix(graph_zoo()[graph], weighted=weighted, device=DEVICE)
    check(A, 7, torch.float32, reduce, scales=graph in ("uniform", "tall", "empty_rows", "hub_row"))


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("F", [1, 3, 45, 1000])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_dtypes_and_widths(dtype: torch.dtype, F: int, reduce: str) -> None:
    weighted = F in (1, 45)
    A = reference.matrix(graph_zoo()["wide" if F < 100 else "empty_rows"], dtype, weighted, device=DEVICE)
    check(A, F, dtype, reduce, scales=F == 45)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_transpose_and_kept_duplicates(reduce: str) -> None:
    for name in ("duplicates", "tall", "power_law"):
        A = reference.matrix(graph_zoo()[name], duplicates="keep", device=DEVICE)
        check(A.T, 5, torch.float32, reduce, scales=True)
    check(A.with_values(None).T, 5, torch.float32, reduce, scales=False)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_a_symmetric_graph_is_its_own_transpose(reduce: str) -> None:
    coo = graph_zoo()["self_loops"]
    n = coo.shape[0]
    dense = coo.dense()
    A = SparseMatrix.from_torch((dense + dense.T).float().to(DEVICE).to_sparse())
    assert A.is_symmetric()
    check(A, 6, torch.float32, reduce, scales=False)
    check(A.with_values(None), 6, torch.float32, reduce, scales=True)
    x = torch.randn(n, 6, device=DEVICE, requires_grad=True)
    spmm(A.with_values(None), x).sum().backward()
    # Same pattern, other values: no longer its own transpose.
    skewed = A.with_values(torch.arange(1.0, A.nnz + 1, device=DEVICE))
    assert A.pattern.is_symmetric() and not skewed.is_symmetric()
    check(skewed, 6, torch.float32, reduce, scales=False)
    forward, backward = A.pattern.storage("csr", False), A.pattern.storage("csr", True)
    assert forward.tensors[1].data_ptr() == backward.tensors[1].data_ptr()


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_gradcheck(reduce: str) -> None:
    A = reference.matrix(graph_zoo()["one_entry"], torch.float64, device=DEVICE)
    B = SparseMatrix.from_coo([0, 0, 1, 3, 3, 3], [1, 4, 4, 0, 1, 2], shape=(4, 5)).to(DEVICE)
    for matrix in (A, B.with_values(torch.randn(6, dtype=torch.float64, device=DEVICE))):
        arguments = inputs(matrix, 3, torch.float64, scales=True)

        def product(value, x, row_scale, col_scale, matrix=matrix):
            return spmm(matrix.with_values(value), x, reduce, row_scale=row_scale, col_scale=col_scale)

        assert torch.autograd.gradcheck(product, arguments)


def test_second_derivative() -> None:
    A = reference.matrix(graph_zoo()["uniform"], torch.float64, device=DEVICE)
    x = torch.randn(97, 2, dtype=torch.float64, device=DEVICE, requires_grad=True)
    value = A.values.clone().requires_grad_()
    # Through a linear map: d/dx of |A x|^2 / 2 is A^T A x, and its derivative along v is A^T A v.
    (gx,) = torch.autograd.grad((spmm(A, x) ** 2).sum() / 2, x, create_graph=True)
    v = torch.randn_like(x)
    (hv,) = torch.autograd.grad(gx, x, v)
    dense = A.to_dense()
    assert_close("Hessian times v", hv, dense.T @ (dense @ v), factor=8.0)
    (gvalue,) = torch.autograd.grad(spmm(A.with_values(value), x).sin().sum(), value, create_graph=True)
    with pytest.raises(NotImplementedError, match="entry_dot: .* once"):
        gvalue.sum().backward()
    (gx,) = torch.autograd.grad(spmm(A, x, "max").sin().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="spmm_routed: .* once"):
        gx.sum().backward()


def test_nothing_to_do() -> None:
    """No entries, no rows, no columns, no features: shapes are right and what there is of y is zero."""
    for name in ("no_entries", "no_rows", "no_columns"):
        A = reference.matrix(graph_zoo()[name], device=DEVICE)
        for F in (0, 4):
            for reduce in REDUCTIONS:
                x = torch.randn(A.shape[1], F, device=DEVICE, requires_grad=True)
                value = A.values.clone().requires_grad_()
                y = spmm(A.with_values(value), x, reduce)
                assert y.shape == (A.shape[0], F) and not y.any()
                y.sum().backward()
                assert not x.grad.any() and x.grad.shape == x.shape and value.grad.shape == (0,)
    A = reference.matrix(graph_zoo()["uniform"], device=DEVICE)
    value = A.values.clone().requires_grad_()
    y = spmm(A.with_values(value), torch.empty(97, 0, device=DEVICE))
    y.sum().backward()
    assert y.shape == (97, 0) and not value.grad.any()


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_extremum_of_infinities_nan_and_ties(reduce: str) -> None:
    inf, nan = float("inf"), float("nan")
    A = SparseMatrix.from_coo([0, 0, 1, 1, 2, 2, 3, 3], [0, 1, 2, 3, 4, 5, 6, 7], shape=(5, 8)).to(DEVICE)
    worst = -inf if reduce == "max" else inf
    x = torch.tensor([worst, worst, nan, 1.0, 2.0, 2.0, -0.0, nan], device=DEVICE)[:, None].requires_grad_()
    y = spmm(A, x, reduce)
    assert torch.equal(y.isnan().cpu().squeeze(1), torch.tensor([False, True, False, True, False]))
    assert y[0].item() == worst and y[2].item() == 2.0 and y[4].item() == 0.0
    y.backward(torch.ones_like(y))
    assert x.grad.squeeze(1).tolist() == [1, 0, 1, 0, 1, 0, 0, 1]


def test_nan_spreads_only_along_entries() -> None:
    A = SparseMatrix.from_coo([0, 1, 1], [0, 1, 2], [1.0, float("nan"), 0.0], shape=(3, 3)).to(DEVICE)
    y = spmm(A, torch.tensor([[1.0], [2.0], [float("inf")]], device=DEVICE))
    assert y[0].item() == 1.0 and y[1].isnan().item() and y[2].item() == 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_long_row_of_ones_does_not_saturate(dtype: torch.dtype) -> None:
    """A running sum in fp16 stops at 2048, in bf16 at 256; github.com/dmlc/dgl/issues/4674."""
    n = 6608
    A = SparseMatrix.from_coo(torch.zeros(n, dtype=torch.long), torch.arange(n), shape=(2, n)).to(DEVICE)
    x = torch.ones(n, 3, dtype=dtype, device=DEVICE)
    exact = torch.tensor(float(n)).to(dtype).item()
    assert spmm(A, x)[0].tolist() == [exact] * 3
    assert spmm(A, x, "mean")[0].tolist() == [1.0] * 3
    weighted = A.with_values(torch.ones(n, dtype=dtype, device=DEVICE))
    assert spmm(weighted, x)[0].tolist() == [exact] * 3
    # The gradient of a row of the transpose is such a sum too.
    x = torch.ones(2, 3, dtype=dtype, device=DEVICE, requires_grad=True)
    spmm(A.T, x).sum().backward()
    assert x.grad[0].tolist() == [exact] * 3


def test_layouts_of_x() -> None:
    A = reference.matrix(graph_zoo()["uniform"], torch.float64, device=DEVICE)
    base = torch.randn(97, 12, dtype=torch.float64, device=DEVICE)
    dense = A.to_dense()
    for name, x in {
        "rows apart": base[:, :5],
        "columns apart": base[:, ::2],
        "transposed": torch.randn(6, 97, dtype=torch.float64, device=DEVICE).T,
        "one row for all": base[:1].expand(97, 12),
        "one column for all": base[:, :1].expand(97, 12),
        "every other row": torch.randn(194, 4, dtype=torch.float64, device=DEVICE)[::2],
        "odd start": base.flatten()[3 : 3 + 97 * 8].view(97, 8),
    }.items():
        x = x.detach().requires_grad_()
        y = spmm(A, x)
        assert_close(name, y, dense.cpu() @ x.detach().cpu())
        y.backward(base[:, :1].expand(y.shape))
        assert_close(f"gradient, {name}", x.grad, dense.T.cpu() @ base[:, :1].expand(y.shape).cpu())


def test_vector() -> None:
    A = reference.matrix(graph_zoo()["tall"], torch.float64, device=DEVICE)
    x = torch.randn(13, dtype=torch.float64, device=DEVICE, requires_grad=True)
    y = spmm(A, x)
    assert y.shape == (501,)
    assert_close("y", y, A.to_dense().cpu() @ x.detach().cpu())
    y.sum().backward()
    assert_close("gradient of x", x.grad, A.to_dense().cpu().sum(0))


def test_fp32_values_with_any_x() -> None:
    A = reference.matrix(graph_zoo()["uniform"], torch.float32, device=DEVICE)
    for dtype in FLOAT_DTYPES:
        check(A, 5, dtype, "sum", scales=False)


def test_addresses_past_2_to_the_31() -> None:
    """x holds more than 2^31 elements; a handful of its pages are ever touched."""
    F = 520
    cols = 2**31 // F + 1000
    x = torch.empty(cols, F, dtype=torch.float16, device=DEVICE)
    touched = [0, 5, cols // 2, cols - 2, cols - 1]
    for k in touched:
        x[k] = torch.arange(F, device=DEVICE) % 7 + k % 5
    A = SparseMatrix.from_coo([0, 0, 1, 2, 2], touched, [1.0, 2.0, 3.0, 4.0, 5.0], (3, cols)).to(DEVICE)
    assert A.row.dtype == torch.int32 and x.numel() > 2**31
    weights = torch.zeros(3, 5, dtype=torch.float64)
    weights[[0, 0, 1, 2, 2], range(5)] = torch.arange(1.0, 6.0, dtype=torch.float64)
    small = torch.stack([x[k] for k in touched]).double().cpu()
    assert_close("y", spmm(A, x), weights @ small)
    assert_close("max", spmm(A.with_values(None), x, "max")[2], small[3:].amax(0))

    # The gradient of the values reads the same addresses.
    value = A.values.clone().requires_grad_()
    spmm(A.with_values(value), x).float().sum().backward()
    assert_close("gradient of value", value.grad, small.sum(1), factor=4.0)


def test_int64_indices() -> None:
    cols = 2**31 + 7
    A = SparseMatrix.from_coo([0, 1, 1], [cols - 1, 3, cols - 2], [1.0, 2.0, 3.0], (2, cols)).to(DEVICE)
    assert A.row.dtype == torch.int64
    x = torch.tensor([[1.0, 2.0, 3.0]], device=DEVICE).expand(cols, 3)
    assert spmm(A, x).tolist() == [[1, 2, 3], [5, 10, 15]]
    assert spmm(A, x, "max").tolist() == [[1, 2, 3], [3, 6, 9]]


def test_same_bits_in_every_run_and_with_any_number_of_threads() -> None:
    graphs = [reference.matrix(graph_zoo()["power_law"], device=DEVICE)]
    n = 60_000  # one row of three holds all entries, so that the work is split within it
    graphs.append(SparseMatrix.from_coo([1] * n, torch.arange(n), torch.randn(n), (3, n)).to(DEVICE))
    before = torch.get_num_threads()
    try:
        for A in graphs:
            x = torch.randn(A.shape[1], 40, device=DEVICE, requires_grad=True)
            value = A.values.clone().requires_grad_()
            for reduce in REDUCTIONS:
                results = []
                for threads in (before, before, 1):
                    torch.set_num_threads(threads)
                    y = spmm(A.with_values(value), x, reduce)
                    results.append([y, *torch.autograd.grad(y.square().sum(), [x, value])])
                for again in results[1:]:
                    assert all(torch.equal(a, b) for a, b in zip(results[0], again, strict=True))
    finally:
        torch.set_num_threads(before)


def test_errors_name_the_argument() -> None:
    A = SparseMatrix.from_coo([0, 1], [1, 2], [1.0, 2.0], (2, 3)).to(DEVICE)
    x = torch.ones(3, 2, device=DEVICE)
    for error, message, call in (
        (TypeError, "A: need a SparseMatrix", lambda: spmm(x, x)),
        (TypeError, "x: need a torch.Tensor", lambda: spmm(A, [1.0])),
        (ValueError, "reduce: need one of sum", lambda: spmm(A, x, "prod")),
        (TypeError, "x: need a dense tensor", lambda: spmm(A, x.long())),
        (TypeError, "x: need a dense tensor", lambda: spmm(A, x.to(torch.complex64))),
        (TypeError, "x: need a dense tensor", lambda: spmm(A, x.to_sparse())),
        (ValueError, r"x: need shape \[3, F\]", lambda: spmm(A, x.T)),
        (ValueError, r"x: need shape \[3, F\]", lambda: spmm(A, x[None])),
        (ValueError, "x: A is on", lambda: spmm(A, x.to("meta"))),
        (TypeError, "x: A has values of torch.float64", lambda: spmm(A.to(torch.float64), x)),
        (TypeError, "row_scale: need a torch.Tensor", lambda: spmm(A, x, row_scale=2.0)),
        (ValueError, r"row_scale: need shape \[2\]", lambda: spmm(A, x, row_scale=x[:, 0])),
        (ValueError, r"col_scale: need shape \[3\]", lambda: spmm(A, x, col_scale=x[:2, 0])),
        (TypeError, "col_scale: need the dtype", lambda: spmm(A, x, col_scale=x[:, 0].double())),
        (ValueError, "col_scale: need the device", lambda: spmm(A, x, col_scale=x[:, 0].to("meta"))),
    ):
        with pytest.raises(error, match=message):
            call()
