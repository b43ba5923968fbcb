"""Sampled neighbourhoods: real edges, as many as asked for, each neighbour as likely as the next, seeded."""

from __future__ import annotations

import pytest
import torch

from braidwork.models import Block, Coo, GraphSAGE, NeighbourSampler, coalesce, get_backend, undirected
from braidwork.models.sampling import draw


@pytest.fixture
def edges() -> Coo:
    """200 nodes, one a hub, some without neighbours."""
    row, col = torch.randint(190, (2, 900))
    hub = torch.randint(190, (150,))
    return undirected(coalesce(torch.cat([row, torch.full_like(hub, 7)]), torch.cat([col, hub]), None, (200, 200)))


def neighbours(edges: Coo) -> list[set[int]]:
    found: list[set[int]] = [set() for _ in range(edges.shape[0])]
    for i, k in zip(edges.row.tolist(), edges.col.tolist()):
        found[i].add(k)
    return found


def check(block: Block, edges: Coo, fanouts: tuple[int, ...]) -> None:
    real = neighbours(edges)
    sources = block.nodes
    assert len(set(sources.tolist())) == sources.numel()
    for layer, fanout in zip(block.layers, fanouts, strict=True):
        targets = sources[: layer.shape[0]]  # the first of the sources
        assert layer.shape[1] == sources.numel()
        key = layer.row * layer.shape[1] + layer.col
        assert (key.diff() > 0).all()  # sorted, none twice
        counts = torch.bincount(layer.row, minlength=layer.shape[0]).tolist()
        assert counts == [min(len(real[i]), fanout) for i in targets.tolist()]
        for i, k in zip(layer.row.tolist(), layer.col.tolist()):
            assert int(sources[k]) in real[int(targets[i])]
        sources = targets
    assert torch.equal(sources, block.batch)


@pytest.mark.parametrize("fanouts", [(3,), (4, 2), (1, 5, 200)], ids=str)
def test_blocks_hold_real_edges(edges: Coo, fanouts: tuple[int, ...]) -> None:
    sampler = NeighbourSampler(edges, fanouts, batch_size=64)
    blocks = list(sampler)
    assert len(blocks) == len(sampler) == 4 and [b.batch.numel() for b in blocks] == [64, 64, 64, 8]
    assert sorted(torch.cat([b.batch for b in blocks]).tolist()) == list(range(200))
    for block in blocks:
        check(block, edges, fanouts)


def test_every_subset_is_as_likely_as_the_next() -> None:
    """Chi-squared over all 15 pairs of 6 and 20 triples of 6; the bounds are far beyond the 0.1 % quantile."""
    generator = torch.Generator().manual_seed(0)
    for many, subsets, bound in ((2, 15, 45.0), (3, 20, 55.0)):
        runs = 30_000
        taken, there = draw(torch.full((runs,), 6), many, generator)
        assert there.all()
        key = (1 << taken).sum(1)
        found, times = key.unique(return_counts=True)
        assert found.numel() == subsets
        expected = runs / subsets
        assert ((times - expected) ** 2 / expected).sum() < bound
    # And of many, each as often.
    taken, _ = draw(torch.full((4000,), 1000), 25, generator)
    times = torch.bincount(taken.flatten(), minlength=1000).double()
    assert times.shape[0] == 1000 and abs(times.mean() - 100) < 1e-9 and times.std() < 12


def test_small_neighbourhoods_are_taken_whole() -> None:
    taken, there = draw(torch.tensor([0, 1, 3, 4]), 3, torch.Generator().manual_seed(0))
    assert there.tolist() == [[False] * 3, [True, False, False], [True] * 3, [True] * 3]
    assert taken[2].tolist() == [0, 1, 2] and len(set(taken[3].tolist())) == 3


def test_the_mean_over_a_sample_is_unbiased(edges: Coo) -> None:
    x = torch.randn(200, 3, dtype=torch.float64)
    backend = get_backend("braidwork")
    exact = backend.graph(edges).mean(x)
    sampler = NeighbourSampler(edges, (3,), batch_size=200, shuffle=False, seed=5)
    runs = []
    for _ in range(400):
        (block,) = sampler
        runs.append(backend.graph(block.layers[0]).mean(x[block.nodes]))
    means = torch.stack(runs)
    error = (means.mean(0) - exact).abs()
    assert (error <= 5 * means.std(0) / 20 + 1e-12).all()
    assert means.std(0).max() > 0.1  # they do differ


def test_a_seed_decides(edges: Coo) -> None:
    def epochs(seed: int) -> list[Block]:
        sampler = NeighbourSampler(edges, (4, 3), batch_size=50, seed=seed)
        return [*sampler, *sampler]

    first, again, other = epochs(1), epochs(1), epochs(2)
    assert all(torch.equal(a.nodes, b.nodes) and torch.equal(a.layers[0].col, b.layers[0].col)
               for a, b in zip(first, again, strict=True))  # fmt: skip
    assert not torch.equal(first[0].batch, other[0].batch) and not torch.equal(first[0].batch, first[4].batch)


def test_with_all_neighbours_a_batch_is_the_whole_graph(edges: Coo) -> None:
    """Fanouts that hold every neighbour give the logits and gradients of the full graph, on every backend."""
    x = torch.randn(200, 6)
    batch = torch.tensor([7, 3, 195, 42])
    for name in ("braidwork", "torch", "torch_autograd"):
        backend = get_backend(name)
        model = GraphSAGE(6, 8, 4, dropout=0.0, residual=True, layer=backend.layers["sage"])
        block = NeighbourSampler(edges, (200, 200)).sample(batch)
        full = model(x, backend.graph(edges))[batch]
        part = model(x[block.nodes], [backend.graph(layer) for layer in block.layers])
        torch.testing.assert_close(part, full)
        gradients = [torch.autograd.grad(y.square().sum(), list(model.parameters())) for y in (full, part)]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_errors_name_the_argument(edges: Coo) -> None:
    sampler = NeighbourSampler(edges, (3,))
    for message, call in (
        ("fanouts: need whole numbers", lambda: NeighbourSampler(edges, (3, 0))),
        ("fanouts: need one for each layer", lambda: NeighbourSampler(edges, ())),
        ("batch_size: need a whole number", lambda: NeighbourSampler(edges, (3,), batch_size=0)),
        ("nodes: need numbers from 0 to 199", lambda: NeighbourSampler(edges, (3,), torch.tensor([200]))),
        ("nodes: need every node once", lambda: NeighbourSampler(edges, (3,), torch.tensor([2, 2]))),
        ("batch: need every node once", lambda: sampler.sample(torch.tensor([2, 2]))),
        ("batch: need numbers from 0 to 199, got -1 to 3", lambda: sampler.sample(torch.tensor([-1, 3]))),
        ("batch: need whole numbers", lambda: sampler.sample(torch.tensor([0.5]))),
        ("edges: need a square graph", lambda: NeighbourSampler(edges._replace(shape=(200, 300)), (3,))),
    ):
        with pytest.raises(ValueError, match=message):
            call()
