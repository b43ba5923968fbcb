"""Study: when leaving CSR pays. Cumulative time over the number of uses, and runs in which the sparsity changes.

A choice costs time before it saves any: features, a prediction, a conversion, and a probe where it is close. All of it
is inside the times of this study, which begin at matrices that hold nothing but coordinates.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from braidwork.kernels.sparse import SparseMatrix, spmm
from braidwork.kernels.timing import compare
from braidwork.models import Coo
from braidwork.selector.corpus import matrix
from braidwork.selector.features import CANDIDATES
from braidwork.selector.measure import convert

from .datasets import load
from .figures.selector_runs import break_even, changes
from .settings import settings
from .study import Context, Plot, Rows, Study, TableView
from .tables import milliseconds, times

NAME = "selector_runs"
_BEHIND = 2.0  # times CSR's product: such a format never breaks even and is left out
# A step of a run: the matrix at hand, and how many products come before it changes.
Step = tuple[SparseMatrix, int]


def run(context: Context) -> None:
    chosen = context.settings
    points = [{"what": "uses", "matrix": name, "F": chosen["F"], "uses": chosen["uses"], "rounds": chosen["rounds"]}
              for name in chosen["matrices"]]  # fmt: skip
    points += [{"what": "changes", "run": name, "rounds": chosen["rounds"], **chosen["runs"][name]} for name in RUNS]
    context.progress.start("formats over a run", len(points))
    for point in points:
        name = point.get("matrix") or point["run"]
        if not context.done(NAME, point):
            results = over_uses(**point) if point["what"] == "uses" else over_changes(point)
            context.table.append(NAME, point, results)
        context.progress.advance(1, name)


def _fresh(A: SparseMatrix) -> SparseMatrix:
    """The matrix with nothing but coordinates and values."""
    return SparseMatrix.from_coo(A.row, A.col, A.values, A.shape, duplicates="keep")


def _built(name: str) -> SparseMatrix:
    """A data set's adjacency, without values, or "elements": a matrix of finite elements with eight unknowns a node."""
    if name == "elements":
        return matrix("elements", nnz=400_000, unknowns=8, dims=3, ordered=True).with_values(None)
    edges: Coo = load(settings("train", [f"dataset={name}"])["dataset"]).edges
    return SparseMatrix.from_coo(edges.row, edges.col, shape=edges.shape)


def over_uses(matrix: str, F: int, uses: Sequence[int], rounds: int, **_: Any) -> dict[str, Any]:
    """Seconds of a conversion and of a product in every format, and of selection and a product as chosen."""
    A = _built(matrix)
    x = torch.randn(A.shape[1], F, generator=torch.Generator().manual_seed(0))
    stored: dict[str, SparseMatrix] = {}
    convert_s: dict[str, float] = {}
    for name in CANDIDATES:
        tries = [convert(A, name) for _ in range(3)]  # the first one compiles
        if tries[-1] is not None:
            stored[name] = tries[-1][0]
            convert_s[name] = min(found[1] for found in tries if found is not None)
    calls: dict[str, Callable[[], object]] = {name: lambda B=B: spmm(B, x) for name, B in stored.items()}
    timing = compare(calls, rounds=rounds, warmup=1)
    product_s = {name: timing["csr"].median_s / timing.speedup(name, over="csr") for name in calls}
    selection = []
    for count in uses:
        picked: dict[str, str] = {}
        seconds = []
        for _ in range(3):
            fresh = _fresh(A)
            start = time.perf_counter()
            fresh.auto(F, count, backward=False, on_choice=picked.__setitem__)
            seconds.append(time.perf_counter() - start)
        selection.append({"uses": count, "format": picked["forward"], "s": statistics.median(seconds)})
    shown = [name for name in stored if product_s[name] < _BEHIND * product_s["csr"]]
    return {
        "nnz": A.nnz,
        "rows": A.shape[0],
        "convert_s": {name: convert_s[name] for name in shown},
        "product_s": {name: product_s[name] for name in shown},
        "selection": selection,
    }


