"""Test accuracy over epochs and over seconds, by data set and backend."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..record import Row
from ..tables import by
from .style import COLORS, LABELS, figure, legend_above


def accuracy_curves(rows: Sequence[Row]) -> Figure:
    """Rows of `gcn_training` -> two panels a data set: over epochs above, over seconds of training steps below."""
    datasets = by(rows, lambda row: row["config"]["dataset"]["name"])
    made, axes = figure(4.6 * len(datasets), 6.2, rows=2, columns=len(datasets))
    shown: dict[str, Artist] = {}
    top: dict[Axes, float] = {}
    for column, (name, group) in enumerate(datasets.items()):
        over_epochs, over_seconds = axes[column], axes[column + len(datasets)]
        for backend, runs in by(group, lambda row: row["config"]["backend"]).items():
            epochs, seconds, mean, deviation = _curve(runs)
            for axis, x in ((over_epochs, epochs), (over_seconds, seconds)):
                # Curves that coincide stay visible: ours is a broad line beneath the others.
                ours = backend == "braidwork"
                width = 4 if ours and axis is over_epochs else 1.6
                axis.plot(x, mean, color=COLORS[backend], lw=width, zorder=2 if ours else 3)
                axis.fill_between(x, mean - deviation, mean + deviation, color=COLORS[backend], alpha=0.12, lw=0)
                top[axis] = max(top.get(axis, 0.0), mean[-1])
                shown[LABELS[backend]] = Line2D([], [], color=COLORS[backend], lw=2)
        over_epochs.set_title(name)
        over_epochs.set_xlabel("epoch")
        over_seconds.set_xlabel("seconds in training steps")
        for axis in (over_epochs, over_seconds):
            axis.set_xlim(left=0)
            axis.set_ylim(max(0, top[axis] - 45), min(100, top[axis] + 4))
        if column == 0:
            over_epochs.set_ylabel("test accuracy, %")
            over_seconds.set_ylabel("test accuracy, %")
    legend_above(made, [(line, label) for label, line in shown.items()])
    return made


def _curve(runs: Sequence[Row]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Epochs, mean seconds, mean accuracy and its deviation, as far as every seed of the backend trained."""
    histories = [row["history"] for row in runs]
    length = min(len(h["eval_epoch"]) for h in histories)
    epochs = np.array(histories[0]["eval_epoch"][:length])
    accuracy = np.array([h["test_accuracy"][:length] for h in histories])
    seconds = np.array([np.cumsum(h["step_s"])[epochs - 1] for h in histories])
    return epochs, seconds.mean(0), accuracy.mean(0), accuracy.std(0, ddof=1 if len(runs) > 1 else 0)
