"""Every storage format: the way there and back, products and gradients against the definition, and what is refused."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from braidwork.kernels.sparse import FORMATS, SparseMatrix, config, spmm
from braidwork.kernels.sparse.config import pick_coo, pick_lanes, pick_spmm
from braidwork.kernels.sparse.slices import share_of_walk
from braidwork.kernels.testing import assert_close, devices, graph_zoo

_spec = importlib.util.spec_from_file_location("sparse_reference", Path(__file__).with_name("reference.py"))
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)

DEVICE = devices()[0]
PARAMS = {
    "coo": {}, "csr": {}, "csc": {}, "ell": {"lanes": 4}, "sell": {"c": 4, "sigma": 32}, "hyb": {}, "dia": {},
    "bsr": {"block": 4},
}  # fmt: skip
GRAPHS = ("uniform", "hub_row", "empty_rows", "one_row", "one_column", "no_entries")


def stored(A: SparseMatrix, format: str, **params: int) -> SparseMatrix:
    """A and its transpose in a format, whatever that takes."""
    params = PARAMS[format] | params
    return A.to(format, limit_bytes=1 << 32, **params).T.to(format, limit_bytes=1 << 32, **params).T


def test_every_format_is_tested() -> None:
    assert set(PARAMS) == set(FORMATS)


@pytest.mark.parametrize("format", PARAMS)
def test_there_and_back(format: str) -> None:
    for name, graph in graph_zoo().items():
        A = reference.matrix(graph, device=DEVICE)
        for B in (A, A.T):
            stored_B = stored(B, format)
            row, col, entry = FORMATS[format].coordinates(stored_B.storage(), *B.shape)
            order = torch.argsort(entry)
            assert torch.equal(entry[order], torch.arange(A.nnz, device=DEVICE)), name
            assert torch.equal(row[order], B.row.long()) and torch.equal(col[order], B.col.long()), name


@pytest.mark.parametrize("weighted", [True, False], ids=["weighted", "unweighted"])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("format", [f for f in PARAMS if f != "csr"])
def test_products_and_gradients(format: str, reduce: str, weighted: bool) -> None:
    for name in GRAPHS:
        A = reference.matrix(graph_zoo()[name], weighted=weighted, device=DEVICE)
        row_scale = (torch.rand(A.shape[0], device=DEVICE) - 0.5) if weighted else None
        x = torch.randn(A.shape[1], 11, device=DEVICE)
        gy = torch.randn(A.shape[0], 11, device=DEVICE)

        def run(dtype: torch.dtype, define: bool, A=A, x=x, gy=gy, row_scale=row_scale):
            inputs = [x.detach().clone().to(dtype).requires_grad_()]
            inputs += [] if A.values is None else [A.values.clone().to(dtype).requires_grad_()]
            value = inputs[1] if A.values is not None else None
            scale = None if row_scale is None else row_scale.to(dtype)
            if define:
                ours, value = (t if t is None else t.cpu() for t in (inputs[0], value))
                y = reference.spmm(A, value, ours, reduce, None if scale is None else scale.cpu())
                return [y, *torch.autograd.grad(y, inputs, gy.to(dtype).cpu())]
            y = spmm(stored(A.with_values(value), format), inputs[0], reduce, row_scale=scale)
            return [y, *torch.autograd.grad(y, inputs, gy.to(dtype))]

        results = run(torch.float32, False), run(torch.float64, True)
        for part, got, exact in zip(("y", "grad x", "grad values"), *results):
            assert_close(f"{name}: {part}", got, exact, rms=2e-6, max=2e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("format", [f for f in PARAMS if f != "csr"])
def test_dtypes(format: str, dtype: torch.dtype) -> None:
    A = reference.matrix(graph_zoo()["uniform"], dtype, device=DEVICE)
    for F in (1, 40):
        x = torch.randn(A.shape[1], F, device=DEVICE, dtype=dtype)
        y = spmm(stored(A, format), x)
        exact = reference.spmm(A, A.values.double().cpu(), x.double().cpu(), "sum")
        eps = torch.finfo(dtype).eps
        assert_close(f"F={F}", y, exact, rms=2 * eps, max=16 * eps)


@pytest.mark.parametrize("format", PARAMS)
def test_widths_that_tiles_do_not_divide(format: str) -> None:
    """Programs of several tiles run side by side: what one writes, another must not add to."""
    n = 3000
    col = torch.randint(0, n, (20_000,))
    row = (col + torch.randint(-3, 4, (20_000,))).clamp(0, n - 1)  # near the diagonal, for DIA
    A = SparseMatrix.from_coo(row, col, torch.randn(20_000), (n, n)).to(DEVICE)
    for F in (72, 136, 300, 520):
        x = torch.randn(n, F, device=DEVICE)
        exact = reference.spmm(A, A.values.double().cpu(), x.double().cpu(), "sum")
        sums, largest = ([spmm(stored(A, format), x, reduce) for _ in range(3)] for reduce in ("sum", "max"))
        assert_close(f"F={F}", sums[0], exact, rms=1e-6, max=1e-3)
        assert torch.equal(largest[0], spmm(A, x, "max"))
        for first, *others in (sums, largest):
            assert all(torch.equal(first, again) for again in others)


@pytest.mark.parametrize("format", [f for f in PARAMS if f not in ("csr", "coo")])
def test_gradcheck(format: str) -> None:
    A = SparseMatrix.from_coo([0, 0, 1, 3, 3, 3], [1, 4, 2, 0, 1, 4], shape=(4, 5)).to(DEVICE)
    value = torch.randn(A.nnz, dtype=torch.float64, device=DEVICE, requires_grad=True)
    x = torch.randn(5, 3, dtype=torch.float64, device=DEVICE, requires_grad=True)
    for reduce in ("sum", "max"):
        assert torch.autograd.gradcheck(
            lambda v, x, r=reduce: spmm(stored(A.with_values(v), format), x, r), (value, x), fast_mode=True
        )


@pytest.mark.parametrize("format", PARAMS)
def test_padding_does_not_meet_infinities(format: str) -> None:
    """A row sees what its own entries point to, and not what lies where its format has padding."""
    A = SparseMatrix.from_coo([0, 1, 1, 5, 5, 5, 8], [3, 2, 6, 1, 2, 3, 8], torch.ones(7), (9, 9)).to(DEVICE)
    for bad in (float("nan"), float("inf"), -float("inf")):
        for row in range(9):
            x = torch.zeros(9, 16, device=DEVICE)
            x[row] = bad
            for reduce in ("sum", "max"):
                y = spmm(stored(A, format), x, reduce)
                reached = A.row[A.col == row].long()
                clean = torch.ones(9, dtype=torch.bool, device=DEVICE)
                clean[reached] = False
                assert not y[clean].any(), (bad, row, reduce)
                if reduce == "sum":
                    assert not torch.isfinite(y[reached]).any()


@pytest.mark.parametrize("format", [f for f in PARAMS if f not in ("dia", "bsr")])
def test_repeated_coordinates_are_entries_of_their_own(format: str) -> None:
    A = SparseMatrix.from_coo([1, 1, 1, 0], [2, 2, 0, 1], torch.tensor([1.0, 2, 3, 4]), (3, 3), duplicates="keep")
    A, x = A.to(DEVICE), torch.eye(3, device=DEVICE)
    assert spmm(stored(A, format), x).tolist() == [[0, 4, 0], [3, 0, 3], [0, 0, 0]]
    assert spmm(stored(A, format), x, "mean")[1].tolist() == [1, 0, 1]


@pytest.mark.parametrize("format", ["dia", "bsr"])
def test_one_place_for_a_coordinate(format: str) -> None:
    A = SparseMatrix.from_coo([1, 1], [2, 2], shape=(3, 3), duplicates="keep")
    with pytest.raises(ValueError, match=f"{format} has one place"):
        A.to(format)


def test_a_storage_that_blows_up_is_refused() -> None:
    n = 20_000
    hub = SparseMatrix.from_coo([0] * n + list(range(1, n)), list(range(n)) + [0] * (n - 1), shape=(n, n))
    with pytest.raises(ValueError, match=r"ell would take 3,200,000,000 bytes, over the limit of .*limit_bytes=32"):
        hub.to("ell")
    with pytest.raises(ValueError, match="39999 diagonals"):
        hub.to("dia")
    spread = SparseMatrix.from_coo(range(n), [7919 * i % n for i in range(n)], shape=(n, n))
    with pytest.raises(ValueError, match=r"bsr would take .* 0.4% filled"):
        spread.to("bsr", block=16)
    assert spread.to("bsr", block=16, limit_bytes=1 << 30).params == {"block": 16}
    assert hub.to("hyb").storage().tensors[5].tolist() == [0]


def test_parameters() -> None:
    A = SparseMatrix.from_coo([0, 1], [1, 0], shape=(40, 40))
    assert A.to("sell").params == {"c": 8, "sigma": 1024} and A.to("csr").params == {}
    assert A.to("bsr", block=8).format == "bsr" and A.to("bsr", block=8).T.format == "csr"
    for format, params, error in (
        ("bsr", {"block": 5}, ValueError), ("bsr", {"blocks": 4}, TypeError), ("csr", {"block": 4}, TypeError),
        ("sell", {"c": 3}, ValueError), ("sell", {"sigma": 0}, ValueError), ("sell", {"sigma": 1.5}, TypeError),
        ("ell", {"lanes": 0}, ValueError), ("hyb", {"width": -1}, ValueError), ("csc", {"panels": -2}, ValueError),
        ("cpu", {"block": 4}, TypeError),
    ):  # fmt: skip
        with pytest.raises(error, match=next(iter(params))):
            A.to(format, **params)


@pytest.mark.parametrize("format", ["ell", "sell", "hyb", "dia", "bsr"])
def test_values_are_repacked_when_they_change(format: str) -> None:
    A = SparseMatrix.from_coo([0, 1, 2], [1, 2, 0], torch.ones(3), (3, 3)).to(DEVICE)
    B, x = stored(A, format), torch.ones(3, 4, device=DEVICE)
    assert (spmm(B, x) == 1).all()
    B.values.mul_(2)
    assert (spmm(B, x) == 2).all()
    assert (spmm(B.with_values(torch.full((3,), 5.0, device=DEVICE)), x) == 5).all()


@pytest.mark.parametrize("format", [f for f in PARAMS if f != "csr"])
def test_the_same_bits_in_every_run(format: str) -> None:
    A = stored(reference.matrix(graph_zoo()["power_law"], device=DEVICE), format)
    x = torch.randn(A.shape[1], 24, device=DEVICE)
    first = spmm(A, x)
    assert all(torch.equal(first, spmm(A, x)) for _ in range(3))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(first, spmm(A, x))
    finally:
        torch.set_num_threads(threads)


def test_traffic() -> None:
    A = SparseMatrix.from_coo([0, 0, 1, 3], [1, 2, 2, 0], torch.ones(4), (4, 3))
    for format in PARAMS:
        moved = stored(A, format).traffic("spmm", 16)
        assert moved.flops == 2 * 4 * 16 and moved.once == 3 * 16 * 4, format
        assert moved.least_bytes <= moved.bytes
    csr = A.traffic("spmm", 16)
    assert (csr.matrix, csr.gather, csr.output) == (4 * (5 + 4 + 4), 4 * 64, 4 * 64)
    assert A.with_values(None).traffic("spmm", 16).matrix == 4 * (5 + 4)
    assert A.to("csr").traffic("spmm", 16, torch.bfloat16).gather == 4 * 32
    assert A.traffic("sddmm", 16).output == 16
    with pytest.raises(ValueError, match="op"):
        A.traffic("spmv", 1)


@pytest.mark.skipif(DEVICE != "cpu", reason="on a CPU rows are asked for ahead of time")
@pytest.mark.parametrize("format", PARAMS)
def test_asking_for_rows_ahead_changes_nothing(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Near the last entry too, and beyond the last column of a block."""
    n = 203
    row, col = torch.arange(n).repeat_interleave(3), torch.arange(n).repeat_interleave(3) - 1
    col = (col + torch.arange(3).repeat(n)).clamp(0, n - 1)
    A = SparseMatrix.from_coo(row, col, torch.rand(row.shape[0]), (n, n))
    x = torch.randn(n, 40)
    picks = (config.pick_spmm, config.pick_coo, config.pick_lanes, config.pick_csc, config.pick_blocks)
    expected = {reduce: spmm(stored(A, format), x, reduce) for reduce in ("sum", "max")}
    with monkeypatch.context() as patch:
        patch.setattr(config, "_ahead", lambda *_: 32)
        for pick in picks:
            pick.cache_clear()
        for reduce, y in expected.items():
            assert torch.equal(spmm(stored(A, format), x, reduce), y)
    for pick in picks:
        pick.cache_clear()


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("format", PARAMS)
def test_epilogue_is_what_torch_does_after_the_product(format: str, reduce: str) -> None:
    """Bias and ReLU, over rows without entries and cut rows too, and their gradients."""
    for name in ("hub_row", "empty_rows", "no_entries"):
        g = graph_zoo()[name]
        value = torch.from_numpy(g.value).double().requires_grad_()
        A = stored(SparseMatrix.from_coo(g.row, g.col, value.detach(), g.shape), format).with_values(value)
        rows, cols = A.shape
        x = torch.randn(cols, 20, dtype=torch.float64, requires_grad=True)
        scale = torch.rand(rows, dtype=torch.float64, requires_grad=True)
        bias = torch.randn(20, dtype=torch.float64, requires_grad=True)
        fused = spmm(A, x, reduce, row_scale=scale, bias=bias, relu=True)
        apart = (spmm(A, x, reduce, row_scale=scale) + bias).relu()
        torch.testing.assert_close(fused, apart)
        torch.testing.assert_close(spmm(A, x, reduce, bias=bias), spmm(A, x, reduce) + bias)
        torch.testing.assert_close(spmm(A, x, reduce, relu=True), spmm(A, x, reduce).relu())
        gy = torch.randn_like(apart)
        inputs = (x, value, scale, bias)
        for ours, theirs in zip(torch.autograd.grad(fused, inputs, gy), torch.autograd.grad(apart, inputs, gy)):
            torch.testing.assert_close(ours, theirs)


