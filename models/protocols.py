"""What a layer is called with: a propagation and features, by what they can do and not by what they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .edges import Coo


class Propagation(Protocol):
    """x [nodes, F] -> D^-1/2 (A + I) D^-1/2 x, differentiable in x."""

    def __call__(self, x: Tensor) -> Tensor: ...


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
    """Edges in PyTorch Geometric's form: edge_index [2, nnz], source first; weights [nnz] or None."""

    edge_index: Tensor
    edge_weight: Tensor | None

    @classmethod
    def from_coo(cls, edges: Coo) -> EdgeIndex:
        return cls(torch.stack([edges.col, edges.row]), edges.value)
