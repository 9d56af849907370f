"""Waits and launches of the emulated device: what the host asks of a GPU, counted without one.

    python -m benchmarks.gpu.counts [--out docs/results/gpu.md] [--json]

The emulated device (tests/helpers/emulated_cuda.py) counts every kernel that torch would launch, and every
point where the host would wait for the GPU. Kernels that only a GPU
can run, such as those of a compiled network, are not counted. Set-up is left out, unless it is named.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.common.cells import table
from benchmarks.common.environment import environment
from benchmarks.gpu.checkout import ROOT
from benchmarks.gpu.slices import Figure
from pucache.encoders.inference import Runtime
from pucache.neighbours.knn import RowSearch

if str(ROOT / "tests") not in sys.path:
    sys.path.append(str(ROOT / "tests"))
from helpers.emulated_cuda import emulated_cuda
from helpers.training_parts import IMAGES, recipe, training, with_norms

N, DIM = 600, 24
SHORT, LONG = 3, 5  # epochs, batches or steps
WAITS, LAUNCHES = "waits", "launches"


@dataclass(frozen=True)
class Counted:
    """Waits and launches of some work."""

    waits: int
    launches: int
    units: int  # steps, iterations or batches

    def less(self, other: "Counted") -> tuple[float, float]:
        """Waits and launches a unit, of what is done here and not there."""
        units = self.units - other.units
        return (self.waits - other.waits) / units, (self.launches - other.launches) / units


def counted(work: Callable[[], int], *, as_cpu: bool = False) -> Counted:
    """Counts of work on the emulated device; `work` returns its units."""
    with emulated_cuda(as_cpu=as_cpu) as device:
        device.counts.clear()
        units = work()
        return Counted(device.counts.waited, device.counts.launches, units)


def difference(work: Callable[[int], int], *, as_cpu: bool = False) -> tuple[float, float]:
    """Waits and launches a unit, by a longer and a shorter run of the same work."""
    counted(lambda: work(1), as_cpu=as_cpu)  # makes the constants that are kept
    return counted(lambda: work(LONG), as_cpu=as_cpu).less(counted(lambda: work(SHORT), as_cpu=as_cpu))


def figures(
    name: str,
    unit: str,
    pair: tuple[float, float],
    *,
    waits: float | None = None,
    launches: float | None = None,
) -> list[Figure]:
    """Two figures of one kind of work, with the budgets that tests hold."""
    values = ((WAITS, pair[0], waits), (LAUNCHES, pair[1], launches))
    return [Figure(f"{name}: {what} {unit}", (value,), what, target=budget) for what, value, budget in values]


# --- work ------------------------------------------------------------------------------------------


def rows() -> np.ndarray:
    """Rows to search, float32 (n, d)."""
    return np.random.default_rng(0).standard_normal((N, DIM)).astype(np.float32)


def pretraining(name: str) -> list[Figure]:
    """Waits and launches a step of SimCLR with a small network."""

    def work(steps: int) -> int:
        run = training(with_norms(), recipe(name), device=torch.device("cuda"))
        for number, chosen in zip(range(steps), run.batch_rows(0), strict=False):
            run.step(number, IMAGES[chosen].to("cuda"))
        return steps

    waits, launches = difference(work, as_cpu=True)
    uploads = 1  # of the batch, which the trainer does ahead of the step
    return figures(f"SimCLR, {name}", "a step", (waits - uploads, launches), waits=0)


def embedding(precision: str) -> list[Figure]:
    """Waits and launches a batch of a small network."""
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 8, 5, stride=4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    network, half = torch.nn.Sequential(*layers), (0.5, 0.5, 0.5)

    def work(batches: int) -> int:
        runtime = Runtime(
            network, half, half, input_size=(32, 32), device=torch.device("cuda"), precision=precision, batch_size=8
        )
        for _ in range(batches):
            runtime(runtime.joined([torch.zeros(8, 32, 32, 3, dtype=torch.uint8)]))
        return batches

    return figures(f"embedding, {precision}", "a batch", difference(work, as_cpu=True), waits=1)


def retrieval() -> list[Figure]:
    """Waits and launches a search among rows that were uploaded before."""
    X = rows()

    def work(searches: int) -> int:
        search = RowSearch(X, 10, device="cuda")
        for _ in range(searches):
            search.nearest(X[:50])
        return searches

    return figures("exact search, 50 queries", "a search", difference(work))


def all_figures() -> list[Figure]:
    """Every count of the page."""
    collected = []
    collected += retrieval()
    for name in ("modern", "impulses"):
        collected += pretraining(name)
    for precision in ("fp32", "bf16", "fp16"):
        collected += embedding(precision)
    return collected


# --- the page --------------------------------------------------------------------------------------


def page(collected: list[Figure]) -> str:
    """Markdown."""
    lines = [
        [figure.name, f"{figure.values[0]:.4g}", "" if figure.target is None else f"{figure.target:g}", figure.note]
        for figure in collected
    ]
    explanation = " ".join((__doc__ or "").split("\n\n")[-1].split())
    return (
        "\n\n".join(
            [
                "# CUDA",
                "No GPU has run pucache yet. These are counts of an emulated device, by "
                "`python -m benchmarks.gpu.counts`; [CUDA](../gpu.md) says what they are worth. "
                "`python -m benchmarks.gpu.suite OUT` measures on a GPU and writes this page anew.",
                explanation,
                table(["", "count", "budget", ""], lines),
                environment(),
            ]
        )
        + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    collected = all_figures()
    print(json.dumps([asdict(figure) for figure in collected]) if arguments.json else page(collected))
    if arguments.out:
        arguments.out.write_text(page(collected))


if __name__ == "__main__":
    main()
