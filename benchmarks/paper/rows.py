"""Training and evaluation of heads for benchmarks/paper/tables.py: transfer, rankings, losses and wrong priors."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from sklearn.metrics import average_precision_score

from benchmarks.common.baselines import BCE, centroid_margins, logistic, ranked, ranking_figures, standardised
from benchmarks.common.cifar import Cifar
from benchmarks.common.image_classes import Task
from benchmarks.common.row_cache import write_row_cache
from pucache import PULinearClassifier
from pucache.estimates.metrics import with_labels
from pucache.estimates.share_of_new_images import estimate_share
from pucache.estimates.thresholds import choose_threshold
from pucache.heads.linear_heads import FittedHeads
from pucache.heads.risks import RISKS, PURisk
from pucache.heads.solve import fit_heads
from pucache.labels.folds import assign_folds
from pucache.retrieval.scorers import SIMILARITIES, Fused, Similarity
from pucache.training.sklearn_classifier import linear_margins

CS = (1e-3, 1e-4, 1e-5, 1e-6)  # of the logistic regression, scikit-learn's scale
CEILING = 6e-6  # penalty of the supervised head, the best of several for rows it has not seen
SUPERVISED = "supervised"
LOSSES = (*RISKS, SUPERVISED)
RAW, STANDARDISED, OURS = "authors' protocol", "authors' protocol, standardised X", "pucache's solver"
SOLVERS = (RAW, STANDARDISED, OURS)  # the last one with its choice of the penalty
AUTHORS = "the authors' head (imbnnPU, trained with Adam), with the true prior"
AT_ZERO, TEST_SHARE, AUTO, OWN = (
    "**pucache, no prior given**: margin 0",
    "**pucache**: threshold set for the true share of positives in the test set",
    "**pucache, no prior given**: threshold set for its estimate of the share in the test set (default of `score`)",
    "pucache: threshold set for its estimate of the prior",
)
LOGISTIC = "logistic regression, P against U, balanced, C={:g}"
CENTROID = "centroid of P less centroid of U, threshold midway"
SUPERVISED_HEAD = "supervised: logistic regression on all true labels, C=0.001"
MISLED = {
    "imbnnPU, authors' protocol": ("imbnnpu", RAW),
    "nnPU, authors' protocol, standardised X": ("nnpu", STANDARDISED),
}


@dataclass(frozen=True)
class Scope:
    """How much is run; tasks with all images of CIFAR-10 and rankings take the first seed."""

    seeds: tuple[int, ...] = (0, 1, 2)
    factors: tuple[float, ...] = (0.1, 0.5, 1, 5, 10)
    labelled: tuple[int, ...] = (1000, 3000)  # with all images of CIFAR-10
    losses: tuple[str, ...] = LOSSES


QUICK = Scope((0,), (0.2, 1, 5), (1000,), ("nnpu", "imbnnpu", "imbupu", "bce", SUPERVISED))


def figures(y: np.ndarray, margins: np.ndarray, threshold: float = 0.0) -> dict[str, float]:
    """Accuracy, F1, AUC, and the share called positive: what is above the threshold."""
    called = margins > threshold
    scores = with_labels(y.astype(int), margins, called.astype(int))
    return {name: scores[name] for name in ("accuracy", "f1", "auc")} | {"called": float(called.mean())}


def authors(task: Task, *, prior: float, seeds: tuple[int, ...], loss: str = "imbnnpu") -> FittedHeads:
    """Heads by the authors' protocol, one a seed; `loss` may be "supervised", weighted BCE on the true labels.

    The protocol takes X as it is; hand over `as_standardised(task)` for the other way.
    """
    labels, risk = (task.y.astype(np.int8), BCE) if loss == SUPERVISED else (task.s, PURisk(loss))
    return fit_heads(task.X, labels, prior=prior, risk=risk, solver="sgd", seed=np.array(seeds))


# --- transfer --------------------------------------------------------------------------------------


def transfer(task: Task, seed: int) -> dict:
    """Every way on one task: `ways` by name, `prior` with its interval, `counts`, `bins` of the posterior."""
    share = float(task.y_test.mean())
    ways, model = _ours(task, seed, share)
    for name, heads, X_test, U in _others(task, seed):
        test, unlabelled = heads.margins(X_test)[:, 0], heads.margins(U)[:, 0]
        ways[name] = figures(task.y_test, test) | {"ap": average_precision_score(task.hidden, unlabelled)}
    ways[CENTROID] = _centroid(task)
    held, estimate = model.held_out_margins_[task.s == 0], model.prior_estimate_
    of_test = model.tilt_.posterior(model.margins(task.X_test), share)
    return {
        "ways": ways,
        "prior": [estimate.prior, estimate.low, estimate.high, task.prior],
        "counts": [int(task.s.sum()), int(task.hidden.sum()), int((~task.hidden).sum()), len(task.y_test), share],
        "bins": {
            "unlabelled": bins(model.tilt_.posterior(held, model.tilt_.prior), task.hidden),
            "test": bins(of_test, task.y_test),
        },
    }


def _ours(task: Task, seed: int, share: float) -> tuple[dict, PULinearClassifier]:
    began = time.perf_counter()
    model = PULinearClassifier(deploy_prior=share, random_state=seed).fit(task.X, task.s)
    seconds, margins = time.perf_counter() - began, model.margins(task.X_test)
    own = choose_threshold(model.tilt_, model.held_out_margins_[task.s == 0], "f1", model.tilt_.prior)
    ap = average_precision_score(task.hidden, model.margins(task.unlabelled))
    pile, by_folds = model.pile_margins_, linear_margins(task.X_test, model.fold_coef_, model.fold_intercept_)
    auto = model.at_share(estimate_share(pile, model.tilt_.prior, by_folds).prior).threshold_
    thresholds = {AT_ZERO: 0.0, TEST_SHARE: model.threshold_, AUTO: auto, OWN: own}
    ways = {name: figures(task.y_test, margins, at) | {"ap": ap} for name, at in thresholds.items()}
    ways[AT_ZERO]["seconds"] = seconds
    return ways, model


def _others(task: Task, seed: int):
    """Name, head, test rows and unlabelled rows as the head takes them."""
    yield AUTHORS, authors(task, prior=task.prior, seeds=(seed,)), task.X_test, task.unlabelled
    Z, Z_test = standardised(task.X, task.X_test)
    heads = logistic(Z, task.s, CS, seed=seed)
    for at, C in enumerate(CS):
        yield LOGISTIC.format(C), heads.take([at]), Z_test, Z[task.s == 0]
    yield SUPERVISED_HEAD, logistic(Z, task.y.astype(np.int8), CS[:1], seed=seed), Z_test, Z[task.s == 0]


def as_standardised(task: Task) -> Task:
    X, X_test = standardised(task.X, task.X_test)
    return replace(task, X=X, X_test=X_test)


def _centroid(task: Task) -> dict:
    test, unlabelled = centroid_margins(task.X, task.s, task.X_test, task.unlabelled)
    return figures(task.y_test, test) | {"ap": average_precision_score(task.hidden, unlabelled)}


def bins(posterior: np.ndarray, y: np.ndarray, number: int = 10) -> list[list[float]]:
    """Mean posterior, true share and rows of each bin of equal width that holds a row."""
    at = np.minimum((number * posterior).astype(int), number - 1)
    return [
        [float(posterior[at == one].mean()), float(y[at == one].mean()), int((at == one).sum())]
        for one in np.unique(at)
    ]


# --- hidden positives found ------------------------------------------------------------------------


def retrieved(data: Cifar, work: Path, seed: int) -> dict:
    """Precision at ranks and average precision of the positives hidden in the authors' pile, by each way."""
    task = data.authors()
    cache = write_row_cache(work / "paper-pile.h5", task.X, data.train.encoder)
    model = PULinearClassifier(random_state=seed).fit(task.X, task.s)
    model.encoder_ = cache.encoder
    ways = {
        "**pucache: classifier and neighbours, fused** (default)": ranked(cache, task.s, Fused(model)),
        "pucache: classifier": model.margins(task.unlabelled),
        AUTHORS: authors(task, prior=task.prior, seeds=(seed,)).margins(task.unlabelled)[:, 0],
    }
    (Z,) = standardised(task.X)
    by_logistic = logistic(Z, task.s, CS, seed=seed).margins(Z[task.s == 0])
    ways |= {LOGISTIC.format(C): of for C, of in zip(CS, by_logistic.T, strict=True)}
    ways |= {f"pucache: similarity, {kind}": ranked(cache, task.s, Similarity(kind)) for kind in SIMILARITIES}
    unit = task.X / np.linalg.norm(task.X.astype(np.float32), axis=1, keepdims=True)
    ways["mean cosine to the labelled positives, not centred"] = unit[task.s == 0] @ unit[task.s == 1].mean(0)
    ways["supervised: rows it has not seen (5 folds), every other true label"] = _unseen(task, seed)
    return {"ways": {name: ranking_figures(task.hidden, scores) for name, scores in ways.items()}}


