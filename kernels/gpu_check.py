"""The one script to run where a GPU is: `python -m braidwork.kernels.gpu_check`.

It needs what such a machine has (torch, triton, numpy, scipy) and the package itself. It compares every kernel with an
fp64 reference computed on the CPU, forwards and backwards, and fails if a kernel was left out; then it times the
kernels against cuSPARSE and PyTorch on the same card, prints a short table and writes it as Markdown.

`--device cpu` rehearses the script through the CPU backend.
"""

from __future__ import annotations

import argparse
import contextlib
import platform
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse
import torch
import triton

from . import aot, codec, fused, launch, micro, sparse
from .codec.quantize import cost as quantize_cost
from .micro.elementwise import cost as elementwise_cost
from .micro.matmul import cost as matmul_cost
from .micro.softmax import cost as softmax_cost
from .sparse.spmm import REDUCTIONS
from .testing import FLOAT_DTYPES, Coo, assert_close, graph_zoo
from .timing import Cost, compare

WIDTHS = (1, 3, 16, 128)


class Check(NamedTuple):
    """One comparison: what is compared, and a function that raises AssertionError if it does not hold."""

    name: str
    run: Callable[[], object]


class Race(NamedTuple):
    """One line of the table: ours and the peer's call, the peer's name, and the work of either."""

    name: str
    ours: Callable[[], object]
    peer: str
    theirs: Callable[[], object]
    cost: Cost


# -- correctness -------------------------------------------------------------------------------------------------------
def _dense_checks(device: str) -> Iterator[Check]:
    for dtype in FLOAT_DTYPES:
        for M, N, K in ((64, 128, 64), (33, 70, 129), (1, 300, 17)):
            a, b = torch.randn(M, K, device=device).to(dtype), torch.randn(K, N, device=device).to(dtype)
            ref = a.cpu().double() @ b.cpu().double()
            yield Check(
                f"matmul {M} x {N} x {K} {dtype}",
                lambda a=a, b=b, ref=ref: assert_close("c", micro.matmul(a, b), ref, baseline=a @ b),
            )
        for shape in ((17, 129), (3, 20_000)):
            x = torch.randn(shape, device=device).to(dtype)
            yield Check(
                f"softmax {shape} {dtype}",
                lambda x=x: assert_close(
                    "y", micro.softmax(x), torch.softmax(x.cpu().double(), 1), baseline=torch.softmax(x, 1)
                ),
            )
        a, b, c = (torch.randn(5001, device=device).to(dtype) for _ in range(3))
        ref = torch.relu(a.cpu().double() * b.cpu().double() + c.cpu().double())
        yield Check(
            f"multiply_add_relu {dtype}",
            lambda a=a, b=b, c=c, ref=ref: assert_close(
                "y", micro.multiply_add_relu(a, b, c), ref, baseline=torch.relu(a * b + c)
            ),
        )
        x = torch.randn(5001, device=device).to(dtype)
        yield Check(f"relu_dropout {dtype}", lambda x=x: _check_relu_dropout(x))
    for dtype in FLOAT_DTYPES[1:]:
        x = torch.randn(5001, device=device).to(dtype)
        yield Check(f"quantize_int8 {dtype}", lambda x=x: _check_quantize(x))


