"""What a choice among SciPy's formats gains over COO, and how often each format is the choice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from ..record import Row
from .style import FAINT, INK, MUTED, figure, legend_above

FORMATS = ("coo", "csr", "csc", "dia", "bsr", "dok", "lil")
_CHOSEN, _BEST = "#1457c8", "#e0762a"


def gains(rows: Sequence[Row]) -> Figure:
    """Left: gains in order, of the choice and of the oracle; right: counts of formats."""
    row = rows[-1]
    made, (left, right) = figure(9.6, 3.3, columns=2, width_ratios=(1.5, 1))
    entries = []
    for label, color, values in (
        ("chosen", _CHOSEN, row["total_over"]["coo"]), ("best", _BEST, row["oracle_over_coo"])
    ):  # fmt: skip
        entries.append((left.plot(np.linspace(0, 100, len(values)), sorted(values), color=color)[0], label))
    left.axhline(1, color=MUTED, lw=0.8)
    left.set_yscale("log", base=2)
    low, high = left.get_ylim()
    ticks = [tick for tick in (0.25, 0.5, 1, 2, 4, 8, 16, 32) if low <= tick <= high]
    left.set_yticks(ticks, [f"{tick:g}×" for tick in ticks])
    left.set_xlabel("share of products, %")
    left.set_ylabel("times as fast as COO")
    for shift, color, what in ((-0.2, _CHOSEN, row["pick"]), (0.2, _BEST, row["best"])):
        share = [100 * what.count(name) / len(what) for name in FORMATS]
        right.bar(np.arange(len(FORMATS)) + shift, share, width=0.38, color=color)
    right.set_xticks(range(len(FORMATS)), [name.upper() for name in FORMATS], color=INK)
    right.grid(axis="x", visible=False)
    right.grid(axis="y", color=FAINT)
    right.set_ylabel("share of products, %")
    legend_above(made, entries)
    return made