def pruning(size: int, block: int, steps: int, uses: int, last: float, **_: Any) -> Iterator[Step]:
    """A weight [size, size] whose smallest blocks are pruned, from half of them to the share `last`.

    The share of zeros grows as 1 - (1 - t)^3, as in M. Zhu and S. Gupta, "To prune, or not to prune", 2017. Every
    stage is used as it is, as when a pruned network is evaluated.
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(size, size, generator=generator)
    many = size // block
    order = weight.view(many, block, many, block).square().sum((1, 3)).flatten().argsort(descending=True)
    for step in range(steps):
        zeros = 0.5 + (last - 0.5) * (1 - (1 - step / (steps - 1)) ** 3)
        kept = torch.zeros(many * many, dtype=torch.bool)
        kept[order[: round((1 - zeros) * many * many)]] = True
        mask = kept.view(many, 1, many, 1).expand(many, block, many, block).reshape(size, size)
        yield SparseMatrix.from_torch(weight * mask), uses


def drop_edge(matrix: str, rate: float, whole: int, dropped: int, **_: Any) -> Iterator[Step]:
    """DropEdge (Rong et al., 2020) between spells on the whole graph: `dropped` steps of two products each, on edges
    drawn anew for each, and `whole` products before, in the middle and after."""
    A = _built(matrix)
    generator = torch.Generator().manual_seed(0)
    for k in range(2 * dropped + 3):
        if k % (dropped + 1) == 0:
            yield _fresh(A), whole
        else:
            keep = torch.rand(A.nnz, generator=generator) >= rate
            yield SparseMatrix.from_coo(A.row[keep], A.col[keep], shape=A.shape), 2


def relu(rows: int, width: int, steps: int, uses: int, **_: Any) -> Iterator[Step]:
    """Activations max(X W - b, 0), from dense to sparse as the bias b grows, each multiplied by the next weight."""
    generator = torch.Generator().manual_seed(0)
    before = torch.randn(rows, width, generator=generator)
    for step in range(steps):
        yield SparseMatrix.from_torch((before - 3.0 * step / (steps - 1)).relu()), uses


RUNS: Mapping[str, Callable[..., Iterator[Step]]] = {"pruning": pruning, "drop_edge": drop_edge, "relu": relu}


def over_changes(point: Mapping[str, Any]) -> dict[str, Any]:
    """For every step the seconds of always CSR, of choosing anew, and of keeping to what was chosen first."""
    F, first, out = point["F"], "", []
    for A, uses in RUNS[point["run"]](**point):
        x = torch.randn(A.shape[1], F, generator=torch.Generator().manual_seed(1))
        picked: dict[str, str] = {}

        def chosen(A: SparseMatrix = A, uses: int = uses, picked: dict = picked) -> SparseMatrix:
            return A.auto(F, uses, backward=False, on_choice=picked.__setitem__)

        _seconds(chosen, A, x, 2)  # compiles, and says what is chosen
        first = first or picked["forward"]
        ways: dict[str, Callable[[SparseMatrix], SparseMatrix]] = {
            "csr": lambda A: A.to("csr"), "auto": chosen, "kept": functools.partial(_in, name=first)
        }  # fmt: skip
        for way in ways.values():
            _seconds(way, A, x, 2)
        samples: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(point["rounds"]):
            for way in list(ways)[turn % 3 :] + list(ways)[: turn % 3]:
                samples[way].append(_seconds(ways[way], A, x, uses))
        seconds = {way: statistics.median(values) for way, values in samples.items()}
        density = A.nnz / (A.shape[0] * A.shape[1])
        out.append({"uses": uses, "nnz": A.nnz, "density": density, "format": picked["forward"], "s": seconds})
    return {"steps": out, "first": first}


def _in(A: SparseMatrix, name: str) -> SparseMatrix:
    try:
        return A.to(CANDIDATES[name].format, **CANDIDATES[name].params)
    except ValueError:  # more padding than the limit
        return A.to("csr")


def _seconds(way: Callable[[SparseMatrix], SparseMatrix], A: SparseMatrix, x: Tensor, uses: int) -> float:
    """Of a storage made from coordinates alone and `uses` products."""
    fresh = _fresh(A)
    start = time.perf_counter()
    stored = way(fresh)
    for _ in range(uses):
        spmm(stored, x)
    return time.perf_counter() - start


def _of(rows: Rows, what: str) -> list[Any]:
    return [row for row in rows if row["config"]["what"] == what]


def even_after(row: Mapping[str, Any], name: str) -> float | None:
    """Uses after which a format has made up for its conversion against CSR; None for never."""
    convert_s, product_s = row["convert_s"], row["product_s"]
    gain = product_s["csr"] - product_s[name]
    return max(convert_s[name] - convert_s["csr"], 0.0) / gain if gain > 0 else None


def _totals(row: Mapping[str, Any], way: str) -> float:
    return sum(step["s"][way] for step in row["steps"])


def findings(rows: Rows) -> list[str]:
    found = []
    for row in _of(rows, "uses"):
        name = row["selection"][-1]["format"]
        even = even_after(row, name)
        if name != "csr" and even is not None:
            gain = row["product_s"]["csr"] / row["product_s"][name]
            found.append(
                f"{row['config']['matrix']}: {name}, {gain:.2f} times as fast as CSR, makes up for its conversion "
                f"after {even:,.0f} uses."
            )
    changing = _of(rows, "changes")
    if changing:
        parts = [
            f"{_LABELS[row['config']['run']]} {_totals(row, 'csr') / _totals(row, 'auto'):.2f}" for row in changing
        ]
        found.append(
            f"Where sparsity changes during a run, choosing anew is so many times as fast as always CSR, all costs "
            f"included: {', '.join(parts)}."
        )
    return found


_LABELS = {"pruning": "block pruning", "drop_edge": "DropEdge", "relu": "ReLU-sparse activations"}


def tables(rows: Rows) -> list[TableView]:
    lines = []
    for row in _of(rows, "uses"):
        for name, seconds in sorted(row["product_s"].items(), key=lambda pair: pair[1]):
            even = even_after(row, name)
            lines.append([
                row["config"]["matrix"], name, milliseconds(row["convert_s"][name]), milliseconds(seconds),
                times(row["product_s"]["csr"] / seconds),
                "" if name == "csr" else "never" if even is None else f"{even:,.0f}",
                ", ".join(f"{at['uses']:,}" for at in row["selection"] if at["format"] == name),
            ])  # fmt: skip
    columns = ["matrix", "format", "conversion, ms", "product, ms", "over CSR", "even after, uses", "chosen for uses"]
    even_table = TableView("Conversion against use", columns, lines)
    lines = []
    for row in _of(rows, "changes"):
        formats = [step["format"] for step in row["steps"]]
        runs = [name for k, name in enumerate(formats) if k == 0 or formats[k - 1] != name]
        lines.append([
            _LABELS[row["config"]["run"]], str(len(formats)), ", ".join(runs),
            *(milliseconds(_totals(row, way)) for way in ("csr", "kept", "auto")),
            times(_totals(row, "csr") / _totals(row, "auto")),
        ])  # fmt: skip
    columns = ["run", "steps", "formats in turn", "always CSR, ms", "the first kept, ms", "chosen anew, ms", "over CSR"]
    return [even_table, TableView("Runs in which the sparsity changes", columns, lines)]


def _caption_even(rows: Rows) -> str:
    config = _of(rows, "uses")[0]["config"]
    return (
        f"Time of a conversion from coordinates and of so many products with {config['F']} columns, over the same in "
        "CSR. Lines: a format for good, from the two times measured. Dots: the format chosen for that number of uses, "
        "features, prediction, conversion and probe included. elements: a finite-element matrix with eight unknowns a "
        "node."
    )


def _caption_changes(rows: Rows) -> str:
    return (
        "Each step has a matrix of its own, made from coordinates, and some products with it; times over those of "
        "always CSR. Dots: chosen anew at every step, coloured by the format, selection included. Line: the format "
        "that was chosen first, kept. Pruning: blocks of a weight, from half to nearly all. DropEdge: two products on "
        "every draw of edges, with the whole graph used at length before, between and after. ReLU: activations from "
        "dense to sparse."
    )


STUDY = Study(
    name=NAME,
    title="When another format pays",
    text="A format is chosen for the uses to come, and chosen anew when the matrix changes.",
    run=run,
    findings=findings,
    plots=(
        Plot("selector_break_even", lambda rows: break_even(_of(rows, "uses")), _caption_even),
        Plot("selector_changes", lambda rows: changes(_of(rows, "changes")), _caption_changes),
    ),
    tables=tables,
)
