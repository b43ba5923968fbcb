"""Which format: `choose` predicts and weighs, `settle` times the two best where the prediction is a close call.

The cost of a format is what it takes to get there and to work with it: conversion + uses * (time of a product). With a
memory weight w in [0, 1] it is (1 - w) * cost / cost of CSR + w * bytes / bytes of CSR (S. Qiu, L. You and Z. Wang,
"Optimizing sparse matrix multiplications for graph neural networks", LCPC 2021).
"""

from __future__ import annotations

import functools
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from braidwork.kernels.sparse import SparseMatrix, spmm
from braidwork.kernels.sparse.pattern import Pattern
from braidwork.kernels.timing import copy_bandwidth

from .features import CANDIDATES, NAMES, Features, bound_bytes, features, matrix_bytes, padding
from .machine import describe, fingerprint, kind_of
from .model import COLUMNS, Model, design, model_for

# Formats that keep values in an order of their own, which trained values would have to be brought into in every step.
_REORDERS = frozenset(name for name in NAMES if name not in ("csr", "coo", "csc"))
_MOST_PADDING = 12.0  # places over entries: beyond it the usual limit of padding refuses
_ROUNDS = 5  # of a probe
PROBE_CALLS = _ROUNDS + 1  # of each of the two
# A predicted gain over CSR is taken without a probe if it exceeds this many standard deviations of such predictions.
SURE = 1.5
# What a selection takes at most on caches that hold other things: a time, and as much more an entry.
SELECTION_S, _SELECTION_S_OF_ENTRY = 2e-3, 5e-9
# It is not made where it would take a larger share of the time of all products to come.
_SELECTION_SHARE = 0.03


@dataclass(frozen=True)
class Choice:
    """A format for a matrix, and what is expected of it.

    name: such as "csr" or "bsr4", a key of CANDIDATES. seconds: of a product. conversion_s: to get there from where the
    matrix is. bytes: that a product reads of the matrix. cost: the objective, 1 for CSR. runner_up: the next best name,
    with its seconds. source: where the numbers come from, a line. predictions: seconds of every format considered.
    settled_by: "prediction", "probe" or "csr", see `settlement`.
    """

    name: str
    seconds: float
    conversion_s: float
    bytes: float
    cost: float
    runner_up: str
    runner_up_seconds: float
    source: str
    predictions: Mapping[str, float]
    settled_by: str = "prediction"
    _x: Any = field(default=None, repr=False, compare=False)
    _model: Model | None = field(default=None, repr=False, compare=False)

    def why(self, most: int = 5) -> list[tuple[str, float, float]]:
        """What speaks for the choice over CSR (over the runner-up, if it is CSR): (feature, its value, times faster).

        The factors of all features multiply to the ratio of the two predictions. By the analytic model there is one:
        bytes.
        """
        other = "csr" if self.name != "csr" else self.runner_up
        if self._model is None:
            return [("bytes", self.bytes, self.predictions[other] / self.predictions[self.name])]
        names = list(self.predictions)
        pair = self._x[[names.index(self.name), names.index(other)]]
        parts = self._model.regressors.contributions(pair)
        factors = np.exp2(parts[1] - parts[0])
        found = [(name, float(pair[0, k]), float(factors[k])) for k, name in enumerate(COLUMNS)]
        return sorted(found, key=lambda part: -abs(np.log(part[2])))[:most]


