"""The learned model: how long a product takes in every storage format, from the features of the matrix.

Two LightGBM regressors. The first says how far CSR stays behind the bytes that it moves, log2(time / bound) with the
analytic count of `features.bound_bytes`, so that sizes that were never seen extrapolate. The second says how much
longer or shorter than CSR's the time of another format is, log2(time / CSR's time): what a choice turns on, free of
what slows all formats alike. Its samples count the more the quicker they are, since a format that is far behind is
not chosen whether it is three or nine times as slow. All formats share it, with the format as a category.

Regression, not classification: formats that are as good as each other are no contradiction, and times can be weighed
against conversions and memory after the fact. How long conversion takes is a linear function of entries and places,
fitted to the same measurements.
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize
import torch

from braidwork.kernels.cache import cache_dir

from .features import NAMES, Features, bound_bytes, matrix_bytes, padding

# Of the matrix and the dense operand, in this order, for every format alike; then those of the format. Bytes and bounds
# are logarithms to base 2.
COMMON_OF_MATRIX = (
    "log_rows", "log_cols", "log_nnz", "mean", "cv", "longest_share", "longest_over_mean", "p50", "p90", "p99", "empty",
    "spread_share", "sell_fill", "hyb_tail", "ell_fill", "dia_fill", "bsr4_fill", "bsr8_fill", "bsr16_fill",
    "bsr32_fill", "F", "weighted", "log_operand", "log_in_use", "log_output", "log_work",
)  # fmt: skip
COMMON = (*COMMON_OF_MATRIX, "csr_bytes", "csr_bound")
OWN = ("format", "padding", "bytes_over_csr", "bound_over_csr")
COLUMNS = (*COMMON, *OWN)
_CSR_BOUND, _FORMAT = COLUMNS.index("csr_bound"), COLUMNS.index("format")
PARAMS: dict[str, Any] = {
    "objective": "l2",
    "learning_rate": 0.06,
    "num_leaves": 31,
    "min_data_in_leaf": 30,
    "feature_fraction": 0.7,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "lambda_l2": 1.0,
    "deterministic": True,
    "force_row_wise": True,
    "verbose": -1,
    "seed": 0,
}
ROUNDS = 400
_CSR = {"num_leaves": 15, "min_data_in_leaf": 10}
_CSR_ROUNDS = 200
_NO_SLOWER = 1.0  # log2 of times CSR: what is slower than that is taken to be so much slower
FAMILIES_AT_LEAST = 3  # to leave one out and still have something to learn from


@dataclass(frozen=True)
class Samples:
    """Measured products, one sample for each matrix, width and format, CSR among them.

    x: [samples, COLUMNS]; log_time: [samples], base 2, of seconds; product: [samples], number of the matrix and width
    that it belongs to; format: [samples], position in NAMES; family: of every product.
    """

    x: np.ndarray
    log_time: np.ndarray
    product: np.ndarray
    format: np.ndarray
    family: np.ndarray

    def take(self, keep: np.ndarray) -> Samples:
        """Those of the products for which `keep` is true; products keep their numbers."""
        mine = keep[self.product]
        return Samples(self.x[mine], self.log_time[mine], self.product[mine], self.format[mine], self.family)

    def matrix(self, values: np.ndarray) -> np.ndarray:
        """One value for each sample as [products, formats], NaN where a format was not measured."""
        out = np.full((self.family.shape[0], len(NAMES)), np.nan)
        out[self.product, self.format] = values
        return out


def design(found: Features, F: int, weighted: bool, names: Sequence[str] = NAMES, itemsize: int = 4) -> np.ndarray:
    """The features of one product in each of some formats: float64 [formats, COLUMNS]."""
    dtype = torch.float32 if itemsize == 4 else torch.bfloat16 if itemsize == 2 else torch.float64
    common = found.of_product(F, dtype, weighted)

    def sizes(name: str) -> tuple[float, float]:
        held, bound = matrix_bytes(found, name, weighted), bound_bytes(found, name, weighted, F, itemsize)
        return math.log2(max(held, 1)), math.log2(max(bound, 1))

    csr = sizes("csr")
    shared = [*(common[name] for name in COMMON_OF_MATRIX), *csr]
    rows = []
    for name in names:
        held, bound = sizes(name)
        rows.append([*shared, float(NAMES.index(name)), padding(found, name), held - csr[0], bound - csr[1]])
    return np.array(rows)


def samples(rows: Iterable[Mapping[str, Any]]) -> Samples:
    """The measured rows of a table (see `measure`) as samples."""
    x: list[np.ndarray] = []
    time: list[float] = []
    product: list[int] = []
    format: list[int] = []
    family: list[str] = []
    for row in rows:
        found = Features(row["features"])
        for timed in row["products"]:
            seconds = timed["s"]
            names = [name for name in NAMES if name in seconds]
            x.append(design(found, timed["F"], timed["weighted"], names))
            time += [seconds[name] for name in names]
            product += [len(family)] * len(names)
            format += [NAMES.index(name) for name in names]
            family.append(row["family"])
    if not x:
        raise ValueError("rows: no measurements to train on")
    return Samples(np.concatenate(x), np.log2(time), np.array(product), np.array(format), np.array(family))


@dataclass(frozen=True)
class Regressors:
    """The two boosters of LightGBM. csr: log2(CSR's time / bound) from COMMON; ratio: log2(time / CSR's time)."""

    csr: Any
    ratio: Any

    def log_seconds(self, x: np.ndarray) -> np.ndarray:
        """log2 of the seconds of a product, for each row of `design`."""
        csr = self.csr.predict(x[:, : len(COMMON)], num_threads=1) + x[:, _CSR_BOUND]
        return csr + self.log_over_csr(x)

    def log_over_csr(self, x: np.ndarray) -> np.ndarray:
        """log2 of the time over CSR's, 0 for CSR itself."""
        return np.where(x[:, _FORMAT] == 0, 0.0, self.ratio.predict(x, num_threads=1))

    def contributions(self, x: np.ndarray) -> np.ndarray:
        """What each of COLUMNS adds to `log_over_csr`: [rows, COLUMNS], the mean of all counted with the format."""
        parts = self.ratio.predict(x, pred_contrib=True, num_threads=1)
        parts[:, _FORMAT] += parts[:, -1]
        return np.where(x[:, _FORMAT, None] == 0, 0.0, parts[:, :-1])


