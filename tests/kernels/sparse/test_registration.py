"""The operators as PyTorch sees them: schema, fake tensors, autograd, compilation, autocast."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from braidwork.kernels.sparse import SparseMatrix, spmm
from braidwork.kernels.testing import assert_close, devices, graph_zoo

_spec = importlib.util.spec_from_file_location("sparse_reference", Path(__file__).with_name("reference.py"))
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)

DEVICE = devices()[0]


def small(weighted: bool = True, dtype: torch.dtype = torch.float32) -> SparseMatrix:
    return reference.matrix(graph_zoo()["wide"], dtype, weighted, device=DEVICE)


@pytest.mark.parametrize("reduce", ["sum", "max", "min"])
@pytest.mark.parametrize("weighted", [True, False], ids=["weighted", "unweighted"])
def test_opcheck_spmm(weighted: bool, reduce: str) -> None:
    A = small(weighted)
    value = A.values if A.values is None else A.values.clone().requires_grad_()
    x = torch.randn(501, 5, device=DEVICE, requires_grad=True)
    scales = [torch.rand(n, device=DEVICE, requires_grad=True) for n in A.shape] if weighted else [None, None]
    matrix, transpose = (A.format, *A.storage()), (A.T.format, *A.T.storage())
    bias = torch.randn(5, device=DEVICE, requires_grad=True) if weighted else None
    arguments = (value, x, *scales, bias, weighted, reduce, reduce != "sum", 13, *matrix, *transpose, [A.row, A.col])
    torch.library.opcheck(torch.ops.braidwork.spmm.default, arguments)
    frozen = (A.values, x.detach(), None, None, None, False, reduce, False, 13, *matrix, "", [], [], [])
    torch.library.opcheck(torch.ops.braidwork.spmm.default, frozen)


def test_opcheck_gradient_operators() -> None:
    A = small()
    g, x = torch.randn(13, 5, device=DEVICE), torch.randn(501, 5, device=DEVICE)
    _, arg = torch.ops.braidwork.spmm(
        A.values, x, None, None, None, False, "max", True, 13, A.format, *A.storage(), "", [], [], []
    )
    transpose = (A.T.format, *A.T.storage())
    torch.library.opcheck(
        torch.ops.braidwork.spmm_routed.default, (A.values, g, None, None, arg, 501, *transpose)
    )
    for route in (None, arg):
        torch.library.opcheck(torch.ops.braidwork.entry_dot.default, (A.row, A.col, g, x, None, None, route))


def test_gradients_that_lack_an_operand_say_so() -> None:
    A = small()
    x = torch.randn(501, 5, device=DEVICE, requires_grad=True)
    value = A.values.clone().requires_grad_()
    bare = (None, False, "sum", False, 13, A.format, *A.storage(), "", [], [], [])
    y, _ = torch.ops.braidwork.spmm(A.values, x, None, None, *bare)
    with pytest.raises(RuntimeError, match="needs the transpose"):
        y.sum().backward()
    y, _ = torch.ops.braidwork.spmm(value, x.detach(), None, None, *bare)
    with pytest.raises(RuntimeError, match="need the coordinates"):
        y.sum().backward()


class Layer(torch.nn.Module):
    def __init__(self, A: SparseMatrix):
        super().__init__()
        self.A = A
        self.weight = torch.nn.Parameter(torch.randn(5, 4, device=DEVICE))
        self.value = torch.nn.Parameter(A.values.clone())

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        h = spmm(self.A.with_values(self.value), x @ self.weight, row_scale=scale).relu()
        return spmm(self.A.T, h, "mean") + spmm(self.A.T.with_values(None), h, "max")


def test_compile_is_one_graph_with_the_same_results() -> None:
    layer = Layer(small())
    scale = torch.rand(13, device=DEVICE)
    x = torch.randn(501, 5, device=DEVICE, requires_grad=True)

    def run(module):
        y = module(x, scale)
        return [y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])]

    eager = run(layer)  # builds the storages that the compiled graph takes as they are
    compiled = run(torch.compile(layer, fullgraph=True))
    for name, a, b in zip(("y", "x", "weight", "value"), compiled, eager, strict=True):
        assert_close(name, a, b.double(), rms=1e-6, max=1e-5)


def test_compile_before_storages_are_built_breaks_the_graph_and_works() -> None:
    A = small()
    x = torch.randn(501, 5, device=DEVICE, requires_grad=True)
    compiled = torch.compile(lambda x: spmm(A, x.sin(), "mean").cos())
    got = [compiled(x), *torch.autograd.grad(compiled(x).sum(), x)]
    y = spmm(A, x.sin(), "mean").cos()
    for name, a, b in zip(("y", "gradient of x"), got, (y, *torch.autograd.grad(y.sum(), x)), strict=True):
        assert_close(name, a, b.double(), rms=1e-6, max=1e-5)


def test_compiled_function_sees_another_matrix() -> None:
    compiled = torch.compile(lambda A, x: spmm(A, x) * 2)
    x = torch.randn(501, 3, device=DEVICE)
    for A in (small(), small().with_values(None), small(False).with_values(torch.ones(small().nnz, device=DEVICE))):
        assert_close("y", compiled(A, x), spmm(A, x).double() * 2, rms=1e-6, max=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_casts_x_alone(dtype: torch.dtype) -> None:
    A = small()
    value = A.values.clone().requires_grad_()
    x = torch.randn(501, 6, device=DEVICE, requires_grad=True)
    scale = torch.rand(13, device=DEVICE)
    with torch.autocast(DEVICE, dtype=dtype):
        y = spmm(A.with_values(value), x, row_scale=scale)
        assert spmm(A.to(torch.float64), x.double()).dtype == torch.float64
    assert y.dtype == dtype
    assert torch.equal(y, spmm(A, x.to(dtype), row_scale=scale))
    y.float().square().sum().backward()
    assert x.grad.dtype == value.grad.dtype == torch.float32
    exact = 2 * (A.to_dense().double() * scale[:, None]).T @ (scale[:, None] * 0 + y.detach().double())
    assert_close("gradient of x", x.grad, exact.cpu(), rms=1e-2, max=5e-2)


def test_inference_mode_and_no_grad_keep_nothing_for_a_gradient() -> None:
    A = small()
    x = torch.randn(501, 5, device=DEVICE, requires_grad=True)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert not spmm(A, x, "max").requires_grad
    assert ("csr", True) not in A.pattern._storages


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**20),
    rows=st.integers(1, 40),
    cols=st.integers(1, 40),
    nnz=st.integers(0, 200),
    F=st.integers(1, 20),
)
def test_linear_and_adjoint(seed: int, rows: int, cols: int, nnz: int, F: int) -> None:
    """A (a x + z) = a A x + A z, and <A x, y> = <x, A^T y>, which ties the two directions together."""
    generator = torch.Generator().manual_seed(seed)
    row, col = (torch.randint(0, n, (nnz,), generator=generator) for n in (rows, cols))
    value = torch.randn(nnz, generator=generator, dtype=torch.float64)
    A = SparseMatrix.from_coo(row, col, value, (rows, cols), duplicates="keep").to(DEVICE)
    x, z = (torch.randn(cols, F, generator=generator, dtype=torch.float64).to(DEVICE) for _ in range(2))
    y = torch.randn(rows, F, generator=generator, dtype=torch.float64).to(DEVICE)
    assert torch.allclose(spmm(A, 3 * x + z), 3 * spmm(A, x) + spmm(A, z), rtol=1e-10, atol=1e-10)
    assert torch.allclose((spmm(A, x) * y).sum(), (x * spmm(A.T, y)).sum(), rtol=1e-9, atol=1e-9)
    low, high = spmm(A, x, "min"), spmm(A, x, "max")
    assert bool((low <= high).all()) and torch.equal(low, -spmm(A, -x, "max"))
