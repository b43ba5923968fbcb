"""Each storage format on the structure that it is for: beside our own CSR, and beside the same format of SciPy and
torch.

Floors catch a regression and not a busy machine: they lie below what was measured when they were set, and none is put
where a format does not yet win on its structure. SciPy's products run on one thread.
"""

from __future__ import annotations

import importlib.util
import statistics
import warnings

import numpy as np
import pytest
import scipy.sparse
import torch

from braidwork.experiments.datasets import load
from braidwork.experiments.settings import settings
from braidwork.kernels.sparse import SparseMatrix, spmm
from braidwork.kernels.testing import assert_close
from braidwork.kernels.timing import Comparison, compare, copy_bandwidth

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton runs on the GPU here")


def stencil(side: int, dims: int) -> SparseMatrix:
    """Every point of a grid with its neighbours, diagonal ones included, wrapped nowhere: 3^dims diagonals."""
    line = scipy.sparse.diags_array([1.0] * 3, offsets=[-1, 0, 1], shape=(side, side))
    grid = line
    for _ in range(dims - 1):
        grid = scipy.sparse.kron(grid, line)
    coo = grid.tocoo()
    return SparseMatrix.from_coo(coo.row, coo.col, torch.rand(coo.nnz), coo.shape)


def banded(n: int, diagonals: int) -> SparseMatrix:
    """A band of that many diagonals, all of them full."""
    half = diagonals // 2
    row = torch.arange(n).repeat_interleave(diagonals)
    col = row + torch.arange(-half, half + 1).repeat(n)
    inside = (col >= 0) & (col < n)
    row, col = row[inside], col[inside]
    return SparseMatrix.from_coo(row, col, torch.rand(row.shape[0]), (n, n))


def blocks(n: int, side: int, per_row: int) -> SparseMatrix:
    """Dense blocks at random places, `per_row` in a row of blocks."""
    rng = np.random.default_rng(0)
    many = n // side
    block_row = np.repeat(np.arange(many), per_row)
    # A step that has no factor in common with the number of blocks never meets the same column twice in a row.
    start = rng.integers(0, many, many)
    block_col = ((start[:, None] + np.arange(per_row) * 7919) % many).ravel()
    inner = np.arange(side)
    row = (block_row[:, None, None] * side + inner[:, None]) + 0 * inner
    col = (block_col[:, None, None] * side + inner) + 0 * inner[:, None]
    return SparseMatrix.from_coo(row.ravel(), col.ravel(), torch.rand(row.size), (n, n))


def graph(name: str) -> SparseMatrix:
    edges = load(settings("train", [f"dataset={name}"])["dataset"]).edges
    return SparseMatrix.from_coo(edges.row, edges.col, torch.rand(edges.row.shape[0]), edges.shape)


def power_law(n: int, nnz: int) -> SparseMatrix:
    """Rows with lengths of a power law, coefficient of variation above 8."""
    rng = np.random.default_rng(0)
    weight = np.arange(1, n + 1) ** -1.0
    row = rng.choice(n, nnz, p=weight / weight.sum())
    A = SparseMatrix.from_coo(rng.permutation(n)[row], rng.integers(0, n, nnz), torch.rand(nnz), (n, n))
    counts = torch.bincount(A.row, minlength=n).double()
    assert counts.std() / counts.mean() > 8
    return A