def fit(data: Samples, rounds: int = ROUNDS, **params: Any) -> Regressors:
    """Both regressors, trained on all of the samples. rounds, params: of the second."""
    import lightgbm

    given = PARAMS | {"num_threads": torch.get_num_threads()}

    def train(x: np.ndarray, y: np.ndarray, weight: np.ndarray | None, names: Sequence[str], rounds: int, **own: Any):
        categories = ["format"] if "format" in names else []
        dataset = lightgbm.Dataset(
            x, y, weight=weight, feature_name=list(names), categorical_feature=categories, params={"verbose": -1}
        )
        return lightgbm.train(given | own, dataset, rounds)

    is_csr = data.format == 0
    csr_time = np.full(data.family.shape[0], np.nan)
    csr_time[data.product[is_csr]] = data.log_time[is_csr]
    x = data.x[is_csr]
    csr = train(
        x[:, : len(COMMON)], data.log_time[is_csr] - x[:, _CSR_BOUND], None, COMMON, min(rounds, _CSR_ROUNDS),
        **(_CSR | params),
    )  # fmt: skip
    y = (data.log_time - csr_time[data.product])[~is_csr].clip(max=_NO_SLOWER)
    weight = np.exp2(-2.0 * np.abs(y)) + 0.05
    return Regressors(csr, train(data.x[~is_csr], y, weight, COLUMNS, rounds, **params))


