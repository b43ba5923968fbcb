"""What a study is: it runs points, each of which appends rows to the table, and it says how the rows become figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from .progress import Progress
from .record import Row, Table

Rows = Sequence[Row]


@dataclass
class Context:
    """What a running study is given: where rows go, how progress is shown, and its own settings.

    `notes` are sentences that the report repeats: what could not be run, and why.
    """

    table: Table
    progress: Progress
    settings: Mapping[str, Any]
    fresh: bool = False
    began: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    notes: list[str] = field(default_factory=list)

    def done(self, study: str, config: Mapping[str, Any]) -> bool:
        """Whether the table has this point already; with `fresh`, only rows of this very run count."""
        row = self.table.find(study, config)
        return row is not None and not (self.fresh and row["time"] < self.began)


@dataclass(frozen=True)
class Plot:
    """One figure: `draw` gives it from the rows of its study; `caption` says what is seen and how it was measured."""

    name: str
    draw: Callable[[Rows], Figure]
    caption: Callable[[Rows], str]


@dataclass(frozen=True)
class TableView:
    """One table of the report: title, names of the columns, a list of cells a line. `folded`: shown on request."""

    title: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]
    folded: bool = False


@dataclass(frozen=True)
class Study:
    """One entry of the registry in `studies.py`.

    Attributes:
        name: of its rows in the table, of its settings in `conf/reproduce.yaml`, and on the command line.
        title, text: heading and opening sentences in the report.
        run: runs the points that the table lacks.
        findings: headline sentences, from the rows.
        plots, tables: what the report shows, from the rows alone.
    """

    name: str
    title: str
    text: str
    run: Callable[[Context], None]
    findings: Callable[[Rows], list[str]]
    plots: Sequence[Plot]
    tables: Callable[[Rows], list[TableView]]
