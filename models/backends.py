"""What multiplies by a graph: the same model over this project's kernels, `torch.sparse`, or PyTorch Geometric.

A backend turns a graph's edges into a *propagation*, x -> D^-1/2 (A + I) D^-1/2 x, and its sparse features into an
*input* that a layer multiplies by its weight. `braidwork` fuses the normalisation into its SpMM and stores no
normalised matrix. `torch_autograd` is `torch.sparse` as one would write it: a normalised CSR matrix and
`torch.sparse.mm`, whose backward transposes the matrix again in every step. `torch` is the strongest use known here:
the same with the transpose built once and kept. Both have int32 indices, so that MKL runs. `pyg` is `GCNConv` on an
edge index with its normalisation cached.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from braidwork.kernels.fused import drop_rate
from braidwork.kernels.sparse import SparseMatrix, spmm

from .activation import keep_mask
from .edges import Coo, symmetric_scale, with_self_loops
from .layers import GCNLayer, PyGLayer
from .protocols import EdgeIndex, SparseInput

if TYPE_CHECKING:
    from typing_extensions import Self

# Dense copies of sparse features beyond this are refused rather than left to exhaust the memory.
_DENSE_LIMIT_BYTES = 1 << 30

_Features = TypeVar("_Features")


@dataclass(frozen=True)
class Backend:
    """One way to run the model. `layer` is the module that a graph convolution is made of."""

    name: str
    label: str
    propagation: Callable[[Coo], object]
    features: Callable[[Tensor | Coo], Tensor | SparseInput]
    layer: type[nn.Module]
    requires: str | None = None

    @property
    def available(self) -> bool:
        return self.requires is None or importlib.util.find_spec(self.requires) is not None


# -- braidwork ---------------------------------------------------------------------------------------------------------


class FusedPropagation:
    """D^-1/2 (A + I) D^-1/2 as the pattern of A + I and one scale vector; SpMM applies the scales on the way."""

    def __init__(self, edges: Coo):
        edges = with_self_loops(edges)
        self.matrix = SparseMatrix.from_coo(*edges)
        self.scale = symmetric_scale(edges)

    def __call__(self, x: Tensor) -> Tensor:
        scale = self.scale.to(x.dtype)
        return spmm(self.matrix, x, row_scale=scale, col_scale=scale)


class SparseMatrixInput:
    def __init__(self, matrix: SparseMatrix):
        self.matrix = matrix
        self.shape = matrix.shape

    @classmethod
    def from_coo(cls, features: Coo) -> SparseMatrixInput:
        return cls(SparseMatrix.from_coo(*features))

    def matmul(self, weight: Tensor) -> Tensor:
        return spmm(self.matrix, weight)

    def dropout(self, p: float) -> SparseMatrixInput:
        value = self.matrix.values
        if value is None:
            value = torch.ones(self.matrix.nnz, device=self.matrix.device)
        return SparseMatrixInput(self.matrix.with_values(_drop_values(value, p)))


def _drop_values(value: Tensor, p: float) -> Tensor:
    return value * keep_mask(value.shape, p, value.device) * (1.0 / (1.0 - drop_rate(p)))


# -- torch.sparse ------------------------------------------------------------------------------------------------------


def _csr(edges: Coo, value: Tensor) -> Tensor:
    """A torch CSR tensor with int32 indices, the ones MKL takes."""
    rowptr = torch.zeros(edges.shape[0] + 1, dtype=torch.int64)
    rowptr[1:] = torch.bincount(edges.row, minlength=edges.shape[0]).cumsum(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(rowptr.int(), edges.col.int(), value, edges.shape, check_invariants=False)


def _like(matrix: Tensor, value: Tensor) -> Tensor:
    """The structure of `matrix` with other values."""
    return torch.sparse_csr_tensor(
        matrix.crow_indices(), matrix.col_indices(), value, matrix.shape, check_invariants=False
    )


class _TorchProduct(torch.autograd.Function):
    """matrix @ x, with the transpose for the gradient given, since torch would convert it again at every step."""

    @staticmethod
    def forward(ctx, matrix: Tensor, transpose: Tensor, x: Tensor) -> Tensor:
        ctx.transpose = transpose
        with record_function("spmm.forward"):
            return torch.sparse.mm(matrix, x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[None, None, Tensor]:
        with record_function("spmm.backward"):
            return None, None, torch.sparse.mm(ctx.transpose, grad.contiguous())


class _TorchMatrix:
    """A constant matrix and its transpose in torch's CSR; `order` lists the entries in the transpose's order."""

    def __init__(self, edges: Coo, value: Tensor):
        self.order = torch.argsort(edges.col * edges.shape[0] + edges.row)
        transposed = Coo(edges.col[self.order], edges.row[self.order], None, (edges.shape[1], edges.shape[0]))
        self.matrix, self.transpose = _csr(edges, value), _csr(transposed, value[self.order])
        self.shape = edges.shape

    def matmul(self, x: Tensor) -> Tensor:
        return _TorchProduct.apply(self.matrix, self.transpose, x)

    def with_values(self, value: Tensor) -> Self:
        other = object.__new__(type(self))
        other.order, other.shape = self.order, self.shape
        other.matrix, other.transpose = _like(self.matrix, value), _like(self.transpose, value[self.order])
        return other


class TorchPropagation(_TorchMatrix):
    """The normalised matrix, stored."""

    def __init__(self, edges: Coo):
        edges = with_self_loops(edges)
        scale = symmetric_scale(edges)
        value = scale[edges.row] * scale[edges.col]
        super().__init__(edges, value if edges.value is None else value * edges.value)

    def __call__(self, x: Tensor) -> Tensor:
        return self.matmul(x)


class TorchSparseInput(_TorchMatrix):
    @classmethod
    def from_coo(cls, features: Coo) -> Self:
        return cls(features, _values(features))

    def dropout(self, p: float) -> Self:
        return self.with_values(_drop_values(self.matrix.values(), p))


class _Autograd:
    """The product by `torch.sparse.mm` with torch's own backward, on the matrix of a `_TorchMatrix`."""

    matrix: Tensor

    def matmul(self, x: Tensor) -> Tensor:
        with record_function("spmm.forward"):
            return torch.sparse.mm(self.matrix, x)


