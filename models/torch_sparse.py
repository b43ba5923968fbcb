"""`torch.sparse` behind the interface of `protocols.py`, as one would write it and at the best use known here.

Products with the graph are `torch.sparse.mm` of a CSR matrix with int32 indices, the ones that MKL takes. What is no
product of a matrix, attention and FiLM, gathers a message for every edge and sums them up.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.profiler import record_function

from .edges import Coo, stack_relations, symmetric_scale, with_self_loops
from .fused import drop_values

if TYPE_CHECKING:
    from typing_extensions import Self


def _csr(edges: Coo, value: Tensor) -> Tensor:
    """A torch CSR tensor with int32 indices."""
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


class TorchMatrix:
    """A constant matrix and its transpose in torch's CSR; `order` lists the entries in the transpose's order."""

    def __init__(self, edges: Coo):
        value = torch.ones(edges.nnz) if edges.value is None else edges.value
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

    def dropout(self, p: float) -> Self:
        return self.with_values(drop_values(self.matrix.values(), p))


class TorchAutogradMatrix(TorchMatrix):
    """The product by `torch.sparse.mm` with torch's own backward."""

    def matmul(self, x: Tensor) -> Tensor:
        with record_function("spmm.forward"):
            return torch.sparse.mm(self.matrix, x)


class _Gather(torch.autograd.Function):
    """x[index], whose gradient is a product with the incidence matrix instead of a scatter."""

    @staticmethod
    def forward(ctx, x: Tensor, index: Tensor, incidence: Tensor) -> Tensor:
        ctx.incidence = incidence
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        return torch.sparse.mm(ctx.incidence, grad.flatten(1)).view(-1, *grad.shape[1:]), None, None


class _Total(torch.autograd.Function):
    """Sums of rows by their index: a product with the incidence matrix, whose gradient is a gather."""

    @staticmethod
    def forward(ctx, x: Tensor, index: Tensor, incidence: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        return torch.sparse.mm(incidence, x.flatten(1)).view(-1, *x.shape[1:])

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad.index_select(0, ctx.saved_tensors[0]), None, None


class TorchEdges:
    """Values of nodes brought to edges, and of edges to targets; `row` and `col` of a `Coo`, sorted by row."""

    def __init__(self, edges: Coo):
        number = torch.arange(edges.nnz)
        order = torch.argsort(edges.col, stable=True)
        rows, cols = edges.shape
        ones = torch.ones(edges.nnz)
        self.row, self.col, self.rows = edges.row, edges.col, rows
        self._to_row = _csr(Coo(edges.row, number, None, (rows, edges.nnz)), ones)
        self._to_col = _csr(Coo(edges.col[order], order, None, (cols, edges.nnz)), ones)
        self.count = torch.bincount(edges.row, minlength=rows).clamp(min=1).float()

    def of_sources(self, x: Tensor) -> Tensor:
        return _Gather.apply(x, self.col, self._to_col)

    def of_targets(self, x: Tensor) -> Tensor:
        return _Gather.apply(x, self.row, self._to_row)

    def to_targets(self, message: Tensor) -> Tensor:
        return _Total.apply(message, self.row, self._to_row)


class TorchAutogradEdges(TorchEdges):
    """The same by indexing and `index_add`."""

    def of_sources(self, x: Tensor) -> Tensor:
        return x[self.col]

    def of_targets(self, x: Tensor) -> Tensor:
        return x[self.row]

    def to_targets(self, message: Tensor) -> Tensor:
        return torch.zeros(self.rows, *message.shape[1:]).index_add(0, self.row, message)


class TorchGraph:
    """Matrices stored with their values, and their transposes."""

    matrix_type: type[TorchMatrix] = TorchMatrix
    edges_type: type[TorchEdges] = TorchEdges

    def __init__(self, edges: Coo, relations: Sequence[Coo] = ()):
        self.edges, self.relations, self.shape = edges, relations, edges.shape

    @functools.cached_property
    def _normalised(self) -> TorchMatrix:
        edges = with_self_loops(self.edges)
        scale = symmetric_scale(edges)
        value = scale[edges.row] * scale[edges.col]
        return self.matrix_type(edges._replace(value=value if edges.value is None else value * edges.value))

    @functools.cached_property
    def _mean(self) -> TorchMatrix:
        count = torch.bincount(self.edges.row, minlength=self.shape[0])
        return self.matrix_type(self.edges._replace(value=1.0 / count[self.edges.row]))

    @functools.cached_property
    def _plain(self) -> TorchEdges:
        return self.edges_type(self.edges)

    @functools.cached_property
    def _looped(self) -> TorchEdges:
        return self.edges_type(with_self_loops(self.edges))

    @functools.cached_property
    def _by_relation(self) -> TorchMatrix:
        return self.matrix_type(stack_relations(self.relations, by="target"))

    @functools.cached_property
    def _over_relations(self) -> TorchMatrix:
        return self.matrix_type(stack_relations(self.relations, by="source"))

    def normalised(self, x: Tensor) -> Tensor:
        return self._normalised.matmul(x)

    def mean(self, x: Tensor) -> Tensor:
        return self._mean.matmul(x)

    def attend(self, x: Tensor, source_score: Tensor, target_score: Tensor, negative_slope: float) -> Tensor:
        edges = self._looped
        logit = edges.of_sources(source_score) + edges.of_targets(target_score)
        logit = torch.nn.functional.leaky_relu(logit, negative_slope)
        index = edges.row.unsqueeze(1).expand_as(logit)
        largest = torch.full_like(target_score, -torch.inf).scatter_reduce_(0, index, logit.detach(), "amax")
        weight = (logit - largest[edges.row]).exp()
        weight = weight / edges.of_targets(edges.to_targets(weight))
        return edges.to_targets(weight.unsqueeze(2) * edges.of_sources(x))

    def film(self, x: Tensor, gamma: Tensor, beta: Tensor, relu: bool) -> Tensor:
        edges = self._plain
        message = edges.of_targets(gamma) * edges.of_sources(x) + edges.of_targets(beta)
        return edges.to_targets(message.relu() if relu else message) / edges.count.unsqueeze(1)

    def mean_by_relation(self, x: Tensor) -> Tensor:
        return self._by_relation.matmul(x).view(self.shape[0], -1, x.shape[1])

    def sum_of_relations(self, x: Tensor) -> Tensor:
        return self._over_relations.matmul(x.reshape(-1, x.shape[2]))


class TorchAutogradGraph(TorchGraph):
    """Matrices stored with their values, differentiated by torch."""

    matrix_type = TorchAutogradMatrix
    edges_type = TorchAutogradEdges
