"""A graph's edges as plain tensors: what data loaders produce and every aggregation backend starts from."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Coo(NamedTuple):
    """A sparse matrix in coordinates, sorted by row, then column, without duplicates.

    Attributes:
        row, col: [nnz], int64.
        value: [nnz], floating point, or None where every entry is 1.
        shape: (rows, columns).

    As an adjacency matrix, entry (i, j) is an edge from j to i: the node of the row gathers from those of its columns.
    """

    row: Tensor
    col: Tensor
    value: Tensor | None
    shape: tuple[int, int]

    @property
    def nnz(self) -> int:
        return self.row.numel()


def coalesce(row: Tensor, col: Tensor, value: Tensor | None, shape: tuple[int, int]) -> Coo:
    """Sort the entries; duplicates are summed where there are values, and count once where there are none."""
    key, inverse = torch.unique(row.long() * shape[1] + col.long(), sorted=True, return_inverse=True)
    if value is not None:
        value = torch.zeros(key.numel(), dtype=value.dtype).index_add_(0, inverse, value)
    return Coo(key // shape[1], key % shape[1], value, shape)


def undirected(edges: Coo) -> Coo:
    """Every edge in both directions. A weight present in both is kept once, as the larger of the two."""
    row, col = torch.cat([edges.row, edges.col]), torch.cat([edges.col, edges.row])
    both = coalesce(row, col, None, edges.shape)
    if edges.value is None:
        return both
    place = torch.searchsorted(both.row * edges.shape[1] + both.col, row * edges.shape[1] + col)
    value = torch.full((both.nnz,), -torch.inf, dtype=edges.value.dtype)
    value.scatter_reduce_(0, place, edges.value.repeat(2), "amax")
    return both._replace(value=value)


def with_self_loops(edges: Coo) -> Coo:
    """A self-loop of weight 1 on every node that has none; one that is there keeps its weight."""
    loops = torch.ones(edges.shape[0], dtype=torch.bool)
    loops[edges.row[edges.row == edges.col]] = False
    nodes = loops.nonzero().squeeze(1)
    value = edges.value
    if value is not None:
        value = torch.cat([value, torch.ones(nodes.numel(), dtype=value.dtype)])
    return coalesce(torch.cat([edges.row, nodes]), torch.cat([edges.col, nodes]), value, edges.shape)


def symmetric_scale(edges: Coo, dtype: torch.dtype = torch.float32) -> Tensor:
    """D^-1/2 as a vector [rows]: the row sums to the power -1/2, zero where a row sum is not positive.

    Source: Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks, 2017, equation 2.
    """
    weight = torch.ones(edges.nnz, dtype=dtype) if edges.value is None else edges.value.to(dtype)
    degree = torch.zeros(edges.shape[0], dtype=dtype).index_add_(0, edges.row, weight)
    return torch.where(degree > 0, degree.rsqrt(), 0.0)
