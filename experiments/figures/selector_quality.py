"""How good choices of formats are, which formats are best, and what the model looks at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure

from ..record import Row
from .style import FORMATS, INK, MUTED, figure, legend_above

METHODS = {
    "learned": ("learned model", "#1457c8"),
    "tree": ("one decision tree", "#2f8f6b"),
    "analytic": ("fewest bytes moved", "#e0762a"),
    "average": ("best on average", "#8c6bb1"),
    "csr": ("always CSR", "#6b7480"),
}


def quality(rows: Sequence[Row]) -> Figure:
    """A line a method: geometric mean and 5th percentile of the share of the oracle's speed."""
    methods = rows[-1]["methods"]
    made, (axis,) = figure(9.2, 2.6)
    for place, (method, (_, color)) in enumerate(METHODS.items()):
        share = np.array(methods[method]["share"])
        mean, low = 100 * np.exp(np.log(share).mean()), 100 * np.quantile(share, 0.05)
        axis.plot([low, mean], [place, place], color=color, lw=2.5, alpha=0.45)
        axis.scatter(mean, place, s=60, color=color, zorder=3)
        axis.annotate(
            f"{mean:.1f}%, the oracle's format in {100 * methods[method]['exact']:.0f}%",
            (mean, place), xytext=(8, 0), textcoords="offset points", va="center", color=INK,
        )  # fmt: skip
    axis.set_yticks(range(len(METHODS)), [label for label, _ in METHODS.values()])
    axis.set_ylim(len(METHODS) - 0.5, -0.5)
    axis.set_xlim(right=127)
    axis.set_xticks([tick for tick in axis.get_xticks() if tick <= 100])
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("share of the oracle's speed, %")
    return made


def best_formats(rows: Sequence[Row]) -> Figure:
    """A stacked bar a family: how often each format is the quickest."""
    row = rows[-1]
    families = sorted(set(row["family"]))
    made, (axis,) = figure(9.2, 0.27 * len(families) + 1.1)
    shown: dict[str, Artist] = {}
    for place, family in enumerate(families):
        counts = Counter(best for best, mine in zip(row["best"], row["family"], strict=True) if mine == family)
        left, total = 0.0, sum(counts.values())
        for name, color in FORMATS.items():
            if counts[name]:
                width = 100 * counts[name] / total
                shown[name] = axis.barh(place, width, left=left, height=0.72, color=color, edgecolor="white", lw=0.6)[0]
                left += width
    axis.set_yticks(range(len(families)), [family.replace("_", " ") for family in families])
    axis.set_ylim(len(families) - 0.5, -0.5)
    axis.set_xlim(0, 100)
    axis.grid(visible=False)
    axis.spines["left"].set_visible(False)
    axis.set_xlabel("share of products, %")
    legend_above(made, [(shown[name], name) for name in FORMATS if name in shown])
    return made


def what_decides(rows: Sequence[Row]) -> Figure:
    """Importance of features; time against memory as the weight moves."""
    row = rows[-1]
    made, (left, right) = figure(9.6, 3.7, columns=2, width_ratios=(1.25, 1))
    most = sorted(row["importance"].items(), key=lambda pair: -pair[1])[:12]
    left.barh(range(len(most)), [100 * share for _, share in most], height=0.66, color="#1457c8")
    left.set_yticks(range(len(most)), [name.replace("_", " ") for name, _ in most])
    left.set_ylim(len(most) - 0.5, -0.5)
    left.grid(axis="y", visible=False)
    left.set_xlabel("share of the gain, %")
    left.set_title("what decides")
    points = row["weights"]
    time, memory = ([point[what] for point in points] for what in ("time", "memory"))
    right.plot(memory, time, color="#1457c8", marker="o", ms=4.5, mec="white", mew=0.7)
    for point in (points[0], points[-1]):
        right.annotate(
            f"w = {point['w']:g}", (point["memory"], point["time"]), xytext=(7, 5), textcoords="offset points",
            color=MUTED, fontsize=8.5,
        )  # fmt: skip
    right.margins(x=0.18, y=0.14)
    right.set_xlabel("memory of the matrix over CSR's")
    right.set_ylabel("time over CSR's")
    right.set_title("time against memory")
    return made
