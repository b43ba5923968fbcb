"""Study: how good the chosen formats are on families that the model has not seen, from a table of measured times.

The table is the one that `make selector` wrote on this machine, or the shipped one. Nothing is timed here.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from braidwork.selector.evaluate import cross_validate, judge
from braidwork.selector.features import NAMES, Features, bound_bytes, matrix_bytes
from braidwork.selector.machine import describe, fingerprint
from braidwork.selector.measure import read
from braidwork.selector.model import COLUMNS, Samples, fit, samples

from .figures.selector_quality import METHODS, best_formats, quality, what_decides
from .study import Context, Plot, Rows, Study, TableView

NAME = "selector_quality"
_WEIGHTS = [round(0.1 * k, 1) for k in range(11)]


def measured(folder: Path) -> list[dict[str, Any]]:
    """The rows of this machine's own table, if it is whole enough to learn from, else those that are shipped."""
    here = fingerprint()
    own = [row for row in read(folder / "selector.jsonl") if row["machine"] == here]
    if len({row["family"] for row in own}) >= 8:
        return own
    with gzip.open(str(files("braidwork.selector") / "data" / "cpu-avx512.jsonl.gz"), "rt") as file:
        return [json.loads(line) for line in file]


def run(context: Context) -> None:
    table = measured(Path(context.table.path).parent)
    digest = hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:16]
    config = {"table": digest, "rounds": context.settings["rounds"]}
    data = samples(table)
    context.progress.start("choices on families left out", len(set(data.family)) + 1)
    if context.done(NAME, config):
        return
    results = evaluate(table, data, config["rounds"], lambda family: context.progress.advance(1, family))
    context.table.append(NAME, config, results | {"source": describe(table[0]["machine"])})
    context.progress.advance(1, "importance")


def evaluate(table: Sequence[Mapping[str, Any]], data: Samples, rounds: int, on_family: Any) -> dict[str, Any]:
    """All that the figures show: by method the share of the oracle's speed for every product, and more."""
    log_time = data.matrix(data.log_time)
    bound = np.full_like(log_time, np.nan)
    held = np.full_like(log_time, np.nan)
    product = 0
    for row in table:
        found = Features(row["features"])
        for timed in row["products"]:
            for name in timed["s"]:
                place = product, NAMES.index(name)
                bound[place] = bound_bytes(found, name, timed["weighted"], timed["F"], 4)
                held[place] = matrix_bytes(found, name, timed["weighted"])
            product += 1
    learned = cross_validate(data, functools.partial(fit, rounds=rounds), on_family)
    tree = cross_validate(data, functools.partial(fit, rounds=1, learning_rate=1.0, bagging_freq=0, feature_fraction=1))
    scores = {
        "learned": learned,
        "tree": tree,
        "analytic": bound,
        "average": _best_on_average(log_time, data.family),
        "csr": np.where(np.arange(len(NAMES)) == 0, 0.0, 1.0) + 0 * log_time,
    }
    methods = {}
    for method, score in scores.items():
        judged = judge(log_time, score)
        methods[method] = {"share": judged.share.tolist(), "exact": judged.exact, "over_csr": judged.over_csr.tolist()}
    best = np.nanargmin(log_time, axis=1)
    gain = fit(data, rounds).ratio.feature_importance("gain")
    return {
        "methods": methods,
        "family": data.family.tolist(),
        "best": [NAMES[k] for k in best],
        "importance": dict(zip(COLUMNS, (gain / gain.sum()).tolist())),
        "weights": [_at_weight(w, log_time, learned, held) for w in _WEIGHTS],
        "matrices": len(table),
    }


def _best_on_average(log_time: np.ndarray, family: np.ndarray) -> np.ndarray:
    """Scores of a rule that takes, for every family, the one format that is best over all other families."""
    over_csr = np.where(np.isnan(log_time), 2.0, log_time - log_time[:, :1]).clip(max=2.0)  # refused: as four times
    score = np.full_like(log_time, np.nan)
    for left_out in set(family):
        mine = family == left_out
        score[mine] = over_csr[~mine].mean(0)
    return np.where(np.isnan(log_time), np.nan, score)


