"""Every convolution on every backend against its formula in dense fp64, forward and backward; and against PyG's."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from braidwork.models import BACKENDS, GCN, MODELS, Coo, by_direction, coalesce, get_backend, undirected
from braidwork.models.layers import EGCLayer, GATLayer, RGCNLayer

NODES, CHANNELS, WIDTH = 40, 12, 8
AVAILABLE = [name for name, backend in BACKENDS.items() if backend.available]
OURS = [name for name in AVAILABLE if name != "pyg"]
OPTIONS: dict[str, list[dict]] = {
    "gcn": [{}],
    "sage": [{}],
    "gat": [{"heads": 1}, {"heads": 4}],
    "rgcn": [{"relations": 2}, {"relations": 2, "bases": 3}],
    "film": [{}, {"relu": False}],
    "egc": [{"heads": 1}, {"heads": 2, "bases": 3}],
}
CASES = [(kind, options) for kind, some in OPTIONS.items() for options in some]


def graph(weighted: bool = False) -> Coo:
    """Undirected, with nodes that have no neighbour."""
    row, col = torch.randint(NODES - 4, (2, 90))
    keep = row != col
    value = torch.rand(int(keep.sum())) + 0.1 if weighted else None
    return undirected(coalesce(row[keep], col[keep], value, (NODES, NODES)))


def features(kind: str) -> tuple[Tensor | Coo, Tensor]:
    """Dense or sparse features, and the same as a dense fp64 tensor."""
    if kind == "dense":
        x = torch.randn(NODES, CHANNELS)
        return x, x.double()
    sparse = coalesce(torch.randint(NODES, (150,)), torch.randint(CHANNELS, (150,)), torch.rand(150), (NODES, CHANNELS))
    dense = torch.zeros(sparse.shape, dtype=torch.float64)
    dense[sparse.row, sparse.col] = sparse.value.double()
    return sparse, dense


def dense(edges: Coo) -> Tensor:
    matrix = torch.zeros(edges.shape, dtype=torch.float64)
    matrix[edges.row, edges.col] = 1.0 if edges.value is None else edges.value.double()
    return matrix


def averaging(edges: Coo) -> Tensor:
    pattern = dense(edges._replace(value=None))
    return pattern / pattern.sum(1, keepdim=True).clamp(min=1)


def propagation(edges: Coo) -> Tensor:
    matrix = dense(edges) + torch.eye(NODES, dtype=torch.float64)
    root = matrix.sum(1).rsqrt()
    return root[:, None] * matrix * root


# The formulas, of the parameters in fp64, dense features and edges.


def gcn(layer: nn.Module, x: Tensor, edges: Coo) -> Tensor:
    return propagation(edges) @ x @ layer.weight + layer.bias


def sage(layer: nn.Module, x: Tensor, edges: Coo) -> Tensor:
    return averaging(edges) @ x @ layer.weight_neighbour + x @ layer.weight_self + layer.bias


def gat(layer: nn.Module, x: Tensor, edges: Coo) -> Tensor:
    linked = dense(edges._replace(value=None)) + torch.eye(NODES, dtype=torch.float64) > 0
    heads = []
    for h, weight in enumerate(layer.weight.chunk(layer.heads, 1)):
        z = x @ weight
        logit = (z @ layer.attention_target[h])[:, None] + (z @ layer.attention_source[h])[None, :]
        heads.append(F.leaky_relu(logit, 0.2).masked_fill(~linked, -torch.inf).softmax(1) @ z)
    return torch.cat(heads, 1) + layer.bias


def rgcn(layer: nn.Module, x: Tensor, edges: Coo) -> Tensor:
    weights = layer.weight if layer.coefficient is None else torch.einsum(
        "rb,bio->rio", layer.coefficient, layer.weight
    )  # fmt: skip
    out = x @ layer.root + layer.bias
    for relation, weight in zip(by_direction(edges), weights, strict=True):
        out = out + averaging(relation) @ x @ weight
    return out


def film(layer: nn.Module, x: Tensor, edges: Coo) -> Tensor:
    rectify = F.relu if layer.relu else lambda message: message
    beta, gamma = (x @ layer.film + layer.film_bias).chunk(2, 1)
    beta_skip, gamma_skip = (x @ layer.film_skip).chunk(2, 1)
    message = rectify(gamma[:, None] * (x @ layer.weight)[None] + beta[:, None])  # [targets, sources, width]
    return rectify(gamma_skip * (x @ layer.skip) + beta_skip) + torch.einsum("ij,ijf->if", averaging(edges), message)


def egc(layer: nn.Module, x: Tensor, edges: Coo) -> Tensor:
    based = (propagation(edges) @ x @ layer.weight).view(NODES, layer.bases, -1)
    combination = (x @ layer.combination + layer.combination_bias).view(NODES, layer.heads, layer.bases)
    return torch.einsum("nhb,nbf->nhf", combination, based).flatten(1) + layer.bias


FORMULAS: dict[str, Callable[[nn.Module, Tensor, Coo], Tensor]] = {
    "gcn": gcn, "sage": sage, "gat": gat, "rgcn": rgcn, "film": film, "egc": egc,
}  # fmt: skip


def randomise(layer: nn.Module) -> None:
    for name, parameter in layer.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter)


@pytest.mark.parametrize("width", [WIDTH, 2 * CHANNELS])  # narrower and wider than the input: both orders of a product
@pytest.mark.parametrize("input", ["dense", "sparse"])
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("backend", OURS)
def test_the_formula(backend: str, case: tuple[str, dict], input: str, width: int) -> None:
    kind, options = case
    made = get_backend(backend)
    edges = graph(weighted=kind in ("gcn", "egc"))
    given, exact_x = features(input)
    layer = made.layers[kind](CHANNELS, width, **options)
    randomise(layer)
    exact = copy.deepcopy(layer).double()
    x = made.features(given)
    leaves: list[tuple[str, Tensor, Tensor]] = []
    if input == "dense":
        x, exact_x = x.requires_grad_(), exact_x.requires_grad_()
        leaves.append(("x", x, exact_x))

    y = layer(x, made.graph(edges, by_direction(edges)))
    expected = FORMULAS[kind](exact, exact_x, edges)
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-5)

    gy = torch.randn(y.shape)
    y.backward(gy)
    expected.backward(gy.double())
    leaves += [(n, p, q) for (n, p), q in zip(layer.named_parameters(), exact.parameters(), strict=True)]
    for name, ours, theirs in leaves:
        same = torch.allclose(ours.grad.double(), theirs.grad, rtol=1e-4, atol=2e-5)
        assert same, f"{name}: {(ours.grad - theirs.grad).abs().max():.1e}"


@pytest.mark.skipif("pyg" not in AVAILABLE, reason="torch_geometric is not installed")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_pyg_starts_from_our_weights_and_agrees(case: tuple[str, dict]) -> None:
    kind, options = case
    edges = graph(weighted=kind == "gcn")
    x = torch.randn(NODES, CHANNELS)
    ours, theirs = (get_backend(name) for name in ("braidwork", "pyg"))
    layer, peer = (backend.layers[kind](CHANNELS, WIDTH, **options) for backend in (ours, theirs))
    randomise(layer)
    peer.load_state_dict(layer.state_dict())
    got = layer(x, ours.graph(edges, by_direction(edges)))
    expected = peer(x, theirs.graph(edges, by_direction(edges)))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    peer.load_state_dict(peer.state_dict())  # and its own


@pytest.mark.parametrize("kind", list(MODELS))
@pytest.mark.parametrize("backend", AVAILABLE)
def test_networks_learn(backend: str, kind: str) -> None:
    """A few steps on a graph whose groups hang together, of every network on every backend."""
    labels = torch.arange(NODES) % 3
    row, col = torch.randint(NODES, (2, 400))
    keep = (labels[row] == labels[col]) & (row != col)
    edges = undirected(coalesce(row[keep], col[keep], None, (NODES, NODES)))
    made = get_backend(backend)
    options = {"num_relations": 2} if kind == "rgcn" else {}
    model = MODELS[kind](CHANNELS, 16, 3, dropout=0.2, residual=True, norm="layer", layer=made.layers[kind], **options)
    x, operators = made.features(torch.randn(NODES, CHANNELS)), made.graph(edges, by_direction(edges))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, operators), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("kind", ["sage", "gat", "rgcn", "film", "egc"])
@pytest.mark.parametrize("format", ["sell", "coo", "auto"])
def test_formats_give_the_same_model(kind: str, format: str) -> None:
    edges = graph()
    made = get_backend("braidwork")
    options = {"num_relations": 2} if kind == "rgcn" else {}
    model = MODELS[kind](CHANNELS, 16, 3, dropout=0.0, **options).double().eval()
    x = torch.randn(NODES, CHANNELS, dtype=torch.float64)
    relations = by_direction(edges)
    expected = model(x, made.graph(edges, relations))
    torch.testing.assert_close(model(x, made.graph(edges, relations, format, 1000)), expected)


def test_relations_by_direction() -> None:
    edges = graph()
    up, down = by_direction(edges)
    assert torch.equal(dense(up) + dense(down), dense(edges)) and torch.equal(dense(up).T, dense(down))
    one_way = coalesce(torch.tensor([0, 1, 1]), torch.tensor([1, 2, 0]), torch.rand(3), (3, 3))
    there, back = by_direction(one_way)
    assert there.value is None and torch.equal(dense(there).T, dense(back)) and there.nnz == 3


def test_errors_name_the_argument() -> None:
    x, made = torch.randn(NODES, CHANNELS), get_backend("braidwork")
    for message, call in (
        ("heads: must divide the 8 channels", lambda: GATLayer(CHANNELS, 8, heads=3)),
        ("heads: must divide the 8 channels", lambda: EGCLayer(CHANNELS, 8, heads=3)),
        ("bases: must be a whole number", lambda: EGCLayer(CHANNELS, 8, bases=0)),
        ("bases: must be a whole number", lambda: RGCNLayer(CHANNELS, 8, 2, bases=0)),
        ("num_relations: must be a whole number", lambda: MODELS["rgcn"](CHANNELS, 8, 3, num_relations=0)),
        ("relations: need at least one", lambda: RGCNLayer(CHANNELS, 8, 2)(x, made.graph(graph()))),
        ("graph: need one for all layers or 2, got 3", lambda: GCN(CHANNELS, 8, 3)(x, [made.graph(graph())] * 3)),
    ):
        with pytest.raises(ValueError, match=message):
            call()
