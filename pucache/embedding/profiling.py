"""Where the time of an embedding run went, and which stage is the limit."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

ON_DEVICE = "decoding on the device"
_HELP = {
    "encoder": "a faster --runtime, a lower --precision or another device",
    ON_DEVICE: "--decode host with more --workers",
    "writing": "a faster disk",
    "starting": "more images at a time, or --runtime torch",
}


class Profile:
    """Seconds by stage, and how much of the time the encoder was at work.

    Attributes
    ----------
    seconds : Counter
        Stage to seconds, summed over the threads and processes that worked on it.
    wall : float
        Seconds from the first image to the last.
    """

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()  # of floats, though its type says int
        self.hands = self.workers = self.passes = 1
        self.wall = 0.0
        self._lock = threading.Lock()
        self._running, self._since, self._busy = 0, 0.0, 0.0
        self._began = 0.0

    def begin(self, *, hands: int, workers: int, passes: int) -> None:
        """Start the clock.

        Parameters
        ----------
        hands : int
            Threads that run the encoder and, where there are no workers, prepare images.
        workers : int
            Processes that prepare images.
        passes : int
            Forward passes at once that keep the device busy.
        """
        self.hands, self.workers, self.passes = hands, workers, passes
        self._began = self._since = time.perf_counter()

    def end(self) -> None:
        """Stop the clock."""
        self.wall = time.perf_counter() - self._began

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time within as that of a stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self.seconds.update({name: time.perf_counter() - began})  # type: ignore[dict-item]

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Count the time within as a forward pass; several may run at once."""
        self._change(1)
        try:
            with self.stage("encoder"):
                yield
        finally:
            self._change(-1)

    def _change(self, by: int) -> None:
        with self._lock:
            now = time.perf_counter()
            self._busy += (now - self._since) * min(self._running, self.passes) / self.passes
            self._since, self._running = now, self._running + by

    def add(self, seconds: dict[str, float]) -> None:
        """Count the time that a pass took elsewhere, by stage."""
        with self._lock:
            self.seconds.update(seconds)  # type: ignore[arg-type]
            self._busy += seconds.get("encoder", 0.0) / self.passes

    @property
    def waited(self) -> float:
        """Share of the time until now in which the device did not run the encoder."""
        if not self._began:
            return 0.0
        self._change(0)
        return max(0.0, 1 - self._busy / (self.wall or time.perf_counter() - self._began))

    def shares(self) -> dict[str, float]:
        """Share of the time that each stage kept those busy who do it; listing and merging are not among them."""
        preparing = self.workers or self.hands
        shares = {}
        for name, seconds in self.seconds.items():
            if name in ("listing", "merging"):
                continue
            those = {"writing": 1, "starting": 1, ON_DEVICE: self.hands}.get(name, preparing)
            shares[name] = seconds / (those * self.wall) if self.wall else 0.0
        if "encoder" in shares:
            shares["encoder"] = 1 - self.waited
        return shares

    def limit(self) -> str:
        """Name what a faster run would need more of."""
        shares = self.shares()
        if "encoder" not in shares:
            return "nothing was embedded"
        alone = {name: shares.get(name, 0.0) for name in _HELP}
        preparing = {name: share for name, share in shares.items() if name not in _HELP}
        loads = {**alone, "": sum(preparing.values())}
        most = max(loads, key=lambda name: loads[name])
        if most:
            return f"{most}; {_HELP[most]} would help"
        slowest = max(preparing, key=lambda name: preparing[name])
        help_ = "a faster disk or network" if slowest == "reading" else "smaller files"
        return f"{slowest}; more --workers or {help_} would help"

    def lines(self) -> Iterator[str]:
        """Tell it as a table."""
        shares = self.shares()
        yield f"{'stage':22s}{'seconds':>10s}{'busy':>8s}   seconds are summed over those at work at the same time"
        for name, seconds in self.seconds.items():
            share = f"{shares[name]:8.0%}" if name in shares else f"{'':8s}"
            yield f"{name:22s}{seconds:10.2f}{share}"
        yield f"limit: {self.limit()}"

    def summary(self) -> dict[str, object]:
        """Give it as JSON takes it."""
        return {
            "seconds": {name: round(seconds, 4) for name, seconds in self.seconds.items()},
            "busy": {name: round(share, 4) for name, share in self.shares().items()},
            "device_waited": round(self.waited, 4),
            "limit": self.limit(),
        }
