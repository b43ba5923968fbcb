"""Measure which tiles are quickest on this machine: `make tune`, or `python -m braidwork.experiments.tune`.

For every format and number of columns the candidates run in turns on matrices of the kinds that the format is for. The
one with the least geometric mean of times is kept if it is quicker than the rule by more than `margin`. The table goes
where `kernels/sparse/tiles.py` looks first, or to `output`; what is there and is not measured again stays.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hydra
import torch
from omegaconf import DictConfig, OmegaConf

from braidwork.kernels.sparse import SparseMatrix, spmm
from braidwork.kernels.sparse.tiles import check, device_name, own_path, reload, trial
from braidwork.kernels.target import backend_of
from braidwork.kernels.timing import compare
from braidwork.selector.corpus import matrix

from .progress import Progress

# Tiles in the registers of a CPU, columns by rows side by side; more of either spills or leaves nothing to overlap.
_SIDES = {8: (4, 8), 16: (4, 8, 16), 32: (4, 8), 64: (2, 4, 8), 128: (1, 2, 4), 256: (1, 2)}


def candidates(format: str, F: int, asks: bool, backend: str) -> Iterator[dict[str, int]]:
    """Entries of the table worth trying; `asks`: whether rows of x are asked for ahead of time."""
    rows_alone = format in ("csr", "coo", "csc")
    whole = 1 << max(F - 1, 0).bit_length()
    for columns, sides in _SIDES.items():
        if columns > whole or columns < min(whole, 64):
            continue
        if backend != "cpu":
            yield from ({"columns": columns, "warps": warps} for warps in (1, 2, 4, 8))
            continue
        for lanes in (None,) if rows_alone else sides:
            for ahead in (16, 32, 64) if asks else (None,):
                entry = {"columns": columns, "lanes": lanes, "ahead": ahead}
                yield {name: value for name, value in entry.items() if value is not None}


def best(format: str, stored: list[SparseMatrix], F: int, rounds: int, margin: float) -> tuple[dict[str, int], float]:
    """The entry for F columns, {} where the rule is as good, and how much quicker it is than the rule."""
    asks = format != "dia" and any(A.shape[1] * F * 4 > 4 << 20 for A in stored)
    device = stored[0].device
    entries = list(candidates(format, F, asks, backend_of(device)))
    logs: list[list[float]] = []
    for A in stored:
        x = torch.randn(A.shape[1], F, device=device)

        def run(entry: dict[str, int], A: SparseMatrix = A, x: torch.Tensor = x) -> None:
            with trial(format, F, entry):
                for _ in range(4):  # what a trial's own bookkeeping costs is a small part of it
                    spmm(A, x)

        calls = {str(k): (lambda e=e: run(e)) for k, e in enumerate([{}, *entries])}
        timings = compare(calls, rounds=rounds, min_time_s=0.01, device=device.type)
        logs.append([math.log(timings.speedup(str(k), over="0")) for k in range(1, len(entries) + 1)])
    gains = [statistics.mean(log) for log in zip(*logs)]
    if not gains or max(gains) < math.log1p(margin):
        return {}, 1.0
    k = max(range(len(gains)), key=gains.__getitem__)
    return entries[k], math.exp(gains[k])


def run(config: dict[str, Any]) -> Path:
    """Measure and write the table; returns its path."""
    for format in config["only"]:
        if format not in config["formats"]:
            raise ValueError(f"only: need some of {', '.join(config['formats'])}, got {format!r}")
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    device = device_name(backend_of(kind))
    path = Path(config["output"]) if config["output"] else own_path(device)
    table = check(json.loads(path.read_text()), str(path)) if path.is_file() else {}
    with Progress(enabled=config["progress"]) as progress:
        for format in config["only"] or config["formats"]:
            name, block = ("bsr", {"block": int(format[3:])}) if format.startswith("bsr") else (format, {})
            made = [matrix(**spec) for spec in config["formats"][format]]
            stored = [A.to(kind).to(name, limit_bytes=1 << 34, **block) for A in made]
            for F in config["widths"]:
                entry, gain = best(format, stored, F, config["rounds"], config["margin"])
                table.setdefault(format, {}).pop(str(F), None)
                if entry:
                    table[format][str(F)] = entry
                what = f"{entry}, {gain:.2f}x the rule" if entry else "the rule"
                progress.say(f"{format:>6} {F:>4} columns: {what}")
        table = check({format: widths for format, widths in table.items() if widths}, "tune")
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(table, indent=1) + "\n")
        partial.replace(path)
        reload()
        progress.say(f"{device}: {sum(map(len, table.values()))} entries -> {path}")
    return path


@hydra.main(version_base=None, config_path="pkg://braidwork.conf", config_name="tune")
def main(config: DictConfig) -> None:
    try:
        run(OmegaConf.to_container(config, resolve=True, throw_on_missing=True))  # type: ignore[arg-type]
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
