"""Study: a training epoch of every model on every backend, on graphs of several kinds, and with formats chosen."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch

from braidwork.kernels.timing import compare
from braidwork.models import BACKENDS

from .datasets import DatasetError, Graph, load
from .figures.model_epochs import LABELS, epochs_by_graph
from .gcn_epoch import check_agreement, projected
from .settings import settings
from .study import Context, Plot, Rows, Study, TableView
from .tables import by, milliseconds, ratio_of_samples, times
from .training import TrainConfig, Trainer

NAME = "model_epochs"
CLASSES = 16  # of made-up labels
# A way to run a model: its backend and storage format.
WAYS = {
    "braidwork": ("braidwork", "csr"),
    "auto": ("braidwork", "auto"),
    "torch": ("torch", "csr"),
    "torch_autograd": ("torch_autograd", "csr"),
    "pyg": ("pyg", "csr"),
}


def run(context: Context) -> None:
    chosen = context.settings
    ways = {way: place for way, place in WAYS.items() if BACKENDS[place[0]].available}
    points = [(dataset, model) for dataset in chosen["datasets"] for model in chosen["models"]]
    context.progress.start("time of an epoch, all models", len(points))
    graphs: dict[str, Graph] = {}
    for dataset, model in points:
        config = settings("train", [f"dataset={dataset}", f"model={model}", *chosen["overrides"]])
        identities = {way: _identity(config, chosen, way) for way in ways}
        if not all(context.done(NAME, identity) for identity in identities.values()):
            try:
                if dataset not in graphs:
                    graphs = {dataset: _dense(load(config["dataset"]), chosen["width"])}  # one at a time in memory
            except DatasetError as error:
                if str(error) not in context.notes:
                    context.notes.append(str(error))
                    context.progress.say(f"left out: {error}")
                continue
            for way, results in _measure(graphs[dataset], config, ways, chosen["rounds"]).items():
                context.table.append(NAME, identities[way], results)
        context.progress.advance(1, f"{model} on {dataset}")


def _identity(config: Mapping[str, Any], chosen: Mapping[str, Any], way: str) -> dict[str, Any]:
    return {
        "dataset": config["dataset"]["name"],
        "model": config["model"],
        "epochs": config["train"]["epochs"],
        "width": chosen["width"],
        "way": way,
        "rounds": chosen["rounds"],
    }


def _dense(graph: Graph, width: int) -> Graph:
    """The graph with dense features that every backend takes, and made-up ones and labels where it has none."""
    generator = torch.Generator().manual_seed(0)
    if graph.labels is None:
        labels = torch.randint(CLASSES, (graph.num_nodes,), generator=generator)
        graph = dataclasses.replace(graph, labels=labels, num_classes=CLASSES)
        features = torch.randn(graph.num_nodes, width, generator=generator)
        return dataclasses.replace(graph, features=features)
    return projected(graph, width)


def _measure(
    graph: Graph, config: Mapping[str, Any], ways: Mapping[str, tuple[str, str]], rounds: int
) -> dict[str, dict[str, Any]]:
    """Epochs in turns; and what comes before the second epoch, selection and conversions in, kernels compiled."""
    train = TrainConfig.from_mapping(config["train"])

    def trainer(way: str) -> Trainer:
        backend, format = ways[way]
        fresh = dataclasses.replace(graph)  # with no relations or matrices kept from another run
        return Trainer(fresh, config["model"], train, 0, backend, format)

    trainers, begin_s = {}, {}
    for way in ways:
        trainer(way).step()  # compiles
        start = time.perf_counter()
        trainers[way] = trainer(way)
        trainers[way].step()
        begin_s[way] = time.perf_counter() - start
    for made in list(trainers.values())[1:]:
        made.model.load_state_dict(trainers["braidwork"].model.state_dict())
    check_agreement(trainers)
    timing = compare({way: made.step for way, made in trainers.items()}, rounds=rounds)
    formats = {operator: dict(picked) for operator, picked in getattr(trainers["auto"].graph, "chosen", {}).items()}
    sizes = {"nodes": graph.num_nodes, "nnz": graph.edges.nnz}
    return {
        way: {
            "epoch_s": timing[way].median_s,
            "samples_s": list(timing[way].samples_s),
            "begin_s": begin_s[way],
            "formats": formats if way == "auto" else {},
            **sizes,
        }
        for way in ways
    }


def ratios(rows: Rows, ours: str, theirs: str) -> dict[tuple[str, str], float]:
    """(data, model) -> how many times as long an epoch takes in one way as in another."""
    found = {}
    for place, group in by(rows, lambda row: (row["config"]["dataset"], row["config"]["model"]["name"])).items():
        samples = {row["config"]["way"]: row["samples_s"] for row in group}
        if ours in samples and theirs in samples and len(samples[ours]) == len(samples[theirs]):
            found[place] = ratio_of_samples(samples[theirs], samples[ours])
    return found


def findings(rows: Rows) -> list[str]:
    found = []
    for way in ("torch_autograd", "torch", "pyg"):
        compared = ratios(rows, "braidwork", way)
        if compared:
            best = max(compared, key=compared.__getitem__)
            found.append(
                f"A training epoch is {statistics.geometric_mean(compared.values()):.2f} times as fast as on "
                f"{LABELS[way]} (geometric mean of {len(compared)} models and graphs; least "
                f"{min(compared.values()):.2f}, most {compared[best]:.2f}, {best[1]} on {best[0]})."
            )
    gains = _auto_gains(rows)
    if gains:
        best = max(gains, key=gains.__getitem__)
        found.append(
            f"With formats chosen, selection, conversions and probes included, whole trainings take "
            f"{1 / statistics.geometric_mean(gains.values()):.3f} times as long as in CSR (geometric mean of "
            f"{len(gains)}; {best[1]} on {best[0]} gains most, {gains[best]:.2f} times as fast)."
        )
    return found


def _auto_gains(rows: Rows) -> dict[tuple[str, str], float]:
    """(data, model) -> how many times as fast a whole training is with formats chosen, what comes before it in."""
    compared = ratios(rows, "auto", "braidwork")
    gains = {}
    for row in rows:
        config = row["config"]
        place = config["dataset"], config["model"]["name"]
        if config["way"] == "braidwork" and place in compared:
            auto = next(r for r in rows if r["config"] == {**config, "way": "auto"})
            later = config["epochs"] - 1
            csr_s = row["begin_s"] + later * row["epoch_s"]
            gains[place] = csr_s / (auto["begin_s"] + later * row["epoch_s"] / compared[place])
    return gains


def tables(rows: Rows) -> list[TableView]:
    gains = _auto_gains(rows)
    lines = []
    for place, group in by(rows, lambda row: (row["config"]["dataset"], row["config"]["model"]["name"])).items():
        seconds = {row["config"]["way"]: row["epoch_s"] for row in group}
        cells = [milliseconds(seconds[way]) if way in seconds else "" for way in WAYS]
        compared = [ratios(group, "braidwork", way).get(place) for way in ("torch_autograd", "torch", "pyg")]
        picked = next((row["formats"] for row in group if row["config"]["way"] == "auto"), {})
        names = sorted({name for by_width in picked.values() for pair in by_width.values() for name in pair})
        lines.append(
            [
                *place,
                *cells,
                *(times(ratio) if ratio else "" for ratio in compared),
                times(gains[place]) if place in gains else "",
                ", ".join(names),
            ]
        )
    peers = [f"{LABELS[way]} / ours" for way in ("torch_autograd", "torch", "pyg")]
    columns = ["data", "model", *(LABELS[way] for way in WAYS), *peers, "chosen over CSR, whole training", "formats"]
    return [TableView("Milliseconds of an epoch, and ratios of times", columns, lines)]


def _caption(rows: Rows) -> str:
    config = rows[0]["config"]
    return (
        f"One training epoch (forward, backward, Adam) of two-layer models with {config['model']['hidden_channels']} "
        f"hidden channels on {config['width']} dense input features, in turns in one process, medians of "
        f"{config['rounds']} rounds; all start from the same weights and must agree. Features of graphs that have some "
        f"are projected, others have random ones and {CLASSES} random classes. RGCN has two relations, an edge's two "
        "directions. torch.sparse has no product for GAT and FiLM, whose messages are gathered and summed up."
    )


STUDY = Study(
    name=NAME,
    title="Six models on five kinds of graph",
    text=(
        "Every layer is written once over the operators of a graph, which this project's kernels and torch.sparse each "
        "provide; PyTorch Geometric's layers load the same weights."
    ),
    run=run,
    findings=findings,
    plots=(Plot("model_epochs", epochs_by_graph, _caption),),
    tables=tables,
)
