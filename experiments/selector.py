"""Train the format selector on this machine: `make selector`, or `python -m braidwork.experiments.selector`.

Times every storage format on a corpus of matrices (what is in the table already is not timed again), checks by leaving
out one family after the other how well formats are chosen, trains on all of it and saves the model where
`SparseMatrix.auto` looks first.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from braidwork.selector.corpus import corpus
from braidwork.selector.evaluate import assess, cross_validate
from braidwork.selector.machine import describe, fingerprint
from braidwork.selector.measure import Row, measure_all
from braidwork.selector.model import (
    FAMILIES_AT_LEAST,
    Model,
    fit,
    fit_conversion,
    fit_quick,
    own_folder,
    reload,
    samples,
)

from .progress import Progress


def gather(config: dict[str, Any], progress: Progress, device: str) -> list[Row]:
    """The rows of the table, those that it lacks measured first."""
    names = ("per_family", "least_nnz", "most_nnz", "seed", "folder")
    specs = list(corpus(**{name: config[name] for name in names}))
    # In a random order, so that a run cut short has seen something of everything.
    specs = [specs[k] for k in np.random.default_rng(config["seed"]).permutation(len(specs))]
    until = time.monotonic() + 60 * config["minutes"]
    path = Path(config["results"]) / "selector.jsonl"
    progress.start(f"timing formats -> {path}", len(specs))
    rows = []
    for row in measure_all(specs, path, config["products"], config["rounds"], device, until):
        progress.advance(1, "" if row is None else row["spec"]["name"])
        if row is not None:
            rows.append(row)
    return rows


def run(config: dict[str, Any]) -> Path:
    """Measure, check, train and save; returns the path of the model."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with Progress(enabled=config["progress"]) as progress:
        rows = gather(config, progress, device)
        families = sorted({row["family"] for row in rows})
        if len(families) < FAMILIES_AT_LEAST:
            raise ValueError(
                f"minutes: {len(rows)} matrices of {len(families)} families were timed, and a model needs "
                f"{FAMILIES_AT_LEAST} families; give it more minutes, the same command goes on"
            )
        data = samples(rows)
        progress.start("leaving out one family after the other", len(families))
        predicted = cross_validate(data, on_family=lambda family: progress.advance(1, family))
        model = Model(fit(data), fingerprint(device), fit_conversion(rows), fit_quick(rows))
        assess(model, rows, data, predicted)
        path = model.save(Path(config["output"]) if config["output"] else own_folder())
        reload()
        for name, value in model.report.items():
            progress.say(f"  {name:<28} {value:.4g}")
        progress.say(f"{describe(model.machine)}: {path}, {path.stat().st_size / 1e6:.2f} MB")
    return path


@hydra.main(version_base=None, config_path="pkg://braidwork.conf", config_name="selector")
def main(config: DictConfig) -> None:
    try:
        run(OmegaConf.to_container(config, resolve=True, throw_on_missing=True))  # type: ignore[arg-type]
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("interrupted: the same command goes on with what is in the table", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