def _check_relu_dropout(x: torch.Tensor, p: float = 0.25) -> None:
    """Kept values are scaled, others are 0, the gradient follows, and about the right share is kept."""
    x = x.requires_grad_()
    y = fused.relu_dropout(x, p)
    (gx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    kept = y.detach().cpu() != 0
    assert_close("y", y, torch.where(kept, x.detach().cpu().double() / (1 - p), 0.0))
    assert_close("grad x", gx, kept.double() / (1 - p))
    share = kept.sum().item() / max((x > 0).sum().item(), 1)
    assert abs(share - (1 - p)) < 0.1, f"{share:.2f} of the positive values kept"


def _check_quantize(x: torch.Tensor, block: int = 256) -> None:
    q, scale = codec.quantize_int8(x, block)
    back = codec.dequantize_int8(q, scale, block=block)
    worst = (back.cpu().double() - x.cpu().double()).abs()
    bound = scale.cpu().double().repeat_interleave(block)[: x.numel()] * 0.5001
    assert (worst <= bound).all(), f"an error of {(worst - bound).max():.2e} beyond half a step"


def _sparse_checks(device: str, graphs: dict[str, Coo]) -> Iterator[Check]:
    """Every dtype, reduction and weighting on three graphs; every graph and width in fp32."""
    long_row = np.r_[np.full(20_000, 7), np.arange(3000)]
    graphs = graphs | {
        "long_row": Coo(long_row, np.arange(23_000) % 20_000, np.sin(np.arange(23_000.0)), (3000, 20_000))
    }
    some = list(graphs)[:3]
    plans = [(g, d, w, r, 64) for g in some for d in FLOAT_DTYPES for w in (True, False) for r in REDUCTIONS]
    plans += [(g, torch.float32, True, r, f) for g in graphs for r in ("sum", "max") for f in WIDTHS]
    for g, d, w, r, f in plans:
        yield Check(
            f"spmm {g} {r} F={f} {d} {'weighted' if w else 'unweighted'}",
            lambda g=g, d=d, w=w, r=r, f=f: _check_spmm(device, graphs[g], d, w, r, f),
        )
    for g, d, w, r, f in plans[:: 2 * len(REDUCTIONS) + 1]:  # a step that meets every reduction
        for format in sparse.FORMATS:
            # The long row repeats coordinates, for each of which DIA and BSR have one place.
            if format != "csr" and (g != "long_row" or format not in ("dia", "bsr")):
                yield Check(
                    f"spmm {format} {g} {r} F={f} {d} {'weighted' if w else 'unweighted'}",
                    lambda g=g, d=d, w=w, r=r, f=f, format=format: _check_spmm(
                        device, graphs[g], d, w, r, f, format
                    ),
                )
    for g in some:
        for name in _ENTRY_OPERATORS:
            yield Check(f"{name} {g}", lambda g=g, name=name: _check_entry_operator(device, graphs[g], name))


def _by_definition(
    graph: Coo, x: torch.Tensor, value: torch.Tensor | None, gy: torch.Tensor, reduce: str
) -> list[torch.Tensor]:
    """The product and, for sums, its gradients to x and to the values, in the dtype of x, by PyTorch on the CPU."""
    row, col = torch.from_numpy(graph.row).long(), torch.from_numpy(graph.col).long()
    x = x.clone().requires_grad_()
    leaves = [x] if value is None else [x, value.clone().requires_grad_()]
    terms = x[col] if value is None else x[col] * leaves[1][:, None]
    how = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin"}[reduce]
    index = row[:, None].expand(-1, x.shape[1])
    y = torch.zeros_like(gy).scatter_reduce(0, index, terms, how, include_self=False)
    if reduce in ("max", "min"):  # where several entries attain an extremum, PyTorch shares its gradient among them
        return [y.detach()]
    return [y.detach(), *torch.autograd.grad(y, leaves, gy)]


def _attention(A: sparse.SparseMatrix, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return sparse.gat_aggregate(A, x, x.mean(2), y.mean(2))


def _attention_by_definition(row: torch.Tensor, col: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    logit = torch.nn.functional.leaky_relu(x.mean(2)[col] + y.mean(2)[row], 0.2)
    return y.new_zeros(y.shape).index_add(0, row, _softmax_by_definition(row, logit)[..., None] * x[col])


def _softmax_by_definition(row: torch.Tensor, logit: torch.Tensor) -> torch.Tensor:
    index = row[:, None].expand_as(logit)
    rows = int(row.max()) + 1 if row.shape[0] else 0
    top = logit.new_zeros(rows, logit.shape[1]).scatter_reduce(0, index, logit, "amax", include_self=False)
    e = (logit - top[row].detach()).exp()
    return e / e.new_zeros(rows, e.shape[1]).index_add(0, row, e)[row]


def _film_by_definition(row: torch.Tensor, col: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, y = x.flatten(1), y.flatten(1)
    message = (y[row] * x[col] + y.sin()[row]).relu()
    count = torch.bincount(row, minlength=y.shape[0]).clamp(min=1)
    return y.new_zeros(y.shape).index_add(0, row, message) / count[:, None]


# Ours on (A, x [K, heads, D], y [M, heads, D]), and the definition on (row, col, x, y).
_ENTRY_OPERATORS: dict[str, tuple[Callable, Callable]] = {
    "sddmm dot": (lambda A, x, y: sparse.sddmm(A, y, x), lambda row, col, x, y: (y[row] * x[col]).sum(2)),
    "sddmm add": (
        lambda A, x, y: sparse.sddmm(A, y[..., 0], x[..., 0], op="add"),
        lambda row, col, x, y: y[row][..., 0] + x[col][..., 0],
    ),
    "edge_softmax": (
        lambda A, x, y: sparse.edge_softmax(A, x[A.col.long()][..., 0]),
        lambda row, col, x, y: _softmax_by_definition(row, x[col][..., 0]),
    ),
    "spmm_heads": (
        lambda A, x, y: sparse.spmm_heads(A, y[A.row.long()][..., 0], x),
        lambda row, col, x, y: y.new_zeros(y.shape).index_add(0, row, y[row][..., :1] * x[col]),
    ),
    "gat_aggregate": (_attention, _attention_by_definition),
    "film_aggregate": (
        lambda A, x, y: sparse.film_aggregate(A, x.flatten(1), y.flatten(1), y.flatten(1).sin()),
        _film_by_definition,
    ),
}


def _check_entry_operator(device: str, graph: Coo, name: str) -> None:
    """Results and gradients to x and y in fp32 against the definition in fp64."""
    run, define = _ENTRY_OPERATORS[name]
    order = np.lexsort((graph.col, graph.row))
    row, col = torch.from_numpy(graph.row[order]).long(), torch.from_numpy(graph.col[order]).long()
    A = sparse.SparseMatrix.from_coo(row.to(device), col.to(device), None, graph.shape, duplicates="keep")
    x, y = torch.randn(graph.shape[1], 4, 8), torch.randn(graph.shape[0], 4, 8)
    results = []
    ways: tuple[tuple[Callable, tuple[str, torch.dtype]], ...] = (
        (lambda *xy: run(A, *xy), (device, torch.float32)),
        (lambda *xy: define(row, col, *xy), ("cpu", torch.float64)),
    )
    for call, place in ways:
        leaves = [t.to(*place).requires_grad_() for t in (x, y)]
        out = call(*leaves)
        generator = torch.Generator().manual_seed(0)
        g = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(*place)
        grads = torch.autograd.grad(out, leaves, g, allow_unused=True)
        results.append([out, *(torch.zeros(1) if t is None else t for t in grads)])
    for part, got, ref in zip(("out", "grad x", "grad y"), *results):
        assert_close(part, got, ref, rms=1e-5, max=1e-3)


def _check_spmm(
    device: str, graph: Coo, dtype: torch.dtype, weighted: bool, reduce: str, width: int, format: str = "csr"
) -> None:
    rows, cols = graph.shape
    order = np.lexsort((graph.col, graph.row))
    graph = Coo(graph.row[order], graph.col[order], graph.value[order], graph.shape)
    value = torch.from_numpy(graph.value).to(dtype) if weighted else None
    x, gy = torch.randn(cols, width).to(dtype), torch.randn(rows, width).to(dtype)

    ours = [x.clone().to(device).requires_grad_()]
    ours += [] if value is None else [value.clone().to(device).requires_grad_()]
    row, col = (torch.from_numpy(part).to(device) for part in (graph.row, graph.col))
    A = sparse.SparseMatrix.from_coo(row, col, ours[1] if weighted else None, graph.shape, duplicates="keep")
    A = A.to(format, limit_bytes=1 << 34).T.to(format, limit_bytes=1 << 34).T
    y = sparse.spmm(A, ours[0], reduce)
    got = [y, *torch.autograd.grad(y, ours, gy.to(device))]

    exact = _by_definition(graph, x.double(), None if value is None else value.double(), gy.double(), reduce)
    near = _by_definition(graph, x, value, gy, reduce)
    exact64 = dtype == torch.float64
    for name, mine, ref, baseline in zip(("y", "grad x", "grad values"), got, exact, near):
        # fp64 is its own reference, so that there is nothing to calibrate by; long sums cancel.
        assert_close(name, mine, ref, baseline=baseline, rms=4e-15 if exact64 else None, max=1e-12 if exact64 else None)


@contextlib.contextmanager
def _recorded() -> Iterator[set[str]]:
    """The names of the kernels that are launched meanwhile."""
    seen: set[str] = set()
    modules = [m for m in sys.modules.values() if getattr(m, "launch", None) is launch.launch]
    original = launch.launch

    def recording(kernel, grid, *args, **meta):
        seen.add(aot.qualified_name(kernel))
        return original(kernel, grid, *args, **meta)

    for module in modules:
        module.launch = recording  # type: ignore[attr-defined]
    try:
        yield seen
    finally:
        for module in modules:
            module.launch = original  # type: ignore[attr-defined]


def check(device: str, quick: bool = False) -> list[str]:
    """Run all comparisons; returns one line for each that failed, and for each kernel that none of them ran."""
    graphs = graph_zoo()
    if quick:
        graphs = {name: graphs[name] for name in ("uniform", "hub_row")}
    failures = []
    count = 0
    with _recorded() as seen:
        for item in (*_dense_checks(device), *_sparse_checks(device, graphs)):
            count += 1
            try:
                item.run()
            except Exception as error:  # a kernel that does not compile is one line too
                failures.append(f"{item.name}: {type(error).__name__}: {str(error).splitlines()[0]}")
    left_out = {aot.qualified_name(case.kernel) for case in aot.cases()} - seen
    failures += [f"{name}: no comparison ran this kernel" for name in sorted(left_out)]
    print(f"{count} comparisons against fp64, {len(failures)} failed")
    return failures


# -- speed -------------------------------------------------------------------------------------------------------------
def races(device: str, scale: int) -> Iterator[Race]:
    """Ours against the peer on the same device, on sizes divided by `scale`."""
    n = 1024 // scale
    for dtype in (torch.float32, torch.bfloat16):
        a, b = (torch.randn(4 * n, 4 * n, device=device).to(dtype) for _ in range(2))
        yield Race(
            f"matmul {4 * n}^3 {dtype}", lambda a=a, b=b: micro.matmul(a, b), "torch.matmul", lambda a=a, b=b: a @ b,
            matmul_cost(4 * n, 4 * n, 4 * n, a.element_size()),
        )  # fmt: skip
    x = torch.randn(16 * n, 4096, device=device)
    yield Race(
        f"softmax {16 * n} x 4096", lambda: micro.softmax(x), "torch.softmax", lambda: torch.softmax(x, 1),
        softmax_cost(16 * n, 4096, 4),
    )  # fmt: skip
    a, b, c = (torch.randn(n << 14, device=device) for _ in range(3))
    yield Race(
        f"multiply-add-relu, {n << 14}", lambda: micro.multiply_add_relu(a, b, c), "eager torch",
        lambda: torch.relu(a * b + c), elementwise_cost(n << 14, 4),
    )  # fmt: skip
    yield Race(
        f"quantise to int8, {n << 14}", lambda: codec.quantize_int8(a), "eager torch", lambda: _eager_quantize(a),
        quantize_cost(n << 14, 4, 256),
    )  # fmt: skip
    for nodes, degree in ((100_000 // scale, 15), (20_000 // scale, 50)):
        rng = np.random.default_rng(0)
        shape, density = (nodes, nodes), degree / nodes
        matrix = scipy.sparse.random_array(shape, density=density, format="csr", rng=rng, dtype=np.float32)
        A = sparse.SparseMatrix.from_scipy(matrix).to(device)
        indptr, indices, data = (torch.from_numpy(part) for part in (matrix.indptr, matrix.indices, matrix.data))
        theirs = torch.sparse_csr_tensor(indptr, indices, data, shape).to(device)
        for width in (64, 256):
            dense = torch.randn(nodes, width, device=device)
            moved = 4.0 * width * (matrix.nnz + nodes) + 8.0 * matrix.nnz
            yield Race(
                f"spmm n={nodes}, {degree} a row, F={width}", lambda A=A, x=dense: sparse.spmm(A, x), "torch.sparse.mm",
                lambda t=theirs, x=dense: torch.sparse.mm(t, x), Cost(bytes=moved, flops=2.0 * matrix.nnz * width),
            )  # fmt: skip


def _eager_quantize(x: torch.Tensor, block: int = 256) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = x.view(-1, block)
    scale = blocks.abs().amax(1, keepdim=True) / 127
    return torch.round(blocks / scale).to(torch.int8), scale


def race(device: str, scale: int = 1) -> str:
    """The races as a Markdown table: medians, and the median of the ratios of samples taken in turns."""
    lines = [
        "| what | ours | peer | its time | speed-up | ours, GB/s |",
        "| --- | ---: | --- | ---: | ---: | ---: |",
    ]
    for item in races(device, scale):
        timing = compare({"ours": item.ours, item.peer: item.theirs}, rounds=15, device=device)
        ours, theirs = timing["ours"], timing[item.peer]
        lines.append(
            f"| {item.name} | {ours.median_s * 1e3:.3f} ms | {item.peer} | {theirs.median_s * 1e3:.3f} ms "
            f"| {timing.speedup('ours', item.peer):.2f}x | {ours.gb_per_s(item.cost):.0f} |"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m braidwork.kernels.gpu_check", description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="few comparisons, small sizes: to try the script itself")
    parser.add_argument("--out", type=Path, help="write the table here (default: docs/measured/<card>.md)")
    arguments = parser.parse_args(argv)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("error: torch sees no GPU here; --device cpu rehearses the script on the CPU backend", file=sys.stderr)
        return 2
    gpu = arguments.device == "cuda"
    card = torch.cuda.get_device_name() if gpu else platform.processor() or platform.machine()
    print(f"{card}, torch {torch.__version__}, triton {triton.__version__}", flush=True)
    failures = check(arguments.device, arguments.quick)
    for line in failures:
        print(line, file=sys.stderr)
    if failures:
        return 1
    table = race(arguments.device, 8 if arguments.quick else 1)
    print(table)
    out = arguments.out or Path("docs/measured") / f"{re.sub(r'[^A-Za-z0-9]+', '-', card).strip('-')}.md"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(
        f"# {card}\n\n`python -m braidwork.kernels.gpu_check`, torch {torch.__version__}, triton {triton.__version__}."
        f" Medians of samples taken in turns; every kernel was compared with fp64 before.\n\n{table}\n"
    )
    print(f"written to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