def fit_conversion(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Seconds of a conversion to each format: [a call, an entry, a place, a row], none negative, by relative error."""
    out = {}
    for name in NAMES:
        terms, seconds = [], []
        for row in rows:
            if name in row["convert_s"]:
                terms.append(conversion_terms(Features(row["features"]), name))
                seconds.append(row["convert_s"][name])
        if len(seconds) >= 8:
            scale = 1.0 / np.array(seconds)
            weights, _ = scipy.optimize.nnls(np.array(terms) * scale[:, None], np.ones(len(seconds)))
            out[name] = [float(w) for w in weights]
    return out


def conversion_terms(found: Mapping[str, float], name: str) -> list[float]:
    return [1.0, found["nnz"], found["nnz"] * padding(found, name), found["rows"]]


def fit_quick(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Seconds of a product in CSR from sizes alone: [a call, a row, an entry, an entry and column], by relative error.

    Rough, and free: it tells where there is nothing to gain by looking any closer.
    """
    terms, seconds = [], []
    for row in rows:
        for timed in row["products"]:
            terms.append(quick_terms(row["features"]["rows"], row["features"]["nnz"], timed["F"]))
            seconds.append(timed["s"]["csr"])
    scale = 1.0 / np.array(seconds)
    weights, _ = scipy.optimize.nnls(np.array(terms) * scale[:, None], np.ones(len(seconds)))
    return [float(w) for w in weights]


def quick_terms(rows: float, nnz: float, F: int) -> list[float]:
    """What the weights of `fit_quick` are of."""
    return [1.0, rows, nnz, nnz * F]


@dataclass
class Model:
    """A trained model with what it was trained on.

    regressors: see `fit`. machine: `machine.fingerprint` of where times were taken. conversion: see `fit_conversion`.
    spread: standard deviation of log2(time / prediction) relative to CSR on families held out, by format. quick: see
    `fit_quick`. report: what cross-validation found, for the reader.
    """

    regressors: Any
    machine: dict[str, Any]
    conversion: dict[str, list[float]]
    quick: list[float] = field(default_factory=lambda: [0.0] * 4)
    spread: dict[str, float] = field(default_factory=dict)
    report: dict[str, float] = field(default_factory=dict)

    def seconds(self, x: np.ndarray) -> np.ndarray:
        """Seconds of a product for each row of `design`."""
        return np.exp2(self.regressors.log_seconds(x))

    def quick_csr_s(self, rows: int, nnz: int, F: int) -> float:
        """Seconds of a product in CSR, roughly."""
        return float(np.dot(self.quick, quick_terms(rows, nnz, F)))

    def conversion_s(self, found: Features, name: str) -> float:
        """Seconds that a conversion from coordinates takes."""
        weights = self.conversion.get(name)
        return float(np.dot(weights, conversion_terms(found, name))) if weights else 0.0

    def save(self, folder: Path) -> Path:
        """Write `<kind>.txt` and `<kind>-csr.txt`, LightGBM's own text, and `<kind>.json`, the rest. Returns the first.

        Each file is there as a whole or not at all.
        """
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.machine['kind']}.txt"
        rest = {name: getattr(self, name) for name in ("machine", "conversion", "quick", "spread", "report")}
        texts = {
            _csr_path(path): self.regressors.csr.model_to_string(),
            path.with_suffix(".json"): json.dumps(rest, indent=1) + "\n",
            path: self.regressors.ratio.model_to_string(),
        }
        for where, text in texts.items():
            partial = where.with_name(f"{where.name}.{os.getpid()}.partial")
            partial.write_text(text)
            os.replace(partial, where)
        return path

    @classmethod
    def load(cls, path: Path) -> Model:
        """What `save` wrote. Raises ValueError: a file that is none, or of other features."""
        import lightgbm

        try:
            csr, ratio = (_booster(part) for part in (_csr_path(path), path))
            rest = json.loads(path.with_suffix(".json").read_text())
            model = cls(Regressors(csr, ratio), **rest)
        except (OSError, TypeError, ValueError, lightgbm.basic.LightGBMError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ValueError(f"{path}: not a model ({reason}); make selector trains one") from None
        if (tuple(csr.feature_name()), tuple(ratio.feature_name())) != (COMMON, COLUMNS):
            raise ValueError(f"{path}: a model of other features; make selector trains one anew")
        return model


def _csr_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}-csr.txt")


def _booster(path: Path) -> Any:
    """A booster from LightGBM's text, whose end is looked for: a file that was cut off would be read without a word."""
    import lightgbm

    text = path.read_text()
    if not text.startswith("tree\n") or "end of parameters" not in text:
        raise ValueError(f"{path.name} is cut off or no text of LightGBM")
    return lightgbm.Booster(model_str=text)


def own_folder() -> Path:
    """Where `make selector` puts models."""
    return cache_dir() / "selector"


def reload() -> None:
    """Read models again."""
    model_for.cache_clear()


@functools.cache
def model_for(kind: str) -> Model | None:
    """The user's own model for a kind of device, else the shipped one, else None."""
    own = own_folder() / f"{kind}.txt"
    if own.is_file():
        return Model.load(own)
    shipped = files("braidwork.selector") / "data" / f"{kind}.txt"
    return Model.load(Path(str(shipped))) if shipped.is_file() else None
