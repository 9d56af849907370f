"""Learners compared with pucache's: pulearn, pu-toolbox, scikit-learn, a plain PyTorch loop.

`LEARNERS[name].fit(X, s, truth) -> score`. X is float16 (n, d), as a cache holds it; s is int8, 1 labelled positive
and 0 unlabelled. `score(X)` gives the learner's own ranking score, float (m,), and decision, int (m,) in {0, 1}.

Every peer sees features standardised on the training rows, but for the PyTorch loop, which trains on raw ones as
its authors do. Settings are the package's defaults, or where it asks for a choice those of its documentation;
logistic regression is scikit-learn's with max_iter=1000, and C=1 where the name gives none. Seeds are 0. No peer is
repaired: what it raises is raised, e.g. by Elkanoto when no labelled row falls in its random hold-out.
WeightedElkanoto's threshold is a sum over the rows it is given, so its decision on a row changes with the others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV

PACKAGES = {"pulearn": "pulearn==0.2.0", "pu_toolbox": "pu-toolbox==1.11.0"}
CS, FOLDS = np.logspace(-6, -2, 5), 5  # that a careful user tries, on scikit-learn's scale: those of the suite
PENALTY = 1e-4  # of pucache where it is not chosen: the middle of the grid
EPOCHS = 100  # of the PyTorch loop: the authors'


class Truth(NamedTuple):
    """What a learner may be given of the truth: the share of positives among the unlabelled, and in the test set."""

    prior: float
    share: float


Score = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
Fit = Callable[[np.ndarray, np.ndarray, Truth], Score]


@dataclass(frozen=True)
class Learner:
    """A way to learn.

    Attributes
    ----------
    fit : callable
    work : str
        What a fit is made of, in words.
    oracle : str
        What it is given of the truth; empty for nothing.
    pace : {"quick", "slow", "slowest"}
        How many tasks a fit is affordable on. `--quick` runs the quick ones alone.
    """

    fit: Fit
    work: str
    oracle: str = ""
    pace: str = "slow"


def missing() -> list[str]:
    """What of `PACKAGES` is not installed, as pip names it."""
    return [wanted for name, wanted in PACKAGES.items() if find_spec(name) is None]


def pulearn() -> ModuleType:
    return import_module("pulearn")


def pu_toolbox() -> ModuleType:
    return import_module("pu_toolbox")


# --- peers ---------------------------------------------------------------------------------------


def standardised(X: np.ndarray) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """X in float32 with mean 0 and variance 1, and what does the same to other rows; one copy of X is made."""
    mean = X.mean(0, dtype=np.float64).astype(np.float32)
    Z = X.astype(np.float32)
    Z -= mean
    scale = np.sqrt(np.einsum("nd,nd->d", Z, Z) / len(Z)) + np.float32(1e-6)
    Z /= scale

    def prepare(rows):
        other = rows.astype(np.float32)
        other -= mean
        other /= scale
        return other

    return Z, prepare


def by_decision(model, X: np.ndarray) -> np.ndarray:
    return model.decision_function(X)


def by_log_odds(model, X: np.ndarray) -> np.ndarray:
    """The order of predict_proba, without its ties at 1 where naive Bayes saturates."""
    negative, positive = np.maximum(model.predict_proba(X), np.finfo(float).tiny).T
    return np.log(positive) - np.log(negative)


def fits(make: Callable, rank: Callable = by_decision) -> Fit:
    """A fit by what `make(s, prior)` builds, an unfitted model with fit and predict."""

    def fit(X, s, truth):
        Z, prepare = standardised(X)
        model = make(s, truth.prior).fit(Z, s)

        def score(X):
            rows = prepare(X)
            return rank(model, rows), (np.asarray(model.predict(rows)) > 0).astype(int)  # NNPUClassifier says -1 for 0

        return score

    return fit


def logistic(**options) -> LogisticRegression:
    return LogisticRegression(max_iter=1000, **options)


def balanced_logistic(C: float) -> Fit:
    """Logistic regression of P against U, both of the same total weight."""
    return fits(lambda s, prior: logistic(C=C, class_weight="balanced"))


def cross_validated_logistic() -> Fit:
    """The same at the C of the greatest cross-validated AUC of P against U."""
    options = {"Cs": CS, "cv": FOLDS, "scoring": "roc_auc", "class_weight": "balanced", "max_iter": 1000}
    options |= {"l1_ratios": (0,), "use_legacy_attributes": False}
    return fits(lambda s, prior: LogisticRegressionCV(**options))


def centroid_difference(X, s, truth) -> Score:
    """Along the line from the mean of U to the mean of P; positive past the middle."""
    Z, prepare = standardised(X)
    of_p, of_u = ((s == value).astype(np.float32) @ Z / np.float32((s == value).sum()) for value in (1, 0))

    def score(X):
        margins = (prepare(X) - (of_p + of_u) / 2) @ (of_p - of_u)
        return margins, (margins > 0).astype(int)

    return score


def bagging(C: float = 1.0) -> Fit:
    """Bags of as many unlabelled rows as labelled ones (Mordelet & Vert), 15 of them as in pulearn's README."""

    def make(s, prior):
        return pulearn().BaggingPuClassifier(logistic(C=C), n_estimators=15, max_samples=int(s.sum()), random_state=0)

    return fits(make)


