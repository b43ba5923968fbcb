"""`make selector` in small: timed, checked, trained, saved, found by products; stopped and gone on with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from braidwork.experiments import selector
from braidwork.experiments.settings import settings
from braidwork.selector import choose
from braidwork.selector import model as models
from braidwork.selector.corpus import matrix
from braidwork.selector.machine import kind_of
from braidwork.selector.measure import read


def small(tmp_path: Path, *overrides: str) -> dict:
    names = [f"results={tmp_path}", "per_family=1", "least_nnz=100", "most_nnz=400", "products=1", "rounds=1"]
    return settings("selector", [*names, "progress=false", *overrides])


def test_from_nothing_to_a_choice(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    path = selector.run(small(tmp_path))
    kind = kind_of("cpu") if path.name.startswith("cpu") else path.stem
    assert path == cache / "selector" / f"{kind}.txt" and path.stat().st_size < 2_000_000
    rest = json.loads(path.with_suffix(".json").read_text())
    rows = read(tmp_path / "selector.jsonl")
    assert rest["report"]["matrices"] == len(rows) > 10 and rest["machine"]["kind"] == kind
    assert 0.3 < rest["report"]["held_out_share_of_oracle"] <= 1.0
    assert "held_out_share_of_oracle" in capsys.readouterr().out
    choice = choose(matrix("uniform", nnz=300, degree=3.0), 16)
    assert choice.source.startswith("model of ") and choice.seconds > 0
    assert selector.run(small(tmp_path, f"output={tmp_path / 'elsewhere'}")).parent == tmp_path / "elsewhere"
    assert read(tmp_path / "selector.jsonl") == rows  # nothing is timed twice
    models.reload()


def test_too_little_time_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"minutes: 0 matrices of 0 families .* goes on"):
        selector.run(small(tmp_path, "minutes=0"))
