"""The time of an epoch, a panel a graph, a line a model, a dot a way to run it."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ..record import Row
from ..tables import by
from .style import COLORS, FAINT, MUTED, figure, legend_above
from .style import LABELS as _ALL

LABELS = {
    "braidwork": "braidwork",
    "auto": "braidwork, formats chosen",
    "torch": _ALL["torch"],
    "torch_autograd": _ALL["torch_autograd"],
    "pyg": "PyG",
}
_COLORS = {**COLORS, "auto": "#7fb2ff"}
_NAMES = {"gcn": "GCN", "sage": "GraphSAGE", "gat": "GAT", "rgcn": "RGCN", "film": "FiLM", "egc": "EGC"}


def epochs_by_graph(rows: Sequence[Row]) -> Figure:
    """Rows of `model_epochs` -> small multiples on a common logarithmic axis."""
    graphs = by(rows, lambda row: row["config"]["dataset"])
    models = list(by(rows, lambda row: row["config"]["model"]["name"]))
    columns = min(3, len(graphs))
    lines = -(-len(graphs) // columns)
    height = (0.34 * len(models) + 0.75) * lines + 0.5
    made, axes = figure(9.6, height, rows=lines, columns=columns, sharex=True, sharey=True)
    shown: dict[str, Artist] = {}
    for axis, (graph, group) in zip(axes, graphs.items(), strict=False):
        for place, model in enumerate(models):
            mine = {r["config"]["way"]: r["epoch_s"] * 1e3 for r in group if r["config"]["model"]["name"] == model}
            if mine:
                axis.plot([min(mine.values()), max(mine.values())], [place, place], color=FAINT, lw=3, zorder=1)
            for way, label in reversed(LABELS.items()):
                if way in mine:
                    shown[label] = axis.scatter(
                        mine[way], place, s=44 if way == "braidwork" else 30, color=_COLORS[way], edgecolor="white",
                        linewidth=0.7, zorder=3, marker="D" if way == "auto" else "o",
                    )  # fmt: skip
        axis.set_title(graph, pad=16)
        sizes = f"{group[0]['nodes']:,} nodes, {group[0]['nnz']:,} entries"
        axis.text(0, 1.0, sizes, transform=axis.transAxes, fontsize=8, color=MUTED, va="bottom")
        axis.set_xscale("log")
        axis.set_yticks(range(len(models)), [_NAMES.get(model, model) for model in models])
        axis.set_ylim(len(models) - 0.5, -0.5)
        axis.grid(axis="y", visible=False)
        axis.xaxis.set_major_locator(LogLocator(base=10))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
    for axis in axes[len(graphs) :]:
        axis.set_visible(False)
    for index, axis in enumerate(axes[: len(graphs)]):
        if index + columns >= len(graphs):
            axis.set_xlabel("milliseconds an epoch")
            axis.tick_params(labelbottom=True)
    legend_above(made, [(shown[label], label) for label in LABELS.values() if label in shown])
    return made