def elkanoto(C: float = 1.0) -> Fit:
    """hold_out_ratio=0.2 as in pulearn's README; its default 0.1 would leave two of 20 labelled rows."""
    return fits(lambda s, prior: pulearn().ElkanotoPuClassifier(logistic(C=C), 0.2, random_state=0), by_log_odds)


def weighted_elkanoto(C: float = 1.0) -> Fit:
    def make(s, prior):
        labelled = int(s.sum())
        return pulearn().WeightedElkanotoPuClassifier(logistic(C=C), labelled, len(s) - labelled, 0.2, random_state=0)

    return fits(make, by_log_odds)


def elkan_noto(mode: str, C: float = 1.0) -> Fit:
    return fits(lambda s, prior: pu_toolbox().ElkanNotoClassifier(logistic(C=C), mode=mode, random_state=0))


def loader_loop(X, s, truth) -> Score:
    """A linear layer on raw features, through a shuffling DataLoader, as research code is written."""
    import torch

    from benchmarks.common import plain_loops

    torch.manual_seed(0)
    head = plain_loops.loader_loop(torch.from_numpy(X).float(), torch.from_numpy(s), truth.prior, EPOCHS)

    def score(X):
        with torch.no_grad():
            margins = head(torch.from_numpy(X).float())[:, 0].numpy()
        return margins, (margins > 0).astype(int)

    return score


def ours(with_share: bool = False, **options) -> Fit:
    """Pucache on the rows as they are; `with_share`: given the share of positives in the test set."""

    def fit(X, s, truth):
        from pucache import PULinearClassifier

        share = {"deploy_prior": truth.share} if with_share else {}
        model = PULinearClassifier(**options, **share).fit(X, s)
        return lambda X: (model.margins(X), np.asarray(model.predict(X)))

    return fit


DEFAULT, ONE_FIT = "pucache, defaults", "pucache, penalty fixed, no draws"
WITH_SHARE = "pucache, with the test set's share"
OURS = {
    DEFAULT: Learner(ours(), "up to 67 heads: penalty, prior with interval, threshold", pace="quick"),
    WITH_SHARE: Learner(
        ours(with_share=True), "the same heads", "the share of positives in the test set", pace="quick"
    ),
    ONE_FIT: Learner(
        ours(penalty=PENALTY, method="linear"), "6 fits: one, and five for prior and threshold", pace="quick"
    ),
}

PRIOR = "the true prior"
ONE, HELD_OUT = "one fit at a fixed C", "one fit at a fixed C; the labelled share from a hold-out"
OF_FOLDS = "fits at a fixed C: of folds, for the labelled share, and of all rows"

