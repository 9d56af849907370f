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
        self._lock = threading.Lock()
        self._passes, self._began, self._ended = 1, 0.0, 0.0

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

    @property
    def waited(self) -> float:
        """Share of the time so far in which the device did not run the encoder."""
        elapsed = (self._ended or time.perf_counter()) - self._began if self._began else 0.0
        return max(0.0, 1 - self.seconds["encoder"] / (self._passes * elapsed)) if elapsed else 0.0

    def line(self) -> str:
        """The stages on one line."""
        stages = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.seconds.items())
        return f"{stages or 'nothing was embedded'} (summed over threads); the encoder waited {self.waited:.0%}"

    def summary(self) -> dict[str, object]:
        """The same figures, ready for JSON."""
        seconds = {name: round(seconds, 4) for name, seconds in self.seconds.items()}
        return {"seconds": seconds, "device_waited": round(self.waited, 4)}
