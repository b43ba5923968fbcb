"""Tables of measured tiles: which is read, what it decides, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from braidwork.kernels.sparse import FORMATS, tiles
from braidwork.kernels.sparse.config import pick_blocks, pick_coo, pick_csc, pick_lanes, pick_spmm

FP32, FP64 = torch.float32, torch.float64


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where `make tune` would put the table of a device of this test's own, "cpu-test"; nothing is there yet."""
    monkeypatch.setenv("BRAIDWORK_CACHE", str(tmp_path))
    monkeypatch.setattr(tiles, "device_name", lambda backend: f"{backend}-test")
    tiles.reload()
    yield tiles.own_path("cpu-test")
    monkeypatch.undo()
    tiles.reload()


def put(path: Path, table: object) -> None:
    path.write_text(table if isinstance(table, str) else json.dumps(table))
    tiles.reload()


def test_shipped_tables_are_tables() -> None:
    shipped = [f for f in (files("braidwork.kernels") / "configs").iterdir() if f.name.startswith("sparse-")]
    assert shipped
    for file in shipped:
        table = tiles.check(json.loads(file.read_text()), file.name)
        assert {format.rstrip("0123456789") for format in table} <= set(FORMATS)


def test_an_entry_is_found_by_format_and_the_power_of_two_above_the_width(own: Path) -> None:
    rule = pick_lanes(8, 4.0, 10**6, 64, FP32, "cpu", "sell")
    put(own, {"sell": {"64": {"columns": 16, "lanes": 2, "ahead": 8}}})
    for F in (33, 64):
        found = pick_lanes(8, 4.0, 10**6, F, FP32, "cpu", "sell")
        assert (found.block_f, found.lanes, found.ahead) == (16, 2, 4)  # ahead in steps of a group
    assert pick_lanes(8, 4.0, 10**6, 64, FP32, "cpu", "ell") == rule
    for F in (32, 65):
        assert pick_lanes(8, 4.0, 10**6, F, FP32, "cpu", "sell").lanes != 2
    assert pick_lanes(1, 4.0, 10**6, 64, FP32, "cpu", "sell").lanes == 1  # never more than the group has
    assert pick_lanes(8, 4.0, 0, 64, FP32, "cpu", "sell").ahead == 0  # nothing is asked for that is at hand


def test_the_widest_entry_stands_for_all_beyond(own: Path) -> None:
    put(own, {"csr": {str(tiles.WIDEST): {"columns": 32}}})
    assert pick_spmm(100, 500, 9, 100, 5000, FP32, "cpu").block_f == 32


def test_accumulators_of_fp64_get_half_the_columns(own: Path) -> None:
    put(own, {"csr": {"256": {"columns": 64}}, "csc": {"256": {"columns": 64}}})
    assert pick_spmm(100, 500, 9, 100, 256, FP64, "cpu").block_f == 32
    assert pick_csc(100, 256, FP64, "cpu").block_f == 32 and pick_csc(100, 256, FP32, "cpu").block_f == 64


def test_each_format_asks_for_its_own(own: Path) -> None:
    put(own, {f: {"128": {"columns": 16 << k}} for k, f in enumerate(("coo", "csc", "bsr4", "hyb"))})
    assert pick_coo(1000, 0, 128, FP32, "cpu").block_f == 16
    assert pick_csc(0, 128, FP32, "cpu").block_f == 32
    assert pick_blocks(4, 3.0, 0, 128, FP32, "cpu", True).block_f == 64
    assert pick_lanes(8, 3.0, 0, 128, FP32, "cpu", "hyb").block_f == 128


def test_tables_of_gpus() -> None:
    put(tiles.own_path("cuda-test"), {f: {"64": {"columns": 32, "warps": 2}} for f in ("csr", "sell", "csc", "bsr16")})
    for config in (
        pick_spmm(100, 500, 9, 100, 64, FP32, "cuda"),
        pick_lanes(8, 4.0, 0, 64, FP32, "cuda", "sell"),
        pick_csc(0, 64, FP32, "cuda"),
        pick_blocks(16, 2.0, 0, 64, FP32, "cuda", True),
    ):
        assert config.block_f == 32 and config.options == {"num_warps": 2}
    # The kernel without matrix instructions is another one.
    assert pick_blocks(16, 2.0, 0, 64, FP32, "cuda", False).options != {"num_warps": 2}


def test_own_table_goes_before_the_shipped_one(own: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / own.name).write_text(json.dumps({"csr": {"64": {"columns": 8}}}))
    monkeypatch.setattr(tiles, "files", lambda package: tmp_path)
    tiles.reload()
    assert tiles.tuned("csr", 64, "cpu") == {"columns": 8}
    put(own, {"csr": {"32": {"columns": 16}}})
    assert tiles.tuned("csr", 64, "cpu") == {} and tiles.tuned("csr", 17, "cpu") == {"columns": 16}


def test_a_trial_lasts_as_long_as_its_block() -> None:
    before = pick_spmm(100, 500, 9, 100, 64, FP32, "cpu")
    with tiles.trial("csr", 64, {"columns": 16}):
        assert pick_spmm(100, 500, 9, 100, 64, FP32, "cpu").block_f == 16
    assert pick_spmm(100, 500, 9, 100, 64, FP32, "cpu") == before


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("{", "not JSON .* make tune"),
        ([], "need an object of formats"),
        ({"csr": 3}, "csr: need objects by number of columns"),
        ({"csr": {"wide": {}}}, "csr: need objects by number of columns, got 'wide'"),
        ({"csr": {"64": {"rows": 2}}}, "csr, 64 columns: rows cannot be 2"),
        ({"csr": {"64": {"columns": 48}}}, "columns cannot be 48"),
        ({"csr": {"64": {"columns": 0}}}, "columns cannot be 0"),
        ({"csr": {"64": {"lanes": "4"}}}, "lanes cannot be '4'"),
        ({"csr": {"64": {"ahead": -1}}}, "ahead cannot be -1"),
        ({"csr": {"64": {"warps": True}}}, "warps cannot be True"),
    ],
)
def test_refused(own: Path, table: object, message: str) -> None:
    put(own, table)
    with pytest.raises(ValueError, match=message) as error:
        tiles.tuned("csr", 64, "cpu")
    assert str(own) in str(error.value)
