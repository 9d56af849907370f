"""Progress on stderr: a bar on a terminal, otherwise a plain line every few seconds."""

from __future__ import annotations

import sys
import time

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from pucache.progress import Silent

EVERY_SECONDS = 10.0
_BAR_WIDTH = 120  # columns from which a terminal has room for a bar


def terminal_progress() -> Bar | Lines:
    """Return a bar where stderr is a terminal, else lines."""
    return Bar() if sys.stderr.isatty() else Lines()


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(_rate(task.speed or 0))


def _rate(speed: float) -> str:
    """Steps per second, or seconds per step; "" before the first one."""
    return f"{speed:,.0f}/s" if speed >= 1 else f"{1 / speed:,.1f} s each" if speed else ""


class Bar:
    """A rich progress bar."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            *([BarColumn()] if console.width >= _BAR_WIDTH else []),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[remark]}"),
            console=console,
        )

    def start(self, total: int | None, what: str) -> None:
        """Begin a stage."""
        self._task = self._bar.add_task(what, total=total, remark="")

    def advance(self, steps: int) -> None:
        """Count steps."""
        self._bar.advance(self._task, steps)

    def remark(self, text: str) -> None:
        """Show a remark behind the bar."""
        self._bar.update(self._task, remark=text)

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()


class Lines(Silent):
    """One line every `EVERY_SECONDS`, for logs."""

    def start(self, total: int | None, what: str) -> None:
        """Begin a stage."""
        self._total, self._what, self._done, self._remark = total, what, 0, ""
        self._began = self._last_line = time.monotonic()

    def advance(self, steps: int) -> None:
        """Count steps."""
        self._done += steps
        now = time.monotonic()
        if self._done and now - self._last_line >= EVERY_SECONDS:
            self._last_line = now
            rate = self._done / (now - self._began)
            total = "" if self._total is None else f"/{self._total:,}"
            remaining = "" if self._total is None else f"  {(self._total - self._done) / rate:,.0f} s left"
            remark = self._remark and f"  {self._remark}"
            click.echo(f"{self._what} {self._done:,}{total}  {_rate(rate)}{remaining}{remark}", err=True)

    def remark(self, text: str) -> None:
        """Add a remark to the lines that follow."""
        self._remark = text
