"""PyTorch Geometric's convolutions, as its examples use them, with the interface of `layers.py`.

Each loads the state of its counterpart there as well as its own, so that two models can start from the same weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from .edges import Coo
from .protocols import EdgeIndex

# Dense copies of sparse features beyond this are refused rather than left to exhaust the memory.
_DENSE_LIMIT_BYTES = 1 << 30


def dense_features(features: Coo) -> Tensor:
    """Sparse features as the dense tensor that convolutions of PyTorch Geometric want.

    Raises:
        ValueError: it would take more than 1 GiB.
    """
    size = features.shape[0] * features.shape[1] * 4
    if size > _DENSE_LIMIT_BYTES:
        raise ValueError(
            f"features: PyTorch Geometric needs them dense, {size / 2**30:.1f} GiB here, more than the limit of "
            f"{_DENSE_LIMIT_BYTES / 2**30:.0f} GiB; project them to fewer channels or use another backend"
        )
    dense = torch.zeros(features.shape)
    dense[features.row, features.col] = torch.ones(features.nnz) if features.value is None else features.value
    return dense


Names = dict[str, tuple[str, Callable[[Tensor], Tensor]]]


class _PyGLayer(nn.Module):
    """A convolution `conv`, and how the parameters of ours are named and laid out in it: {ours: (theirs, change)}."""

    names: ClassVar[Names]

    def __init__(self, conv: nn.Module):
        super().__init__()
        self.conv = conv
        self._register_load_state_dict_pre_hook(self._from_ours)

    def _from_ours(self, state: dict, prefix: str, *_: object) -> None:
        for ours, (theirs, change) in self.names.items():
            if f"{prefix}{ours}" in state:
                state[f"{prefix}conv.{theirs}"] = change(state.pop(f"{prefix}{ours}"))

    def forward(self, x: Tensor, graph: EdgeIndex) -> Tensor:
        return self.conv(x, graph.edge_index)


def _same(weight: Tensor) -> Tensor:
    return weight


def _turned(weight: Tensor) -> Tensor:
    return weight.T


def _one_more(weight: Tensor) -> Tensor:
    return weight.unsqueeze(0)


class PyGGCN(_PyGLayer):
    """`GCNConv` with its normalisation cached."""

    names: ClassVar[Names] = {"weight": ("lin.weight", _turned), "bias": ("bias", _same)}

    def __init__(self, in_channels: int, out_channels: int):
        from torch_geometric.nn import GCNConv

        super().__init__(GCNConv(in_channels, out_channels, cached=True))

    def forward(self, x: Tensor, graph: EdgeIndex) -> Tensor:
        return self.conv(x, graph.edge_index, graph.edge_weight)


class PyGSAGE(_PyGLayer):
    """`SAGEConv` with the mean."""

    names: ClassVar[Names] = {
        "weight_neighbour": ("lin_l.weight", _turned),
        "bias": ("lin_l.bias", _same),
        "weight_self": ("lin_r.weight", _turned),
    }

    def __init__(self, in_channels: int, out_channels: int):
        from torch_geometric.nn import SAGEConv

        super().__init__(SAGEConv(in_channels, out_channels))

    def forward(self, x: Tensor, graph: EdgeIndex) -> Tensor:
        return self.conv((x, x[: graph.shape[0]]), graph.edge_index)


class PyGGAT(_PyGLayer):
    """`GATConv`, heads concatenated, no dropout of the attention."""

    names: ClassVar[Names] = {
        "weight": ("lin.weight", _turned),
        "attention_source": ("att_src", _one_more),
        "attention_target": ("att_dst", _one_more),
        "bias": ("bias", _same),
    }

    def __init__(self, in_channels: int, out_channels: int, heads: int = 1, negative_slope: float = 0.2):
        from torch_geometric.nn import GATConv

        super().__init__(GATConv(in_channels, out_channels // heads, heads, negative_slope=negative_slope))


class PyGRGCN(_PyGLayer):
    """`RGCNConv`, which goes through the relations one by one."""

    names: ClassVar[Names] = {
        "weight": ("weight", _same),
        "coefficient": ("comp", _same),
        "root": ("root", _same),
        "bias": ("bias", _same),
    }

    def __init__(self, in_channels: int, out_channels: int, relations: int, bases: int | None = None):
        from torch_geometric.nn import RGCNConv

        super().__init__(RGCNConv(in_channels, out_channels, relations, num_bases=bases))

    def forward(self, x: Tensor, graph: EdgeIndex) -> Tensor:
        return self.conv(x, graph.typed_index, graph.edge_type)


class PyGFiLM(_PyGLayer):
    """`FiLMConv` for one relation."""

    names: ClassVar[Names] = {
        "weight": ("lins.0.weight", _turned),
        "film": ("films.0.weight", _turned),
        "film_bias": ("films.0.bias", _same),
        "skip": ("lin_skip.weight", _turned),
        "film_skip": ("film_skip.weight", _turned),
    }

    def __init__(self, in_channels: int, out_channels: int, relu: bool = True):
        from torch_geometric.nn import FiLMConv

        super().__init__(FiLMConv(in_channels, out_channels, act=torch.nn.ReLU() if relu else None))


class PyGEGC(_PyGLayer):
    """`EGConv` with the symmetric normalisation, cached, as its aggregator."""

    names: ClassVar[Names] = {
        "weight": ("bases_lin.weight", _turned),
        "combination": ("comb_lin.weight", _turned),
        "combination_bias": ("comb_lin.bias", _same),
        "bias": ("bias", _same),
    }

    def __init__(self, in_channels: int, out_channels: int, heads: int = 1, bases: int = 4):
        from torch_geometric.nn import EGConv

        super().__init__(
            EGConv(in_channels, out_channels, ["symnorm"], num_heads=heads, num_bases=bases, cached=True)
        )
