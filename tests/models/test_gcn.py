"""The GCN on every backend against the formula of the paper in dense fp64: logits and every gradient."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from braidwork.models import BACKENDS, GCN, Coo, coalesce, get_backend, undirected
from braidwork.models.fused import FusedGraph

NODES, CHANNELS, CLASSES = 40, 23, 5
AVAILABLE = [name for name, backend in BACKENDS.items() if backend.available]


def dense(edges: Coo) -> torch.Tensor:
    matrix = torch.zeros(edges.shape, dtype=torch.float64)
    matrix[edges.row, edges.col] = 1.0 if edges.value is None else edges.value.double()
    return matrix


def random_coo(rows: int, cols: int, entries: int, weighted: bool) -> Coo:
    row, col = torch.randint(rows, (entries,)), torch.randint(cols, (entries,))
    return coalesce(row, col, torch.rand(entries) + 0.1 if weighted else None, (rows, cols))


def normalised(edges: Coo) -> torch.Tensor:
    """D^-1/2 (A + I) D^-1/2, a self-loop of weight 1 where there is none."""
    matrix = dense(edges)
    diagonal = torch.where(matrix.diagonal() != 0, matrix.diagonal(), 1.0)
    matrix.diagonal().copy_(diagonal)
    root = matrix.sum(1).rsqrt()
    return root[:, None] * matrix * root


def reference(model: GCN, x: torch.Tensor, propagation: torch.Tensor) -> torch.Tensor:
    """The model without dropout from its parameters alone, all dense."""
    last = len(model.layers) - 1
    for i, (layer, skip) in enumerate(itertools.zip_longest(model.layers, model.skips or [])):
        h = propagation @ x @ layer.weight + layer.bias
        if i < last:
            norm = model.norms[i]
            if isinstance(norm, torch.nn.LayerNorm):
                h = F.layer_norm(h, h.shape[1:], norm.weight, norm.bias)
            elif isinstance(norm, torch.nn.BatchNorm1d):
                h = F.batch_norm(h, None, None, norm.weight, norm.bias, training=True)
            h = h.relu()
        if skip is not None:
            h = h + (x if skip.weight is None else x @ skip.weight)
        x = h
    return x


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_layers": 1},
        {"num_layers": 3, "residual": True},
        {"norm": "layer"},
        {"norm": "batch", "residual": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("hidden", [8, CHANNELS, 64])  # narrower and wider than the input: both orders of the product
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("backend", [name for name in AVAILABLE if name != "pyg"])
def test_logits_and_gradients(backend: str, weighted: bool, kind: str, hidden: int, options: dict) -> None:
    edges = undirected(random_coo(NODES, NODES, 90, weighted))
    sparse = random_coo(NODES, CHANNELS, 200, weighted=True)
    features = sparse if kind == "sparse" else torch.randn(NODES, CHANNELS)
    made = get_backend(backend)
    model = GCN(CHANNELS, hidden, CLASSES, dropout=0.0, layer=made.layers["gcn"], **options)
    for layer in model.layers:
        torch.nn.init.normal_(layer.bias)
    exact = copy.deepcopy(model).double()
    target = torch.randint(CLASSES, (NODES,))

    logits = model(made.features(features), made.graph(edges))
    F.cross_entropy(logits, target).backward()
    x = dense(sparse) if kind == "sparse" else features.double()
    expected = reference(exact, x, normalised(edges))
    F.cross_entropy(expected, target).backward()

    torch.testing.assert_close(logits.double(), expected, rtol=1e-4, atol=1e-5)
    # The gradient of a bias before a batch norm is zero; in fp32 it is what cancellation leaves, near 1e-6.
    for (name, got), want in zip(model.named_parameters(), exact.parameters(), strict=True):
        same = torch.allclose(got.grad.double(), want.grad, rtol=1e-4, atol=1e-5)
        assert same, f"{name}: {(got.grad - want.grad).abs().max():.1e}"


@pytest.mark.parametrize("backend", [name for name in AVAILABLE if name != "pyg"])
def test_a_directed_graph_sends_gradients_back_along_its_edges(backend: str) -> None:
    edges = random_coo(NODES, NODES, 120, weighted=True)
    x = torch.randn(NODES, 6, requires_grad=True)
    y = get_backend(backend).graph(edges).normalised(x)
    exact = x.detach().double().requires_grad_()
    expected = normalised(edges) @ exact
    weight = torch.randn(NODES, 6)
    (got,) = torch.autograd.grad((y * weight).sum(), x)
    (want,) = torch.autograd.grad((expected * weight).sum(), exact)
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not BACKENDS["pyg"].available, reason="torch_geometric is not installed")
@pytest.mark.parametrize("weighted", [False, True])
def test_pyg_starts_from_our_weights_and_agrees(weighted: bool) -> None:
    edges = undirected(random_coo(NODES, NODES, 90, weighted))
    features = random_coo(NODES, CHANNELS, 200, weighted=True)
    outputs = {}
    ours = GCN(CHANNELS, 16, CLASSES).eval()
    for name in ("braidwork", "pyg"):
        backend = get_backend(name)
        model = GCN(CHANNELS, 16, CLASSES, layer=backend.layers["gcn"]).eval()
        model.load_state_dict(ours.state_dict())
        outputs[name] = model(backend.features(features), backend.graph(edges))
    torch.testing.assert_close(outputs["pyg"], outputs["braidwork"], rtol=1e-4, atol=1e-5)


def test_the_fused_propagation_stores_no_normalised_matrix() -> None:
    edges = undirected(random_coo(NODES, NODES, 90, weighted=False))
    graph = FusedGraph(edges)
    graph.normalised(torch.ones(NODES, 4, requires_grad=True)).sum().backward()
    stored, scale = graph._normalised
    assert stored.matrix.values is None
    assert scale.shape == (NODES,)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_dropout_acts_in_training_alone_and_alike_on_both_backends(kind: str) -> None:
    edges = undirected(random_coo(NODES, NODES, 90, weighted=False))
    sparse = random_coo(NODES, CHANNELS, 200, weighted=True)
    features = sparse if kind == "sparse" else torch.randn(NODES, CHANNELS)
    model = GCN(CHANNELS, 16, CLASSES, dropout=0.5, input_dropout=0.5)
    outputs = []
    for name in ("braidwork", "torch"):
        backend = get_backend(name)
        inputs = backend.features(features), backend.graph(edges)
        model.eval()
        assert torch.equal(model(*inputs), model(*inputs))
        model.train()
        torch.manual_seed(11)
        outputs.append(model(*inputs))
        assert not torch.allclose(outputs[-1], model(*inputs))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_layers": 0}, "num_layers"),
        ({"hidden_channels": -1}, "hidden_channels"),
        ({"hidden_channels": 2.5}, "hidden_channels"),
        ({"dropout": 1.0}, "dropout"),
        ({"input_dropout": math.nan}, "input_dropout"),
        ({"norm": "group"}, "norm"),
    ],
)
def test_an_impossible_model_is_refused_by_name(options: dict, named: str) -> None:
    with pytest.raises(ValueError, match=f"^{named}: "):
        GCN(**{"in_channels": 4, "hidden_channels": 8, "out_channels": 2} | options)


def test_unknown_and_absent_backends_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="unknown 'dgl'; choose one of braidwork, torch, torch_autograd, pyg"):
        get_backend("dgl")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="needs the package torch_geometric"):
        get_backend("pyg")


def test_dense_copies_of_large_features_are_refused_for_pyg() -> None:
    nodes = torch.arange(3)
    with pytest.raises(ValueError, match="PyTorch Geometric needs them dense"):
        BACKENDS["pyg"].features(Coo(nodes, nodes, None, (100_000, 100_000)))
