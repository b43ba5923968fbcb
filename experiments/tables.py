"""Small helpers from rows to the cells of a table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence

from .record import Row


def by(rows: Iterable[Row], key: Callable[[Row], Hashable]) -> dict:
    """Rows grouped by a key, groups in the order of their first row."""
    groups: dict[Hashable, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def mean_and_deviation(values: Sequence[float]) -> str:
    """Mean and sample standard deviation, as 81.04 ± 1.80."""
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


def milliseconds(seconds: float) -> str:
    """A time in ms with three digits that count."""
    ms = seconds * 1e3
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}"


def times(ratio: float) -> str:
    """A ratio of times, as 2.41×."""
    return f"{ratio:.2f}×"


def ratio_of_samples(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """The median of the ratios formed round by round; the two were measured in the same rounds."""
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=True))
