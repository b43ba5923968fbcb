"""Time every storage format on every matrix of a corpus, into a table that a stopped run goes on with.

A row of the table is a matrix: its features, and for every format the seconds that conversion took and the bytes that
it holds, and for every width the median seconds of a product. Formats that the usual limit of padding refuses are left
out; one that a first call shows to be far behind is timed by that call alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from braidwork.kernels.sparse import SparseMatrix, spmm
from braidwork.kernels.timing import compare

from .corpus import Spec
from .features import CANDIDATES, features
from .machine import fingerprint

POWERS = (4, 8, 16, 32, 64, 128, 256)
BEHIND = 5.0  # times CSR: such a format is never the choice, and its exact time does not matter

Row = dict[str, Any]


def widths_of(spec: Spec, many: int) -> list[int]:
    """Numbers of columns to time a matrix with: mostly powers of two, seeded by the matrix."""
    rng = np.random.default_rng([spec.seed, 1, *spec.name.encode()])
    powers = rng.permutation(POWERS)[:many]
    odd = np.exp(rng.uniform(np.log(4), np.log(256), many)).astype(int)
    return sorted({int(power if rng.random() < 0.75 else other) for power, other in zip(powers, odd)})


def convert(A: SparseMatrix, name: str) -> tuple[SparseMatrix, float] | None:
    """The matrix in a format, made from coordinates alone, and the seconds that took; None if it is refused."""
    candidate = CANDIDATES[name]
    fresh = SparseMatrix.from_coo(A.row, A.col, A.values, A.shape, duplicates="keep")  # holds no other format
    start = time.perf_counter()
    try:
        stored = fresh.to(candidate.format, **dict(candidate.params))
    except ValueError:
        return None
    spmm(stored, torch.zeros(A.shape[1], 1, device=A.device))  # values are put in order for the first product
    return stored, time.perf_counter() - start


def measure(spec: Spec, widths: Iterable[int], rounds: int = 5, min_time_s: float = 0.05, device: str = "cpu") -> Row:
    """One row of the table."""
    A = spec.build().to(device)
    start = time.perf_counter()
    found = features(A)
    features_s = time.perf_counter() - start
    stored: dict[str, SparseMatrix] = {}
    convert_s: dict[str, float] = {}
    for name in CANDIDATES:
        converted = convert(A, name)
        if converted is not None:
            stored[name], first = converted
            again = convert(A, name)  # the first one has compiled the kernel
            assert again is not None
            convert_s[name] = min(first, again[1])
    times = {str(F): _time(stored, F, rounds, min_time_s) for F in widths}
    return {
        "spec": vars(spec),
        "family": spec.family,
        "features": {name: round(value, 6) for name, value in found.items()},
        "features_s": features_s,
        "convert_s": convert_s,
        "bytes": {name: B.traffic("spmm", 0).matrix for name, B in stored.items()},
        "times": times,
        "machine": fingerprint(device),
    }


def _time(stored: Mapping[str, SparseMatrix], F: int, rounds: int, min_time_s: float) -> dict[str, float]:
    some = next(iter(stored.values()))
    x = torch.randn(some.shape[1], F, device=some.device)
    calls: dict[str, Callable[[], object]] = {name: lambda B=B: spmm(B, x) for name, B in stored.items()}
    alone: dict[str, float] = {}
    csr = None
    for name in CANDIDATES:  # CSR is the first
        if name not in calls:
            continue
        calls[name]()
        start = time.perf_counter()
        calls[name]()
        if some.device.type != "cpu":
            torch.cuda.synchronize()
        once = time.perf_counter() - start
        csr = once if csr is None else csr
        if once > BEHIND * csr and once > 1e-3:
            alone[name] = once
    near = {name: call for name, call in calls.items() if name not in alone}
    timings = compare(near, rounds=rounds, min_time_s=min_time_s, device=some.device.type)
    return alone | {name: timings[name].median_s for name in timings}


def read(path: Path) -> list[Row]:
    """The rows of a table, [] if there is none. A last line that was cut off is left out."""
    rows = []
    if path.is_file():
        for line in path.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return rows


def measure_all(
    specs: Iterable[Spec], path: Path, widths: int, rounds: int, device: str = "cpu", until: float | None = None
) -> Iterator[Row | None]:
    """Time the matrices that the table at `path` lacks and append them, yielding every row; None for one left out.

    until: `time.monotonic()` at which no further matrix is begun.
    """
    here = fingerprint(device)
    done = {json.dumps(row["spec"], sort_keys=True): row for row in read(path) if row["machine"] == here}
    path.parent.mkdir(parents=True, exist_ok=True)
    for spec in specs:
        row = done.get(json.dumps(vars(spec), sort_keys=True))
        if row is None and (until is None or time.monotonic() < until):
            row = measure(spec, widths_of(spec, widths), rounds, device=device)
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        yield row
