"""What labels are worth where rows come in groups that are not independent: patients, videos, sites."""

from __future__ import annotations

import numpy as np
from scipy.special import expit, logit

from .calibration import fit_tilt


def design_effect(margins: np.ndarray, s: np.ndarray, weights: np.ndarray | None, groups: np.ndarray) -> float:
    """How many times as great groups make the variances of the tilt; at least 1.

    It is the mean design effect of Rao and Scott (1984), the trace of naive**-1 @ robust over the number of parameters:
    of the scores of alpha, slope and prior at the tilt of greatest likelihood, `naive` sums the products of each row
    with itself, and `robust` those of the sums of each group (Liang and Zeger 1986). P and U are samples of their own,
    so scores are centred within each, and groups are those of P and those of U. Log likelihoods divided by it are worth
    as much as those of independent rows. It is m for groups of m copies, and 1 where rows of a group are independent.

    Parameters
    ----------
    margins : ndarray, (n,)
        Held out: from heads that did not see any row of the group.
    s : ndarray of 0 and 1, (n,)
    weights : ndarray, (n,), or None
    groups : ndarray of int, (n,)

    Returns
    -------
    float
    """
    tilt = fit_tilt(margins, s, weights)
    w = np.ones(len(s)) if weights is None else weights.astype(np.float64)
    sides, sign = (s == 1, s == 0), np.where(s == 1, 1.0, -1.0)
    log_ratio, (n_p, n_u) = tilt.log_ratio(margins), (w[side].sum() for side in sides)
    posterior = expit(log_ratio + logit(tilt.prior))
    log_mixture = np.logaddexp(np.log1p(-tilt.prior), np.log(tilt.prior) + log_ratio)
    outer = w * sign * expit(-sign * (np.log(n_p / n_u) + log_ratio - log_mixture))
    scores = outer[:, None] * np.stack([1 - posterior, log_ratio * (1 - posterior), tilt.prior - posterior], axis=1)
    naive, robust = np.zeros((3, 3)), np.zeros((3, 3))
    for side in sides:
        centred = scores[side] - np.outer(w[side] / w[side].sum(), scores[side].sum(0))
        number = np.unique(groups[side], return_inverse=True)[1]
        sums = np.stack([np.bincount(number, column) for column in centred.T], axis=1)
        naive += centred.T @ centred
        robust += sums.T @ sums
    return max(1.0, float(np.trace(np.linalg.pinv(naive, hermitian=True) @ robust)) / 3)
