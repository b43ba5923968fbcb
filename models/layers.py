"""Graph convolutions with one interface: layer(x, graph) -> [targets, out].

x is dense [sources, in] or a backend's sparse input; the graph is what `protocols.GraphOperators` says. Layers multiply
x by all of their weights at once where they are several, since x may be sparse and a product with it is what costs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .protocols import GraphOperators, SparseInput

Features = Tensor | SparseInput


def product(x: Features, weight: Tensor) -> Tensor:
    """x @ weight, of dense or sparse x."""
    return x @ weight if isinstance(x, Tensor) else x.matmul(weight)


def glorot(*shape: int) -> nn.Parameter:
    """A weight [..., in, out], uniform in +-sqrt(6 / (in + out)) (X. Glorot and Y. Bengio, AISTATS 2010)."""
    bound = math.sqrt(6.0 / (shape[-2] + shape[-1]))
    return nn.Parameter(nn.init.uniform_(torch.empty(shape), -bound, bound))


def _zeros(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape))


class GCNLayer(nn.Module):
    """H = P X W + b, where P is the propagation, D^-1/2 (A + I) D^-1/2.

    The product is taken in the order that propagates the fewer columns: (P X) W where the layer widens, P (X W) where
    it does not or where X is sparse.

    Source: Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks, 2017, equation 8.
    """

    def __init__(self, in_channels: int, out_channels: int):
        super().__init__()
        self.weight = glorot(in_channels, out_channels)
        self.bias = _zeros(out_channels)

    def forward(self, x: Features, graph: GraphOperators) -> Tensor:
        if isinstance(x, Tensor) and self.weight.shape[0] < self.weight.shape[1]:
            h = graph.normalised(x) @ self.weight
        else:
            h = graph.normalised(product(x, self.weight))
        # The product is ours alone and its gradient does not need it, so the bias goes in without a copy.
        return h.add_(self.bias)


class SAGELayer(nn.Module):
    """H = mean over neighbours of X, times W_n, + X W_s + b.

    Source: Hamilton, Ying and Leskovec, Inductive Representation Learning on Large Graphs, 2017, section 3.3, the mean
    aggregator, as PyTorch Geometric has it.
    """

    def __init__(self, in_channels: int, out_channels: int):
        super().__init__()
        self.weight_neighbour = glorot(in_channels, out_channels)
        self.weight_self = glorot(in_channels, out_channels)
        self.bias = _zeros(out_channels)

    def forward(self, x: Features, graph: GraphOperators) -> Tensor:
        width = self.bias.shape[0]
        if not isinstance(x, Tensor):
            both = product(x, torch.cat([self.weight_neighbour, self.weight_self], 1))
            near, own = both.split(width, 1)
            return graph.mean(near).add_(own[: graph.shape[0]]).add_(self.bias)
        if self.weight_self.shape[0] < width:
            near = graph.mean(x) @ self.weight_neighbour
        else:
            near = graph.mean(x @ self.weight_neighbour)
        return torch.addmm(near, x[: graph.shape[0]], self.weight_self).add_(self.bias)


class GATLayer(nn.Module):
    """Attention over neighbours and the node itself, heads side by side: out_channels = heads * features of a head.

    The scores <a, X W> are taken as X (W a), columns of the same product.

    Source: Veličković et al., Graph Attention Networks, 2018, equations 3 to 5.
    """

    def __init__(self, in_channels: int, out_channels: int, heads: int = 1, negative_slope: float = 0.2):
        super().__init__()
        if not isinstance(heads, int) or heads < 1 or out_channels % heads:
            raise ValueError(f"heads: must divide the {out_channels} channels of a layer, got {heads!r}")
        self.heads, self.negative_slope = heads, negative_slope
        self.weight = glorot(in_channels, out_channels)
        self.attention_source = glorot(heads, out_channels // heads)
        self.attention_target = glorot(heads, out_channels // heads)
        self.bias = _zeros(out_channels)

    def forward(self, x: Features, graph: GraphOperators) -> Tensor:
        H = self.heads
        by_head = self.weight.unflatten(1, (H, -1))
        scores = [(by_head * a).sum(2) for a in (self.attention_source, self.attention_target)]
        h, source, target = product(x, torch.cat([self.weight, *scores], 1)).split([self.weight.shape[1], H, H], 1)
        out = graph.attend(h.unflatten(1, (H, -1)), source, target[: graph.shape[0]], self.negative_slope)
        return out.flatten(1) + self.bias


class RGCNLayer(nn.Module):
    """H = sum over relations r of the mean over neighbours in r of X, times W_r, + X W_0 + b.

    With `bases`, W_r = sum over b of c[r, b] V_b. One product with a matrix that holds all relations side by side, in
    the order that aggregates the fewer columns.

    Source: Schlichtkrull et al., Modeling Relational Data with Graph Convolutional Networks, 2018, equations 2 and 3.
    """

    def __init__(self, in_channels: int, out_channels: int, relations: int, bases: int | None = None):
        super().__init__()
        if bases is not None and (not isinstance(bases, int) or bases < 1):
            raise ValueError(f"bases: must be a whole number of at least 1, or null, got {bases!r}")
        self.weight = glorot(bases or relations, in_channels, out_channels)
        self.coefficient = None if bases is None else glorot(relations, bases)
        self.root = glorot(in_channels, out_channels)
        self.bias = _zeros(out_channels)

    def relation_weights(self) -> Tensor:
        """[relations, in, out]."""
        if self.coefficient is None:
            return self.weight
        return (self.coefficient @ self.weight.flatten(1)).view(-1, *self.weight.shape[1:])

    def forward(self, x: Features, graph: GraphOperators) -> Tensor:
        weight, targets = self.relation_weights(), graph.shape[0]
        relations, width_in, width_out = weight.shape
        if isinstance(x, Tensor) and width_in < width_out:
            h = graph.mean_by_relation(x).flatten(1) @ weight.flatten(0, 1)
            return torch.addmm(h, x[:targets], self.root).add_(self.bias)
        side_by_side = weight.transpose(0, 1).flatten(1)
        if isinstance(x, Tensor):
            h, own = x @ side_by_side, x[:targets] @ self.root
        else:
            both = product(x, torch.cat([side_by_side, self.root], 1))
            h, own = both.split([relations * width_out, width_out], 1)
            own = own[:targets]
        return graph.sum_of_relations(h.unflatten(1, (relations, width_out))).add_(own).add_(self.bias)


class FiLMLayer(nn.Module):
    """H = s(gamma_0 X W_0 + beta_0) + mean over neighbours j of s(gamma_i x_j W + beta_i), s the positive part.

    gamma and beta are linear in the target's own features, so that a node says what of its neighbours it takes in. As
    PyTorch Geometric has it for one relation; without `relu` there is no s.

    Source: Brockschmidt, GNN-FiLM: Graph Neural Networks with Feature-wise Linear Modulation, 2020, equation 4.
    """

    def __init__(self, in_channels: int, out_channels: int, relu: bool = True):
        super().__init__()
        self.relu = relu
        self.weight = glorot(in_channels, out_channels)
        self.film = glorot(in_channels, 2 * out_channels)  # beta, gamma
        self.film_bias = _zeros(2 * out_channels)
        self.skip = glorot(in_channels, out_channels)
        self.film_skip = glorot(in_channels, 2 * out_channels)

    def forward(self, x: Features, graph: GraphOperators) -> Tensor:
        width, targets = self.weight.shape[1], graph.shape[0]
        all_at_once = product(x, torch.cat([self.weight, self.film, self.skip, self.film_skip], 1))
        h, film, skip, beta_skip, gamma_skip = all_at_once.split([width, 2 * width, width, width, width], 1)
        beta, gamma = (film[:targets] + self.film_bias).split(width, 1)
        own = torch.addcmul(beta_skip, gamma_skip, skip)[:targets]
        return (own.relu() if self.relu else own) + graph.film(h, gamma, beta, self.relu)


class EGCLayer(nn.Module):
    """H, heads side by side: each a combination of B propagated bases P X V_b, by weights linear in the node's X.

    Source: Tailor et al., Do We Need Anisotropic Graph Neural Networks?, 2022, equation 3, EGC-S with the symmetric
    normalisation as aggregator.
    """

    def __init__(self, in_channels: int, out_channels: int, heads: int = 1, bases: int = 4):
        super().__init__()
        for name, value in {"heads": heads, "bases": bases}.items():
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: must be a whole number of at least 1, got {value!r}")
        if out_channels % heads:
            raise ValueError(f"heads: must divide the {out_channels} channels of a layer, got {heads!r}")
        self.heads, self.bases = heads, bases
        self.weight = glorot(in_channels, bases * (out_channels // heads))
        self.combination = glorot(in_channels, heads * bases)
        self.combination_bias = _zeros(heads * bases)
        self.bias = _zeros(out_channels)

    def forward(self, x: Features, graph: GraphOperators) -> Tensor:
        both = product(x, torch.cat([self.weight, self.combination], 1))
        h, combination = both.split([self.weight.shape[1], self.heads * self.bases], 1)
        combination = (combination + self.combination_bias).view(-1, self.heads, self.bases)
        based = graph.normalised(h).view(-1, self.bases, h.shape[1] // self.bases)
        return torch.bmm(combination, based).flatten(1) + self.bias
