"""Study: where the time of a training epoch goes, by part and backend."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from typing import Any

import torch

from braidwork.kernels.timing import compare
from braidwork.models import BACKENDS

from .datasets import Graph, load
from .figures.gcn_epoch import epoch_parts as draw_parts
from .settings import settings
from .study import Context, Plot, Rows, Study, TableView
from .tables import by, milliseconds, ratio_of_samples, times
from .training import TrainConfig, Trainer

NAME = "gcn_epoch"
PARTS = ("spmm_forward_s", "spmm_backward_s", "matmul_s", "rest_s")
_PROFILED_STEPS = 5

_MATMUL = {"aten::mm", "aten::addmm"}
_GATHER_SCATTER = {
    "aten::index_select",
    "aten::scatter_add_",
    "aten::scatter_add",
    "aten::index_add_",
    "aten::index_add",
    "aten::gather",
    "aten::mul",
}


def _part(name: str, backend: str) -> str | None:
    """Which part of an epoch an operator belongs to, if its time is not the rest.

    Ours are the custom ops of `braidwork`, torch's carry a mark or are the backward of one that does. PyTorch
    Geometric's product is a gather of the source rows, a multiplication by the edge weights and a scatter to the
    targets; nothing else in the step uses these.
    """
    if name.startswith(("braidwork::", "spmm.", "SparseAddmmBackward")) or (
        backend == "pyg" and name in _GATHER_SCATTER
    ):
        return "spmm"
    return "matmul" if name in _MATMUL else None


def profile_parts(trainer: Trainer, steps: int = _PROFILED_STEPS) -> dict[str, float]:
    """Shares of a step's time in the sparse products (forward, backward), the dense ones and the rest; sum 1.

    Shares and not seconds: the profiled steps are others than the timed ones, and the machine may be slower in them.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it logs its start and stop as if they were errors
    begin = time.perf_counter()
    with torch.autograd.profiler.profile(use_kineto=False) as profiler:
        for _ in range(steps):
            trainer.step()
        elapsed = time.perf_counter() - begin
    parts = dict.fromkeys(PARTS[:-1], 0.0)
    for event in profiler.function_events:
        part = _part(event.name, trainer.backend.name)
        if part is None:
            continue
        above, parent = [], event.cpu_parent
        while parent is not None:
            above.append(parent.name)
            parent = parent.cpu_parent
        if any(_part(name, trainer.backend.name) for name in above):
            continue  # counted with the operator that it is a step of
        if part == "spmm":
            part += "_backward" if any(name.startswith("autograd::engine") for name in above) else "_forward"
        parts[f"{part}_s"] += event.cpu_time_total / 1e6 / elapsed
    return parts | {PARTS[-1]: max(1.0 - sum(parts.values()), 0.0)}


def run(context: Context) -> None:
    chosen = context.settings
    config = settings("train", [f"dataset={chosen['dataset']}", "model=gcn", "model.hidden_channels=128"])
    inputs = {
        "sparse": ["braidwork", "torch", "torch_autograd"],
        "dense": ["braidwork", "torch", "torch_autograd", "pyg"],
    }
    inputs = {kind: [b for b in names if BACKENDS[b].available] for kind, names in inputs.items()}
    missing = {
        kind: names
        for kind, names in inputs.items()
        if not all(context.done(NAME, _identity(config, chosen, kind, b)) for b in names)
    }
    context.progress.start("time of an epoch", sum(len(names) for names in missing.values()))
    if not missing:
        return
    graph = load(config["dataset"])
    for kind, names in missing.items():
        given = graph if kind == "sparse" else projected(graph, chosen["projected_width"])
        options = config["model"] | ({} if kind == "sparse" else {"input_dropout": 0.0})
        trainers = {b: Trainer(given, options, TrainConfig.from_mapping(config["train"]), 0, b) for b in names}
        check_agreement(trainers)
        timing = compare({b: trainer.step for b, trainer in trainers.items()}, rounds=chosen["rounds"])
        for b, trainer in trainers.items():
            parts = {part: share * timing[b].median_s for part, share in profile_parts(trainer).items()}
            results = {"epoch_s": timing[b].median_s, "samples_s": list(timing[b].samples_s), **parts}
            context.table.append(NAME, _identity(config, chosen, kind, b), results)
            context.progress.advance(1, f"{BACKENDS[b].label}, {kind} input: {milliseconds(timing[b].median_s)} ms")


