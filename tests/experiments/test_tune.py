"""`make tune` in small: what it measures, what it writes, and that products find it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from braidwork.experiments import tune
from braidwork.experiments.settings import settings
from braidwork.kernels.sparse import tiles
from braidwork.kernels.timing import Comparison


def small(*overrides: str) -> dict[str, Any]:
    """Settings for two formats and small matrices."""
    config = settings("tune", ["widths=[8,64]", "rounds=1", "progress=false", "only=[csr,bsr4]", *overrides])
    config["formats"]["csr"] = [{"family": "regular", "nnz": 900, "degree": 3}]
    config["formats"]["bsr4"] = [{"family": "blocks", "nnz": 640, "side": 4, "per_row": 2}]
    return config


def test_the_quickest_candidate_is_written_and_found(cache: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """The clock is replaced by one to which 16 columns are quickest: the second candidate for 64 columns in BSR."""
    if torch.cuda.is_available():
        pytest.skip("candidates of a CPU")
    ran: list[tuple[str, ...]] = []

    def clock(calls, **options) -> Comparison:
        for call in calls.values():
            call()
        ran.append(tuple(calls))
        return {name: 1.0 / (1 + (name == "2")) for name in calls}

    monkeypatch.setattr(tune, "compare", lambda calls, **options: _Times(clock(calls, **options)))
    path = tune.run(small())
    device = tiles.device_name("cpu")
    assert path == tiles.own_path(device) == cache / f"sparse-{device}.json"
    table = json.loads(path.read_text())
    expected = list(tune.candidates("bsr4", 64, False, "cpu"))[1]
    assert table["bsr4"]["64"] == expected and tiles.tuned("bsr4", 64, "cpu") == expected
    assert len(ran) == 4 and all(names[0] == "0" for names in ran)  # the rule takes part in every race
    assert "2.00x the rule" in capsys.readouterr().out
    path.unlink()
    tiles.reload()


class _Times(dict):
    def speedup(self, name: str, over: str) -> float:
        return self[over] / self[name]


def test_a_real_clock_and_a_file_of_choice(tmp_path: Path) -> None:
    path = tune.run(small(f"output={tmp_path / 'table.json'}"))
    tiles.check(json.loads(path.read_text()), "the table")


def test_a_rule_that_is_as_good_stays_and_so_does_what_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tune, "compare", lambda calls, **options: _Times(dict.fromkeys(calls, 1.0)))
    (tmp_path / "table.json").write_text('{"csr": {"8": {"ahead": 8}, "16": {"ahead": 8}}, "dia": {"8": {"lanes": 8}}}')
    path = tune.run(small(f"output={tmp_path / 'table.json'}"))
    assert json.loads(path.read_text()) == {"csr": {"16": {"ahead": 8}}, "dia": {"8": {"lanes": 8}}}


def test_a_format_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="only: need some of csr, .* got 'csx'"):
        tune.run(small("only=[csx]"))


def test_candidates_fit_the_width() -> None:
    for backend in ("cpu", "cuda"):
        for F in (1, 8, 20, 64, 512):
            for format in ("csr", "sell", "bsr32"):
                entries = list(tune.candidates(format, F, True, backend))
                assert all(entry["columns"] <= max(2 * F - 1, 8) for entry in entries)
                for entry in entries:
                    tiles.check({format: {str(F): entry}}, "candidates")
                assert len({tuple(entry.items()) for entry in entries}) == len(entries)
                assert F < 8 or entries
