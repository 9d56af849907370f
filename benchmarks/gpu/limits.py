"""What the device allows at best: reading rows, and multiplying matrices as heads do."""

from dataclasses import dataclass

import torch

from benchmarks.gpu.slices import Bench, Figure, Slice
from benchmarks.gpu.timing import steady
from pucache.devices import multiplies_bfloat16

WIDTH = 512  # columns of the product


@dataclass(frozen=True)
class Limits:
    """Bytes read and operations computed in a second."""

    read: float
    reduced: float  # bfloat16 where the device multiplies it natively
    single: float  # float32, with TensorFloat-32 off

    def heads(self, bench: Bench, *, passes: float, heads: int) -> float:
        """Least seconds of passes over X with two products each: reading float16 rows, or multiplying."""
        values = bench.size.rows * bench.size.dim
        return passes * max(2 * values / self.read, 4 * values * heads / self.reduced)


def limits(bench: Bench) -> Limits:
    """Measured once in each run."""
    if "limits" not in bench.kept:
        bench.kept["limits"] = _measured(bench)
    return bench.kept["limits"]


def _measured(bench: Bench) -> Limits:
    X = torch.from_numpy(bench.X).to(bench.device)
    read = X.numel() * X.element_size() / steady(bench, lambda: X.sum())
    kinds = (torch.bfloat16 if multiplies_bfloat16(bench.device) else torch.float32, torch.float32)
    rates = []
    for kind in kinds:
        A, B = X.to(kind), torch.ones(X.shape[1], WIDTH, device=bench.device, dtype=kind)
        rates.append(2 * A.numel() * WIDTH / steady(bench, lambda: A @ B))  # noqa: B023
    return Limits(read, *rates)


def measure(bench: Bench) -> list[Figure]:
    rates = limits(bench)
    return [
        Figure("reading X", (rates.read / 1e9,), "GB/s"),
        Figure("product of reduced precision", (rates.reduced / 1e12,), "Tflop/s", note=f"X @ ({WIDTH} columns)"),
        Figure("product in float32", (rates.single / 1e12,), "Tflop/s", note=f"X @ ({WIDTH} columns)"),
    ]


LIMITS = Slice("limits of the device", measure)