def _at_weight(w: float, log_time: np.ndarray, predicted: np.ndarray, held: np.ndarray) -> dict[str, float]:
    """Time and memory over CSR's, geometric means, of choices with a memory weight."""
    score = (1 - w) * np.exp2(predicted - predicted[:, :1]) + w * held / held[:, :1]
    pick = np.nanargmin(score, axis=1)
    rows = np.arange(pick.shape[0])
    time = np.exp2((log_time[rows, pick] - log_time[:, 0]).mean())
    memory = np.exp(np.log(held[rows, pick] / held[:, 0]).mean())
    return {"w": w, "time": float(time), "memory": float(memory)}


def summary(share: Sequence[float]) -> tuple[float, float]:
    """Geometric mean, and 5th percentile."""
    return float(np.exp(np.log(share).mean())), float(np.quantile(share, 0.05))


def findings(rows: Rows) -> list[str]:
    row = rows[-1]
    mean, low = summary(row["methods"]["learned"]["share"])
    gain = float(np.exp(np.log(row["methods"]["learned"]["over_csr"]).mean()))
    ours = summary(row["methods"]["csr"]["share"])[0]
    return [
        f"On families left out, the formats that the model chooses reach {100 * mean:.1f}% of the oracle's speed "
        f"({100 * low:.0f}% at the 5th percentile), {gain:.3f} times as fast as always CSR, which reaches "
        f"{100 * ours:.1f}%."
    ]


def tables(rows: Rows) -> list[TableView]:
    row = rows[-1]
    lines = []
    for method, (label, _) in METHODS.items():
        judged = row["methods"][method]
        mean, low = summary(judged["share"])
        gain = float(np.exp(np.log(judged["over_csr"]).mean()))
        lines.append([label, f"{100 * mean:.1f}", f"{100 * low:.1f}", f"{100 * judged['exact']:.1f}", f"{gain:.3f}×"])
    quality_table = TableView(
        "Share of the oracle's speed, geometric mean and 5th percentile, and accuracy, on families left out",
        ["choice", "share, %", "5th percentile, %", "oracle's format, %", "over CSR"],
        lines,
    )
    by_family = {}
    for family in sorted(set(row["family"])):
        mine = [k for k, f in enumerate(row["family"]) if f == family]
        share, over = (
            float(np.exp(np.log([row["methods"]["learned"][what][k] for k in mine]).mean()))
            for what in ("share", "over_csr")
        )
        most = Counter(row["best"][k] for k in mine).most_common(2)
        by_family[family] = [family, str(len(mine)), f"{100 * share:.1f}", f"{over:.3f}×",
                             ", ".join(f"{name} {100 * n / len(mine):.0f}%" for name, n in most)]  # fmt: skip
    columns = ["family", "products", "share, %", "over CSR", "formats that are best most often"]
    return [quality_table, TableView("By family", columns, list(by_family.values()), folded=True)]


def _caption(rows: Rows) -> str:
    row = rows[-1]
    return (
        f"{row['matrices']} synthetic matrices of {len(set(row['family']))} families, {len(row['family'])} products of "
        f"4 to 256 columns with and without values, timed in eleven formats on {row['source']}. Models are trained "
        "on all families but the one that they choose for; the oracle knows every measured time. Dots: geometric "
        "mean; ends of lines: 5th percentile. Conversions are not in these figures."
    )


def _caption_best(rows: Rows) -> str:
    return (
        "Which format is the quickest, by family, as measured. Formats are often within a few percent of each other, "
        "so that the share of the oracle's speed says more than how often the oracle's format is hit."
    )


def _caption_what(rows: Rows) -> str:
    return (
        "Left: share of the gain in squared error that each feature brings to the regressor of the time over CSR's, "
        "the twelve that bring most. Right: time and memory of the matrix over CSR's, geometric means over all "
        "products, as the weight w moves from time alone to memory alone, on families left out."
    )


STUDY = Study(
    name=NAME,
    title="Choosing a storage format",
    text=(
        "A model learns from measured times how quick each storage format is for a matrix. It is judged on kinds of "
        "matrices that it has not seen, beside simpler rules."
    ),
    run=run,
    findings=findings,
    plots=(
        Plot("selector_quality", quality, _caption),
        Plot("selector_best_formats", best_formats, _caption_best),
        Plot("selector_what_decides", what_decides, _caption_what),
    ),
    tables=tables,
)
