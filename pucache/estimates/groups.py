"""What labels are worth where rows come in groups that are not independent: patients, videos, sites."""

from __future__ import annotations

import numpy as np
from scipy.special import expit, logit

from .calibration import fit_tilt


def design_effect(
    margins: np.ndarray, s: np.ndarray, weights: np.ndarray | None, groups: np.ndarray, fold: np.ndarray
) -> float:
    """How many times as great groups make the variances of what labelled positives say; at least 1.

    It is the mean design effect of Rao and Scott (1984), the trace of naive**-1 @ robust over the number of parameters:
    of the scores of the positives for alpha and slope, at the tilt of greatest likelihood, `naive` sums the products of
    each row with itself, and `robust` those of the sums of each group (Liang and Zeger 1986). Numbers of rows divided
    by it are worth as much as independent rows. It is about m for groups of m copies, and 1 where rows of a group are
    independent. The unlabelled rows take no part: they are all there are. Heads of folds have levels of their own,
    which groups of a fold share, so scores are centred within folds, and G groups in F folds count G / (G - F) times.

    Parameters
    ----------
    margins : ndarray, (n,)
        Held out: from heads that did not see any row of the group.
    s : ndarray of 0 and 1, (n,)
    weights : ndarray, (n,), or None
    groups : ndarray of int, (n,)
    fold : ndarray of int, (n,)
        That a row is held out in.

    Returns
    -------
    float
    """
    tilt, positive = fit_tilt(margins, s, weights), s == 1
    w = np.ones(len(s)) if weights is None else weights.astype(np.float64)
    odds = w[positive].sum() / w[~positive].sum()
    log_ratio, w, fold = tilt.log_ratio(margins[positive]), w[positive], fold[positive]
    log_mixture = np.logaddexp(np.log1p(-tilt.prior), np.log(tilt.prior) + log_ratio)
    score = w * expit(log_mixture - log_ratio - np.log(odds)) * expit(-log_ratio - logit(tilt.prior))
    scores = score[:, None] * np.stack([np.ones(len(w)), log_ratio], axis=1)
    means = _sums(scores, fold) / np.maximum(_sums(w[:, None], fold), 1e-12)
    scores -= w[:, None] * means[fold]
    sums, folds = _sums(scores, np.unique(groups[positive], return_inverse=True)[1]), len(np.unique(fold))
    naive, robust = scores.T @ scores, len(sums) / max(len(sums) - folds, 1) * sums.T @ sums
    return max(1.0, float(np.trace(np.linalg.pinv(naive, hermitian=True) @ robust)) / 2)


def _sums(values: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Sums of the rows (n, k) of each number (n,)."""
    return np.stack([np.bincount(number, column) for column in values.T], axis=1)
