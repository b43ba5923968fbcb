"""The CSR kernels in every shape a configuration can give them, and the choice of a configuration."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path

import pytest
import torch

from braidwork.kernels.sparse import SparseMatrix, csr, entries
from braidwork.kernels.sparse.config import DotConfig, SpmmConfig, pick_dot, pick_spmm
from braidwork.kernels.testing import assert_close, devices, graph_zoo

_spec = importlib.util.spec_from_file_location("sparse_reference", Path(__file__).with_name("reference.py"))
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)

DEVICE = devices()[0]
# Names of graphs with short rows, hubs, empty rows at either end, no rows and a single one.
GRAPHS = ("uniform", "empty_rows", "hub_row", "hub_column", "power_law", "one_row", "one_column", "no_entries")
TILES = ((8, False, False), (16, True, False), (4, False, True))  # 8 columns, 11 of 16, and 4 + 4 + 3 of 11


@pytest.mark.parametrize("split", [False, True], ids=["rows", "split"])
@pytest.mark.parametrize(("reduce", "batch"), [("sum", 1), ("sum", 4), ("max", 1), ("min", 4)])
def test_every_configuration(reduce: str, split: bool, batch: int) -> None:
    for graph, (tile, mask_f, overlap), transposed in itertools.product(GRAPHS, TILES, (False, True)):
        if (transposed and graph not in ("uniform", "hub_column")) or (overlap and reduce != "sum"):
            continue
        A = reference.matrix(graph_zoo()[graph], device=DEVICE)
        A = A.T if transposed else A
        F = 8 if not mask_f and not overlap else 11
        x = torch.randn(A.shape[1], F, device=DEVICE)
        row_scale = torch.randn(A.shape[0], device=DEVICE)
        options = {} if DEVICE == "cpu" else {"num_warps": 1}
        ref = reference.spmm(A, A.values.double().cpu(), x.double().cpu(), reduce, row_scale.double().cpu())
        plain = reference.spmm(A, A.values.cpu(), x.cpu(), reduce, row_scale.cpu())
        for share in (1, 7, 100):
            if share == 1 and split and A.nnz > 1000:
                continue
            config = SpmmConfig(split, share, batch, tile, mask_f, overlap, options)
            arguments = (A.storage(), A.shape[0], A.values, x, row_scale, None, reduce)
            y, _ = csr.spmm(*arguments, config=config)
            name = f"{graph}, share {share}, tile {tile}"
            assert_close(name, y, ref, baseline=plain, factor=4.0)
            if reduce == "sum":
                continue
            y_again, arg = csr.spmm(*arguments, with_arg=True, config=config)
            assert torch.equal(y, y_again)
            _check_arg(A, x, row_scale, y, arg)


def _check_arg(A: SparseMatrix, x: torch.Tensor, row_scale: torch.Tensor, y: torch.Tensor, arg: torch.Tensor) -> None:
    """arg names an entry of the right row whose term is y, or is -1 in an empty row."""
    empty = torch.bincount(A.row, minlength=A.shape[0]) == 0
    assert bool((arg[empty] == -1).all()) and not y[empty].any()
    if bool(empty.all()):
        return
    rows = (~empty).nonzero().squeeze(1)
    entry = arg[rows].long()
    assert bool((A.row[entry] == rows[:, None]).all())
    columns = torch.arange(x.shape[1], device=x.device)
    terms = row_scale[rows, None] * A.values[entry] * x[A.col[entry].long(), columns]
    assert_close("terms at arg", terms, y[rows].double(), rms=1e-6, max=1e-5)


@pytest.mark.parametrize("split", [False, True], ids=["rows", "split"])
def test_ties_go_to_the_first_entry(split: bool) -> None:
    """Also when the lanes of a batch or the pieces of a row each found one."""
    n = 41
    A = SparseMatrix.from_coo([1] * n, range(n), shape=(3, n)).to(DEVICE)
    x = torch.zeros(n, 4, device=DEVICE)
    x[7:, 1], x[23:, 2], x[40:, 3] = 1.0, float("nan"), 1.0
    for batch, share in itertools.product((1, 4), (5, 16, 64)):
        config = SpmmConfig(split, share, batch, 4, False, False, {} if DEVICE == "cpu" else {"num_warps": 1})
        _, arg = csr.spmm(A.storage(), 3, None, x, None, None, "max", with_arg=True, config=config)
        assert arg.tolist() == [[-1] * 4, [0, 7, 23, 40], [-1] * 4]


@pytest.mark.parametrize("config", [DotConfig(1, 1, 4), DotConfig(8, 8, 4), DotConfig(5, 4, 16)], ids=str)
def test_entry_dot(config: DotConfig) -> None:
    if DEVICE != "cpu":
        config = DotConfig(config.share, config.batch, config.block_f, {"num_warps": 1})
    A = reference.matrix(graph_zoo()["wide"], device=DEVICE)
    g, x = torch.randn(13, 11, device=DEVICE), torch.randn(501, 11, device=DEVICE)
    row_scale = torch.randn(13, device=DEVICE)
    out = entries.entry_dot(A.row, A.col, g, x, row_scale, None, None, config)
    row, col = A.row.long(), A.col.long()
    ref = (g.double()[row] * x.double()[col]).sum(1) * row_scale.double()[row]
    assert_close("out", out, ref.cpu(), factor=8.0)
    route = torch.randint(0, A.nnz, (13, 11), device=DEVICE, dtype=torch.int32)
    route[row[5], 3] = 5
    out = entries.entry_dot(A.row, A.col, g, x, None, None, route, config)
    hit = route[row] == torch.arange(A.nnz, device=DEVICE)[:, None]
    assert bool(hit.any())
    assert_close("routed", out, (g.double()[row] * x.double()[col] * hit).sum(1).cpu(), factor=8.0)


def test_fewer_entries_than_a_batch() -> None:
    assert pick_dot(7, 16, torch.float32, "cpu").batch == 1 and pick_dot(8, 16, torch.float32, "cpu").batch > 1


@pytest.mark.parametrize("backend", ["cpu", "cuda", "hip"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_tiles_cover_the_columns(backend: str, dtype: torch.dtype) -> None:
    for F in (1, 2, 3, 16, 45, 64, 100, 128, 256, 300, 512, 1000):
        config = pick_spmm(1000, 5000, 40, 1000, F, dtype, backend)
        tile = config.block_f
        assert tile & (tile - 1) == 0
        assert config.mask_f == (tile > F)
        assert config.overlap == (tile < F and F % tile != 0)
        assert config.batch >= 1 and config.share >= 1


def test_work_is_split_only_where_a_row_is_most_of_it() -> None:
    for backend in ("cpu", "cuda"):
        assert not pick_spmm(10**6, 15 * 10**6, 15, 0, 64, torch.float32, backend).split
        assert pick_spmm(10**5, 10**6, 5 * 10**5, 0, 64, torch.float32, backend).split
    # Hubs of a thousand do not hurt a CPU, whose programs own many rows; they would hold up a GPU.
    hubs = (23_000, 97_000, 2390, 0, 64, torch.float32)
    assert not pick_spmm(*hubs, "cpu").split and pick_spmm(*hubs, "cuda").split
