"""Waits and launches of the emulated device: what the host asks of a GPU, counted without one.

    python -m benchmarks.gpu.counts [--out docs/results/gpu.md] [--json]

The emulated device (tests/helpers/emulated_cuda.py) counts every kernel that torch would launch, and every
point where the host would wait for the GPU. The replay of a CUDA graph is one launch. Kernels that only a GPU
can run, such as those of a compiled network, are not counted. Set-up is left out, unless it is named.
"""

import argparse
import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.common.cells import table
from benchmarks.common.environment import environment
from benchmarks.gpu.checkout import ROOT
from benchmarks.gpu.slices import Figure
from pucache.encoders.inference import Runtime
from pucache.heads.design_matrix import DesignMatrix
from pucache.heads.full_batch import RiskObjective
from pucache.heads.minibatch import SGDSettings
from pucache.heads.problem import HeadProblem
from pucache.heads.risks import PURisk
from pucache.heads.solve import fit_heads
from pucache.neighbours.search import row_search
from pucache.neighbours.whitening import put
from pucache.progress import Silent

if str(ROOT / "tests") not in sys.path:
    sys.path.append(str(ROOT / "tests"))
from helpers.emulated_cuda import Graph, emulated_cuda
from helpers.training_parts import IMAGES, recipe, training, with_norms

N, DIM, LABELLED = 600, 24, 60
LARGE, SMALL = 60, 20  # rows of a batch
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


def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """X, s and three columns of weights."""
    draw = np.random.default_rng(0)
    X = draw.standard_normal((N, DIM)).astype(np.float16)
    s = (np.arange(N) < LABELLED).astype(np.int8)
    X[: 2 * LABELLED] += 0.5
    return X, s, draw.integers(0, 3, (N, 3)).astype(np.float32)


def sgd(heads: int, *, weighted: bool) -> list[Figure]:
    """Of an epoch by a CUDA graph, and of a step where there is none."""
    X, s, weights = rows()
    settings = {"risk": PURisk("imbnnpu"), "solver": "sgd", "prior": np.linspace(0.05, 0.2, heads), "penalty": 1e-3}
    if weighted:
        settings |= {"weights": weights, "column": np.arange(heads) % weights.shape[1]}

    def epochs_of(size: int) -> tuple[float, float]:
        def work(epochs: int) -> int:
            protocol = SGDSettings(epochs=epochs, min_steps=0, batch_size=size)
            fit_heads(X, s, sgd_settings=protocol, device="cuda", **settings)
            return epochs

        return difference(work)

    name = f"sgd, {heads} head{'s' * (heads > 1)}{', row weights' * weighted}"
    waits, launches = epochs_of(LARGE)
    with no_graphs():
        (_, small_batches), (_, large_batches) = epochs_of(SMALL), epochs_of(LARGE)
    step = (small_batches - large_batches) / (-(-N // SMALL) + N // -LARGE)
    return [
        Figure(f"{name}: waits an epoch", (waits,), WAITS, target=2),
        Figure(f"{name}: launches an epoch, by a CUDA graph", (launches,), LAUNCHES, target=50),
        Figure(f"{name}: launches a step, without graphs", (step,), LAUNCHES, target=8),
    ]


@contextmanager
def no_graphs() -> Iterator[None]:
    """Refuse to capture; the solver then goes on without, and warns."""

    def refused(*operation: object) -> None:
        raise RuntimeError("not captured")

    log = logging.getLogger("pucache")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with patch.object(Graph, "note", refused):
            yield
    finally:
        log.setLevel(level)


def batch(heads: int) -> list[Figure]:
    """Of a fit, and of an evaluation of the risk of all heads and of its gradient."""
    X, s, _ = rows()

    def work() -> int:
        return fit_heads(X, s, seed=np.arange(heads), penalty=1e-3, device="cuda").passes

    whole = counted(work)
    name = f"batch, {heads} head{'s' * (heads > 1)}"
    note = f"{whole.units} passes over X, set-up included"
    return [
        Figure(f"{name}: waits beyond one in a pass over X", (whole.waits - whole.units,), WAITS, target=7, note=note),
        Figure(f"{name}: launches a pass over X", (whole.launches / whole.units,), LAUNCHES, target=185, note=note),
        Figure(f"{name}: launches an evaluation", (evaluation(heads),), LAUNCHES, target=60),
    ]


def evaluation(heads: int) -> int:
    """Launches of one evaluation of the risk and its gradient."""
    X, s, _ = rows()
    with emulated_cuda() as device, torch.inference_mode():
        design = DesignMatrix(X, s, None, torch.device("cuda"))
        problem = HeadProblem.of(design, PURisk(), prior=np.full(heads, 0.1), column=0)
        objective = RiskObjective(problem, Silent())
        parameters, running = torch.zeros(heads, DIM + 1, device="cuda"), torch.arange(heads, device="cuda")
        device.counts.clear()
        objective(parameters, running)
        return device.counts.launches


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
    X = rows()[0].astype(np.float32)

    def work(searches: int) -> int:
        gpu = torch.device("cuda")
        search = row_search(put(X, gpu), gpu)
        for _ in range(searches):
            search(put(X[:50], gpu), 10)
        return searches

    return figures("exact search, 50 queries", "a search", difference(work))


def all_figures() -> list[Figure]:
    """Every count of the page."""
    collected = []
    for heads in (1, 6):
        for weighted in (False, True):
            collected += sgd(heads, weighted=weighted)
    for heads in (1, 6):
        collected += batch(heads)
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
