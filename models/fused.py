"""This project's kernels behind the interface of `protocols.py`: graphs and sparse features."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from braidwork.kernels.fused import drop_rate
from braidwork.kernels.sparse import SparseMatrix, film_aggregate, gat_aggregate, spmm

from .activation import keep_mask
from .edges import Coo, stack_relations, symmetric_scale, with_self_loops
from .stored import Chosen, Stored


class FusedGraph:
    """Edges as patterns and scale vectors: no operator stores a normalised matrix or a message.

    Matrices are built when a layer first asks for what they are needed for.

    Args:
        edges: [targets, sources], without self-loops.
        relations: the edges of every relation, for layers that tell them apart.
        format, uses: of products with the graph; see `Stored`. Attention and FiLM have kernels of their own, in CSR.

    Attributes:
        chosen: the formats that were picked, by operator; see `Stored`.
    """

    def __init__(self, edges: Coo, relations: Sequence[Coo] = (), format: str = "csr", uses: int = 100):
        self.edges, self.relations, self.shape = edges, relations, edges.shape
        self._format, self._uses = format, uses
        self.chosen: dict[str, Chosen] = {}

    def _stored(self, name: str, matrix: SparseMatrix) -> Stored:
        return Stored(matrix, self._format, self._uses, self.chosen.setdefault(name, {}))

    @functools.cached_property
    def _normalised(self) -> tuple[Stored, Tensor]:
        """The pattern of A + I and D^-1/2."""
        edges = with_self_loops(self.edges)
        return self._stored("normalised", SparseMatrix.from_coo(*edges)), symmetric_scale(edges)

    @functools.cached_property
    def _pattern(self) -> SparseMatrix:
        return SparseMatrix.from_coo(self.edges.row, self.edges.col, shape=self.shape)

    @functools.cached_property
    def _mean(self) -> Stored:
        return self._stored("mean", self._pattern)

    @functools.cached_property
    def _looped(self) -> SparseMatrix:
        edges = with_self_loops(self.edges._replace(value=None))
        return SparseMatrix.from_coo(edges.row, edges.col, shape=self.shape)

    @functools.cached_property
    def _by_relation(self) -> Stored:
        """[targets * R, sources], unweighted."""
        stacked = stack_relations(self.relations, by="target")
        return self._stored("by_relation", SparseMatrix.from_coo(stacked.row, stacked.col, shape=stacked.shape))

    @functools.cached_property
    def _over_relations(self) -> Stored:
        """[targets, sources * R], weighted by 1 / number of edges of the relation."""
        return self._stored("over_relations", SparseMatrix.from_coo(*stack_relations(self.relations, by="source")))

    def normalised(self, x: Tensor) -> Tensor:
        stored, scale = self._normalised
        scale = scale.to(x.dtype)
        return spmm(stored.at(x.shape[1]), x, row_scale=scale, col_scale=scale)

    def mean(self, x: Tensor) -> Tensor:
        return spmm(self._mean.at(x.shape[1]), x, reduce="mean")

    def attend(self, x: Tensor, source_score: Tensor, target_score: Tensor, negative_slope: float) -> Tensor:
        return gat_aggregate(self._looped, x, source_score, target_score, negative_slope)

    def film(self, x: Tensor, gamma: Tensor, beta: Tensor, relu: bool) -> Tensor:
        if relu:
            return film_aggregate(self._pattern, x, gamma, beta)
        return torch.addcmul(beta * self._has_sources.to(x.dtype), gamma, self.mean(x))

    @functools.cached_property
    def _has_sources(self) -> Tensor:
        """1 for a target with an incoming edge, else 0: [targets, 1]."""
        return (torch.bincount(self.edges.row, minlength=self.shape[0]) > 0).float().unsqueeze(1)

    def mean_by_relation(self, x: Tensor) -> Tensor:
        stored = self._by_relation
        return spmm(stored.at(x.shape[1]), x, reduce="mean").view(self.shape[0], -1, x.shape[1])

    def sum_of_relations(self, x: Tensor) -> Tensor:
        return spmm(self._over_relations.at(x.shape[2]), x.reshape(-1, x.shape[2]))


class SparseMatrixInput:
    """Sparse features as a matrix that layers multiply by their weights."""

    def __init__(self, stored: Stored):
        self.stored = stored
        self.shape = stored.matrix.shape

    @classmethod
    def from_coo(cls, features: Coo, format: str = "csr", uses: int = 100) -> SparseMatrixInput:
        return cls(Stored(SparseMatrix.from_coo(*features), format, uses))

    def matmul(self, weight: Tensor) -> Tensor:
        return spmm(self.stored.at(weight.shape[1]), weight)

    def dropout(self, p: float) -> SparseMatrixInput:
        matrix = self.stored.matrix
        value = matrix.values
        if value is None:
            value = torch.ones(matrix.nnz, device=matrix.device)
        return SparseMatrixInput(self.stored.with_values(drop_values(value, p)))


def drop_values(value: Tensor, p: float) -> Tensor:
    """Values with each dropped at rate `p`, rounded to 1/256, and the rest scaled up."""
    return value * keep_mask(value.shape, p, value.device) * (1.0 / (1.0 - drop_rate(p)))
