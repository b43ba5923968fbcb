"""`python -m braidwork.experiments.train` as one types it: seeds, sweeps, what is done already, and bad settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from braidwork.experiments import train, training
from braidwork.experiments.record import Row, Table

SMALL = ["dataset=polbooks", "model.hidden_channels=8", "train.epochs=6", "runs=2", "progress=false"]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs the command's `main` with arguments; returns its exit status."""

    def run(*arguments: str, defaults: list[str] = SMALL) -> int:
        monkeypatch.setattr(sys, "argv", ["train", *defaults, f"results={tmp_path}", *arguments])
        try:
            train.main()
        except SystemExit as stop:
            return int(stop.code or 0)
        return 0

    return run


def rows(folder: Path) -> list[Row]:
    return Table(folder / "table.jsonl").rows("train")


def test_two_seeds_are_two_rows_and_one_sentence(call, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert call() == 0
    first, second = rows(tmp_path)
    assert [row["config"]["seed"] for row in (first, second)] == [0, 1]
    assert first["config"]["dataset"]["name"] == "polbooks" and first["config"]["backend"] == "braidwork"
    assert first["epochs"] == len(first["history"]["loss"]) == 6
    assert first["history"]["loss"] != second["history"]["loss"]
    mean = (first["test_accuracy"] + second["test_accuracy"]) / 2
    said = capsys.readouterr().out
    assert f"test accuracy {mean:.2f} ± " in said and "over 2 seed(s)" in said
    assert not list(tmp_path.glob("checkpoints/*"))
    weights = sorted(tmp_path.glob("weights/polbooks-gcn-braidwork-seed*.pt"))
    assert len(weights) == 2
    assert {tuple(v.shape) for v in torch.load(weights[0]).values()} >= {(8,), (3,)}


def test_what_is_in_the_table_is_not_run_again(call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call("save_weights=false")
    before = (tmp_path / "table.jsonl").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(train, "load", lambda config: pytest.fail("nothing needs the graph"))
        assert call() == 0
    assert (tmp_path / "table.jsonl").read_text() == before
    assert call("runs=3") == 0
    assert [row["config"]["seed"] for row in rows(tmp_path)] == [0, 1, 2]
    assert call("fresh=true") == 0
    assert len((tmp_path / "table.jsonl").read_text().splitlines()) == 5
    assert not list(tmp_path.glob("weights/*seed3*"))


def test_an_interrupted_run_goes_on_where_it_was(
    call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    arguments = ("seed=0", "train.checkpoint_s=0")
    call(*arguments, f"results={tmp_path / 'whole'}")
    advance = training.Trainer.advance

    def killed(self: training.Trainer) -> bool:
        if self.epoch == 4:
            raise KeyboardInterrupt
        return advance(self)

    with monkeypatch.context() as patch:
        patch.setattr(training.Trainer, "advance", killed)
        assert call(*arguments) == 2
    assert "goes on from the last checkpoint" in capsys.readouterr().err
    assert rows(tmp_path) == [] and len(list(tmp_path.glob("checkpoints/*.pt"))) == 1
    steps = []
    monkeypatch.setattr(training.Trainer, "advance", lambda self: steps.append(self.epoch) or advance(self))
    assert call(*arguments) == 0
    assert steps == [4, 5]
    (resumed,), (whole,) = rows(tmp_path), rows(tmp_path / "whole")
    assert resumed["history"]["loss"] == whole["history"]["loss"]
    assert not list(tmp_path.glob("checkpoints/*"))


def test_a_sweep_runs_every_combination(call, tmp_path: Path) -> None:
    assert call("seed=0", "model.hidden_channels=4,8", "train.lr=0.01,0.02", "-m") == 0
    found = {(row["config"]["model"]["hidden_channels"], row["config"]["train"]["lr"]) for row in rows(tmp_path)}
    assert found == {(4, 0.01), (4, 0.02), (8, 0.01), (8, 0.02)}


def test_a_graph_of_the_users_own_trains(call, tmp_path: Path) -> None:
    edges = [(i, j) for i in range(40) for j in range(i) if (i - j) % 4 == 0]
    (tmp_path / "edges.txt").write_text("".join(f"{i} {j}\n" for i, j in edges))
    (tmp_path / "labels.txt").write_text("".join(f"{i % 4}\n" for i in range(40)))
    mine = ["dataset=user", f"dataset.path={tmp_path / 'edges.txt'}", f"dataset.labels={tmp_path / 'labels.txt'}"]
    assert call("seed=[5]", "train.epochs=40", "train.lr=0.05", defaults=[*mine, "progress=false"]) == 0
    (row,) = rows(tmp_path)
    assert row["config"]["seed"] == 5
    assert row["test_accuracy"] == 100  # the four groups are not joined


def test_the_module_runs_as_a_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "braidwork.experiments.train", "dataset=adjnoun", "train.epochs=2", "runs=2"]
    run = subprocess.run([*command, f"results={tmp_path}"], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "adjnoun, gcn on braidwork: test accuracy" in run.stdout
    assert [row["command"].split()[:3] for row in rows(tmp_path)] == 2 * [["python", *command[1:3]]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "table.jsonl", "weights"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train.lr=0"], "train.lr: must be a number, positive, got 0"),
        (["train.epochs=1.5"], "train.epochs: must be a whole number"),
        (["+train.momentum=1"], "train.momentum: unknown setting"),
        (["model.hidden_channels=-3"], "hidden_channels: "),
        (["+model.heads=2"], "model.heads: unknown option of gcn"),
        (["seed=often"], "seed: must be a whole number, a list of them, or range, got 'often'"),
        (["seed=[0,-1]"], "seed: must be a whole number"),
        (["runs=0"], "runs: must be a whole number of at least 1"),
        (["backend=dgl"], "unknown 'dgl'; choose one of"),
        (["dataset=karate"], "karate: has no labels to train on"),
        (["dataset=user"], "dataset.path: needs a value; add dataset.path=... to the command"),
        (["dataset=user", "dataset.path=no/such.mtx"], "no/such.mtx: no such file"),
        (["dataset=cora"], "pip could not download it"),
    ],
)
def test_settings_that_err_give_one_line(
    call, tmp_path: Path, capsys: pytest.CaptureFixture, arguments: list[str], said: str
) -> None:
    assert call(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and said in line
    assert rows(tmp_path) == []
