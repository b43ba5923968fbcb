"""The main job: run every study that the table lacks, then write one report.

    python -m braidwork.experiments.reproduce
    python -m braidwork.experiments.reproduce studies=[spmm_speed] fresh=true
    python -m braidwork.experiments.reproduce results=FOLDER gcn_training.cora.seeds=3
    python -m braidwork.experiments.reproduce -m studies=[scipy_formats] scipy_formats.uses=100,1000

It can be interrupted at any time: what has finished is in the table, a training run goes on from its checkpoint.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import hydra
from omegaconf import DictConfig, OmegaConf

from .datasets import DatasetError
from .process import keep_freed_memory
from .progress import Progress
from .record import Table, command, revision
from .report import write_report
from .settings import settings
from .studies import STUDIES
from .study import Context, Study


def chosen_studies(wanted: str | Sequence[str]) -> list[Study]:
    """The studies that `studies=` names, in the order of the report.

    Raises:
        ValueError: an unknown name.
    """
    if wanted == "all":
        return list(STUDIES.values())
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    for name in names:
        if name not in STUDIES:
            raise ValueError(f"studies: unknown {name!r}; choose from {', '.join(STUDIES)}")
    return [study for name, study in STUDIES.items() if name in names]


def reproduce(config: Mapping[str, Any]) -> Path:
    """Run the chosen studies and write the report; returns its path."""
    studies = chosen_studies(config["studies"])
    table = Table(Path(config["results"]) / "table.jsonl")
    keep_freed_memory()
    notes: list[str] = []
    with Progress(enabled=config["progress"]) as progress:
        for study in studies:
            context = Context(table, progress, config[study.name], fresh=config["fresh"])
            study.run(context)
            notes += context.notes
        stale = {row["revision"] for row in table.rows()} - {revision()}
        if stale and not config["fresh"]:
            progress.say(
                f"some rows are from other revisions ({', '.join(sorted(stale))}); fresh=true measures them again"
            )
    return write_report(table, STUDIES.values(), notes, command())


def main(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(__doc__.strip(), "\n\nSettings: conf/reproduce.yaml. Studies:", ", ".join(STUDIES))
        return 0
    begin = time.monotonic()
    try:
        path = reproduce(settings("reproduce", arguments))
    except (DatasetError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        again = shlex.join(["python", "-m", "braidwork.experiments.reproduce", *arguments])
        print(f"\ninterrupted: `make reproduce` (or {again}) goes on from here", file=sys.stderr)
        return 130
    print(f"{path.resolve()}  (in {time.monotonic() - begin:.0f} s)")
    return 0


@hydra.main(version_base=None, config_path="pkg://braidwork.conf", config_name="reproduce")
def sweep(config: DictConfig) -> None:
    """One point of a sweep, with every point's rows in one table; the last point's report holds them all."""
    print(reproduce(cast("dict[str, Any]", OmegaConf.to_container(config, resolve=True))).resolve())


if __name__ == "__main__":
    if {"-m", "--multirun"} & set(sys.argv):
        sweep()
    else:
        sys.exit(main(sys.argv[1:]))
