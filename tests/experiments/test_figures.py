"""Figures from rows written by hand: what is drawn is what the rows say, and no text covers another."""

from __future__ import annotations

import itertools

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from braidwork.experiments import (
    gcn_epoch,
    gcn_training,
    model_epochs,
    scipy_formats,
    selector_quality,
    selector_runs,
    spmm_speed,
)
from braidwork.experiments.record import Row

BACKENDS = ["braidwork", "torch", "pyg"]
EPOCHS = [2, 4, 6]


def training_row(dataset: str, backend: str, seed: int) -> Row:
    epochs = EPOCHS if seed == 0 else [*EPOCHS, 8]  # the mean ends where the first seed stops
    step = 0.01 * (1 + BACKENDS.index(backend))
    accuracy = [60.0 + 5 * place + 4 * seed for place in range(len(epochs))]
    history = {"eval_epoch": epochs, "test_accuracy": accuracy, "step_s": [step] * epochs[-1]}
    split = {"kind": "random", "train": 0.6, "val": 0.2}
    config = {"dataset": {"name": dataset, "split": split}, "backend": backend, "seed": seed}
    scores = {"val_accuracy": accuracy[-1], "test_accuracy": accuracy[-1]}
    return {"config": config, "history": history, "epoch_s": step, "epochs": epochs[-1], **scores}


def epoch_row(kind: str, backend: str) -> Row:
    factor = 1 + BACKENDS.index(backend)
    parts = dict(zip(gcn_epoch.PARTS, (0.1 * factor, 0.2 * factor, 0.05, 0.05), strict=True))
    total = sum(parts.values())
    config = {"dataset": "wordnet", "input": kind, "backend": backend, "rounds": 3}
    config["model"] = {"num_layers": 2, "hidden_channels": 128}
    return {"config": config, "epoch_s": total, "samples_s": [total] * 3, **parts}


def spmm_row(graph: str, width: int, backend: str, seconds: float) -> Row:
    cost = spmm_speed.spmm_cost(4000, 1000, 1000, width)
    config = {"graph": graph, "width": width, "backend": backend, "dtype": "float32", "rounds": 3}
    sizes = {"nodes": 1000, "nnz": 4000, "copy_bandwidth": 2e10}
    return {"config": config, "median_s": seconds, "samples_s": [seconds] * 3, **sizes, **vars(cost)}


TRAINING = [
    training_row(dataset, backend, seed) for dataset in ("wordnet", "cora") for backend in BACKENDS for seed in (0, 1)
]
EPOCH = [epoch_row(kind, backend) for kind in ("sparse", "dense 128") for backend in BACKENDS]
SPEED = [
    spmm_row(graph, width, backend, 1e-6 * width * factor)
    for graph in ("wordnet", "email-Enron", "as-22july06", "mesh-mdual", "astro-ph")
    for width in (16, 64, 128, 256)
    for backend, factor in (("braidwork", 1.0), ("torch", 2.0), ("scipy", 4.0))
]


def model_row(dataset: str, model: str, way: str) -> Row:
    factor = 1 + list(model_epochs.WAYS).index(way)
    settings = {"name": model, "hidden_channels": 64}
    config = {"dataset": dataset, "model": settings, "epochs": 200, "width": 64, "way": way, "rounds": 3}
    formats = {"normalised": {"64": ["sell", "csr"]}} if way == "auto" else {}
    results = {"epoch_s": 0.01 * factor, "samples_s": [0.01 * factor] * 3, "begin_s": 0.05, "formats": formats}
    return {"config": config, "nodes": 2708, "nnz": 10556, **results}


def selector_row() -> Row:
    products = 40
    shares = {"learned": 0.98, "tree": 0.95, "analytic": 0.8, "average": 0.9, "csr": 0.9}
    methods = {
        name: {"share": [share] * products, "exact": 0.5, "over_csr": [share / 0.9] * products}
        for name, share in shares.items()
    }
    weights = [{"w": k / 10, "time": 0.95 + k / 20, "memory": 0.9 - k / 30} for k in range(11)]
    importance = {name: 1 / len(selector_quality.COLUMNS) for name in selector_quality.COLUMNS}
    return {
        "config": {"table": "0", "rounds": 400}, "methods": methods, "weights": weights, "importance": importance,
        "family": ["banded", "blocks", "hub", "uniform"] * 10, "best": ["dia", "bsr4", "csr", "sell", "coo"] * 8,
        "matrices": 20, "source": "a machine",
    }  # fmt: skip


