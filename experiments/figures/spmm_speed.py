"""Throughput of SpMM over the number of columns, a panel a graph, with the memory bound."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from ..record import Row
from ..tables import by
from .style import COLORS, INK, MUTED, figure, legend_above
from .style import LABELS as _ALL

# One product is the same with and without a transpose kept.
LABELS = {"braidwork": _ALL["braidwork"], "torch": "torch.sparse", "scipy": _ALL["scipy"]}


def throughput_panels(rows: Sequence[Row]) -> Figure:
    """Rows of `spmm_speed` -> small multiples on common axes, both logarithmic."""
    graphs = by(rows, lambda row: row["config"]["graph"])
    columns = min(3, len(graphs))
    lines = -(-len(graphs) // columns)
    shown: dict[str, Artist] = {}
    made, axes = figure(9.6, 2.75 * lines + 0.3, rows=lines, columns=columns, sharex=True, sharey=True)
    for axis, (graph, group) in zip(axes, graphs.items(), strict=False):
        widths = sorted({row["config"]["width"] for row in group})
        bound = {row["config"]["width"]: row["flops"] / (row["bytes"] / row["copy_bandwidth"]) / 1e9 for row in group}
        (dashed,) = axis.plot(widths, [bound[w] for w in widths], color=INK, lw=1, ls=(0, (4, 3)), zorder=2)
        for backend in LABELS:
            points = sorted(
                (row["config"]["width"], row["flops"] / row["median_s"] / 1e9)
                for row in group
                if row["config"]["backend"] == backend
            )
            if points:
                (shown[LABELS[backend]],) = axis.plot(
                    *zip(*points, strict=True), color=COLORS[backend], marker="o", ms=4, mec="white", mew=0.7, zorder=3
                )
        nnz, nodes = group[0]["nnz"], group[0]["nodes"]
        axis.text(
            0,
            1.0,
            f"{nodes:,} rows, {nnz / nodes:.1f} entries a row",
            transform=axis.transAxes,
            fontsize=8,
            color=MUTED,
            va="bottom",
        )
        axis.set_title(graph, pad=16)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        axis.set_xticks(widths, [str(w) for w in widths])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_major_locator(LogLocator(base=2))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.yaxis.set_minor_formatter(NullFormatter())
    for axis in axes[len(graphs) :]:
        axis.set_visible(False)
    for index, axis in enumerate(axes[: len(graphs)]):
        if index % columns == 0:
            axis.set_ylabel("GFLOP/s")
        if index + columns >= len(graphs):
            axis.set_xlabel("columns of X, F")
            axis.tick_params(labelbottom=True)
    legend_above(made, [(line, label) for label, line in shown.items()] + [(dashed, "memory bound")])
    return made
