"""Train a model on a graph, full batch or in sampled mini-batches, over several seeds.

    python -m braidwork.experiments.train dataset=wordnet model=gcn seed=range
    python -m braidwork.experiments.train -m dataset=cora model.hidden_channels=16,64 train.lr=0.01,0.02
    python -m braidwork.experiments.train -m dataset=mesh-mdual format=csr,sell,auto
    python -m braidwork.experiments.train model=sage train.batch_size=512 'train.fanouts=[10,10]'
    python -m braidwork.experiments.train dataset=user dataset.path=graph.mtx dataset.labels=labels.npy

Every seed is one row of `results/table.jsonl`. What is there already is not run again (`fresh=true` does), and a run
that was killed goes on from its last checkpoint.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import hydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue

from .datasets import DatasetError, Graph, load
from .process import keep_freed_memory
from .progress import Progress
from .record import Row, Table, point_key
from .training import TrainConfig, Trainer, save_atomically, train_in_turns

STUDY = "train"


def seeds(spec: object, runs: int) -> list[int]:
    """The seeds that `seed=` and `runs=` ask for.

    Raises:
        ValueError: neither a whole number, nor a list of them, nor "range".
    """
    if spec == "range":
        if not isinstance(runs, int) or runs < 1:
            raise ValueError(f"runs: must be a whole number of at least 1, got {runs!r}")
        return list(range(runs))
    wanted = list(spec) if isinstance(spec, (list, tuple)) else [spec]
    found = [seed for seed in wanted if type(seed) is int and seed >= 0]
    if not found or len(found) < len(wanted):
        raise ValueError(f"seed: must be a whole number, a list of them, or range, got {spec!r}")
    return found


def identity(config: Mapping[str, Any], seed: int, backend: str) -> dict[str, Any]:
    """The settings that decide a run's outcome, and so its name in the table."""
    places = {"root", "download", "source", "licence", "note", "size"}
    return {
        "dataset": {k: v for k, v in config["dataset"].items() if k not in places},
        "model": dict(config["model"]),
        "train": {k: v for k, v in config["train"].items() if k != "checkpoint_s"},
        "backend": backend,
        "format": config["format"],
        "seed": seed,
    }


def results_of(trainer: Trainer) -> dict[str, Any]:
    """What a finished run puts in the table."""
    history = trainer.history
    rounded = {
        name: [round(x, 6) if isinstance(x, float) else x for x in values] for name, values in vars(history).items()
    }
    return {
        "best_epoch": trainer.best["epoch"],
        "val_accuracy": trainer.best["val_accuracy"],
        "test_accuracy": trainer.best["test_accuracy"],
        "epochs": trainer.epoch,
        "epoch_s": statistics.median(history.step_s),
        "history": rounded,
    }


def run_seed(graph: Graph, config: Mapping[str, Any], seed: int, table: Table, progress: Progress) -> Row:
    """Train one seed, or go on with it, and append its row."""
    point = identity(config, seed, config["backend"])
    key = point_key(STUDY, point)
    train = TrainConfig.from_mapping(config["train"])
    trainer = Trainer(graph, config["model"], train, seed, config["backend"], config["format"])
    checkpoint = table.path.parent / "checkpoints" / f"{key}.pt"
    if config["fresh"]:
        checkpoint.unlink(missing_ok=True)
    progress.start(f"{graph.name} seed {seed}", train.epochs)
    done = 0

    def on_epoch(_: object) -> None:
        nonlocal done
        steps, done = trainer.epoch - done, trainer.epoch
        progress.advance(steps, f"validation {trainer.best_so_far}")

    train_in_turns([trainer], checkpoint, on_epoch)
    if config["save_weights"]:
        name = f"{graph.name}-{config['model']['name']}-{config['backend']}-seed{seed}-{key}.pt"
        save_atomically(trainer.best_state, table.path.parent / "weights" / name)
    row = table.append(STUDY, point, results_of(trainer))
    checkpoint.unlink(missing_ok=True)
    return row


def run(config: Mapping[str, Any]) -> float:
    """All seeds of one configuration; prints and returns the mean test accuracy in percent."""
    wanted = seeds(config["seed"], config["runs"])
    train = TrainConfig.from_mapping(config["train"])
    keep_freed_memory()
    table = Table(Path(config["results"]) / "table.jsonl")
    points = {seed: identity(config, seed, config["backend"]) for seed in wanted}
    graph = None
    rows = []
    with Progress(enabled=config["progress"]) as progress:
        for seed, point in points.items():
            row = None if config["fresh"] else table.find(STUDY, point)
            if row is None:
                graph = graph or load(config["dataset"])
                row = run_seed(graph, config, seed, table, progress)
            rows.append(row)
        accuracy = [row["test_accuracy"] for row in rows]
        spread = f" ± {statistics.stdev(accuracy):.2f}" if len(accuracy) > 1 else ""
        validation = statistics.mean(row["val_accuracy"] for row in rows)
        epoch_s = statistics.median(row["epoch_s"] for row in rows)
        progress.say(
            f"{config['dataset']['name']}, {config['model']['name']} on {config['backend']}: test accuracy "
            f"{statistics.mean(accuracy):.2f}{spread}% over {len(accuracy)} seed(s) (validation {validation:.2f}%), "
            f"{epoch_s * 1e3:.1f} ms an epoch, at most {train.epochs} epochs -> {table.path}"
        )
    return statistics.mean(accuracy)


@hydra.main(version_base=None, config_path="pkg://braidwork.conf", config_name="train")
def main(config: DictConfig) -> float:
    try:
        plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        return run(cast("dict[str, Any]", plain))
    except MissingMandatoryValue as error:
        print(f"error: {error.full_key}: needs a value; add {error.full_key}=... to the command", file=sys.stderr)
    except (DatasetError, ValueError, FloatingPointError) as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from the last checkpoint", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    main()
