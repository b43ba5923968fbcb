"""The table of results: what is appended is found again, by many writers and after a kill."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from braidwork.experiments import record
from braidwork.experiments.record import Table, point_key

CONFIG = {"dataset": "karate", "seed": 0}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "results" / "table.jsonl")


def test_a_row_is_found_by_its_study_and_settings_alone(table: Table) -> None:
    assert table.find("train", CONFIG) is None and table.rows() == []
    written = table.append("train", CONFIG, {"accuracy": 81.5, "loss": [1.0, 0.5]})
    assert table.find("train", CONFIG) == written
    assert table.find("train", dict(reversed(CONFIG.items()))) == written
    assert table.find("train", CONFIG | {"seed": 1}) is None
    assert table.find("other", CONFIG) is None
    assert (written["accuracy"], written["loss"], written["config"]) == (81.5, [1.0, 0.5], CONFIG)
    assert {"time", "revision", "command", "machine"} <= written.keys()


def test_rows_of_another_machine_are_other_runs(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.append("train", CONFIG, {})
    elsewhere = record.machine() | {"threads": 64}
    monkeypatch.setattr(record, "machine", lambda: elsewhere)
    assert table.find("train", CONFIG) is None


def test_of_a_repeated_run_the_last_row_counts(table: Table) -> None:
    table.append("train", CONFIG, {"accuracy": 1.0})
    table.append("train", CONFIG | {"seed": 1}, {"accuracy": 2.0})
    table.append("train", CONFIG, {"accuracy": 3.0})
    assert [row["accuracy"] for row in table.rows("train")] == [2.0, 3.0]
    assert len(table.path.read_text().splitlines()) == 3


@pytest.mark.parametrize("left", [0.2, 0.9])
def test_a_half_line_of_a_killed_writer_spoils_no_other(table: Table, left: float) -> None:
    table.append("train", CONFIG, {"accuracy": 1.0})
    table.append("train", CONFIG | {"seed": 1}, {"accuracy": 2.0})
    whole, last = table.path.read_text().splitlines(keepends=True)
    table.path.write_text(whole + last[: int(left * len(last))])
    assert [row["accuracy"] for row in table.rows()] == [1.0]
    table.append("train", CONFIG | {"seed": 2}, {"accuracy": 3.0})
    assert [row["accuracy"] for row in table.rows()] == [1.0, 3.0]


def test_lines_that_are_no_rows_are_passed_over(table: Table) -> None:
    table.append("train", CONFIG, {})
    with table.path.open("a") as file:
        file.write('[1, 2]\n\n{"study": "train"}\nnull\n')
    assert len(table.rows()) == 1


def test_writers_at_once_lose_nothing(table: Table) -> None:
    long = [0.5] * 20_000  # many times what one write() of a buffered file takes
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seed: table.append("train", CONFIG | {"seed": seed}, {"loss": long}), range(24)))
    assert sorted(row["config"]["seed"] for row in table.rows()) == list(range(24))


def test_infinite_and_missing_numbers_come_back(table: Table) -> None:
    table.append("train", CONFIG, {"values": [math.nan, math.inf, None]})
    nan, inf, none = table.rows()[0]["values"]
    assert math.isnan(nan) and inf == math.inf and none is None


def test_keys_are_the_same_in_another_process() -> None:
    code = (
        "from braidwork.experiments.record import point_key; print(point_key('train', {'seed': 0, 'a': [1.5, None]}))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert other == point_key("train", {"a": [1.5, None], "seed": 0})


def test_a_row_is_one_line_of_plain_json(table: Table) -> None:
    table.append("train", {"name": "two\nlines"}, {})
    (line,) = table.path.read_text().splitlines()
    assert json.loads(line)["config"]["name"] == "two\nlines"