def test_epilogue_of_a_vector_in_low_precision_and_of_nan() -> None:
    A = SparseMatrix.from_coo([0, 0, 2], [0, 1, 1], torch.tensor([1.0, -2.0, 1.0]), (3, 2)).to(DEVICE)
    x = torch.tensor([1.0, float("nan")], device=DEVICE)
    y = spmm(A, x, bias=torch.tensor(-0.5, device=DEVICE), relu=True)
    assert y.isnan().tolist() == [True, False, True] and y[1] == 0
    z = spmm(A, torch.ones(2, 3, device=DEVICE).bfloat16(), bias=torch.ones(3, device=DEVICE), relu=True)
    assert z.dtype == torch.bfloat16 and z[:, 0].tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match=r"bias: need shape \[3\]"):
        spmm(A, torch.ones(2, 3, device=DEVICE), bias=torch.ones(2, device=DEVICE))
    with pytest.raises(TypeError, match="bias"):
        spmm(A, torch.ones(2, 3, device=DEVICE), bias=1.0)


def test_work_of_a_program_is_even_on_hubs() -> None:
    """Entries, padding included, of a program on a GPU: largest over mean. Whole rows of CSR have hubs."""
    n, nnz = 20_000, 200_000
    rng = np.random.default_rng(0)
    weight = np.arange(1, n + 1) ** -1.0
    row = rng.permutation(n)[rng.choice(n, nnz, p=weight / weight.sum())]
    A = SparseMatrix.from_coo(row, rng.integers(0, n, nnz), shape=(n, n), duplicates="keep").to(DEVICE)
    counts = torch.bincount(A.row, minlength=n).double()
    assert counts.max() / counts.mean() > 10
    share = pick_coo(A.nnz, 0, 64, torch.float32, "cuda").share
    (start, _, rows, col, _, long, long_row, *_), (width, _) = A.to("hyb").storage()
    assert long.shape[0] == int((counts > width).sum()) > 0
    assert long_row.shape[0] == int(counts[counts > width].sum())
    steps, lanes = col.shape
    slices = rows.shape[0]
    per_program = share_of_walk(
        pick_lanes(lanes, steps / slices, 0, 64, torch.float32, "cuda", "hyb").share, steps, slices, width
    )
    ends = start[1:].cpu().long() + torch.arange(slices)
    body = torch.bincount(ends // per_program, weights=start.diff().cpu().double() + 1)[:-1]  # the last is what is left
    tail = (torch.arange(long_row.shape[0]) // share).bincount()
    split = pick_spmm(n, A.nnz, int(counts.max()), 0, 64, torch.float32, "cuda")
    assert split.split
    steps_of_split = (torch.arange(n + A.nnz) // split.share).bincount()
    coo = (torch.arange(A.nnz) // share).bincount()
    for work in (body, tail, steps_of_split, coo):
        assert work.max() / work.double().mean() < 1.3