def _unseen(task: Task, seed: int) -> np.ndarray:
    fold = assign_folds(task.y.astype(int), 5, seed)
    weights = (fold[:, None] != np.arange(5)).astype(np.float32)
    heads = fit_heads(task.X, task.y.astype(np.int8), weights=weights, risk=BCE, penalty=CEILING, seed=seed)
    return np.take_along_axis(heads.margins(task.X), fold[:, None], 1)[task.s == 0, 0]


# --- losses, and priors that are wrong -------------------------------------------------------------


def ablation(task: Task, loss: str, solver: str, seeds: tuple[int, ...]) -> list[dict]:
    """Figures of a loss with the true prior, one dict a seed; see `SOLVERS`."""
    if solver == STANDARDISED:
        task = as_standardised(task)
    if solver == OURS and loss != SUPERVISED:
        models = [PULinearClassifier(task.prior, loss=loss, random_state=seed).fit(task.X, task.s) for seed in seeds]
        margins = [[model.margins(rows) for model in models] for rows in (task.X_test, task.unlabelled)]
    else:
        heads = (
            fit_heads(task.X, task.y.astype(np.int8), risk=BCE, penalty=CEILING, seed=np.array(seeds))
            if solver == OURS
            else authors(task, prior=task.prior, seeds=seeds, loss=loss)
        )
        margins = [heads.margins(rows).T for rows in (task.X_test, task.unlabelled)]
    return [
        figures(task.y_test, test) | {"ap": average_precision_score(task.hidden, unlabelled)}
        for test, unlabelled in zip(*margins, strict=True)
    ]