def _identity(config: Mapping[str, Any], chosen: Mapping[str, Any], kind: str, backend: str) -> dict[str, Any]:
    return {
        "dataset": config["dataset"]["name"],
        "model": config["model"],
        "input": kind if kind == "sparse" else f"dense {chosen['projected_width']}",
        "backend": backend,
        "rounds": chosen["rounds"],
    }


def projected(graph: Graph, width: int) -> Graph:
    """The graph with its sparse features times a random matrix: the same dense input for every backend."""
    if isinstance(graph.features, torch.Tensor):
        return graph
    channels = graph.num_features
    projection = torch.randn(channels, width, generator=torch.Generator().manual_seed(0)) / width**0.5
    dense = BACKENDS["torch"].features(graph.features).matmul(projection)
    return dataclasses.replace(graph, features=dense)


@torch.no_grad()
def check_agreement(trainers: Mapping[str, Trainer]) -> None:
    """All start from the same weights and must give the same logits, or their times mean nothing."""
    first, *others = trainers.values()
    expected = first.model.eval()(first.input, first.graph)
    for other in others:
        other.model.load_state_dict(first.model.state_dict())
        got = other.model.eval()(other.input, other.graph)
        if not torch.allclose(got, expected, rtol=1e-3, atol=1e-4):
            worst = (got - expected).abs().max().item()
            raise RuntimeError(f"{other.backend.name} and {first.backend.name} differ by {worst:.2e}: not timed")


def _ratios(rows: Rows) -> dict[tuple[str, str], float]:
    """(input, peer) -> how many times as long its epoch takes as ours."""
    ratios = {}
    for kind, group in by(rows, lambda row: row["config"]["input"]).items():
        samples = {row["config"]["backend"]: row["samples_s"] for row in group}
        ours = samples.pop("braidwork", None)
        for backend, theirs in samples.items():
            if ours is not None and len(ours) == len(theirs):
                ratios[kind, backend] = ratio_of_samples(theirs, ours)
    return ratios


def findings(rows: Rows) -> list[str]:
    return [
        f"A training epoch of the GCN on {rows[0]['config']['dataset']} ({kind} input) is {ratio:.2f} times as fast "
        f"as on {BACKENDS[backend].label}, gradients and update included."
        for (kind, backend), ratio in _ratios(rows).items()
        if kind == "sparse" or backend == "pyg"
    ]


def tables(rows: Rows) -> list[TableView]:
    ratios = _ratios(rows)
    lines = [
        [
            row["config"]["input"],
            BACKENDS[row["config"]["backend"]].label,
            *(milliseconds(row[part]) for part in PARTS),
            milliseconds(row["epoch_s"]),
            times(ratios.get((row["config"]["input"], row["config"]["backend"]), 1.0)),
        ]
        for row in rows
    ]
    columns = ["input", "backend", "SpMM forward", "SpMM backward", "dense matmul", "rest", "epoch, ms", "times ours"]
    return [TableView("Milliseconds of an epoch by part", columns, lines)]


def _caption(rows: Rows) -> str:
    model = rows[0]["config"]["model"]
    return (
        f"One training epoch (forward, backward, Adam) of a {model['num_layers']}-layer GCN with "
        f"{model['hidden_channels']} hidden channels on {rows[0]['config']['dataset']}. Epochs are timed in turns in "
        f"one process, {rows[0]['config']['rounds']} rounds; a bar is as long as the median, parted as a "
        "profiled run of the same steps was, and the rest is what remains: activation, dropout, loss, optimiser. Dense "
        "input: the features times one seeded random matrix. The transposes and normalisation of peers are prepared "
        "beforehand."
    )


STUDY = Study(
    name=NAME,
    title="Time of an epoch",
    text=(
        "All of the model but the product with the graph is the same code for every backend. torch.sparse is "
        "shown as one would write it, where autograd transposes the matrix in every step, and tuned, with the "
        "transpose built once and kept. PyTorch Geometric's GCNConv takes dense features only, so all are also "
        "compared on a dense projection of them."
    ),
    run=run,
    findings=findings,
    plots=(Plot("gcn_epoch", draw_parts, _caption),),
    tables=tables,
)
