"""The table of results: one JSON object a line, a line a finished run, appended and never rewritten.

Any number of processes may append at once. A line that a killed process left unfinished is passed over by readers and
closed by the next writer. A run is known by the hash of its study, its settings and the machine, so that a sweep that
is started again runs only what is missing.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import triton

Row = dict[str, Any]
SCHEMA = 1


def point_key(study: str, config: Mapping[str, Any]) -> str:
    """The name of one run on this machine: 16 hex digits over the study, the settings and the machine."""
    text = json.dumps({"study": study, "config": config, "machine": machine(), "schema": SCHEMA}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Table:
    """The rows in `path`: key, study, time, revision, command, machine, config, and what the study measured."""

    def __init__(self, path: Path | str):
        self.path = Path(path)

    def append(self, study: str, config: Mapping[str, Any], results: Mapping[str, Any]) -> Row:
        """Add the row of one finished run and return it. Lists of numbers (an epoch each) are allowed as results."""
        row = {
            "key": point_key(study, config),
            "study": study,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "revision": revision(),
            "command": command(),
            "machine": machine(),
            "config": dict(config),
            **results,
        }
        line = json.dumps(row, allow_nan=True) + "\n"
        with self._locked() as file:
            if file.tell() and not self._ends_with_newline():
                line = "\n" + line
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        return row

    def rows(self, study: str | None = None) -> list[Row]:
        """All whole rows, in the order in which they were written; of a run that was repeated, the last."""
        if not self.path.exists():
            return []
        found: dict[str, Row] = {}
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = json.loads(line)
                key = row["key"]
            except (ValueError, KeyError, TypeError):
                continue  # torn by a kill; its run is repeated
            found.pop(key, None)
            found[key] = row
        return [row for row in found.values() if study is None or row["study"] == study]

    def find(self, study: str, config: Mapping[str, Any]) -> Row | None:
        """The row of a finished run, or None."""
        key = point_key(study, config)
        return next((row for row in self.rows(study) if row["key"] == key), None)

    @contextmanager
    def _locked(self) -> Iterator[Any]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0, os.SEEK_END)
            yield file

    def _ends_with_newline(self) -> bool:
        with open(self.path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"


@functools.cache
def revision() -> str:
    """The git revision of this source tree, with a + if it has changes that are not committed; "" outside one."""
    here = Path(__file__).resolve()

    def git(*arguments: str) -> str:
        run = subprocess.run(["git", "-C", str(here.parent), *arguments], capture_output=True, text=True, check=True)
        return run.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


@functools.cache
def machine() -> dict[str, Any]:
    """What the run ran on: processor, cores and threads in use, GPU if any, system, versions."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def command() -> str:
    """The command line that runs this process, as one would type it."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program = f"python -m {spec.name.removesuffix('.__main__')}" if spec else f"python {Path(sys.argv[0]).name}"
    return " ".join([program, *sys.argv[1:]])
