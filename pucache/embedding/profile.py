"""Time of an embedding run by stage."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Profile:
    """Seconds by stage, summed over threads and processes, and the share of time in which the encoder was running."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()  # the values are floats, unlike the annotation
        self.first_batch: float | None = None  # seconds from the start of the clock to the end of the first pass
        self._lock = threading.Lock()
        self._passes, self._began, self._ended = 1, 0.0, 0.0
        self._running, self._changed, self._busy = 0, 0.0, 0.0  # passes now, since when, and seconds of passes before

    def begin(self, passes: int) -> None:
        """Start the clock; so many simultaneous forward passes keep the device busy."""
        self._passes, self._began = passes, time.perf_counter()

    def end(self) -> None:
        """Stop the clock."""
        self._ended = time.perf_counter()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time spent within to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add({name: time.perf_counter() - start})

    def add(self, seconds: dict[str, float]) -> None:
        """Add seconds by stage."""
        with self._lock:
            self.seconds.update(seconds)  # type: ignore[arg-type]

    @contextmanager
    def forward_pass(self) -> Iterator[None]:
        """Count the time spent within as a pass of the encoder."""
        self._count(1)
        try:
            with self.stage("encoder"):
                yield
            if self.first_batch is None:
                self.first_batch = time.perf_counter() - self._began
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._lock:
            now = time.perf_counter()
            self._busy += min(self._running, self._passes) * (now - self._changed)
            self._running, self._changed = self._running + change, now

    @property
    def waited(self) -> float:
        """Share of the time so far in which the device did not run the encoder, starting it included.

        Passes beyond those that keep the device busy do not count.
        """
        self._count(0)
        elapsed = (self._ended or time.perf_counter()) - self._began if self._began else 0.0
        return max(0.0, 1 - self._busy / (self._passes * elapsed)) if elapsed else 0.0

    def summary(self) -> dict[str, object]:
        """The figures, ready for JSON."""
        seconds = {name: round(seconds, 4) for name, seconds in self.seconds.items()}
        first = None if self.first_batch is None else round(self.first_batch, 4)
        return {"seconds": seconds, "first_batch": first, "device_waited": round(self.waited, 4)}
