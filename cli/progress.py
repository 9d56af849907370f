"""Draws progress: a bar on a terminal, a plain line every few seconds elsewhere; always on stderr."""

from __future__ import annotations

import sys
import time

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

EVERY_SECONDS = 10.0
_ROOMY = 120  # columns of a terminal that has room for a bar


def terminal_progress() -> Bar | Lines:
    """Return what suits where stderr goes."""
    return Bar() if sys.stderr.isatty() else Lines()


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or 0:,.0f}/s")


class Bar:
    """A rich progress bar."""

    def __init__(self) -> None:
        remark = TextColumn("{task.fields[remark]}")
        left = TimeRemainingColumn()
        console = Console(stderr=True)
        bar = [BarColumn()] if console.width >= _ROOMY else []  # what it tells, the numbers tell too
        columns = (TextColumn("{task.description}"), *bar, MofNCompleteColumn(), _Rate(), left, remark)
        self._bar = Progress(*columns, console=console)

    def start(self, total: int | None, what: str) -> None:
        """Begin a stage."""
        self._task = self._bar.add_task(what, total=total, remark="")

    def advance(self, steps: int) -> None:
        """Count steps."""
        self._bar.advance(self._task, steps)

    def remark(self, text: str) -> None:
        """Show it behind the bar."""
        self._bar.update(self._task, remark=text)

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()


class Lines:
    """One line every `EVERY_SECONDS`, for logs."""

    def start(self, total: int | None, what: str) -> None:
        """Begin a stage."""
        self._total, self._what, self._done, self._remark = total, what, 0, ""
        self._began = self._said = time.monotonic()

    def advance(self, steps: int) -> None:
        """Count steps."""
        self._done += steps
        now = time.monotonic()
        if self._done and now - self._said >= EVERY_SECONDS:
            self._said = now
            rate = self._done / (now - self._began)
            ahead = "" if self._total is None else f"  {(self._total - self._done) / rate:,.0f} s left"
            of = "" if self._total is None else f"/{self._total:,}"
            remark = self._remark and f"  {self._remark}"
            click.echo(f"{self._what} {self._done:,}{of}  {rate:,.0f}/s{ahead}{remark}", err=True)

    def remark(self, text: str) -> None:
        """Add it to the lines to come."""
        self._remark = text

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *error: object) -> None: ...
