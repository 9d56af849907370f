"""Waits and launches of the emulated device: what the host asks of a GPU, counted without one.

    python -m benchmarks.gpu.counts [--out docs/results/gpu.md] [--json]

Every operation that torch would launch on a GPU is counted, and every point where the host would wait for it
(tests/helpers/emulated_cuda.py). What is counted is the eager path: CUDA graphs, compiled steps and fused
kernels need a GPU, and launch less. Set-up is left out: counts are differences between a longer and a shorter
run of the same work.
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
from pucache.heads.fit import fit_heads
from pucache.heads.minibatch import SGDSettings
from pucache.heads.risks import PURisk

if str(ROOT / "tests") not in sys.path:
    sys.path.append(str(ROOT / "tests"))
from helpers.emulated_cuda import emulated_cuda
from helpers.training_parts import IMAGES, recipe, training, with_norms

N, DIM, LABELLED, BATCH = 600, 24, 60, 64
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


def figures(
    name: str, unit: str, found: tuple[float, float], *, waits: float | None = None, launches: float | None = None
) -> list[Figure]:
    """Two figures of one kind of work, with the budgets that tests hold."""
    values = ((WAITS, found[0], waits), (LAUNCHES, found[1], launches))
    return [Figure(f"{name}: {what} {unit}", (value,), what, target=budget) for what, value, budget in values]


# --- work ------------------------------------------------------------------------------------------


def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """X, s and three columns of weights."""
    draw = np.random.default_rng(0)
    X = draw.standard_normal((N, DIM)).astype(np.float16)
    s = (np.arange(N) < LABELLED).astype(np.int8)
    X[: 2 * LABELLED] += 0.5
    return X, s, draw.integers(0, 3, (N, 3)).astype(np.float32)


def sgd(heads: int, *, weighted: bool) -> list[Figure]:
    """Waits an epoch and launches a step."""
    X, s, weights = rows()
    settings = {"risk": PURisk("imbnnpu"), "solver": "sgd", "prior": np.linspace(0.05, 0.2, heads)}
    if weighted:
        settings |= {"weights": weights, "column": np.arange(heads) % weights.shape[1]}

    def work(epochs: int) -> int:
        protocol = SGDSettings(epochs=epochs, min_steps=0, batch_size=BATCH)
        fit_heads(X, s, sgd_settings=protocol, device="cuda", **settings)
        return epochs

    waits, launches = counted(lambda: work(LONG)).less(counted(lambda: work(SHORT)))
    name = f"sgd, {heads} head{'s' * (heads > 1)}{', row weights' * weighted}"
    steps = -(-N // BATCH)
    return [
        Figure(f"{name}: waits an epoch", (waits,), WAITS, target=2),
        Figure(f"{name}: launches a step", (launches / steps,), LAUNCHES, note="an epoch's own launches dealt out"),
    ]


def batch(heads: int) -> list[Figure]:
    """Waits and launches an evaluation of all heads."""
    X, s, _ = rows()

    def work(tolerance: float) -> int:
        return fit_heads(X, s, seed=np.arange(heads), penalty=1e-3, tolerance=tolerance, device="cuda").passes

    found = counted(lambda: work(1e-5)).less(counted(lambda: work(1e-2)))
    return figures(f"batch, {heads} head{'s' * (heads > 1)}", "a pass over X", found, waits=1, launches=60)


def pretraining(name: str) -> list[Figure]:
    """Waits and launches a step of SimCLR with a small network."""

    def work(steps: int) -> int:
        run = training(with_norms(), recipe(name), device=torch.device("cuda"))
        for number, chosen in zip(range(steps), run.batch_rows(0), strict=False):
            run.step(number, IMAGES[chosen].to("cuda"))
        return steps

    long, short = counted(lambda: work(LONG), as_cpu=True), counted(lambda: work(SHORT), as_cpu=True)
    waits, launches = long.less(short)
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
        runtime(torch.zeros(8 * batches, 32, 32, 3, dtype=torch.uint8))
        return batches

    found = counted(lambda: work(LONG), as_cpu=True).less(counted(lambda: work(SHORT), as_cpu=True))
    return figures(f"embedding, {precision}", "a batch", found, waits=1)


def all_figures() -> list[Figure]:
    """Every count of the page."""
    found = []
    for heads in (1, 6):
        for weighted in (False, True):
            found += sgd(heads, weighted=weighted)
    for heads in (1, 6):
        found += batch(heads)
    for name in ("modern", "impulses"):
        found += pretraining(name)
    for precision in ("fp32", "bf16", "fp16"):
        found += embedding(precision)
    return found


# --- the page --------------------------------------------------------------------------------------


def page(found: list[Figure]) -> str:
    """Markdown."""
    lines = [
        [figure.name, f"{figure.values[0]:g}", "" if figure.target is None else f"{figure.target:g}", figure.note]
        for figure in found
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
    found = all_figures()
    print(json.dumps([asdict(figure) for figure in found]) if arguments.json else page(found))
    if arguments.out:
        arguments.out.write_text(page(found))


if __name__ == "__main__":
    main()
