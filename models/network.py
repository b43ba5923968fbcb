"""Graph networks: stacks of one kind of convolution, with residual connections and normalisation as options."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from braidwork.kernels.fused import drop_rate, relu_dropout

from . import layers
from .activation import dropout
from .layers import product
from .protocols import GraphOperators, SparseInput

NORMS: dict[str, type[nn.Module]] = {"none": nn.Identity, "layer": nn.LayerNorm, "batch": nn.BatchNorm1d}


class Network(nn.Module):
    """A stack of graph convolutions: convolution, [norm], ReLU, dropout, [+ residual], and a last convolution.

    The module holds no graph and no kernel: it is called with the features and a graph of one of the backends in
    `backends.py`, and runs unchanged on any of them. A kind of network is a subclass, which says what convolutions it
    is made of.

    Args:
        in_channels, hidden_channels, out_channels: widths of the input, of every hidden layer, of the output (classes).
        num_layers: number of convolutions, at least 1.
        dropout: rate after every hidden layer, in [0, 1), rounded to 1/256.
        input_dropout: rate on the input features. Sparse features drop stored values.
        residual: add to the output of each layer its input, through a linear map where the widths differ and at the
            first layer, whose input can be sparse.
        norm: "none", "layer" or "batch", after each hidden convolution.
        layer: class of the convolutions, from the backend (`Backend.layers`).

    Raises:
        ValueError: a width or a number of layers below 1, a rate outside [0, 1), an unknown norm.
    """

    default_layer: ClassVar[type[nn.Module]]

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int = 2,
        *,
        dropout: float = 0.5,
        input_dropout: float = 0.0,
        residual: bool = False,
        norm: str = "none",
        layer: type[nn.Module] | None = None,
    ):
        super().__init__()
        sizes = {"in_channels": in_channels, "hidden_channels": hidden_channels, "out_channels": out_channels}
        for name, size in {**sizes, "num_layers": num_layers}.items():
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"{name}: must be a whole number of at least 1, got {size!r}")
        for name, rate in {"dropout": dropout, "input_dropout": input_dropout}.items():
            if not isinstance(rate, (int, float)) or not 0.0 <= rate < 1.0:
                raise ValueError(f"{name}: the rate must be in [0, 1), got {rate!r}")
        if norm not in NORMS:
            raise ValueError(f"norm: unknown {norm!r}; choose one of {', '.join(NORMS)}")
        self.dropout, self.input_dropout = dropout, input_dropout
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), out_channels]
        pairs = list(itertools.pairwise(widths))
        made = layer or self.default_layer
        self.layers = nn.ModuleList(
            made(a, b, **self._layer_options(last=i == num_layers - 1)) for i, (a, b) in enumerate(pairs)
        )
        self.norms = nn.ModuleList(NORMS[norm](b) for _, b in pairs[:-1])
        skips = [_Skip(a, b, linear=i == 0 or a != b) for i, (a, b) in enumerate(pairs)]
        self.skips = nn.ModuleList(skips) if residual else None

    def _layer_options(self, last: bool) -> dict[str, Any]:
        """What a convolution is made with besides its widths. last: it is the one whose output is the network's."""
        return {}

    def forward(self, x: Tensor | SparseInput, graph: GraphOperators | Sequence[GraphOperators]) -> Tensor:
        """Logits [targets, out_channels].

        Args:
            x: features of the sources, a dense [sources, in_channels] or a backend's sparse input.
            graph: for all layers; or one for each, where the targets of one are the sources of the next, as a sampler
                gives them.

        Raises:
            ValueError: not as many graphs as layers.
        """
        graphs = list(graph) if isinstance(graph, Sequence) else [graph] * len(self.layers)
        if len(graphs) != len(self.layers):
            raise ValueError(f"graph: need one for all layers or {len(self.layers)}, got {len(graphs)}")
        if self.training and drop_rate(self.input_dropout):
            x = dropout(x, self.input_dropout) if isinstance(x, Tensor) else x.dropout(self.input_dropout)
        h: Tensor | SparseInput = x
        for i, (layer, step) in enumerate(zip(self.layers, graphs, strict=True)):
            out = layer(h, step)
            if i < len(self.norms):
                out = relu_dropout(self.norms[i](out), self.dropout if self.training else 0.0)
            h = out if self.skips is None else out + self.skips[i](h)[: out.shape[0]]
        return cast(Tensor, h)


class GCN(Network):
    """The graph convolutional network of Kipf and Welling, 2017; see `Network` for its arguments."""

    default_layer = layers.GCNLayer


class GraphSAGE(Network):
    """GraphSAGE with the mean aggregator, of Hamilton, Ying and Leskovec, 2017; see `Network` for its arguments."""

    default_layer = layers.SAGELayer


class GAT(Network):
    """The graph attention network of Veličković et al., 2018, with ReLU between the layers.

    Args:
        heads: of every hidden layer, whose channels they share among them; the last layer has one head.
        options: as for `Network`.

    Raises:
        ValueError: heads that do not divide hidden_channels.
    """

    default_layer = layers.GATLayer

    def __init__(self, *sizes: int, heads: int = 8, **options: Any):
        self._heads = heads
        super().__init__(*sizes, **options)

    def _layer_options(self, last: bool) -> dict[str, Any]:
        return {"heads": 1 if last else self._heads}


class RGCN(Network):
    """The relational graph convolutional network of Schlichtkrull et al., 2018.

    Args:
        num_relations: how many the graph has.
        bases: how many weights those of the relations are combined from; None for one each.
        options: as for `Network`.
    """

    default_layer = layers.RGCNLayer

    def __init__(self, *sizes: int, num_relations: int, bases: int | None = None, **options: Any):
        if not isinstance(num_relations, int) or num_relations < 1:
            raise ValueError(f"num_relations: must be a whole number of at least 1, got {num_relations!r}")
        self._options = {"relations": num_relations, "bases": bases}
        super().__init__(*sizes, **options)

    def _layer_options(self, last: bool) -> dict[str, Any]:
        return self._options


class FiLM(Network):
    """GNN-FiLM of Brockschmidt, 2020, for one relation, linear in its last layer; see `Network` for its arguments."""

    default_layer = layers.FiLMLayer

    def _layer_options(self, last: bool) -> dict[str, Any]:
        return {"relu": not last}


class EGC(Network):
    """The efficient graph convolution of Tailor et al., 2022, EGC-S.

    Args:
        heads: of every hidden layer, whose channels they share among them; the last layer has one head.
        bases: propagated bases that each head combines.
        options: as for `Network`.

    Raises:
        ValueError: heads that do not divide hidden_channels.
    """

    default_layer = layers.EGCLayer

    def __init__(self, *sizes: int, heads: int = 8, bases: int = 4, **options: Any):
        self._heads, self._bases = heads, bases
        super().__init__(*sizes, **options)

    def _layer_options(self, last: bool) -> dict[str, Any]:
        return {"heads": 1 if last else self._heads, "bases": self._bases}


MODELS: dict[str, type[Network]] = {
    "gcn": GCN, "sage": GraphSAGE, "gat": GAT, "rgcn": RGCN, "film": FiLM, "egc": EGC,
}  # fmt: skip


class _Skip(nn.Module):
    """The residual path: the input itself, or times a weight."""

    def __init__(self, in_channels: int, out_channels: int, linear: bool):
        super().__init__()
        self.weight = None
        if linear:
            self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(in_channels, out_channels)))

    def forward(self, x: Tensor | SparseInput) -> Tensor:
        if self.weight is None:
            assert isinstance(x, Tensor)  # the input, which may be sparse, goes through a linear map
            return x
        return product(x, self.weight)
