"""Mini-batches of a graph: a few random neighbours of every node, layer by layer.

Each node draws without replacement, uniformly among its neighbours, or takes all where it has no more than asked for;
so the mean over a sample is an unbiased estimate of the mean over all neighbours (W. L. Hamilton, R. Ying and J.
Leskovec, "Inductive representation learning on large graphs", NeurIPS 2017, section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .edges import Coo


@dataclass(frozen=True)
class Block:
    """What a batch of nodes needs.

    Attributes:
        nodes: [sources of the first layer] int64, the nodes whose features go in; the batch comes first.
        layers: edges of every layer, the first layer first: [targets, sources], with sources numbered as in the layer
            before, its targets first.
        batch: [targets of the last layer] int64, the nodes that come out.
    """

    nodes: Tensor
    layers: list[Coo]
    batch: Tensor


def draw(count: Tensor, many: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Uniform samples without replacement of `many` of 0 .. count[i] - 1, or all of them where there are no more.

    R. Floyd's algorithm, for all rows at once: for j = count - many .. count - 1 draw t from 0 .. j and take t, or j
    where t has been taken (J. Bentley and R. Floyd, "Programming pearls: a sample of brilliance", CACM 1987).

    Args:
        count: [rows] int64.

    Returns:
        [rows, many] int64, of which the first min(count, many) of a row count; and which do, bool.
    """
    place = torch.arange(many)
    taken = place.repeat(count.shape[0], 1)  # where a row has no more than asked for
    short = count <= many
    long = (~short).nonzero().squeeze(1)
    size = count[long]
    picked = torch.full((long.shape[0], many), -1, dtype=torch.int64)
    for step in range(many):
        last = size - many + step
        chance = torch.rand(long.shape[0], generator=generator, dtype=torch.float64)
        drawn = (chance * (last + 1)).long().clamp_(max=last)
        again = (picked[:, :step] == drawn.unsqueeze(1)).any(1)
        picked[:, step] = torch.where(again, last, drawn)
    taken[long] = picked
    return taken, place.unsqueeze(0) < count.clamp(max=many).unsqueeze(1)


def _check_nodes(name: str, nodes: Tensor, many: int) -> None:
    if nodes.dim() != 1 or nodes.is_floating_point():
        raise ValueError(f"{name}: need whole numbers [n], got {nodes.dtype} of shape {tuple(nodes.shape)}")
    if nodes.numel() and not 0 <= int(nodes.min()) <= int(nodes.max()) < many:
        raise ValueError(f"{name}: need numbers from 0 to {many - 1}, got {int(nodes.min())} to {int(nodes.max())}")
    if nodes.unique().numel() < nodes.numel():
        raise ValueError(f"{name}: need every node once")


class NeighbourSampler:
    """Batches of nodes with sampled neighbourhoods; iterating is one epoch, another order and other samples each time.

    Args:
        edges: of the whole graph, [nodes, nodes].
        fanouts: neighbours to draw for each layer, the first layer first.
        nodes: [n] int64, the nodes to go through, by default all.
        batch_size: nodes of a batch, the last one smaller.
        seed: of the order and of the samples.
        shuffle: whether nodes come in a random order.

    Raises:
        ValueError: a fanout or batch size below 1, nodes that are not there or are named twice, a graph that is not
            square.
    """

    def __init__(
        self,
        edges: Coo,
        fanouts: Sequence[int],
        nodes: Tensor | None = None,
        batch_size: int = 1024,
        seed: int = 0,
        shuffle: bool = True,
    ):
        if edges.shape[0] != edges.shape[1]:
            raise ValueError(f"edges: need a square graph, got shape {edges.shape}")
        for fanout in fanouts:
            if not isinstance(fanout, int) or fanout < 1:
                raise ValueError(f"fanouts: need whole numbers of at least 1, got {list(fanouts)}")
        if not fanouts:
            raise ValueError("fanouts: need one for each layer, got none")
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size: need a whole number of at least 1, got {batch_size!r}")
        self.fanouts, self.batch_size, self.shuffle = tuple(fanouts), batch_size, shuffle
        self.nodes = torch.arange(edges.shape[0]) if nodes is None else nodes
        _check_nodes("nodes", self.nodes, edges.shape[0])
        self._col = edges.col
        self._rowptr = torch.zeros(edges.shape[0] + 1, dtype=torch.int64)
        self._rowptr[1:] = torch.bincount(edges.row, minlength=edges.shape[0]).cumsum(0)
        self.generator = torch.Generator().manual_seed(seed)
        # Where a node was met in the sample at hand; all -1 between samples.
        self._place = torch.full((edges.shape[0],), -1, dtype=torch.int64)

    def __len__(self) -> int:
        """Batches of an epoch."""
        return (self.nodes.shape[0] + self.batch_size - 1) // self.batch_size

    def __iter__(self) -> Iterator[Block]:
        order = torch.randperm(self.nodes.shape[0], generator=self.generator) if self.shuffle else slice(None)
        for batch in self.nodes[order].split(self.batch_size):
            yield self.sample(batch)

    def sample(self, batch: Tensor) -> Block:
        """The sampled neighbourhood of some nodes.

        Raises:
            ValueError: a node that is not there, or that is named twice.
        """
        _check_nodes("batch", batch, self._place.shape[0])
        batch = batch.long()
        layers: list[Coo] = []
        nodes = batch
        for fanout in reversed(self.fanouts):
            begin = self._rowptr[nodes]
            taken, there = draw(self._rowptr[nodes + 1] - begin, fanout, self.generator)
            source = self._col[(begin.unsqueeze(1) + taken)[there]]
            row = there.nonzero()[:, 0]
            sources, col = self._number(nodes, source)
            key, _ = (row * sources.shape[0] + col).sort()
            shape = (nodes.shape[0], sources.shape[0])
            layers.insert(0, Coo(key // shape[1], key % shape[1], None, shape))
            nodes = sources
        return Block(nodes, layers, batch)

    def _number(self, nodes: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
        """All nodes of a layer, those before first; and where among them each source is."""
        place = self._place
        place[nodes] = torch.arange(nodes.shape[0])
        new = source[place[source] < 0].unique()
        place[new] = nodes.shape[0] + torch.arange(new.shape[0])
        both = torch.cat([nodes, new])
        col = place[source]
        place[both] = -1
        return both, col
