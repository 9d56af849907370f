"""Times of calls on a device: the first, those after it, and the memory that they take."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from benchmarks.gpu.slices import Bench, Figure


@dataclass(frozen=True)
class Timing:
    """Seconds of a call.

    Attributes
    ----------
    cold : float
        Of the first call in this process.
    warm : tuple of float
        Of those after it.
    peak : float or None
        GB of the device that tensors took at most; None on the CPU.
    """

    cold: float
    warm: tuple[float, ...]
    peak: float | None

    @property
    def seconds(self) -> float:
        return median(self.warm)

    def figures(self, name: str, *, target: float | None = None, limit: float | None = None, note: str = ""):
        """As figures of a slice."""
        figures = [
            Figure(name, self.warm, target=target, limit=limit, note=note),
            Figure(f"{name}: first call", (self.cold,)),
        ]
        if self.peak is not None:
            figures.append(Figure(f"{name}: peak memory", (self.peak,), "GB"))
        return figures


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(bench: Bench, call: Callable[[], object], *, repeats: int | None = None) -> Timing:
    """Time a call once, and `repeats` times more."""
    on_gpu = bench.on_gpu
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(bench.device)
    seconds = []
    for _ in range(1 + (repeats or bench.size.repeats)):
        synchronize(bench.device)
        began = time.perf_counter()
        call()
        synchronize(bench.device)
        seconds.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated(bench.device) / 1e9 if on_gpu else None
    return Timing(cold=seconds[0], warm=tuple(seconds[1:]), peak=peak)


def steady(bench: Bench, call: Callable[[], object], count: int = 20) -> float:
    """Seconds of one of many calls in a row, between two waits."""

    def calls() -> None:
        for _ in range(count):
            call()

    return timed(bench, calls, repeats=3).seconds / count
