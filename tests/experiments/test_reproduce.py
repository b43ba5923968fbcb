"""The main job on graphs of a hundred nodes: the whole report, interrupted and resumed, and without the network."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest

from braidwork.experiments import gcn_epoch, gcn_training, spmm_speed
from braidwork.experiments.record import Table
from braidwork.experiments.reproduce import main
from braidwork.experiments.studies import STUDIES
from braidwork.models import BACKENDS

TINY = [
    "~gcn_training.wordnet",
    "~gcn_training.cora",
    # Without dropout, since PyG's input is dense and so draws another one.
    "+gcn_training.polbooks={seeds: 2, backends: [braidwork, torch, pyg], overrides: ['train.epochs=4', "
    "'model.dropout=0.0']}",
    "gcn_epoch.dataset=polbooks",
    "gcn_epoch.rounds=2",
    "gcn_epoch.projected_width=8",
    "model_epochs.datasets=[polbooks, karate]",
    "model_epochs.models=[sage, gat]",
    "model_epochs.width=8",
    "model_epochs.overrides=['model.hidden_channels=16']",
    "model_epochs.rounds=2",
    "selector_quality.rounds=3",
    "selector_runs.matrices=[karate]",
    "selector_runs.uses=[2, 5]",
    "selector_runs.rounds=1",
    "selector_runs.runs.pruning={size: 32, block: 4, steps: 3, uses: 2, last: 0.9, F: 8}",
    "selector_runs.runs.drop_edge={matrix: polbooks, rate: 0.3, whole: 2, dropped: 1, F: 8}",
    "selector_runs.runs.relu={rows: 64, width: 16, steps: 2, uses: 2, F: 8}",
    "scipy_formats.per_family=1",
    "scipy_formats.least_nnz=300",
    "scipy_formats.most_nnz=900",
    "scipy_formats.widths=[4]",
    "scipy_formats.rounds=2",
    "scipy_formats.boosting=3",
    "spmm_speed.graphs=[karate, dolphins]",
    "spmm_speed.widths=[3, 16]",
    "spmm_speed.rounds=2",
    "progress=false",
]
AVAILABLE = [name for name in ("braidwork", "torch", "pyg") if BACKENDS[name].available]


class Page(HTMLParser):
    """Counts the elements of a page, and fails on one that is not closed."""

    EMPTY = frozenset({"meta", "img"})

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}
        self.images: list[bytes] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag not in self.EMPTY:
            self.open.append(tag)
        if tag == "img":
            kind, _, data = (dict(attrs)["src"] or "").partition(",")
            assert kind == "data:image/svg+xml;base64", "the page needs no other file"
            self.images.append(base64.b64decode(data))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_report(folder: Path) -> str:
    text = (folder / "report.html").read_text()
    page = Page(text)
    plots = [plot for study in STUDIES.values() for plot in study.plots]
    assert page.counts["h2"] == len(STUDIES) and page.counts["figure"] == len(plots)
    assert page.counts["table"] == 9 and "braidwork: results" in text
    for image, plot in zip(page.images, plots, strict=True):
        assert ElementTree.fromstring(image).tag == "{http://www.w3.org/2000/svg}svg"
        assert (folder / "figures" / f"{plot.name}.svg").read_bytes() == image
        assert (folder / "figures" / f"{plot.name}.png").read_bytes().startswith(b"\x89PNG")
    assert not re.search(r"\bnan\b|None", re.sub(r'src="[^"]*"', "", text))
    return text


def test_interrupted_and_resumed_it_ends_in_one_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    arguments = [*TINY, f"results={tmp_path}"]
    run_point, calls = spmm_speed._run_point, []

    def interrupted(*point) -> None:
        calls.append(point)
        if len(calls) == 3:
            raise KeyboardInterrupt
        run_point(*point)

    with monkeypatch.context() as patch:
        patch.setattr(spmm_speed, "_run_point", interrupted)
        assert main(arguments) == 130
    said = capsys.readouterr()
    assert "goes on from here" in said.err and not (tmp_path / "report.html").exists()
    before = Table(tmp_path / "table.jsonl").rows()
    ways = 4 + ("pyg" in AVAILABLE)
    assert len(before) == 2 * len(AVAILABLE) + 3 + (3 + ("pyg" in AVAILABLE)) + 4 * ways + 1 + (1 + 3) + 1 + 2 * 3

    for row in before:
        if row["study"] == gcn_epoch.NAME:
            assert sum(row[part] for part in gcn_epoch.PARTS) == pytest.approx(row["epoch_s"])
            assert all(row[part] > 0 for part in gcn_epoch.PARTS)

    assert main(arguments) == 0
    after = Table(tmp_path / "table.jsonl").rows()
    assert after[: len(before)] == before, "nothing is measured twice"
    assert len(after) == len(before) + 2 * 3
    said = capsys.readouterr()
    assert said.out.splitlines()[-1].startswith(str(tmp_path / "report.html"))
    text = check_report(tmp_path)
    for name in ("polbooks", "karate", "dolphins", "geometric mean of 4 cases"):
        assert name in text
    assert not list(tmp_path.glob("checkpoints/*"))

    assert main([*arguments, "studies=gcn_training", "fresh=true"]) == 0
    lines = (tmp_path / "table.jsonl").read_text().splitlines()
    assert len(lines) == len(after) + 2 * len(AVAILABLE), "fresh measures what it is asked for, and that alone"


def test_the_backends_of_the_study_start_and_stay_alike(tmp_path: Path) -> None:
    assert main([*TINY, f"results={tmp_path}", "studies=[gcn_training]"]) == 0
    rows = Table(tmp_path / "table.jsonl").rows(gcn_training.NAME)
    for seed in (0, 1):
        losses = [row["history"]["loss"] for row in rows if row["config"]["seed"] == seed]
        assert len(losses) == len(AVAILABLE)
        for other in losses[1:]:
            assert other == pytest.approx(losses[0], rel=1e-4)
    assert "No run of this study has finished yet." in (tmp_path / "report.html").read_text()


def test_what_cannot_be_fetched_is_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    arguments = [*TINY, f"results={tmp_path}", "studies=[gcn_training]"]
    assert main([*arguments, "+gcn_training.cora={seeds: 1, backends: [braidwork]}"]) == 0
    assert "left out: graphdatascience==2.2: pip could not download it" in capsys.readouterr().out
    text = (tmp_path / "report.html").read_text()
    assert "class=notes><p>graphdatascience==2.2: pip could not" in text and "polbooks" in text


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("studies=[nosuch]", "studies: unknown 'nosuch'; choose from gcn_training"),
        ("nosuch=1", "nosuch"),
        ("results", "results"),
        ("gcn_epoch.dataset=nosuch", "nosuch"),
    ],
)
def test_settings_that_err_give_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture, argument: str, said: str
) -> None:
    assert main([*TINY, f"results={tmp_path}", "studies=[gcn_epoch]", argument]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and said in line


def test_help_names_the_studies(capsys: pytest.CaptureFixture) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in STUDIES) and "conf/reproduce.yaml" in said
