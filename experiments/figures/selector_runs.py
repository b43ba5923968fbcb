"""Cumulative times of formats over uses, and of steps of runs in which the sparsity changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..record import Row
from .style import FORMATS, MUTED, figure, legend_above

_TITLES = {"pruning": "block pruning", "drop_edge": "DropEdge", "relu": "ReLU activations"}


def break_even(rows: Sequence[Row]) -> Figure:
    """A panel a matrix: a line a format, a dot a number of uses."""
    made, axes = figure(9.6, 3.2, columns=len(rows))
    shown: dict[str, Artist] = {}
    for axis, row in zip(axes, rows, strict=True):
        convert_s, product_s = row["convert_s"], row["product_s"]
        uses = np.geomspace(1, row["selection"][-1]["uses"], 200)
        csr = convert_s["csr"] + uses * product_s["csr"]
        for name in FORMATS:
            if name in product_s:
                ratio = (convert_s[name] + uses * product_s[name]) / csr
                shown[name] = axis.plot(uses, ratio, color=FORMATS[name])[0]
        for at in row["selection"]:
            name = at["format"]
            total = at["s"] + at["uses"] * product_s[name]
            over = total / (convert_s["csr"] + at["uses"] * product_s["csr"])
            axis.plot(at["uses"], over, "o", color=FORMATS[name], ms=7, mec="#1c2430", mew=1.1, zorder=4)
        axis.set_xscale("log")
        _ratio_axis(axis)
        axis.set_title(row["config"]["matrix"])
        axis.set_xlabel("uses")
    axes[0].set_ylabel("time over CSR's")
    dots = axes[0].plot([], [], "o", color="white", ms=7, mec="#1c2430", mew=1.1)[0]
    legend_above(made, [(shown[name], name) for name in FORMATS if name in shown] + [(dots, "chosen")])
    return made


def changes(rows: Sequence[Row]) -> Figure:
    """A panel a run: a dot a step, coloured by the format; a line for the first format kept."""
    made, axes = figure(9.6, 3.2, columns=len(rows))
    shown: dict[str, Artist] = {}
    for axis, row in zip(axes, rows, strict=True):
        steps = row["steps"]
        kept = axis.plot([step["s"]["kept"] / step["s"]["csr"] for step in steps], color=MUTED, lw=1.2)[0]
        for k, step in enumerate(steps):
            (dot,) = axis.plot(k, step["s"]["auto"] / step["s"]["csr"], "o", color=FORMATS[step["format"]], ms=6)
            shown[step["format"]] = dot
        _ratio_axis(axis)
        axis.set_title(_TITLES[row["config"]["run"]])
        densities = [100 * step["density"] for step in steps]
        axis.set_xlabel(f"step (density {max(densities):.2g}% to {min(densities):.2g}%)")
    axes[0].set_ylabel("time over CSR's")
    legend_above(made, [(shown[name], name) for name in FORMATS if name in shown] + [(kept, "the first kept")])
    return made


def _ratio_axis(axis: Axes) -> None:
    """Logarithmic, with a line at 1, down to a half and up to four times at least as far as there are points."""
    axis.axhline(1, color=MUTED, lw=0.8, zorder=0)
    axis.set_yscale("log", base=2)
    low, high = axis.get_ylim()
    axis.set_ylim(max(min(low, 0.7), 1 / 16), min(max(high, 1.4), 6))
    low, high = axis.get_ylim()
    ticks = [tick for tick in (1 / 16, 1 / 8, 0.25, 0.5, 0.7, 1, 1.4, 2, 4) if low <= tick <= high]
    axis.set_yticks(ticks, [f"{tick:.2g}×" for tick in ticks], minor=False)
    axis.minorticks_off()
