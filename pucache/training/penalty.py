"""Choice of the penalty by how high held-out positives rank; `pucache.training.cross_fitting` gives the reasons."""

from __future__ import annotations

import numpy as np
from scipy.special import expit, logit

from ..estimates.calibration import Tilt, fit_tilt
from ..estimates.review_weights import TrainingLabels

PENALTIES = tuple(float(f"{10 ** (step / 2 - 6):.3g}") for step in range(9))  # 1e-6 to 1e-2
_FLOOR = 0.01  # added to the share of negatives above a positive
_QUANTILE = 0.75  # of the priors that the candidates estimate alone
_MAX_STEPS = 2  # steps of the grid below the best: a factor of ten in the penalty
_TINY = 1e-300


def weakest_of_the_best(score: np.ndarray) -> int:
    """First of the neighbouring candidates that is within one standard error of the best.

    Parameters
    ----------
    score : ndarray, (J, p)
        Score of each candidate on p cases, weakest penalty first. Differences to the best are paired.
        Of several best candidates the last one counts.

    Returns
    -------
    int
        At most `_MAX_STEPS` before the best.
    """
    padded = np.pad(score, ((1, 1), (0, 0)), mode="edge")
    smoothed = padded[:-2] / 4 + padded[1:-1] / 2 + padded[2:] / 4
    mean = smoothed.mean(1)
    best = int(np.flatnonzero(mean >= mean.max() - 1e-9)[-1])
    difference = smoothed[best] - smoothed
    error = difference.std(1) / np.sqrt(score.shape[1])
    good = np.flatnonzero(difference.mean(1) <= error + 1e-9)
    return int(good[good >= best - _MAX_STEPS][0])


def ranks_of_positives(margins: list[np.ndarray], labels: TrainingLabels) -> np.ndarray:
    """Score each candidate by how high the positives rank among the likely negatives.

    Parameters
    ----------
    margins : list of J ndarrays, (n,)
        Held-out margins by each candidate.
    labels : TrainingLabels
        Tilts are fitted to the labels before a review.

    Returns
    -------
    ndarray of float64, (J, p)
        -log(share of the negatives above + 0.01) for each positive; higher is better.
    """
    s, weights = labels.s, labels.weights
    prior = float(np.quantile([fit_tilt(candidate, s, weights).prior for candidate in margins], _QUANTILE))
    return np.stack([_ranks(candidate, labels, fit_tilt(candidate, s, weights, prior)) for candidate in margins])


def _ranks(margins: np.ndarray, labels: TrainingLabels, tilt: Tilt) -> np.ndarray:
    order = np.argsort(margins, kind="stable")
    order = order[labels.training_s[order] == 0]
    negative = expit(-tilt.log_ratio(margins[order]) - logit(tilt.prior))  # more accurate than 1 - posterior
    if labels.weights is not None:
        negative = negative * labels.weights[order]
    total = np.concatenate([[0.0], np.cumsum(negative)])
    below = total[np.searchsorted(margins[order], margins[labels.training_s == 1], side="left")]
    return np.asarray(-np.log(1 - below / max(total[-1], _TINY) + _FLOOR))