def race(A: SparseMatrix, format: str, F: int, peers: bool = True, **params: int) -> Comparison:
    """`format` and CSR, and the peers' own `format`, checked against each other and timed in turns."""
    x = torch.randn(A.shape[1], F)
    B = A.to(format, limit_bytes=1 << 34, **params)
    calls = {format: lambda: spmm(B, x), "csr": lambda: spmm(A, x)}
    host = A.to_scipy()
    if peers and format in ("coo", "csr", "csc", "dia", "bsr"):
        theirs = host.tobsr((params["block"],) * 2) if format == "bsr" else host.asformat(format)
        calls["scipy"] = lambda: theirs @ x.numpy()
    if peers and format == "coo" and importlib.util.find_spec("torch_geometric"):
        from torch_geometric.utils import scatter

        row, col, value = A.row.long(), A.col.long(), A.values[:, None]
        calls["PyG scatter"] = lambda: scatter(x[col] * value, row, dim_size=A.shape[0])
    if peers and format in ("csr", "bsr"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that these layouts of torch's are in beta
            # Of SciPy's arrays: torch's own conversion takes minutes.
            make = torch.sparse_csr_tensor if format == "csr" else torch.sparse_bsr_tensor
            parts = (torch.from_numpy(part) for part in (theirs.indptr, theirs.indices, theirs.data))
            indptr, indices, data = parts
            theirs_too = make(indptr, indices, data, A.shape)
        calls["torch"] = lambda: torch.sparse.mm(theirs_too, x)
    if F == WIDTHS[0]:
        exact = torch.from_numpy(host.astype("float64") @ x.double().numpy())
        for name in calls:
            assert_close(name, torch.as_tensor(calls[name]()), exact, rms=1e-6, max=1e-4)
    return compare(calls, rounds=5, min_time_s=0.02, device="cpu")


# What a case is called, how its matrix is made, the format and its parameters, and the least factor over CSR and over
# every peer at the best of the widths.
CASES = {
    "band of 9": (lambda: banded(250_000, 9), "dia", {}, None, 1.6),
    "band of 27": (lambda: banded(250_000, 27), "dia", {}, None, 1.6),
    "stencil of 9": (lambda: stencil(500, 2), "dia", {}, None, 1.6),
    "stencil of 27": (lambda: stencil(63, 3), "dia", {}, None, 1.6),
    "blocks of 4": (lambda: blocks(100_000, 4, 4), "bsr", {"block": 4}, 0.9, 1.6),
    "blocks of 16": (lambda: blocks(64_000, 16, 2), "bsr", {"block": 16}, 0.9, 1.6),
    "mesh-mdual": (lambda: graph("mesh-mdual"), "sell", {}, 0.9, None),
    "mesh-mdual, ELL": (lambda: graph("mesh-mdual"), "ell", {}, None, None),
    "as-22july06": (lambda: graph("as-22july06"), "hyb", {}, 0.35, None),
    "power law": (lambda: power_law(100_000, 1_000_000), "hyb", {}, 0.35, None),
    "email-Enron, COO": (lambda: graph("email-Enron"), "coo", {}, None, 1.0),
    "email-Enron, CSC": (lambda: graph("email-Enron"), "csc", {}, None, 1.0),
}
WIDTHS = (16, 64, 128)


@pytest.mark.parametrize("case", CASES)
def test_format(benchmark, capsys, case):
    make, format, params, over_csr, over_peer = CASES[case]
    A = make()
    best: dict[str, float] = {}
    lines = [f"\n{case}: {A.shape[0]} rows, {A.nnz} entries, {format} {params or ''}"]
    roof = copy_bandwidth()
    for F in WIDTHS:
        timings = race(A, format, F, **params)
        moved = A.to(format, limit_bytes=1 << 34, **params).traffic("spmm", F)
        ratios = {peer: timings.speedup(format, over=peer) for peer in timings if peer != format}
        seconds = timings[format].median_s
        achieved = moved.bytes / seconds
        lines.append(
            f"  F={F:<4} {seconds * 1e3:9.3f} ms {achieved / 1e9:7.1f} GB/s ({achieved / roof:4.0%} of a "
            f"copy; operand in {moved.level})   " + "  ".join(f"{r:.2f}x {peer}" for peer, r in ratios.items())
        )
        for peer, ratio in ratios.items():
            best[peer] = max(best.get(peer, 0.0), ratio)
    with capsys.disabled():
        print("\n".join(lines))
    benchmark.extra_info.update({f"over_{peer}": ratio for peer, ratio in best.items()})
    x, B = torch.randn(A.shape[1], 16), A.to(format, limit_bytes=1 << 34, **params)
    benchmark(lambda: spmm(B, x))
    assert over_csr is None or best["csr"] >= over_csr
    assert over_peer is None or all(best[peer] >= over_peer for peer in best if peer != "csr")


def uniform(n: int, degree: int) -> SparseMatrix:
    """The same number of entries in every row, anywhere."""
    row, col = torch.arange(n).repeat_interleave(degree), torch.randint(0, n, (n * degree,))
    return SparseMatrix.from_coo(row, col, torch.rand(n * degree), (n, n))


def communities(n: int, size: int, degree: int) -> SparseMatrix:
    """Nine entries of ten within the community of the row, the rest anywhere."""
    rng = np.random.default_rng(0)
    row = np.arange(n).repeat(degree)
    near = np.minimum(row // size * size + rng.integers(0, size, row.size), n - 1)
    col = np.where(rng.random(row.size) < 0.9, near, rng.integers(0, n, row.size))
    return SparseMatrix.from_coo(row, col, torch.rand(row.size), (n, n))


REAL = (
    "wordnet", "email-Enron", "as-22july06", "mesh-mdual", "mesh-4elt", "astro-ph", "cond-mat-2003", "hep-th",
    "polblogs", "power", "netscience", "adjnoun",
)  # fmt: skip
SYNTHETIC = {
    "band of 9": lambda: banded(250_000, 9),
    "band of 27": lambda: banded(100_000, 27),
    "stencil of 9": lambda: stencil(500, 2),
    "stencil of 27": lambda: stencil(50, 3),
    "blocks of 4": lambda: blocks(100_000, 4, 4),
    "blocks of 16": lambda: blocks(64_000, 16, 2),
    "power law": lambda: power_law(100_000, 1_000_000),
    "uniform 3": lambda: uniform(200_000, 3),
    "uniform 15": lambda: uniform(100_000, 15),
    "uniform 100": lambda: uniform(20_000, 100),
    "communities": lambda: communities(100_000, 500, 15),
    "tenth full": lambda: uniform(1500, 150),
}


@pytest.mark.slow
def test_best_format_of_each_matrix(benchmark, capsys):
    """Every format that a matrix can take within the usual limit of padding, and MKL's CSR, in turns."""
    ratios, over_csr = [], []
    lines = [f"\n{'matrix':<14} {'F':>4} {'best':>5} {'ms':>9} {'over MKL':>9} {'over CSR':>9}"]
    for name in (*REAL, *SYNTHETIC):
        A = SYNTHETIC[name]() if name in SYNTHETIC else graph(name)
        stored = {}
        for format, params in (("csr", {}), ("coo", {}), ("sell", {}), ("ell", {}), ("hyb", {}), ("dia", {}),
                               ("bsr", {"block": 4}), ("bsr", {"block": 16})):  # fmt: skip
            try:
                stored[format + "".join(map(str, params.values()))] = A.to(format, **params)
            except ValueError:
                continue
        rowptr, col = A.to("csr").storage().tensors[:2]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this layout of torch's is in beta
            theirs = torch.sparse_csr_tensor(rowptr, col, A.values, A.shape)
        for F in (16, 64, 256):
            x = torch.randn(A.shape[1], F)
            calls = {f: lambda B=B, x=x: spmm(B, x) for f, B in stored.items()}
            calls["mkl"] = lambda theirs=theirs, x=x: torch.sparse.mm(theirs, x)
            timings = compare(calls, rounds=5, min_time_s=0.02, device="cpu")
            best = min(stored, key=lambda f: timings[f].median_s)
            ratios.append(timings.speedup(best, over="mkl"))
            over_csr.append(timings.speedup(best, over="csr"))
            lines.append(
                f"{name:<14} {F:>4} {best:>5} {timings[best].median_s * 1e3:>9.3f} {ratios[-1]:>8.2f}x "
                f"{over_csr[-1]:>8.2f}x"
            )
    mean = statistics.geometric_mean(ratios)
    lines.append(
        f"geometric mean {mean:.2f}x MKL (least {min(ratios):.2f}x), {statistics.geometric_mean(over_csr):.2f}x our CSR"
    )
    with capsys.disabled():
        print("\n".join(lines))
    benchmark.extra_info["over_torch"] = mean
    x, B = torch.randn(A.shape[1], 64), stored["csr"]
    benchmark(lambda: spmm(B, x))
    assert mean >= 2.8 and min(ratios) >= 0.9
