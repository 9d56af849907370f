"""Time of an embedding run by stage, and the stage that limits it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

ON_DEVICE = "decoding on the device"
_REMEDIES = {
    "encoder": "a faster --runtime, a lower --precision or another device",
    ON_DEVICE: "--decode host with more --workers",
    "writing": "a faster disk",
    "starting": "more images at a time, or --runtime torch",
}


class Profile:
    """Seconds by stage, and the share of time in which the encoder was running.

    Attributes
    ----------
    seconds : Counter
        Stage to seconds, summed over threads and processes.
    wall : float
        Seconds from the first image to the last.
    """

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()  # the values are floats, unlike the annotation
        self.threads = self.workers = self.passes = 1
        self.wall = 0.0
        self._lock = threading.Lock()
        self._running, self._changed_at, self._busy = 0, 0.0, 0.0
        self._started_at = 0.0

    def begin(self, *, threads: int, workers: int, passes: int) -> None:
        """Start the clock.

        Parameters
        ----------
        threads : int
            Threads that run the encoder and, where there are no workers, load images.
        workers : int
            Processes that load images.
        passes : int
            Number of simultaneous forward passes that keep the device busy.
        """
        self.threads, self.workers, self.passes = threads, workers, passes
        self._started_at = self._changed_at = time.perf_counter()

    def end(self) -> None:
        """Stop the clock."""
        self.wall = time.perf_counter() - self._started_at

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time spent within to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self.seconds.update({name: time.perf_counter() - start})  # type: ignore[dict-item]

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Add the time spent within as a forward pass; several may run at once."""
        self._change(1)
        try:
            with self.stage("encoder"):
                yield
        finally:
            self._change(-1)

    def _change(self, by: int) -> None:
        with self._lock:
            now = time.perf_counter()
            self._busy += (now - self._changed_at) * min(self._running, self.passes) / self.passes
            self._changed_at, self._running = now, self._running + by

    def add(self, seconds: dict[str, float]) -> None:
        """Add seconds by stage that were spent in another process."""
        with self._lock:
            self.seconds.update(seconds)  # type: ignore[arg-type]
            self._busy += seconds.get("encoder", 0.0) / self.passes

    @property
    def waited(self) -> float:
        """Share of the time so far in which the device did not run the encoder."""
        if not self._started_at:
            return 0.0
        self._change(0)
        return max(0.0, 1 - self._busy / (self.wall or time.perf_counter() - self._started_at))

    def shares(self) -> dict[str, float]:
        """Share of time in which each stage kept its threads or processes busy; without listing and merging."""
        loaders = self.workers or self.threads
        shares = {}
        for name, seconds in self.seconds.items():
            if name in ("listing", "merging"):
                continue
            count = {"writing": 1, "starting": 1, ON_DEVICE: self.threads}.get(name, loaders)
            shares[name] = seconds / (count * self.wall) if self.wall else 0.0
        if "encoder" in shares:
            shares["encoder"] = 1 - self.waited
        return shares

    def limit(self) -> str:
        """Name the stage that limits the speed, and what would help."""
        shares = self.shares()
        if "encoder" not in shares:
            return "nothing was embedded"
        own_loads = {name: shares.get(name, 0.0) for name in _REMEDIES}
        loading = {name: share for name, share in shares.items() if name not in _REMEDIES}
        loads = {**own_loads, "": sum(loading.values())}  # one set of threads does all stages of loading
        busiest = max(loads, key=lambda name: loads[name])
        if busiest:
            return f"{busiest}; {_REMEDIES[busiest]} would help"
        slowest = max(loading, key=lambda name: loading[name])
        remedy = "a faster disk or network" if slowest == "reading" else "smaller files"
        return f"{slowest}; more --workers or {remedy} would help"

    def lines(self) -> Iterator[str]:
        """Lines of a table of the stages."""
        shares = self.shares()
        yield f"{'stage':22s}{'seconds':>10s}{'busy':>8s}   seconds are summed over those at work at the same time"
        for name, seconds in self.seconds.items():
            share = f"{shares[name]:8.0%}" if name in shares else f"{'':8s}"
            yield f"{name:22s}{seconds:10.2f}{share}"
        yield f"limit: {self.limit()}"

    def summary(self) -> dict[str, object]:
        """The same figures, ready for JSON."""
        return {
            "seconds": {name: round(seconds, 4) for name, seconds in self.seconds.items()},
            "busy": {name: round(share, 4) for name, share in self.shares().items()},
            "device_waited": round(self.waited, 4),
            "limit": self.limit(),
        }
