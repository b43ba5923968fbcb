"""The look that all figures share: one colour a backend, thin axes, one legend above the panels."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK = "#1c2430"
MUTED = "#6b7480"
FAINT = "#dde1e6"

# Distinct in hue and in lightness, for readers and printers without colour.
COLORS = {"braidwork": "#1457c8", "torch": "#e0762a", "torch_autograd": "#a8482a", "pyg": "#2f8f6b", "scipy": "#8c6bb1"}
LABELS = {
    "braidwork": "braidwork",
    "torch": "torch.sparse (tuned)",
    "torch_autograd": "torch.sparse",
    "pyg": "PyG GCNConv",
    "scipy": "SciPy",
}

# Storage formats, those of a kind alike.
FORMATS = {
    "csr": "#1457c8", "coo": "#7fb2ff", "csc": "#c9d6ea", "ell": "#2f8f6b", "sell": "#8fcfb2", "hyb": "#d7c25a",
    "dia": "#8c6bb1", "bsr4": "#f2b38a", "bsr8": "#e0762a", "bsr16": "#a8482a", "bsr32": "#5e2413",
}  # fmt: skip

_RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Inter", "Helvetica Neue", "Helvetica", "Arial", "Liberation Sans", "DejaVu Sans"],
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "xtick.major.width": 0.7,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.fonttype": "path",
    "svg.hashsalt": "braidwork",  # the same rows give the same file
}


def figure(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure in inches with a grid of axes, in the project's style; the axes row by row."""
    matplotlib.use("agg")
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # absent fonts of the list are no news
    plt.rcParams.update(_RC)
    made, axes = plt.subplots(rows, columns, figsize=(width, height), squeeze=False, layout="constrained", **options)
    return made, list(axes.flat)


def legend_above(made: Figure, entries: Sequence[tuple[Artist, str]]) -> None:
    """One legend for all axes, above them, in a line."""
    handles, labels = zip(*entries, strict=True)
    made.legend(
        handles, labels, loc="outside upper left", ncols=len(labels), frameon=False, borderaxespad=0.4, borderpad=0.4,
        handlelength=1.6, handletextpad=0.5, columnspacing=1.8,
    )  # fmt: skip
