"""The graph convolutional network of Kipf and Welling, with residual connections and normalisation as options."""

from __future__ import annotations

import itertools
from typing import cast

import torch
from torch import Tensor, nn

from braidwork.kernels.fused import drop_rate, relu_dropout

from .activation import dropout
from .layers import GCNLayer
from .protocols import Propagation, SparseInput

NORMS: dict[str, type[nn.Module]] = {"none": nn.Identity, "layer": nn.LayerNorm, "batch": nn.BatchNorm1d}


class GCN(nn.Module):
    """A stack of graph convolutions: convolution, [norm], ReLU, dropout, [+ residual], and a last convolution.

    The module holds no graph and no kernel: it is called with the features and a propagation of one of the backends in
    `backends.py`, and runs unchanged on any of them.

    Args:
        in_channels, hidden_channels, out_channels: widths of the input, of every hidden layer, of the output (classes).
        num_layers: number of convolutions, at least 1.
        dropout: rate after every hidden layer, in [0, 1), rounded to 1/256.
        input_dropout: rate on the input features. Sparse features drop stored values.
        residual: add to the output of each layer its input, through a linear map where the widths differ and at the
            first layer, whose input can be sparse.
        norm: "none", "layer" or "batch", after each hidden convolution.
        layer: class of the convolutions, from the backend (`Backend.layer`).

    Raises:
        ValueError: a width or a number of layers below 1, a rate outside [0, 1), an unknown norm.
    """

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
        layer: type[nn.Module] = GCNLayer,
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
        self.layers = nn.ModuleList(layer(a, b) for a, b in pairs)
        self.norms = nn.ModuleList(NORMS[norm](b) for _, b in pairs[:-1])
        skips = [_Skip(a, b, linear=i == 0 or a != b) for i, (a, b) in enumerate(pairs)]
        self.skips = nn.ModuleList(skips) if residual else None

    def forward(self, x: Tensor | SparseInput, propagation: Propagation) -> Tensor:
        """Logits [nodes, out_channels] of features `x` (a dense [nodes, in_channels] or a backend's sparse input)."""
        if self.training and drop_rate(self.input_dropout):
            x = dropout(x, self.input_dropout) if isinstance(x, Tensor) else x.dropout(self.input_dropout)
        h: Tensor | SparseInput = x
        for i, layer in enumerate(self.layers):
            out = layer(h, propagation)
            if i < len(self.norms):
                out = relu_dropout(self.norms[i](out), self.dropout if self.training else 0.0)
            h = out if self.skips is None else out + self.skips[i](h)
        return cast(Tensor, h)


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
        return x @ self.weight if isinstance(x, Tensor) else x.matmul(self.weight)