# Who takes a prior averages over the unlabelled rows alone: ours. None takes r + (1 - r) * prior.
PEERS: dict[str, Learner] = {
    "logistic regression, balanced, C=1": Learner(balanced_logistic(1.0), ONE, pace="quick"),
    "logistic regression, balanced, C by cross-validation": Learner(
        cross_validated_logistic(),
        f"{len(CS) * FOLDS + 1} fits: the penalty",
    ),
    "centroid difference": Learner(
        centroid_difference, "two means; no penalty, prior or calibrated threshold", pace="quick"
    ),
    "PyTorch loop, imbnnPU": Learner(loader_loop, f"one fit of {EPOCHS} epochs, no penalty", PRIOR),
    "pulearn Elkanoto": Learner(elkanoto(), HELD_OUT, pace="quick"),
    "pulearn Elkanoto, C=0.001": Learner(elkanoto(C=1e-3), HELD_OUT),
    "pulearn WeightedElkanoto": Learner(weighted_elkanoto(), HELD_OUT),
    "pulearn WeightedElkanoto, C=0.001": Learner(weighted_elkanoto(C=1e-3), HELD_OUT),
    "pulearn Bagging, bags as large as P": Learner(bagging(), "15 fits at a fixed C", pace="slowest"),
    "pulearn Bagging, defaults": Learner(
        fits(lambda s, prior: pulearn().BaggingPuClassifier(logistic(), random_state=0)),
        "10 fits at a fixed C",
        pace="slowest",
    ),
    "pulearn NNPU": Learner(
        fits(lambda s, prior: pulearn().NNPUClassifier(prior, random_state=0)), "one fit", PRIOR, "slowest"
    ),
    "pulearn PositiveNaiveBayes": Learner(
        fits(lambda s, prior: pulearn().PositiveNaiveBayesClassifier(), by_log_odds), "histograms"
    ),
    "pulearn WeightedNaiveBayes": Learner(
        fits(lambda s, prior: pulearn().WeightedNaiveBayesClassifier(), by_log_odds),
        "histograms",
    ),
    "pu-toolbox ElkanNoto, retraining": Learner(elkan_noto("weighted_retraining"), f"{OF_FOLDS}, twice"),
    "pu-toolbox ElkanNoto, retraining, C=0.001": Learner(
        elkan_noto("weighted_retraining", C=1e-3), f"{OF_FOLDS}, twice"
    ),
    "pu-toolbox ElkanNoto, correction": Learner(elkan_noto("probability_correction"), OF_FOLDS),
    "pu-toolbox ElkanNoto, correction, C=0.001": Learner(elkan_noto("probability_correction", C=1e-3), OF_FOLDS),
    "pu-toolbox PUSB": Learner(fits(lambda s, prior: pu_toolbox().PUSBClassifier()), "one fit"),
    "pu-toolbox UPU, squared": Learner(
        fits(lambda s, prior: pu_toolbox().UPUClassifier(prior)), "one fit", PRIOR, "quick"
    ),
    "pu-toolbox UPU, logistic": Learner(
        fits(lambda s, prior: pu_toolbox().UPUClassifier(prior, loss="logistic")), "one fit", PRIOR, "slowest"
    ),
    "pu-toolbox nnPU": Learner(
        fits(lambda s, prior: pu_toolbox().NonNegativePUClassifier(class_prior=prior, random_state=0)),
        "one fit",
        PRIOR,
        "slowest",
    ),
    "pu-toolbox Dist-PU": Learner(
        fits(lambda s, prior: pu_toolbox().DistPUClassifier(prior)), "one fit", PRIOR, "slowest"
    ),
    "pu-toolbox Self-PU": Learner(
        fits(lambda s, prior: pu_toolbox().SelfPUClassifier(prior, random_state=0)), "one fit", PRIOR, "slowest"
    ),
}
LEARNERS = OURS | PEERS

# Seconds: one thread, 626 rows of 1280 features; the minutes at 47,000 rows follow from them.
LEFT_OUT = {
    "pulearn PositiveTAN, WeightedTAN": "a histogram per pair of features: 25 minutes at 47,000 rows",
    "pulearn Bagging of trees": "its default base: 2 s, minutes at 47,000 rows",
    "pu-toolbox UPU, double_hinge": "SLSQP without a gradient over 1281 weights: not done in 13 s",
    "pu-toolbox LBE, LDCE, InfoMaxPU, LLSVM": "2, 3, 4 and 7 s: minutes at 47,000 rows",
    "pu-toolbox PUSBKernel, WeightedContrastivePU": "not done in 5 s",
    "pu-toolbox KLDCE": "raises LinAlgError at its defaults: the covariance is singular",
    "pu-toolbox DGPU": "needs a generator",
    "pu-toolbox PNU": "needs labelled negatives",
}
