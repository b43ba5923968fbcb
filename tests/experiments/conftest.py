"""What the tests of experiments share: a cache folder of their own, no network, and small graphs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from braidwork.experiments import reproduce, train
from braidwork.experiments.datasets import Graph
from braidwork.models import coalesce, undirected


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of fetched files; pip can reach no index and no folder of wheels."""
    monkeypatch.setenv("BRAIDWORK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def memory_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allocator settings last as long as the process, which other tests share."""
    for module in (train, reproduce):
        monkeypatch.setattr(module, "keep_freed_memory", lambda: True)


@pytest.fixture
def graph() -> Graph:
    """60 nodes in three groups, joined mostly within a group, with features that tell a little of it."""
    rng = torch.Generator().manual_seed(1)
    nodes = 60
    labels = torch.arange(nodes) % 3
    row, col = torch.randint(nodes, (2, 400), generator=rng)
    keep = (labels[row] == labels[col]) | (torch.rand(400, generator=rng) < 0.1)
    keep &= row != col
    features = torch.nn.functional.one_hot(labels, 8).float() + torch.randn(nodes, 8, generator=rng)
    return Graph(
        name="groups",
        edges=undirected(coalesce(row[keep], col[keep], None, (nodes, nodes))),
        features=features,
        labels=labels,
        num_classes=3,
        split_rule={"kind": "random", "train": 0.4, "val": 0.3},
    )
