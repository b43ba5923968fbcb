"""Progress on a terminal as bars, elsewhere (a log, a CI job) as a line now and then."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

_LINE_EVERY_S = 15.0


class Progress:
    """One job at a time: `start` it, `advance` it, and the next `start` ends it. Used as a context manager."""

    def __init__(self, console: Console | None = None, enabled: bool = True):
        self.console = console if console is not None else Console(highlight=False)
        self._bars: Bars | None = None
        if enabled and self.console.is_terminal:
            self._bars = Bars(
                TextColumn("{task.description}"),
                BarColumn(bar_width=28),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("[dim]{task.fields[note]}"),
                console=self.console,
            )
        self._lines = enabled and self._bars is None
        self._task: TaskID | None = None
        self._name, self._total, self._done = "", 0, 0
        self._begun = self._said = 0.0

    def __enter__(self) -> Progress:
        if self._bars:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars:
            self._bars.stop()

    def start(self, name: str, total: int) -> None:
        """Begin a job of `total` steps."""
        self._name, self._total, self._done = name, total, 0
        self._begun = self._said = time.monotonic()
        if self._bars:
            if self._task is not None:
                self._bars.remove_task(self._task)
            self._task = self._bars.add_task(name, total=total, note="")
        elif self._lines:
            self.say(f"{name} ...")

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Count steps done; `note` is shown beside them."""
        self._done += steps
        if self._bars and self._task is not None:
            self._bars.update(self._task, advance=steps, note=note)
        elif self._lines and time.monotonic() - self._said >= _LINE_EVERY_S:
            self._said = time.monotonic()
            self.say(f"{self._name}: {self._done} of {self._total}, {self._said - self._begun:.0f} s  {note}".rstrip())

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self.console.print(text, markup=False, soft_wrap=True)