def uses_row(matrix: str) -> Row:
    product_s = {"csr": 1e-3, "sell": 0.9e-3, "bsr8": 0.5e-3, "coo": 1.5e-3}
    return {
        "config": {"what": "uses", "matrix": matrix, "F": 64, "uses": [10, 100, 1000], "rounds": 3},
        "nnz": 4000, "rows": 1000, "product_s": product_s,
        "convert_s": {"csr": 1e-3, "sell": 5e-3, "bsr8": 9e-3, "coo": 5e-4},
        "selection": [{"uses": 10, "format": "csr", "s": 2e-3}, {"uses": 1000, "format": "bsr8", "s": 12e-3}],
    }  # fmt: skip


def changes_row(name: str) -> Row:
    steps = [
        {"uses": 10, "nnz": 100, "density": 0.5 / (k + 1), "format": "bsr8" if k < 3 else "csr",
         "s": {"csr": 0.1, "auto": 0.07 + 0.01 * k, "kept": 0.07 + 0.03 * k}}
        for k in range(6)
    ]  # fmt: skip
    return {"config": {"what": "changes", "run": name, "rounds": 3, "F": 64}, "steps": steps, "first": "bsr8"}


RUNS = [uses_row(name) for name in ("mesh-mdual", "elements")] + [changes_row(name) for name in selector_runs.RUNS]


def scipy_row() -> Row:
    over = [0.8 + 0.05 * k for k in range(40)]
    return {
        "config": {"widths": [16, 64], "uses": 1000}, "family": ["hub", "banded"] * 20, "F": [16, 64] * 20,
        "nnz": [1e4, 2e5] * 20, "pick": ["csc", "csr"] * 20, "best": ["csc", "coo", "bsr", "csr"] * 10,
        "product_over": {"coo": over, "csr": over}, "total_over": {"coo": over, "csr": over, "best": over},
        "oracle_over_coo": [1.1 * value for value in over], "overhead_s": 2e-3,
    }  # fmt: skip


MODELS = [
    model_row(dataset, model, way)
    for dataset in ("cora", "wordnet", "email-Enron", "as-22july06", "mesh-mdual")
    for model in ("gcn", "sage", "gat", "rgcn", "film", "egc")
    for way in model_epochs.WAYS
]
STUDIES = [
    (gcn_training.STUDY, TRAINING),
    (gcn_epoch.STUDY, EPOCH),
    (model_epochs.STUDY, MODELS),
    (selector_quality.STUDY, [selector_row()]),
    (selector_runs.STUDY, RUNS),
    (scipy_formats.STUDY, [scipy_row()]),
    (spmm_speed.STUDY, SPEED),
]
FIGURES = [(study, plot, rows) for study, rows in STUDIES for plot in study.plots]


def drawn(study, rows: list[Row]) -> Figure:
    (plot,) = study.plots
    return plot.draw(rows)


@pytest.mark.parametrize(("study", "plot", "rows"), FIGURES, ids=lambda value: getattr(value, "name", ""))
def test_no_text_covers_another_or_leaves_the_picture(study, plot, rows: list[Row]) -> None:
    figure = plot.draw(rows)
    figure.canvas.draw()
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    limit = figure.bbox
    # Ticks beyond the limits of their axis are laid out and never drawn.
    hidden = {
        id(label)
        for axes in figure.axes
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim()))
        for tick in axis.get_major_ticks()
        for label in (tick.label1, tick.label2)
        if not min(low, high) <= tick.get_loc() <= max(low, high)
    }
    boxes = [box for text, box in zip(texts, boxes, strict=True) if id(text) not in hidden]
    assert len(boxes) > 10
    for text, box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= limit.x1 and box.y1 <= limit.y1, f"{text!r} is cut off"
    for (one, box), (other, beside) in itertools.combinations(boxes, 2):
        assert not box.shrunk(0.95, 0.8).overlaps(beside.shrunk(0.95, 0.8)), f"{one!r} covers {other!r}"
    plt.close(figure)


