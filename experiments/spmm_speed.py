"""Study: speed of the sparse-dense product by graph and number of columns, against the peers and the memory bound."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from braidwork.kernels.cache import cache_dir
from braidwork.kernels.sparse import SparseMatrix, spmm
from braidwork.kernels.timing import Cost, compare, copy_bandwidth
from braidwork.models import BACKENDS, Coo
from braidwork.models.edges import symmetric_scale

from .datasets import DatasetError, load
from .figures.spmm_speed import LABELS, throughput_panels
from .settings import settings
from .study import Context, Plot, Rows, Study, TableView
from .tables import by, milliseconds, ratio_of_samples, times

NAME = "spmm_speed"
_INDEX_BYTES = _VALUE_BYTES = 4


def spmm_cost(nnz: int, rows: int, cols: int, width: int) -> Cost:
    """Least traffic and arithmetic of Y = A X in fp32 with int32 indices.

    Bytes: every index, value and row pointer and all of X read once, Y written once. X is read once only if a cache
    holds what is used again, so this is a bound and not a model.
    """
    matrix = nnz * (_INDEX_BYTES + _VALUE_BYTES) + (rows + 1) * _INDEX_BYTES
    return Cost(bytes=matrix + (rows + cols) * width * _VALUE_BYTES, flops=2.0 * nnz * width)


def _products(edges: Coo, backends: list[str]) -> dict[str, Callable[[Tensor], Any]]:
    """The same weighted matrix as each backend likes it best, as functions of X."""
    made: dict[str, Callable[[Tensor], Any]] = {}
    if "braidwork" in backends:
        ours = SparseMatrix.from_coo(*edges)
        made["braidwork"] = lambda x: spmm(ours, x)
    if "torch" in backends:
        theirs = BACKENDS["torch"].features(edges)
        made["torch"] = theirs.matmul
    if "scipy" in backends:
        value = np.ones(edges.nnz, np.float32) if edges.value is None else edges.value.numpy()
        csr = scipy.sparse.csr_matrix((value, (edges.row.numpy(), edges.col.numpy())), shape=edges.shape)
        csr.indices, csr.indptr = csr.indices.astype("int32"), csr.indptr.astype("int32")
        made["scipy"] = lambda x: csr @ x.numpy()
    return {name: made[name] for name in backends}


def _weighted(edges: Coo) -> Coo:
    """D^-1/2 A D^-1/2, with values: every peer reads the same."""
    scale = symmetric_scale(edges)
    return edges._replace(value=(scale[edges.row] * scale[edges.col]).float())


def run(context: Context) -> None:
    chosen = context.settings
    graphs = [name for name in chosen["graphs"] if name not in chosen["optional"] or _is_fetched(name)]
    points = {
        name: [w for w in chosen["widths"] if not all(context.done(NAME, p) for p in _points(chosen, name, w).values())]
        for name in graphs
    }
    context.progress.start("SpMM by graph and width", sum(len(widths) for widths in points.values()))
    for name, widths in points.items():
        if not widths:
            continue
        try:
            edges = _weighted(load(settings("train", [f"dataset={name}"])["dataset"]).edges)
        except DatasetError as error:
            context.notes.append(str(error))
            context.progress.say(f"left out: {error}")
            continue
        products = _products(edges, chosen["backends"])
        for width in widths:
            _run_point(context, name, edges, width, products)


def _is_fetched(name: str) -> bool:
    wheel = settings("train", [f"dataset={name}"])["dataset"]["package"].replace("-", "_")
    return any((cache_dir() / "wheels").glob(f"{wheel}-*.whl"))


def _points(chosen: Mapping[str, Any], graph: str, width: int) -> dict[str, dict[str, Any]]:
    common = {"graph": graph, "width": width, "dtype": "float32", "rounds": chosen["rounds"]}
    return {backend: common | {"backend": backend} for backend in chosen["backends"]}


def _run_point(context: Context, name: str, edges: Coo, width: int, products: Mapping[str, Callable]) -> None:
    x = torch.randn(edges.shape[1], width, generator=torch.Generator().manual_seed(0))
    outputs = {backend: torch.as_tensor(product(x)) for backend, product in products.items()}
    expected = next(reversed(outputs.values()))
    for backend, got in outputs.items():
        if not torch.allclose(got, expected, rtol=1e-4, atol=1e-5):
            raise RuntimeError(f"{backend} differs on {name}, width {width}: not timed")
    rounds = context.settings["rounds"]
    timing = compare({b: partial(product, x) for b, product in products.items()}, rounds=rounds, min_time_s=0.3)
    cost = spmm_cost(edges.nnz, *edges.shape, width)
    for backend, point in _points(context.settings, name, width).items():
        results = {
            "nodes": edges.shape[0],
            "nnz": edges.nnz,
            "median_s": timing[backend].median_s,
            "samples_s": list(timing[backend].samples_s),
            "bytes": cost.bytes,
            "flops": cost.flops,
            "copy_bandwidth": copy_bandwidth(),
        }
        context.table.append(NAME, point, results)
    note = ", ".join(f"{LABELS[b]} {milliseconds(t.median_s)} ms" for b, t in timing.items())
    context.progress.advance(1, f"{name} F={width}: {note}")


def _cases(rows: Rows) -> dict[tuple[str, int], dict[str, dict]]:
    grouped = by(rows, lambda row: (row["config"]["graph"], row["config"]["width"]))
    return {case: {row["config"]["backend"]: row for row in group} for case, group in grouped.items()}


def _ratio(case: Mapping[str, Any], peer: str) -> float | None:
    ours, theirs = case.get("braidwork"), case.get(peer)
    if ours is None or theirs is None or len(ours["samples_s"]) != len(theirs["samples_s"]):
        return None
    return ratio_of_samples(theirs["samples_s"], ours["samples_s"])


def _peers(rows: Rows) -> list[str]:
    return [b for b in LABELS if b != "braidwork" and any(row["config"]["backend"] == b for row in rows)]


def findings(rows: Rows) -> list[str]:
    cases = _cases(rows)
    found = []
    for peer in _peers(rows):
        ratios = [ratio for case in cases.values() if (ratio := _ratio(case, peer)) is not None]
        if ratios:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            found.append(
                f"SpMM is {mean:.2f} times as fast as {LABELS[peer]} (geometric mean of {len(ratios)} cases; "
                f"least {min(ratios):.2f}, most {max(ratios):.2f})."
            )
    return found


def tables(rows: Rows) -> list[TableView]:
    peers = _peers(rows)
    lines = []
    for (graph, width), case in _cases(rows).items():
        any_row = next(iter(case.values()))
        bound_s = any_row["bytes"] / any_row["copy_bandwidth"]
        cells = [graph, f"{any_row['nodes']:,}", f"{any_row['nnz']:,}", str(width)]
        cells += [milliseconds(case[b]["median_s"]) if b in case else "" for b in LABELS]
        cells += [milliseconds(bound_s)]
        cells += [times(ratio) if (ratio := _ratio(case, peer)) is not None else "" for peer in peers]
        lines.append(cells)
    columns = ["graph", "rows", "entries", "F", *(f"{label}, ms" for label in LABELS.values()), "bound, ms"]
    columns += [f"× {LABELS[peer]}" for peer in peers]
    return [TableView("Every case", columns, lines, folded=True)]


def _caption(rows: Rows) -> str:
    bandwidth = statistics.median(row["copy_bandwidth"] for row in rows)
    return (
        "Arithmetic throughput of Y = A X in fp32, A the normalised adjacency with values, over the columns F of X. "
        f"Calls are timed in turns in one process, {rows[0]['config']['rounds']} rounds or more, medians. Dashed: the "
        "throughput at which memory would be the limit, if the matrix and X were read once and Y written once at the "
        f"bandwidth of a plain copy measured here, {bandwidth / 1e9:.1f} GB/s (read and written bytes counted). A "
        "product whose data stays in the cache can be above it."
    )


STUDY = Study(
    name=NAME,
    title="Sparse-dense product",
    text=(
        "The product that all of the above rests on, alone: on social, technical and lexical networks and a mesh, by "
        "the number of feature columns."
    ),
    run=run,
    findings=findings,
    plots=(Plot("spmm_speed", throughput_panels, _caption),),
    tables=tables,
)
