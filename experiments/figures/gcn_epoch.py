"""The time of an epoch, stacked by part, a bar a backend."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..record import Row
from ..tables import by, milliseconds, ratio_of_samples
from .style import COLORS, FAINT, INK, LABELS, figure, legend_above

# Part -> its name and how far its colour is mixed with white.
_PARTS = {
    "spmm_forward_s": ("SpMM forward", 0.0),
    "spmm_backward_s": ("SpMM backward", 0.3),
    "matmul_s": ("dense matmul", 0.6),
    "rest_s": ("rest", None),
}


def _shade(color: str, lightness: float | None) -> tuple[float, float, float] | str:
    if lightness is None:
        return FAINT
    red, green, blue = (c + (1 - c) * lightness for c in to_rgb(color))
    return red, green, blue


def epoch_parts(rows: Sequence[Row]) -> Figure:
    """Rows of `gcn_epoch` -> a panel an input, bars to one scale."""
    panels = by(rows, lambda row: row["config"]["input"])
    counts = [len(group) for group in panels.values()]
    made, axes = figure(9.2, 1.0 + 0.62 * sum(counts), rows=len(panels), height_ratios=counts, sharex=True)
    for axis, (kind, group) in zip(axes, panels.items(), strict=True):
        ours = next((row for row in group if row["config"]["backend"] == "braidwork"), None)
        for place, row in enumerate(group):
            backend, left = row["config"]["backend"], 0.0
            for part, (_, lightness) in _PARTS.items():
                width, shade = row[part] * 1e3, _shade(COLORS[backend], lightness)
                axis.barh(place, width, left=left, height=0.62, color=shade, edgecolor="white", lw=1)
                left += width
            note = f"{milliseconds(row['epoch_s'])} ms"
            if ours is not None and row is not ours and len(row["samples_s"]) == len(ours["samples_s"]):
                note += f"  ({ratio_of_samples(row['samples_s'], ours['samples_s']):.2f}× ours)"
            axis.annotate(note, (left, place), xytext=(6, 0), textcoords="offset points", va="center", color=INK)
        axis.set_yticks(range(len(group)), [LABELS[row["config"]["backend"]] for row in group])
        for tick, row in zip(axis.get_yticklabels(), group, strict=True):
            tick.set_color(COLORS[row["config"]["backend"]])
            tick.set_fontweight("bold")
        axis.set_ylim(len(group) - 0.5, -0.5)
        axis.grid(axis="y", visible=False)
        axis.spines["left"].set_visible(False)
        axis.set_title(
            f"{kind} input features" if kind == "sparse" else f"{kind.replace('dense ', '')} dense input features"
        )
    axes[-1].set_xlabel("milliseconds an epoch")
    longest = max(row["epoch_s"] for row in rows) * 1e3
    axes[-1].set_xlim(0, longest * 1.22)  # room for the note
    legend_above(made, [(Patch(color=_shade(INK, lightness)), name) for name, lightness in _PARTS.values()])
    return made