def choose(
    A: SparseMatrix,
    F: int,
    uses: int = 100,
    w: float = 0.0,
    *,
    dtype: torch.dtype = torch.float32,
    values_change: bool = False,
    formats: Sequence[str] | None = None,
    model: Model | None = None,
) -> Choice:
    """The format in which `uses` products of A with F columns cost least, as far as can be predicted.

    Args:
        A: the matrix; for its transpose pass A.T. Formats that it already has cost no conversion.
        F: columns of the dense operand, at least 1.
        uses: products that are to come, at least 1.
        w: weight of memory against time, in [0, 1].
        dtype: of the dense operand.
        values_change: other values come with every product, as in training or dropout (assumed where A's require a
            gradient). Formats that keep values in an order of their own are then out of the question.
        formats: names to choose from, by default all.
        model: to predict by; by default that of this kind of device. Without one the bytes that move decide, and a
            warning says so once.

    Raises:
        TypeError, ValueError: an argument out of range, an unknown format.
    """
    _check(A, F, uses, w)
    for name in formats or ():
        if name not in CANDIDATES:
            raise ValueError(f"formats: need some of {', '.join(CANDIDATES)}, got {name!r}")
    found = features(A)
    weighted = A.values is not None
    values_change = A.values is not None and (values_change or A.values.requires_grad)
    usual = [name for name in NAMES if not (values_change and name in _REORDERS)]
    allowed = [name for name in formats or usual if name == "csr" or padding(found, name) <= _MOST_PADDING]
    if not allowed:
        least = min(padding(found, name) for name in formats or ())
        raise ValueError(f"formats: {', '.join(formats or ())} would take {least:.0f} places for every entry")
    names = ["csr", *(name for name in allowed if name != "csr")]  # CSR is the measure of all costs
    model = model or _model_of(A.device.type)
    x = design(found, F, weighted, names, dtype.itemsize)
    if model is None:
        bandwidth = copy_bandwidth()
        bound = [bound_bytes(found, name, weighted, F, dtype.itemsize) for name in names]
        seconds = np.array(bound) / bandwidth
        conversion = [_analytic_conversion(found, name) / bandwidth for name in names]
        source = f"bytes that move: no model for {kind_of(A.device)}; make selector trains one"
    else:
        seconds = model.seconds(x)
        conversion = [model.conversion_s(found, name) for name in names]
        source = f"model of {describe(model.machine)}"
        if model.machine != fingerprint(A.device):
            source += ", another machine"
    held = np.array([matrix_bytes(found, name, weighted) for name in names])
    have = [A.pattern.has(CANDIDATES[n].format, A.transposed, CANDIDATES[n].key()) for n in names]
    convert = np.where(have, 0.0, conversion)
    total = convert + uses * seconds
    cost = (1 - w) * total / total[0] + w * held / held[0]
    order = sorted((names.index(name) for name in allowed), key=lambda k: (cost[k], k))
    best = order[0]
    second = order[1] if len(order) > 1 else best
    how = "prediction"
    if best:
        spread = np.inf if model is None else model.spread.get(names[best], np.inf)
        pairs = [(float(convert[k]), float(seconds[k])) for k in (0, best)]
        how = settlement(pairs[0], pairs[1], uses, spread)
    return Choice(
        name=names[best],
        seconds=float(seconds[best]),
        conversion_s=float(convert[best]),
        bytes=float(held[best]),
        cost=float(cost[best]),
        runner_up=names[second],
        runner_up_seconds=float(seconds[second]),
        source=source,
        predictions=dict(zip(names, map(float, seconds))),
        settled_by=how,
        _x=x,
        _model=model,
    )


