"""Limits of the number of positives in a pile, from random draws out of an urn that changes.

The pile has K positive rows. Draw i is uniform over n_i rows, of which K - f_i are positive: f_i positive rows had been
taken out before, by whatever rule. y_i says whether a positive was drawn. With alternatives K'_j of each K and weights
w_j that sum to 1,

    E(K) = sum_j w_j * L(K'_j) / L(K),    L(K) = prod_i ((K - f_i) / n_i)^y_i * (1 - (K - f_i) / n_i)^(1 - y_i)

is a test martingale where K is the truth: it ever reaches 1 / error with a probability of at most `error` (Ville).
Alternatives below K test for the upper limit, alternatives above K for the lower one. Both tests are monotone in K, in
each y_i and in each f_i; docs/method.md has the proof. Martingales without replacement: Waudby-Smith and Ramdas,
"Confidence sequences for sampling without replacement", 2020 (arXiv 2006.04347).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

DISTANCES = 0.26 / 2.0 ** np.arange(4)  # |K' - K| / sqrt(K * pile): 2.6 sd of an estimate from 100, 400, ... draws
WEIGHTS_BELOW = np.array([0.25, 0.2, 0.2, 0.2, 0.15])  # of K' = 0, and of K' at the distances
WEIGHTS_ABOVE = np.full(4, 0.25)
REMAINING_MISSES = np.array([0.0, 0.25, 0.5, 0.75])  # (1 - s') / (1 - s) of the alternatives s' of a sensitivity s
MISS_WEIGHTS = np.array([0.5, 0.2, 0.2, 0.1])


@dataclass(frozen=True)
class DrawHistory:
    """What random draws brought.

    Attributes
    ----------
    positive : ndarray of bool, (m,)
        y_i.
    unknown : ndarray of float64, (m,)
        n_i, rows in the urn before the draw.
    positives_before : ndarray of float64, (m,)
        f_i, positive rows taken out before the draw.
    """

    positive: np.ndarray
    unknown: np.ndarray
    positives_before: np.ndarray

    def log_ratios(self, total: float, alternatives: np.ndarray) -> np.ndarray:
        """Logarithm of L(K') / L(K) after each draw.

        Parameters
        ----------
        total : float
            K, for which every draw must be possible.
        alternatives : ndarray of float64, (j,)
            K'. A share (K' - f_i) / n_i outside [0, 1] is clipped.

        Returns
        -------
        ndarray of float64, (j, m)
            -inf from the draw on that is impossible under K'.
        """
        hidden = total - self.positives_before  # (m,)
        other = np.clip(alternatives[:, None] - self.positives_before, 0.0, self.unknown)  # (j, m)
        ratio = np.where(self.positive, other, self.unknown - other)
        ratio /= np.where(self.positive, hidden, self.unknown - hidden)
        with np.errstate(divide="ignore"):
            return np.cumsum(np.log(ratio), axis=1)

    def with_negatives(self, rows: np.ndarray) -> DrawHistory:
        """With some positive draws made negative.

        Parameters
        ----------
        rows : ndarray of int64, (m,)
            Rows of the draws to change, 0 for all others.
        """
        return DrawHistory(self.positive & (rows == 0), self.unknown, self.positives_before - (np.cumsum(rows) - rows))

    def extended(self, positives: int, draws: int, *, unknown: int, positives_before: int) -> DrawHistory:
        """With further draws of single rows, among which positives lie evenly.

        Parameters
        ----------
        positives, draws : int
            Of the further draws.
        unknown, positives_before : int
            n and f before the first of them.
        """
        steps = np.arange(draws + 1)
        drawn = (steps * positives + draws // 2) // max(draws, 1)  # positives before each draw, and at last
        return DrawHistory(
            np.append(self.positive, np.diff(drawn) > 0),
            np.append(self.unknown, unknown - steps[:-1]),
            np.append(self.positives_before, positives_before + drawn[:-1]),
        )


def evidence_above(history: DrawHistory, total: float, pile: int) -> float:
    """Greatest log E(K) after any draw, by alternatives below K; increases with K.

    Parameters
    ----------
    history : DrawHistory
    total : float
        K, for which every draw must be possible.
    pile : int
        Rows.
    """
    below = np.maximum(total - DISTANCES * np.sqrt(total * pile), 0.0)
    return _greatest(history.log_ratios(total, np.append(0.0, below)), WEIGHTS_BELOW)


def evidence_below(history: DrawHistory, total: float, pile: int) -> float:
    """Greatest log E(K) after any draw, by alternatives above K; decreases with K. Parameters as `evidence_above`."""
    above = total + DISTANCES * np.sqrt((total + 1.0) * pile)
    return _greatest(history.log_ratios(total, above), WEIGHTS_ABOVE)


def _greatest(log_ratios: np.ndarray, weights: np.ndarray) -> float:
    mixed = np.logaddexp.reduce(log_ratios + np.log(weights)[:, None], axis=0)  # (m,)
    return float(mixed.max(initial=0.0))  # E is 1 before the first draw


def greatest_total(history: DrawHistory, pile: int, *, least: int, greatest: int, error: float) -> int:
    """Upper limit of K, which is ever too small with a probability of at most `error`.

    Parameters
    ----------
    history : DrawHistory
    pile : int
        Rows.
    least, greatest : int
        K that the labels allow.
    error : float
    """

    def excluded(total: int) -> bool:
        return evidence_above(history, total, pile) >= -np.log(error)

    return max(least, _first(excluded, least, greatest) - 1)


def least_total(history: DrawHistory, pile: int, *, least: int, greatest: int, error: float) -> int:
    """Lower limit of K, which is ever too great with a probability of at most `error`.

    Parameters as for `greatest_total`.
    """

    def possible(total: int) -> bool:
        return evidence_below(history, total, pile) < -np.log(error)

    return min(greatest, _first(possible, least, greatest))


def likeliest_total(history: DrawHistory, *, least: int, greatest: int) -> int:
    """K of the greatest likelihood L(K), which is log-concave; `least` without a draw."""

    def past(total: int) -> bool:
        hidden = total - history.positives_before
        other = history.unknown - hidden
        return bool(np.sum(1.0 / hidden[history.positive]) <= np.sum(1.0 / other[~history.positive]))

    return min(greatest, _first(past, least, greatest))


def _first(test: Callable[[int], bool], low: int, high: int) -> int:
    """Smallest of the integers low, ..., high from which on a test holds; high + 1 where it never does."""
    high += 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if test(middle) else (middle + 1, high)
    return low


def least_sensitivity(rechecks: int, missed: int, error: float) -> float:
    """Lower limit of the share of positives that a reviewer recognises, valid at every moment.

    Parameters
    ----------
    rechecks : int
        Positives that were shown again.
    missed : int
        How many of these were rejected.
    error : float
        Probability that the limit is ever too high.

    Returns
    -------
    float
        In [0, 1]. As for K: the test martingale of s has the alternatives s' with 1 - s' = r * (1 - s).
    """
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        better = (1.0 - REMAINING_MISSES * (1.0 - middle)) / middle
        log_weights = np.log(MISS_WEIGHTS) + (rechecks - missed) * np.log(better)
        if missed:
            log_weights = np.append(-np.inf, log_weights[1:] + missed * np.log(REMAINING_MISSES[1:]))
        excluded = np.logaddexp.reduce(log_weights) >= -np.log(error)
        low, high = (middle, high) if excluded else (low, middle)
    return low
