"""How good the choices are on families that a model has not seen: `cross_validate` and `judge`.

An oracle knows the measured times and takes the least. What counts is not how often a choice is the oracle's, since
formats tie, but the share of the oracle's speed that it reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .choose import PROBE_CALLS, settlement, worth_looking
from .features import NAMES, Features
from .model import Model, Regressors, Samples, fit

_PREDICTION_S = 4e-4  # of eleven formats; the features are in the table


@dataclass(frozen=True)
class Judgement:
    """Choices over many products. share: oracle's time over the choice's, [products]; over_csr: CSR's time over it;
    exact: share of products where the choice is the oracle's format."""

    share: np.ndarray
    over_csr: np.ndarray
    exact: float

    def report(self) -> dict[str, float]:
        """The figures in a few names."""
        return {
            "share_of_oracle": _geometric(self.share),
            "share_p5": float(np.quantile(self.share, 0.05)),
            "share_min": float(self.share.min()),
            "over_csr": _geometric(self.over_csr),
            "over_csr_min": float(self.over_csr.min()),
            "exact": self.exact,
        }


def _geometric(values: np.ndarray) -> float:
    return float(np.exp(np.log(values).mean()))


def cross_validate(
    data: Samples, train: Callable[[Samples], Regressors] = fit, on_family: Callable[[str], None] | None = None
) -> np.ndarray:
    """log2 of the seconds that a model trained without a product's family predicts: [products, formats], NaN where a
    format was not measured."""
    predicted = np.full(data.x.shape[0], np.nan)
    of_sample = data.family[data.product]
    for family in sorted(set(data.family)):
        mine = of_sample == family
        predicted[mine] = train(data.take(data.family != family)).log_seconds(data.x[mine])
        if on_family is not None:
            on_family(family)
    return data.matrix(predicted)


def judge(log_time: np.ndarray, score: np.ndarray) -> Judgement:
    """The choices of least score, against measured times: both [products, formats], NaN where not measured."""
    pick = np.nanargmin(np.where(np.isnan(log_time), np.inf, score), axis=1)
    rows = np.arange(pick.shape[0])
    best = np.nanargmin(log_time, axis=1)
    mine = log_time[rows, pick]
    return Judgement(
        np.exp2(log_time[rows, best] - mine), np.exp2(log_time[:, 0] - mine), float((pick == best).mean())
    )


def spread_over_csr(log_time: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Standard deviation of the error of log2(time / CSR's time), by format: how sure a predicted gain is.

    Of the measured products in a format that take no more than twice CSR's time, since others are not chosen; formats
    that were hardly measured are left out.
    """
    found = {}
    for k, name in enumerate(NAMES[1:], start=1):
        actual, guess = (times[:, k] - times[:, 0] for times in (log_time, predicted))
        error = (actual - guess)[actual <= 1.0]  # NaN is not
        if error.shape[0] >= 8:
            found[name] = float(np.sqrt(np.mean(error**2)))
    return found


@dataclass(frozen=True)
class Played:
    """What the whole policy came to, conversions and probes in, for some uses: seconds [products] in all, and what
    always-CSR, the oracle (it knows all costs), and selection with its probes took; name of every choice."""

    seconds: np.ndarray
    csr: np.ndarray
    oracle: np.ndarray
    overhead: np.ndarray
    names: list[str]


def play(rows: Sequence[Mapping[str, Any]], predicted: np.ndarray, model: Model, uses: int) -> Played:
    """`auto` with predicted times for the decision and measured ones for the outcome; a probe finds what was measured.

    rows: of the table. predicted: log2 seconds [products, formats], as of `cross_validate`. model: for conversions, the
    spread of predictions and the quick estimate.
    """
    outcome: list[tuple[float, float, float, float]] = []
    names: list[str] = []
    product = 0
    for row in rows:
        found = Features(row["features"])
        for timed in row["products"]:
            actual = timed["s"]
            real = {n: row["convert_s"][n] + uses * actual[n] for n in actual}
            best, probe, selection = "csr", 0.0, 0.0
            if worth_looking(model, int(found["rows"]), int(found["nnz"]), timed["F"], uses):
                selection = row["features_s"] + _PREDICTION_S
                guess = {n: float(np.exp2(predicted[product, NAMES.index(n)])) for n in actual}
                convert = {n: model.conversion_s(found, n) for n in actual}
                cost = {n: convert[n] + uses * guess[n] for n in actual}
                best = min(cost, key=lambda n: cost[n])
                if best != "csr":
                    pairs = [(convert[n], guess[n]) for n in ("csr", best)]
                    how = settlement(pairs[0], pairs[1], uses, model.spread.get(best, np.inf))
                    if how == "probe":
                        probe = PROBE_CALLS * (actual["csr"] + actual[best])
                        loser = max(("csr", best), key=lambda n: actual[n])
                        probe += row["convert_s"][loser]  # both have been built by then
                        best = min(("csr", best), key=lambda n: actual[n])
                    elif how == "csr":
                        best = "csr"
            outcome.append((real[best] + probe + selection, real["csr"], min(real.values()), probe + selection))
            names.append(best)
            product += 1
    seconds, csr, oracle, overhead = np.array(outcome).T
    return Played(seconds, csr, oracle, overhead, names)


def assess(model: Model, rows: Sequence[Mapping[str, Any]], data: Samples, predicted: np.ndarray) -> None:
    """Put into a model what cross-validation says of it: `spread` and `report`."""
    log_time = data.matrix(data.log_time)
    model.spread = spread_over_csr(log_time, predicted)
    model.report = {f"held_out_{name}": value for name, value in judge(log_time, predicted).report().items()}
    for uses in (100, 1000):
        played = play(rows, predicted, model, uses)
        model.report[f"over_csr_{uses}_uses"] = _geometric(played.csr / played.seconds)
        model.report[f"oracle_over_csr_{uses}_uses"] = _geometric(played.csr / played.oracle)
    model.report["oracle_over_csr"] = _geometric(np.exp2(log_time[:, 0] - np.nanmin(log_time, axis=1)))
    model.report["matrices"], model.report["products"] = float(len(rows)), float(len(data.family))
