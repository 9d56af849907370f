"""Progress of a download as lines in the log."""

from __future__ import annotations

import logging
from time import monotonic

EVERY_SECONDS = 10.0

log = logging.getLogger("pucache")


class FetchLog:
    """A `pucache.progress.Progress` of a download: one line in the log every `EVERY_SECONDS`.

    Parameters
    ----------
    name : str
        What is downloaded, without secrets.
    """

    def __init__(self, name: str):
        self._name, self._total, self._done = name, 0, 0
        self._began = self._last_line = monotonic()

    def start(self, total: int | None, what: str) -> None:
        """Begin a download of so many MB."""
        self._total, self._done = total or 0, 0
        self._began = self._last_line = monotonic()

    def advance(self, steps: int) -> None:
        """Count MB."""
        self._done += steps
        now = monotonic()
        if self._done and now - self._last_line >= EVERY_SECONDS:
            self._last_line = now
            rate = self._done / max(now - self._began, 1e-9)
            left = max(self._total - self._done, 0) / rate
            done = f"{self._done:,} MB of {max(self._total, self._done):,}"
            log.info("fetching %s: %s, %s MB/s, %s s left", self._name, done, f"{rate:,.1f}", f"{left:,.0f}")

    def remark(self, text: str) -> None:
        """Do nothing."""

    def __enter__(self) -> FetchLog:
        return self

    def __exit__(self, *error: object) -> None: ...