def test_curves_are_means_as_far_as_every_seed_trained() -> None:
    figure = drawn(gcn_training.STUDY, TRAINING)
    over_epochs, over_seconds = figure.axes[0], figure.axes[2]
    assert over_epochs.get_title(loc="left") == "wordnet"
    for line, backend in zip(over_epochs.lines, BACKENDS, strict=True):
        assert list(line.get_xdata()) == EPOCHS, backend
        assert list(line.get_ydata()) == [62, 67, 72]
    for line, step in zip(over_seconds.lines, (0.01, 0.02, 0.03), strict=True):
        np.testing.assert_allclose(line.get_xdata(), np.array(EPOCHS) * step)
    plt.close(figure)


def test_a_bar_is_as_long_as_its_epoch_and_says_its_ratio() -> None:
    figure = drawn(gcn_epoch.STUDY, EPOCH)
    for axes in figure.axes:
        ends = sorted({round(bar.get_x() + bar.get_width(), 6) for bar in axes.patches[len(gcn_epoch.PARTS) - 1 :: 4]})
        assert ends == [400, 700, 1000]
        notes = [text.get_text() for text in axes.texts]
        assert notes == ["400 ms", "700 ms  (1.75× ours)", "1000 ms  (2.50× ours)"]
    plt.close(figure)


def test_throughput_and_the_memory_bound_are_of_the_same_product() -> None:
    figure = drawn(spmm_speed.STUDY, SPEED)
    bound, ours, torch, scipy = figure.axes[0].lines
    widths = np.array([16, 64, 128, 256])
    # 4000 entries of 8 bytes, 1001 row pointers of 4, X and Y of 1000 rows each, at 20 GB/s.
    bound_s = (4000 * 8 + 1001 * 4 + 2 * 1000 * widths * 4) / 2e10
    np.testing.assert_allclose(bound.get_ydata(), 2 * 4000 * widths / bound_s / 1e9)
    for line, factor in ((ours, 1), (torch, 2), (scipy, 4)):
        assert list(line.get_xdata()) == list(widths)
        np.testing.assert_allclose(line.get_ydata(), 8 / factor)  # 2 * 4000 * width flops in width * factor us
    plt.close(figure)


@pytest.mark.parametrize(("study", "rows"), STUDIES, ids=lambda value: getattr(value, "name", ""))
def test_tables_and_captions_cover_every_row(study, rows: list[Row]) -> None:
    for table in study.tables(rows):
        assert {len(line) for line in table.lines} == {len(table.columns)}
    assert all(plot.caption(rows).endswith(".") for plot in study.plots)
    assert all(finding.endswith(".") for finding in study.findings(rows))


def test_findings_state_the_ratios_of_the_rows() -> None:
    (torch, scipy) = spmm_speed.findings(SPEED)
    assert "2.00 times as fast as torch.sparse (geometric mean of 20 cases; least 2.00, most 2.00)" in torch
    assert "4.00 times as fast as SciPy" in scipy
    assert "test accuracy 74.50 ± 6.36% over 2 seeds" in gcn_training.findings(TRAINING)[0]
    assert any("1.75 times as fast as on torch.sparse (tuned)" in text for text in gcn_epoch.findings(EPOCH))


def test_findings_of_models_and_choices() -> None:
    (autograd, tuned, pyg, chosen) = model_epochs.findings(MODELS)
    assert "4.00 times as fast as on torch.sparse (geometric mean of 30" in autograd
    assert "3.00 times as fast as on torch.sparse (tuned)" in tuned and "5.00 times as fast as on PyG" in pyg
    # 0.05 and 199 epochs of 0.02 over 0.05 and 199 of 0.01.
    assert "1.975 times as long as in CSR" in chosen
    (text,) = selector_quality.findings([selector_row()])
    assert "reach 98.0% of the oracle's speed" in text and "1.089 times as fast as always CSR" in text