class TorchAutogradPropagation(_Autograd, TorchPropagation):
    """The normalised matrix, stored, differentiated by torch."""


class TorchAutogradInput(_Autograd, TorchSparseInput):
    """Sparse features, differentiated by torch."""


def _values(edges: Coo) -> Tensor:
    return torch.ones(edges.nnz) if edges.value is None else edges.value


# -- PyTorch Geometric -------------------------------------------------------------------------------------------------


def _dense(features: Coo) -> Tensor:
    size = features.shape[0] * features.shape[1] * 4
    if size > _DENSE_LIMIT_BYTES:
        raise ValueError(
            f"features: GCNConv needs them dense, {size / 2**30:.1f} GiB here, more than the limit of "
            f"{_DENSE_LIMIT_BYTES / 2**30:.0f} GiB; project them to fewer channels or use another backend"
        )
    dense = torch.zeros(features.shape)
    dense[features.row, features.col] = _values(features)
    return dense


def _or_dense(from_coo: Callable[[Coo], _Features]) -> Callable[[Tensor | Coo], Tensor | _Features]:
    return lambda features: features if isinstance(features, Tensor) else from_coo(features)


BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend("braidwork", "braidwork", FusedPropagation, _or_dense(SparseMatrixInput.from_coo), GCNLayer),
        Backend("torch", "torch.sparse (tuned)", TorchPropagation, _or_dense(TorchSparseInput.from_coo), GCNLayer),
        Backend(
            "torch_autograd",
            "torch.sparse",
            TorchAutogradPropagation,
            _or_dense(TorchAutogradInput.from_coo),
            GCNLayer,
        ),
        Backend("pyg", "PyG GCNConv", EdgeIndex.from_coo, _or_dense(_dense), PyGLayer, "torch_geometric"),
    )
}


def get_backend(name: str) -> Backend:
    """The backend of that name.

    Raises:
        ValueError: unknown name, or a package that it needs is not installed.
    """
    if name not in BACKENDS:
        raise ValueError(f"backend: unknown {name!r}; choose one of {', '.join(BACKENDS)}")
    backend = BACKENDS[name]
    if not backend.available:
        raise ValueError(f"backend: {name!r} needs the package {backend.requires}, which is not installed")
    return backend
