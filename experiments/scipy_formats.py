"""Study: the setting of the paper that the selector follows. Seven formats of SciPy on the CPU, one predictor.

S. Qiu, L. You and Z. Wang, "Optimizing sparse matrix multiplications for graph neural networks", LCPC 2021, let a model
choose among COO, CSR, CSC, DIA, BSR, DOK and LIL for the products of a graph network and report, over the default of
COO, 1.17 times the speed on average and up to 3 times. Here the predictor reads the features of `selector.features`,
and its two boosters learn the logarithms of a product's and of a conversion's time over those of a product in CSR.
"""

from __future__ import annotations

import functools
import operator
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.sparse
import torch

from braidwork.kernels.sparse import SparseMatrix
from braidwork.kernels.timing import compare
from braidwork.selector.corpus import Spec, corpus
from braidwork.selector.features import Features, features
from braidwork.selector.measure import BEHIND
from braidwork.selector.model import COMMON_OF_MATRIX, PARAMS

from .figures.scipy_formats import FORMATS, gains
from .study import Context, Plot, Rows, Study, TableView
from .tables import times

NAME = "scipy_formats"
_MOST_PADDING = 12.0  # places of DIA over entries: as for this project's own formats
_MOST_FOR_DOK = 50_000  # entries: a dictionary of more takes seconds to fill, and is two orders of magnitude behind
_CSR, _COO = FORMATS.index("csr"), FORMATS.index("coo")


def run(context: Context) -> None:
    chosen = dict(context.settings)
    if context.done(NAME, chosen):
        return
    specs = list(corpus(chosen["per_family"], chosen["least_nnz"], chosen["most_nnz"], chosen["seed"]))
    context.progress.start("the formats of SciPy", len(specs))
    products: list[dict[str, Any]] = []
    for spec in specs:
        products += measure(spec, chosen["widths"], chosen["rounds"])
        context.progress.advance(1, spec.name)
    context.table.append(NAME, chosen, judge(products, chosen["uses"], chosen["boosting"]))


def measure(spec: Spec, widths: list[int], rounds: int) -> list[dict[str, Any]]:
    """For every width: features, and by format the seconds of a conversion from COO and of a product."""
    A = spec.build()
    start = time.perf_counter()
    found = features(A)
    features_s = time.perf_counter() - start
    stored, convert_s = _convert(A)
    rng = np.random.default_rng(0)
    out = []
    for F in widths:
        x = rng.standard_normal((A.shape[1], F), dtype=np.float32)
        calls = {name: functools.partial(operator.matmul, B, x) for name, B in stored.items()}
        product_s = {name: _once(call) for name, call in calls.items()}
        timed = {name: call for name, call in calls.items() if product_s[name] < BEHIND * product_s["csr"]}
        timing = compare(timed, rounds=rounds, warmup=1)
        product_s |= {name: timing["csr"].median_s / timing.speedup(name, over="csr") for name in timed}
        out.append(
            {"family": spec.family, "features": found, "F": F, "features_s": features_s} |
            {"convert_s": convert_s, "product_s": product_s}
        )  # fmt: skip
    return out


def _convert(A: SparseMatrix) -> tuple[dict[str, Any], dict[str, float]]:
    """The matrix in every format, and the seconds that each took from COO."""
    value = A.values
    assert value is not None
    coo = scipy.sparse.coo_array((value.numpy(), (A.row.numpy(), A.col.numpy())), shape=A.shape)
    stored, seconds = {"coo": coo}, {"coo": 0.0}
    diagonals = np.unique(coo.col.astype(np.int64) - coo.row).size
    for name in FORMATS:
        refused = {"coo": True, "dia": diagonals * A.shape[1] > _MOST_PADDING * A.nnz, "dok": A.nnz > _MOST_FOR_DOK}
        if not refused.get(name):
            start = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", scipy.sparse.SparseEfficiencyWarning)  # DIA, whose padding is bounded
                stored[name] = coo.asformat(name)
            seconds[name] = time.perf_counter() - start
    return stored, seconds


