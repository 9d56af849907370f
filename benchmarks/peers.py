"""The methods that stand beside pucache: pulearn, pu-toolbox, and two plain baselines.

`PEERS[name]` is `fit(X, s, prior) -> score`. X is float32 (n, d); s is int8, 1 labelled positive and
0 unlabelled; prior is the share of positives AMONG THE UNLABELLED. `score(X)` gives the peer's own
ranking score, float (m,), and its own decision, int (m,) in {0, 1}.

Every peer sees features standardised on the training rows. Settings are the package's defaults, or
where it asks for a choice those of its documentation; logistic regression is scikit-learn's with
max_iter=1000, and C=1 where the name gives none. Seeds are 0. No peer is repaired: what it raises is
raised, e.g. by Elkanoto when no labelled row falls in its random hold-out. WeightedElkanoto's
threshold is a sum over the rows it is given, so its decision on a row changes with the others.
"""

from collections.abc import Callable

import numpy as np
from sklearn.linear_model import LogisticRegression

try:
    import pu_toolbox
    import pulearn
except ImportError as error:
    raise ImportError(f"{error.name} is missing: pip install pulearn==0.2.0 pu-toolbox==1.11.0") from error

Score = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
Fit = Callable[[np.ndarray, np.ndarray, float], Score]


def standardiser(X: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    mean, scale = X.mean(0), X.std(0) + 1e-6
    return lambda Z: (Z - mean) / scale


def by_decision(model, X: np.ndarray) -> np.ndarray:
    return model.decision_function(X)


def by_log_odds(model, X: np.ndarray) -> np.ndarray:
    """The order of predict_proba, without its ties at 1 where naive Bayes saturates."""
    negative, positive = np.maximum(model.predict_proba(X), np.finfo(float).tiny).T
    return np.log(positive) - np.log(negative)


def learner(make: Callable, rank: Callable = by_decision) -> Fit:
    """A peer from `make(s, prior)`, which builds an unfitted model with fit and predict."""

    def fit(X, s, prior):
        prepare = standardiser(X)
        model = make(s, prior).fit(prepare(X), s)

        def score(X):
            Z = prepare(X)
            return rank(model, Z), (np.asarray(model.predict(Z)) > 0).astype(int)  # NNPUClassifier says -1 for 0

        return score

    return fit


def logistic(**options) -> LogisticRegression:
    return LogisticRegression(max_iter=1000, **options)


def balanced_logistic(C: float) -> Fit:
    """Logistic regression of P against U, both of the same total weight."""
    return learner(lambda s, prior: logistic(C=C, class_weight="balanced"))


def centroid_difference(X, s, prior) -> Score:
    """Along the line from the mean of U to the mean of P; positive past the middle."""
    prepare = standardiser(X)
    Z = prepare(X)
    of_p, of_u = Z[s == 1].mean(0), Z[s == 0].mean(0)

    def score(X):
        margins = (prepare(X) - (of_p + of_u) / 2) @ (of_p - of_u)
        return margins, (margins > 0).astype(int)

    return score


def bagging(C: float = 1.0) -> Fit:
    """Bags of as many unlabelled rows as labelled ones (Mordelet & Vert), 15 of them as in pulearn's README."""

    def make(s, prior):
        return pulearn.BaggingPuClassifier(logistic(C=C), n_estimators=15, max_samples=int(s.sum()), random_state=0)

    return learner(make)


def elkanoto(C: float = 1.0) -> Fit:
    """hold_out_ratio=0.2 as in pulearn's README; its default 0.1 would leave two of 20 labelled rows."""
    return learner(lambda s, prior: pulearn.ElkanotoPuClassifier(logistic(C=C), 0.2, random_state=0), by_log_odds)


def weighted_elkanoto(C: float = 1.0) -> Fit:
    def make(s, prior):
        labelled = int(s.sum())
        return pulearn.WeightedElkanotoPuClassifier(logistic(C=C), labelled, len(s) - labelled, 0.2, random_state=0)

    return learner(make, by_log_odds)


def elkan_noto(mode: str, C: float = 1.0) -> Fit:
    return learner(lambda s, prior: pu_toolbox.ElkanNotoClassifier(logistic(C=C), mode=mode, random_state=0))


# Who takes a prior averages over the unlabelled rows alone: ours. None takes r + (1 - r) * prior.
PEERS: dict[str, Fit] = {
    **{f"logistic regression, balanced, C={C:g}": balanced_logistic(C) for C in (1.0, 1e-3, 1e-5)},
    "centroid difference": centroid_difference,
    "pulearn Elkanoto": elkanoto(),
    "pulearn Elkanoto, C=0.001": elkanoto(C=1e-3),
    "pulearn WeightedElkanoto": weighted_elkanoto(),
    "pulearn WeightedElkanoto, C=0.001": weighted_elkanoto(C=1e-3),
    "pulearn Bagging, bags of |P|": bagging(),
    "pulearn Bagging, bags of |P|, C=0.001": bagging(C=1e-3),
    "pulearn Bagging, defaults": learner(lambda s, prior: pulearn.BaggingPuClassifier(logistic(), random_state=0)),
    "pulearn NNPU": learner(lambda s, prior: pulearn.NNPUClassifier(prior, random_state=0)),
    "pulearn NNPU, nnpu=False": learner(lambda s, prior: pulearn.NNPUClassifier(prior, nnpu=False, random_state=0)),
    "pulearn PositiveNaiveBayes": learner(lambda s, prior: pulearn.PositiveNaiveBayesClassifier(), by_log_odds),
    "pulearn WeightedNaiveBayes": learner(lambda s, prior: pulearn.WeightedNaiveBayesClassifier(), by_log_odds),
    "pu-toolbox ElkanNoto, retraining": elkan_noto("weighted_retraining"),
    "pu-toolbox ElkanNoto, retraining, C=0.001": elkan_noto("weighted_retraining", C=1e-3),
    "pu-toolbox ElkanNoto, correction": elkan_noto("probability_correction"),
    "pu-toolbox ElkanNoto, correction, C=0.001": elkan_noto("probability_correction", C=1e-3),
    "pu-toolbox PUSB": learner(lambda s, prior: pu_toolbox.PUSBClassifier()),
    "pu-toolbox UPU, squared": learner(lambda s, prior: pu_toolbox.UPUClassifier(prior)),
    "pu-toolbox UPU, logistic": learner(lambda s, prior: pu_toolbox.UPUClassifier(prior, loss="logistic")),
    "pu-toolbox nnPU": learner(lambda s, prior: pu_toolbox.NonNegativePUClassifier(class_prior=prior, random_state=0)),
    "pu-toolbox Dist-PU": learner(lambda s, prior: pu_toolbox.DistPUClassifier(prior)),
    "pu-toolbox Self-PU": learner(lambda s, prior: pu_toolbox.SelfPUClassifier(prior, random_state=0)),
}

# More than a minute each at 47,000 rows of 1280 features on one thread.
SLOW = ("pu-toolbox Dist-PU", "pu-toolbox Self-PU")

# Why the packages' other learners are not above. Seconds: one thread, 626 rows of 1280 features; the
# minutes at 47,000 rows follow from them and were not waited for.
LEFT_OUT = {
    "pulearn PositiveTAN, WeightedTAN": "a histogram per pair of features: 25 minutes at 47,000 rows",
    "pulearn Bagging of decision trees": "its default base: 2 s, minutes at 47,000 rows",
    "pu-toolbox UPU, double_hinge": "SLSQP without a gradient over 1281 weights: not done in 13 s",
    "pu-toolbox LBE, LDCE, InfoMaxPU, LLSVM": "2, 3, 4 and 7 s: minutes at 47,000 rows",
    "pu-toolbox PUSBKernel, WeightedContrastivePU": "not done in 5 s",
    "pu-toolbox KLDCE": "raises LinAlgError at its defaults: the covariance is singular",
    "pu-toolbox DGPU": "needs a generator",
    "pu-toolbox PNU": "needs labelled negatives",
}
