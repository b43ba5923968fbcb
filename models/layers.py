"""Graph convolutions with one interface: layer(x, propagation) -> [nodes, out]."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .protocols import EdgeIndex, Propagation, SparseInput


class GCNLayer(nn.Module):
    """H = P X W + b, where P is the propagation, D^-1/2 (A + I) D^-1/2.

    The product is taken in the order that propagates the fewer columns: (P X) W where the layer widens, P (X W) where
    it does not or where X is sparse.

    Source: Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks, 2017, equation 8.
    """

    def __init__(self, in_channels: int, out_channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_channels, out_channels))
        self.bias = nn.Parameter(torch.zeros(out_channels))
        bound = math.sqrt(6.0 / (in_channels + out_channels))
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor | SparseInput, propagation: Propagation) -> Tensor:
        if not isinstance(x, Tensor):
            h = propagation(x.matmul(self.weight))
        elif self.weight.shape[0] < self.weight.shape[1]:
            h = propagation(x) @ self.weight
        else:
            h = propagation(x @ self.weight)
        # The product is ours alone and its gradient does not need it, so the bias goes in without a copy.
        return h.add_(self.bias)


class PyGLayer(nn.Module):
    """PyTorch Geometric's `GCNConv`, as its examples use it: an edge index, the normalisation cached.

    It loads the state of a `GCNLayer` as well as its own, so that two models can start from the same weights.
    """

    def __init__(self, in_channels: int, out_channels: int):
        super().__init__()
        from torch_geometric.nn import GCNConv

        self.conv = GCNConv(in_channels, out_channels, cached=True)
        self._register_load_state_dict_pre_hook(self._from_gcn_layer)

    @staticmethod
    def _from_gcn_layer(state: dict, prefix: str, *_: object) -> None:
        if f"{prefix}weight" in state:
            state[f"{prefix}conv.lin.weight"] = state.pop(f"{prefix}weight").T
            state[f"{prefix}conv.bias"] = state.pop(f"{prefix}bias")

    def forward(self, x: Tensor, edges: EdgeIndex) -> Tensor:
        return self.conv(x, edges.edge_index, edges.edge_weight)
