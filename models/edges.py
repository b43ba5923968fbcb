"""A graph's edges as plain tensors: what data loaders produce and every aggregation backend starts from."""

from __future__ import annotations

from collections.abc import Sequence
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


def take_rows(matrix: Coo, rows: Tensor) -> Coo:
    """Some rows of a matrix, [len(rows), columns], in the order in which they are named: [n] int64."""
    begin = torch.searchsorted(matrix.row, rows)
    count = torch.searchsorted(matrix.row, rows, right=True) - begin
    row = torch.repeat_interleave(torch.arange(rows.numel()), count)
    entry = torch.arange(row.numel()) + (begin - count.cumsum(0) + count)[row]
    value = None if matrix.value is None else matrix.value[entry]
    return Coo(row, matrix.col[entry], value, (rows.numel(), matrix.shape[1]))


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


def by_direction(edges: Coo) -> tuple[Coo, Coo]:
    """Two relations of a graph without any: its edges and, where it is directed, their reverses; of an undirected
    graph the edges from nodes of lower and of higher number, which is one direction of every edge each.

    Self-loops, of an undirected graph, are in neither. Weights are dropped.
    """
    bare = edges._replace(value=None)
    rows, cols = edges.shape
    reverse = coalesce(edges.col, edges.row, None, (cols, rows))
    if torch.equal(reverse.row, edges.row) and torch.equal(reverse.col, edges.col):
        up, down = edges.col < edges.row, edges.col > edges.row
        return tuple(Coo(edges.row[part], edges.col[part], None, edges.shape) for part in (up, down))  # type: ignore[return-value]
    return bare, reverse


def stack_relations(relations: Sequence[Coo], by: str) -> Coo:
    """All relations as one matrix, an entry worth 1 / number of edges of its relation that end in its target.

    by: "target", [targets * R, sources], row i * R + r gathers from the sources of relation r; or "source", [targets,
    sources * R], column k * R + r stands for source k in relation r.

    Raises:
        ValueError: no relations, or of different shapes; another word for `by`.
    """
    if by not in ("target", "source"):
        raise ValueError(f"by: need target or source, got {by!r}")
    if not relations:
        raise ValueError("relations: need at least one; give the graph its relations")
    if len({edges.shape for edges in relations}) > 1:
        raise ValueError(f"relations: need one shape, got {[edges.shape for edges in relations]}")
    many, (rows, cols) = len(relations), relations[0].shape
    row, col, value = [], [], []
    for r, edges in enumerate(relations):
        count = torch.bincount(edges.row, minlength=rows)
        row.append(edges.row * many + r if by == "target" else edges.row)
        col.append(edges.col * many + r if by == "source" else edges.col)
        value.append(1.0 / count[edges.row])
    shape = (rows * many, cols) if by == "target" else (rows, cols * many)
    return coalesce(torch.cat(row), torch.cat(col), torch.cat(value), shape)
