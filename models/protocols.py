"""What a layer is called with: a graph and features, by what they can do and not by what they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .edges import Coo


class GraphOperators(Protocol):
    """What happens along the edges of a graph [targets, sources], differentiable in every argument.

    Entry (i, k) is an edge from source k to target i. Sources are numbered as targets are, those of a sampled block
    after them. Edge weights count in `normalised` alone.
    """

    shape: tuple[int, int]

    def normalised(self, x: Tensor) -> Tensor:
        """x [sources, F] -> D^-1/2 (A + I) D^-1/2 x, for a square graph."""
        ...

    def mean(self, x: Tensor) -> Tensor:
        """x [sources, F] -> [targets, F], the mean over incoming edges; 0 where there are none."""
        ...

    def attend(self, x: Tensor, source_score: Tensor, target_score: Tensor, negative_slope: float) -> Tensor:
        """x [sources, H, D], scores [sources, H] and [targets, H] -> [targets, H, D].

        Softmax over the incoming edges and a loop of LeakyReLU(source_score[k] + target_score[i]), and the sum of x by
        these weights.
        """
        ...

    def film(self, x: Tensor, gamma: Tensor, beta: Tensor, relu: bool) -> Tensor:
        """x [sources, F], gamma and beta [targets, F] -> [targets, F].

        The mean over incoming edges of gamma[i] x[k] + beta[i], or of its positive part.
        """
        ...

    def mean_by_relation(self, x: Tensor) -> Tensor:
        """x [sources, F] -> [targets, R, F], the mean over the incoming edges of every relation."""
        ...

    def sum_of_relations(self, x: Tensor) -> Tensor:
        """x [sources, R, F] -> [targets, F], the sum over relations r of the mean of x[:, r] over their edges."""
        ...


class SparseInput(Protocol):
    """Sparse node features [nodes, channels]."""

    shape: tuple[int, int]

    def matmul(self, weight: Tensor) -> Tensor:
        """[channels, F] -> [nodes, F], differentiable in the weight."""
        ...

    def dropout(self, p: float) -> SparseInput:
        """The features with entries dropped at rate `p` and the rest scaled up."""
        ...


@dataclass(frozen=True)
class EdgeIndex:
    """Edges in PyTorch Geometric's form: edge_index [2, nnz], source first; weights [nnz] or None.

    typed_index [2, edges of all relations] and edge_type, for layers that know relations.
    """

    edge_index: Tensor
    edge_weight: Tensor | None
    shape: tuple[int, int]
    typed_index: Tensor | None = None
    edge_type: Tensor | None = None

    @classmethod
    def from_coo(cls, edges: Coo, relations: Sequence[Coo] = ()) -> EdgeIndex:
        plain = cls(torch.stack([edges.col, edges.row]), edges.value, edges.shape)
        if not relations:
            return plain
        index = torch.cat([torch.stack([r.col, r.row]) for r in relations], 1)
        kind = torch.repeat_interleave(torch.tensor([r.nnz for r in relations]))
        return cls(plain.edge_index, plain.edge_weight, plain.shape, index, kind)