def _once(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def judge(products: list[dict[str, Any]], uses: int, boosting: int) -> dict[str, Any]:
    """Choices on families left out, against COO, CSR and the best: gains of a product, and of `uses` with all costs."""

    def table(what: str) -> np.ndarray:
        return np.array([[product[what].get(name, np.nan) for name in FORMATS] for product in products])

    product_s, convert_s = table("product_s"), table("convert_s")
    family = np.array([product["family"] for product in products])
    x, place = _design(products)
    csr = product_s[:, _CSR, None]
    total = convert_s + uses * product_s
    # As multiples of CSR's product; a format at hand converts in no time, whose logarithm the floor keeps finite.
    targets = [np.log2(values / csr + 1e-3)[place] for values in (product_s, convert_s)]
    measured = ~np.isnan(targets[0])
    predicted, predict_s = np.full((2, *product_s.shape), np.nan), 0.0
    for left_out in sorted(set(family)):
        mine = family[place[0]] == left_out
        for k, target in enumerate(targets):
            booster = _train(x[~mine & measured], target[~mine & measured], boosting)
            start = time.perf_counter()
            found = booster.predict(x[mine], num_threads=1)
            predict_s += time.perf_counter() - start
            predicted[k][place[0][mine], place[1][mine]] = np.exp2(found)
    cost = np.where(np.isnan(product_s), np.nan, predicted[1] + uses * predicted[0])
    pick, best = np.nanargmin(cost, 1), np.nanargmin(total, 1)
    rows = np.arange(len(products))
    overhead = np.array([product["features_s"] for product in products]) + predict_s / len(products)
    return {
        "family": family.tolist(),
        "F": [product["F"] for product in products],
        "nnz": [product["features"]["nnz"] for product in products],
        "pick": [FORMATS[k] for k in pick],
        "best": [FORMATS[k] for k in best],
        # Times over those of the choice.
        "product_over": {
            "coo": (product_s[:, _COO] / product_s[rows, pick]).tolist(),
            "csr": (product_s[:, _CSR] / product_s[rows, pick]).tolist(),
        },
        "total_over": {
            "coo": (total[:, _COO] / (overhead + total[rows, pick])).tolist(),
            "csr": (total[:, _CSR] / (overhead + total[rows, pick])).tolist(),
            "best": (total[rows, best] / (overhead + total[rows, pick])).tolist(),
        },
        "oracle_over_coo": (total[:, _COO] / total[rows, best]).tolist(),
        "overhead_s": float(np.median(overhead)),
    }


def _design(products: list[dict[str, Any]]) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """A row for every product and format, the format last; and which product and format it is."""
    rows = []
    for product in products:
        found = Features(product["features"]).of_product(product["F"], torch.float32, weighted=True)
        common = [found[name] for name in COMMON_OF_MATRIX]
        rows += [[*common, float(k)] for k in range(len(FORMATS))]
    place = np.divmod(np.arange(len(rows)), len(FORMATS))
    return np.array(rows), place


def _train(x: np.ndarray, y: np.ndarray, boosting: int) -> Any:
    import lightgbm

    dataset = lightgbm.Dataset(x, y, categorical_feature=[x.shape[1] - 1], params={"verbose": -1})
    return lightgbm.train(PARAMS, dataset, boosting)


def _mean(values: list[float]) -> float:
    """The geometric mean."""
    return float(np.exp(np.log(values).mean()))


def findings(rows: Rows) -> list[str]:
    row = rows[-1]
    over, uses = row["total_over"], row["config"]["uses"]
    return [
        f"Among SciPy's seven formats the chosen one is {_mean(over['coo']):.2f} times as fast as COO, at best "
        f"{max(over['coo']):.1f} times, and {_mean(over['csr']):.3f} times as fast as always CSR (geometric means of "
        f"{len(over['coo'])} products, {uses} uses, features, prediction and conversion included); the paper reports "
        f"1.17 and up to 3 over COO."
    ]


def tables(rows: Rows) -> list[TableView]:
    row = rows[-1]
    methods: Mapping[str, list[float]] = {
        "chosen over COO, a product alone": row["product_over"]["coo"],
        "chosen over CSR, a product alone": row["product_over"]["csr"],
        "chosen over COO, all included": row["total_over"]["coo"],
        "chosen over CSR, all included": row["total_over"]["csr"],
        "oracle over COO, conversion included": row["oracle_over_coo"],
    }
    lines = [
        [label, times(_mean(values)), times(float(np.quantile(values, 0.05))), times(min(values)), times(max(values))]
        for label, values in methods.items()
    ]
    columns = ["times as fast", "geometric mean", "5th percentile", "least", "most"]
    return [TableView("SciPy's formats, chosen on families left out", columns, lines)]


def _caption(rows: Rows) -> str:
    row = rows[-1]
    config = row["config"]
    return (
        f"{len(row['family'])} products of {config['widths'][0]} to {config['widths'][-1]} columns with synthetic "
        f"matrices of {len(set(row['family']))} families, {min(row['nnz']):,.0f} to {max(row['nnz']):,.0f} entries, in "
        f"SciPy on one core. Left: times as fast as COO over {config['uses']} uses, products in the order of the gain; "
        f"features, prediction (together {1e3 * row['overhead_s']:.1f} ms in the median) and conversion are in what is "
        "chosen, conversion alone in what is best. Right: how often each format is chosen and is the best, in the same "
        "account."
    )


STUDY = Study(
    name=NAME,
    title="The formats of SciPy",
    text=(
        "The experiment that the choice of formats goes back to, with the same kind of predictor and none of this "
        "project's kernels."
    ),
    run=run,
    findings=findings,
    plots=(Plot("scipy_formats", gains, _caption),),
    tables=tables,
)
