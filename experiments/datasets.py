"""One loader for every graph: `load(cfg.dataset)` gives a `Graph` ready for a model, or raises one clear line."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from braidwork.kernels.sparse import SparseMatrix
from braidwork.models import Coo, by_direction, coalesce, undirected

from .fetch import DatasetError
from .readers import READERS, Raw

__all__ = ["DatasetError", "Graph", "Split", "load"]


@dataclass(frozen=True)
class Split:
    """Node numbers, int64, of the three disjoint parts."""

    train: Tensor
    val: Tensor
    test: Tensor


@dataclass(frozen=True)
class Graph:
    """One graph with what is needed to learn on it.

    Attributes:
        name: the data set's.
        edges: the adjacency without self-loops; entry (i, j) is an edge from j to i.
        features: [nodes, channels], fp32, dense or sparse. A graph without any has one-hot node numbers.
        labels: [nodes], int64, -1 where unknown; None if the graph has none.
        num_classes: 0 without labels.
        typed_edges: the edges of every relation, where the data set tells relations apart.
        metadata: source, licence and the like, from the config.
    """

    name: str
    edges: Coo
    features: Tensor | Coo
    labels: Tensor | None
    num_classes: int
    split_rule: Mapping[str, Any]
    given_split: Split | None = None
    typed_edges: tuple[Coo, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_nodes(self) -> int:
        return self.edges.shape[0]

    @property
    def num_features(self) -> int:
        return self.features.shape[1]

    @functools.cached_property
    def adjacency(self) -> SparseMatrix:
        """The edges as a SparseMatrix [nodes, nodes], without values where the graph is unweighted."""
        return SparseMatrix.from_coo(*self.edges)

    @functools.cached_property
    def relations(self) -> tuple[Coo, ...]:
        """The edges of every relation: those of the data set, or by direction (see `models.by_direction`)."""
        return self.typed_edges or by_direction(self.edges)

    def split(self, seed: int) -> Split:
        """Training, validation and test nodes: as given by the data set, else drawn from `seed` by its rule.

        Raises:
            DatasetError: no labels, or too few of them for the rule.
        """
        if self.labels is None:
            raise DatasetError(f"{self.name}: has no labels to train on; give some with dataset.labels=FILE")
        if self.given_split is not None:
            return self.given_split
        return _SPLITS[self.split_rule["kind"]](self, self.labels.numpy(), np.random.default_rng(seed))


def _random_split(graph: Graph, labels: np.ndarray, rng: np.random.Generator) -> Split:
    """Shares of all labelled nodes."""
    known = rng.permutation(np.flatnonzero(labels >= 0))
    ends = (np.cumsum([graph.split_rule["train"], graph.split_rule["val"]]) * len(known)).astype(int)
    return _split(graph, *np.split(known, ends))


def _per_class_split(graph: Graph, labels: np.ndarray, rng: np.random.Generator) -> Split:
    """A number of training nodes of every class, then validation and test nodes from the rest.

    Source: Yang, Cohen and Salakhutdinov, Revisiting Semi-Supervised Learning with Graph Embeddings, 2016, section 5.
    """
    rule = graph.split_rule
    order = rng.permutation(np.flatnonzero(labels >= 0))
    train = np.concatenate([order[labels[order] == c][: rule["train_per_class"]] for c in range(graph.num_classes)])
    rest = order[~np.isin(order, train)]
    need = rule["val"] + rule["test"]
    if len(rest) < need:
        raise DatasetError(
            f"{graph.name}: {len(rest)} nodes left for validation and test, {need} asked for; lower dataset.split"
        )
    return _split(graph, train, rest[: rule["val"]], rest[rule["val"] : need])


def _split(graph: Graph, *parts: np.ndarray) -> Split:
    for name, part in zip(("train", "val", "test"), parts, strict=True):
        if len(part) == 0:
            raise DatasetError(f"{graph.name}: the {name} part of the split is empty; change dataset.split")
    return Split(*(torch.from_numpy(np.sort(part)) for part in parts))


_SPLITS = {"random": _random_split, "per_class": _per_class_split}


def load(config: Mapping[str, Any]) -> Graph:
    """Load the data set that a `conf/dataset` group describes.

    Raises:
        DatasetError: it is missing, cannot be fetched, fails its checksum or is malformed; the message says what to do.
    """
    name = config["name"]
    if config.get("kind") not in READERS:
        raise DatasetError(f"{name}: unknown dataset.kind {config.get('kind')!r}; choose one of {', '.join(READERS)}")
    rule = config.get("split") or {"kind": "random", "train": 0.6, "val": 0.2}
    kinds = (*_SPLITS, "given")
    if rule.get("kind") not in kinds:
        raise DatasetError(f"{name}: unknown dataset.split.kind {rule.get('kind')!r}; choose one of {', '.join(kinds)}")
    if rule["kind"] == "random" and not (rule["train"] > 0 and rule["val"] > 0 and rule["train"] + rule["val"] < 1):
        raise DatasetError(f"{name}: dataset.split.train and .val must be positive shares with a sum below 1")
    raw = READERS[config["kind"]](config)
    if rule["kind"] == "given" and raw.split is None:
        raise DatasetError(f"{name}: brings no split of its own; set dataset.split.kind to random or per_class")
    try:
        return _graph(name, config, rule, raw)
    except ValueError as error:
        raise DatasetError(f"{name}: malformed ({error}); see conf/dataset/user.yaml for what it must hold") from error


def _graph(name: str, config: Mapping[str, Any], rule: Mapping[str, Any], raw: Raw) -> Graph:
    edges = _edges(raw)
    if config.get("undirected", True):
        edges = undirected(edges)
    labels = None
    if raw.labels is not None:
        labels = torch.from_numpy(np.asarray(raw.labels).reshape(-1)).long()
        _check_length("labels", len(labels), raw.nodes)
    given = None
    if rule["kind"] == "given":
        assert raw.split is not None  # load() refuses a reader without
        given = Split(*(torch.from_numpy(np.asarray(raw.split[part])).long() for part in ("train", "val", "test")))
    return Graph(
        name=name,
        edges=edges,
        features=_features(raw),
        labels=labels,
        num_classes=int(labels.max()) + 1 if labels is not None else 0,
        split_rule=dict(rule),
        given_split=given,
        typed_edges=_typed_edges(raw, config.get("undirected", True)),
        metadata={key: str(config[key]) for key in ("source", "licence", "note") if config.get(key)},
    )


def _edges(raw: Raw) -> Coo:
    row, col = (torch.from_numpy(np.asarray(ends)).long() for ends in (raw.row, raw.col))
    if row.shape != col.shape or row.ndim != 1:
        raise ValueError(
            f"edges: the two ends must be equally long vectors, got {tuple(row.shape)} and {tuple(col.shape)}"
        )
    value = None if raw.value is None else torch.from_numpy(np.asarray(raw.value)).float()
    if value is not None:
        _check_length("edge weights", len(value), len(row))
    if raw.nodes < 1:
        raise ValueError("the graph has no nodes")
    for ends in (row, col):
        if ends.numel() and not 0 <= int(ends.min()) <= int(ends.max()) < raw.nodes:
            raise ValueError(f"edges: node {int(ends.min())} or {int(ends.max())} is outside 0..{raw.nodes - 1}")
    keep = row != col
    return coalesce(row[keep], col[keep], value if value is None else value[keep], (raw.nodes, raw.nodes))


def _typed_edges(raw: Raw, undirected: bool) -> tuple[Coo, ...]:
    """The edges of every relation, and of an undirected graph the reverses as relations of their own behind them."""
    if raw.relation is None:
        return ()
    _check_length("relations", len(raw.relation), len(raw.row))
    kinds = int(raw.relation.max(initial=-1)) + 1
    forward = [_edges(raw._replace(row=raw.row[own], col=raw.col[own], value=None)) for own in
               (raw.relation == kind for kind in range(kinds))]  # fmt: skip
    backward = [coalesce(edges.col, edges.row, None, edges.shape) for edges in forward] if undirected else []
    return (*forward, *backward)


def _features(raw: Raw) -> Tensor | Coo:
    if raw.features is None:
        nodes = torch.arange(raw.nodes)
        return Coo(nodes, nodes, None, (raw.nodes, raw.nodes))
    if isinstance(raw.features, tuple):
        row, col, value, shape = raw.features
        _check_length("features", shape[0], raw.nodes)
        row, col, value = (torch.from_numpy(np.ascontiguousarray(a)) for a in (row, col, value))
        return coalesce(row, col, value.float(), (int(shape[0]), int(shape[1])))
    dense = torch.from_numpy(np.asarray(raw.features)).float()
    if dense.ndim != 2:
        raise ValueError(f"features: two dimensions expected, got {dense.ndim}")
    _check_length("features", len(dense), raw.nodes)
    return dense.contiguous()


def _check_length(what: str, got: int, expected: int) -> None:
    if got != expected:
        raise ValueError(f"{what}: {got} of them for {expected} places")
