"""Time every storage format on every matrix of a corpus, into a table that a stopped run goes on with.

A row of the table is a matrix: its features, for every format the seconds that conversion took and the bytes that it
holds, and products: a number of columns, with values or without, and the median seconds in every format. Formats that
the usual limit of padding refuses are left out; one that a first call shows to be far behind is timed by that call
alone.
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
BEHIND = 5.0  # times CSR: such a format is never the choice, and one call tells enough of its time
IN_SIGHT = 1.3  # times the quickest: such a format may be the choice, and is timed well

Row = dict[str, Any]


def products_of(spec: Spec, many: int) -> list[tuple[int, bool]]:
    """(columns, whether with values) to time a matrix with, seeded by the matrix: columns are powers of two mostly."""
    rng = np.random.default_rng([spec.seed, 1, *spec.name.encode()])
    powers = rng.permutation(POWERS)[:many]
    odd = np.exp(rng.uniform(np.log(4), np.log(256), many)).astype(int)
    widths = sorted({int(power if rng.random() < 0.75 else other) for power, other in zip(powers, odd)})
    return [(F, bool(rng.random() < 0.5)) for F in widths]


def convert(A: SparseMatrix, name: str) -> tuple[SparseMatrix, float] | None:
    """The matrix in a format, made from coordinates alone, and the seconds that took; None if it is refused."""
    candidate = CANDIDATES[name]
    fresh = SparseMatrix.from_coo(A.row, A.col, A.values, A.shape, duplicates="keep")  # holds no other format
    start = time.perf_counter()
    try:
        stored = fresh.to(candidate.format, **candidate.params)
    except ValueError:
        return None
    spmm(stored, torch.zeros(A.shape[1], 1, device=A.device))  # values are put in order for the first product
    return stored, time.perf_counter() - start


def measure(
    spec: Spec, products: Iterable[tuple[int, bool]], rounds: int = 9, min_time_s: float = 0.1, device: str = "cpu"
) -> Row:
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
    timed = [
        {"F": F, "weighted": weighted, "s": _time(stored, F, weighted, rounds, min_time_s)} for F, weighted in products
    ]
    return {
        "spec": vars(spec),
        "family": spec.family,
        "features": {name: round(value, 6) for name, value in found.items()},
        "features_s": features_s,
        "convert_s": convert_s,
        "bytes": {name: B.traffic("spmm", 0).matrix for name, B in stored.items()},
        "products": timed,
        "machine": fingerprint(device),
    }


def _time(
    stored: Mapping[str, SparseMatrix], F: int, weighted: bool, rounds: int, min_time_s: float
) -> dict[str, float]:
    """Seconds of a product in each format: CSR's median, times the median of the ratios to it, round by round.

    All take part in a few rounds, and those in sight of the quickest in more, since what matters is which one that is.
    """
    stored = {name: B if weighted else B.with_values(None) for name, B in stored.items()}
    some = next(iter(stored.values()))
    x = torch.randn(some.shape[1], F, device=some.device)
    calls: dict[str, Callable[[], object]] = {name: lambda B=B: spmm(B, x) for name, B in stored.items()}
    found = {name: _once(call, some.device) for name, call in calls.items()}
    timed = {name: call for name, call in calls.items() if found[name] < max(BEHIND * found["csr"], 1e-3)}
    for many, least_s, within in ((3, 0.0, IN_SIGHT), (rounds, min_time_s, 1.0)):
        timings = compare(timed, rounds=many, min_time_s=least_s, warmup=1, device=some.device.type)
        csr = timings["csr"].median_s
        found |= {name: csr / timings.speedup(name, over="csr") for name in timed}
        limit = within * min(found.values())
        timed = {name: call for name, call in timed.items() if name == "csr" or found[name] < limit}
    return found


def _once(call: Callable[[], object], device: torch.device) -> float:
    call()
    start = time.perf_counter()
    call()
    if device.type != "cpu":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


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
    specs: Iterable[Spec], path: Path, products: int, rounds: int, device: str = "cpu", until: float | None = None
) -> Iterator[Row | None]:
    """Time the matrices that the table at `path` lacks and append them, yielding every row; None for one left out.

    until: `time.monotonic()` at which no further matrix is begun.
    """
    here = fingerprint(device)
    rows = read(path)
    done = {json.dumps(row["spec"], sort_keys=True): row for row in rows if row["machine"] == here}
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() and not path.read_text().endswith("\n"):  # what was cut off must not swallow what comes
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for spec in specs:
        row = done.get(json.dumps(vars(spec), sort_keys=True))
        if row is None and (until is None or time.monotonic() < until):
            row = measure(spec, products_of(spec, products), rounds, device=device)
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        yield row