def _check(A: SparseMatrix, F: int, uses: int, w: float) -> None:
    if not isinstance(A, SparseMatrix):
        raise TypeError(f"A: need a SparseMatrix, got {type(A).__name__}")
    for name, number in (("F", F), ("uses", uses)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(f"{name}: need a whole number of at least 1, got {number!r}")
    if not 0.0 <= w <= 1.0:
        raise ValueError(f"w: need a number in [0, 1], got {w!r}")


def settlement(csr: tuple[float, float], other: tuple[float, float], uses: int, spread: float) -> str:
    """How it is settled whether to leave CSR for the format that is predicted to cost least in time.

    Args:
        csr, other: predicted seconds of the conversion and of a product.
        uses: products to come.
        spread: standard deviation of log2 of the predicted gain.

    Returns:
        "prediction": the gain is far beyond the error of such predictions; "probe": it is not, and timing both costs
        less than it promises to save; "csr": it costs more, and CSR it stays.
    """
    gain = np.log2((csr[0] + uses * csr[1]) / (other[0] + uses * other[1]))
    if gain > SURE * spread:
        return "prediction"
    probe_s = other[0] + PROBE_CALLS * (csr[1] + other[1])
    return "probe" if probe_s <= uses * (csr[1] - other[1]) else "csr"


def worth_looking(model: Model | None, rows: int, nnz: int, F: int, uses: int) -> bool:
    """Whether all products to come take so long, in CSR, that a selection is a small part of it."""
    if model is None:
        return True
    selection = SELECTION_S + _SELECTION_S_OF_ENTRY * nnz
    return _SELECTION_SHARE * uses * model.quick_csr_s(rows, nnz, F) > selection


def _analytic_conversion(found: Features, name: str) -> float:
    """Bytes that a conversion moves, roughly: a dozen passes over entries and places."""
    return 12 * 8 * found["nnz"] * (1 + padding(found, name))


def _model_of(device: str) -> Model | None:
    kind = kind_of(device)
    model = model_for(kind)
    here = fingerprint(device)
    if model is None:
        _say_once(
            f"no format selector was trained on a device of the kind {kind}, so formats are chosen by the bytes that "
            f"they move; `make selector` trains one in half an hour ({describe(here)})"
        )
    elif model.machine != here:
        _say_once(
            f"formats are chosen by a model that was trained on another machine ({describe(model.machine)}; this one "
            f"is {describe(here)}); `make selector` trains one here in half an hour"
        )
    return model


@functools.cache
def _say_once(text: str) -> None:
    warnings.warn(text, stacklevel=4)


def settle(A: SparseMatrix, F: int, choice: Choice, dtype: torch.dtype = torch.float32) -> str:
    """The name to use in the end, of a choice by time alone: the choice, or CSR; see `settlement`.

    A probe converts, and runs both a few times in turns. Storage of the loser is dropped.
    """
    if choice.settled_by != "probe":
        return choice.name if choice.settled_by == "prediction" else "csr"
    candidate = CANDIDATES[choice.name]
    before = A.pattern.has(candidate.format, A.transposed, candidate.key())
    try:
        stored = A.to(candidate.format, **candidate.params)
    except ValueError:  # more padding than the sample showed, or parallel edges
        return "csr"
    best = _race(A.to("csr"), stored, torch.randn(A.shape[1], F, dtype=dtype, device=A.device))
    if best == 1:
        return choice.name
    if not before:
        A.pattern.drop(candidate.format, A.transposed, candidate.key())
    return "csr"


def _race(csr: SparseMatrix, other: SparseMatrix, x: torch.Tensor) -> int:
    """0 if the first is quicker, 1 if the second: medians of products taken in turns, the first of each not counted."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(_ROUNDS + 1):
        for B, mine in zip((csr, other), seconds):
            start = time.perf_counter()
            with torch.no_grad():
                spmm(B, x)
            if x.device.type != "cpu":
                torch.cuda.synchronize(x.device)
            if turn:
                mine.append(time.perf_counter() - start)
    return int(np.median(seconds[1]) < np.median(seconds[0]))


_settled: MutableMapping[Pattern, dict[tuple, str]] = weakref.WeakKeyDictionary()


def auto(
    A: SparseMatrix,
    F: int,
    uses: int = 100,
    w: float = 0.0,
    *,
    dtype: torch.dtype = torch.float32,
    values_change: bool = False,
    backward: bool = True,
    on_choice: Callable[[str, str], None] | None = None,
) -> SparseMatrix:
    """See `SparseMatrix.auto`. on_choice: called with "forward" or "backward" and the name chosen."""
    _check(A, F, uses, w)

    def in_best(B: SparseMatrix, direction: str) -> SparseMatrix:
        weighted = B.values is not None
        changing = values_change or (B.values is not None and B.values.requires_grad)
        key = (B.transposed, F, uses, w, dtype, weighted, changing)
        known = _settled.setdefault(B.pattern, {})
        if key not in known:
            model = _model_of(B.device.type)
            if w or worth_looking(model, B.shape[0], B.nnz, F, uses):
                choice = choose(B, F, uses, w, dtype=dtype, values_change=values_change, model=model)
                # Where memory counts too, times do not settle it.
                known[key] = choice.name if w else settle(B, F, choice, dtype)
            else:
                known[key] = "csr"
        name = known[key]
        if on_choice is not None:
            on_choice(direction, name)
        candidate = CANDIDATES[name]
        try:
            return B.to(candidate.format, **candidate.params)
        except ValueError:
            known[key] = "csr"
            return B.to("csr")

    stored = in_best(A, "forward")
    return in_best(stored.T, "backward").T if backward else stored