def misspecified_prior(task: Task, factor: float) -> float:
    """The true prior times a factor, still a share."""
    return min(factor * task.prior, 0.99)


def misled_authors(task: Task, way: str, scope: Scope) -> dict[str, list[list[dict]]]:
    """Figures of a way of `MISLED` with priors that are wrong by each factor: factors x seeds."""
    loss, solver = MISLED[way]
    priors = [misspecified_prior(task, factor) for factor in scope.factors]
    inputs = as_standardised(task) if solver == STANDARDISED else task
    of = [authors(inputs, prior=prior, seeds=scope.seeds, loss=loss) for prior in priors]
    return {way: [[figures(task.y_test, margins) for margins in heads.margins(inputs.X_test).T] for heads in of]}


def misled_pucache(task: Task, scope: Scope) -> dict[str, list[list[dict]]]:
    """The same of pucache's default, at margin 0 and at its threshold for the test set's share; the first seed."""
    share, lines = float(task.y_test.mean()), {"pucache, margin 0": [], "pucache, own threshold": []}
    for factor in scope.factors:
        prior = misspecified_prior(task, factor)
        model = PULinearClassifier(prior, deploy_prior=share, random_state=scope.seeds[0]).fit(task.X, task.s)
        margins = model.margins(task.X_test)
        for name, threshold in zip(lines, (0.0, model.threshold_), strict=True):
            lines[name].append([figures(task.y_test, margins, threshold)])
    return lines
