"""Study: the same GCN trained on our kernels and on the libraries in use, an epoch each in turns."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from braidwork.models import BACKENDS

from .datasets import DatasetError, load
from .figures.gcn_training import accuracy_curves
from .record import point_key
from .settings import settings
from .study import Context, Plot, Rows, Study, TableView
from .tables import by, mean_and_deviation, milliseconds, times
from .train import identity, results_of
from .training import TrainConfig, Trainer, train_in_turns

NAME = "gcn_training"


def run(context: Context) -> None:
    for dataset, wanted in context.settings.items():
        config = settings("train", [f"dataset={dataset}", "model=gcn", *wanted.get("overrides", [])])
        backends = [name for name in wanted["backends"] if BACKENDS[name].available]
        missing = {
            seed: left
            for seed in range(wanted["seeds"])
            if (left := [b for b in backends if not context.done(NAME, identity(config, seed, b))])
        }
        try:
            if missing:
                _run_seeds(context, config, missing)
        except DatasetError as error:
            context.notes.append(str(error))
            context.progress.say(f"left out: {error}")
        for name in set(wanted["backends"]) - set(backends):
            context.notes.append(
                f"{BACKENDS[name].label} is left out on {dataset}: {BACKENDS[name].requires} is not installed."
            )


def _run_seeds(context: Context, config: Mapping[str, Any], missing: Mapping[int, list[str]]) -> None:
    graph = load(config["dataset"])
    train = TrainConfig.from_mapping(config["train"])
    context.progress.start(f"GCN on {graph.name}, {len(missing)} seeds", train.epochs * len(missing))
    for seed, backends in missing.items():
        trainers = [Trainer(graph, config["model"], train, seed, backend) for backend in backends]
        for trainer in trainers[1:]:
            trainer.model.load_state_dict(trainers[0].model.state_dict())
        folder = context.table.path.parent / "checkpoints"
        points = [identity(config, seed, backend) for backend in backends]
        checkpoint = folder / f"{point_key(NAME, {'points': points})}.pt"
        if context.fresh:
            checkpoint.unlink(missing_ok=True)
        done = 0

        def on_epoch(running: Sequence[Trainer], seed: int = seed) -> None:
            nonlocal done
            epoch = max(trainer.epoch for trainer in running)
            note = ", ".join(f"{t.backend.label} {t.best_so_far}" for t in running)
            context.progress.advance(epoch - done, f"seed {seed}: {note}")
            done = epoch

        train_in_turns(trainers, checkpoint, on_epoch)
        context.progress.advance(train.epochs - done)
        for trainer, point in zip(trainers, points, strict=True):
            context.table.append(NAME, point, results_of(trainer))
        checkpoint.unlink(missing_ok=True)


def _groups(rows: Rows) -> dict[tuple[str, str], list]:
    return by(rows, lambda row: (row["config"]["dataset"]["name"], row["config"]["backend"]))


def findings(rows: Rows) -> list[str]:
    found = []
    for (dataset, backend), group in _groups(rows).items():
        if backend == "braidwork":
            accuracy = mean_and_deviation([row["test_accuracy"] for row in group])
            found.append(f"GCN on {dataset}: test accuracy {accuracy}% over {len(group)} seeds.")
    return found


def tables(rows: Rows) -> list[TableView]:
    lines = []
    groups = _groups(rows)
    for (dataset, backend), group in groups.items():
        epoch_s = statistics.median(row["epoch_s"] for row in group)
        ours = groups.get((dataset, "braidwork"))
        ratio = times(epoch_s / statistics.median(row["epoch_s"] for row in ours)) if ours else ""
        lines.append(
            [
                dataset,
                BACKENDS[backend].label,
                str(len(group)),
                mean_and_deviation([row["val_accuracy"] for row in group]),
                mean_and_deviation([row["test_accuracy"] for row in group]),
                str(round(statistics.median(row["epochs"] for row in group))),
                milliseconds(epoch_s),
                ratio,
            ]
        )
    columns = ["data", "backend", "seeds", "validation, %", "test, %", "epochs", "epoch, ms", "times ours"]
    return [
        TableView("Accuracy (mean ± standard deviation over seeds) and median time of a training epoch", columns, lines)
    ]


def _caption(rows: Rows) -> str:
    parts = []
    for dataset, group in by(rows, lambda row: row["config"]["dataset"]["name"]).items():
        split = group[0]["config"]["dataset"]["split"]
        how = (
            f"{split['train_per_class']} training nodes a class"
            if split["kind"] == "per_class"
            else f"{split['train']:.0%} of the nodes for training"
        )
        parts.append(f"{dataset}: {how}, {len({row['config']['seed'] for row in group})} seeds")
    return (
        "Test accuracy of a two-layer GCN, full batch, over epochs (above) and over the seconds spent in training "
        "steps (below): the mean over the seeds, as far as all of them trained, with a band of one standard deviation. "
        "Backends start from the same weights and take turns, an epoch each, in one process; the seconds of braidwork "
        "include compiling its kernels in the first step. The curves above agree "
        f"because the mathematics is the same. {'; '.join(parts)}."
    )


STUDY = Study(
    name=NAME,
    title="Training",
    text=(
        "The same GCN module is trained over three ways to multiply by the graph: this project's Triton kernels with "
        "the normalisation fused into the product, torch.sparse on a normalised CSR matrix with its transpose kept, "
        "and PyTorch Geometric's GCNConv on an edge index."
    ),
    run=run,
    findings=findings,
    plots=(Plot("gcn_accuracy", accuracy_curves, _caption),),
    tables=tables,
)
