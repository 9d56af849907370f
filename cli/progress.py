"""Progress on stderr: on a terminal one line that is written anew, otherwise a line every few seconds, for logs."""

from __future__ import annotations

import os
import sys
import time

import click

from pucache.progress import Silent

EVERY_SECONDS = 10.0  # between two lines of a log
_REDRAWN_SECONDS = 0.1  # on a terminal
ERASE = "\r\x1b[K"  # the line of a terminal


class Line(Silent):
    """Steps that are done, their rate, and the time that is left."""

    def start(self, total: int | None, what: str) -> None:
        """Begin a stage."""
        self._total, self._what, self._done, self._remark = total, what, 0, ""
        self._began = self._last_line = time.monotonic()

    def advance(self, steps: int) -> None:
        """Count steps."""
        self._done += steps
        now, is_terminal = time.monotonic(), sys.stderr.isatty()
        if not self._done or now - self._last_line < (_REDRAWN_SECONDS if is_terminal else EVERY_SECONDS):
            return
        self._last_line = now
        rate = self._done / (now - self._began)
        total = "" if self._total is None else f"/{self._total:,}"
        remaining = "" if self._total is None else f"  {(self._total - self._done) / rate:,.0f} s left"
        remark = self._remark and f"  {self._remark}"
        text = f"{self._what} {self._done:,}{total}  {rate:,.0f}/s{remaining}{remark}"
        if is_terminal:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            click.echo(ERASE + text[: columns - 1], nl=False, err=True)
        else:
            click.echo(text, err=True)

    def remark(self, text: str) -> None:
        """Add a remark to what follows."""
        self._remark = text

    def __exit__(self, *error: object) -> None:
        if sys.stderr.isatty():
            click.echo(ERASE, nl=False, err=True)
