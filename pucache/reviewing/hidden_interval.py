"""Limits of the number of positives in a pile, from random draws out of urns that change.

An urn has K positive rows. Draw i is uniform over n_i rows, of which K - f_i are positive: f_i positive rows had been
taken out before, by whatever rule. y_i says whether a positive was drawn. With alternatives K'_j of each K and weights
w_j that sum to 1,

    E(K) = sum_j w_j * L(K'_j) / L(K),    L(K) = prod_i ((K - f_i) / n_i)^y_i * (1 - (K - f_i) / n_i)^(1 - y_i)

is a test martingale where K is the truth: it ever reaches 1 / error with a probability of at most `error` (Ville).
Alternatives below K test for the upper limit, alternatives above K for the lower one. Both tests are monotone in K, in
each y_i and in each f_i. The product of E(K_u) over several urns u is a test martingale of all K_u together: the limits
are the extremes of sum_u K_u where this product never reached 1 / error. docs/method.md has the proofs. Martingales
without replacement: Waudby-Smith and Ramdas, "Confidence sequences for sampling without replacement", 2020 (arXiv
2006.04347).

`Looks` holds an upper limit from every look, where the ranking is no worse than chance. Look t is at one of n_t rows,
of which K - f_t are positive; y_t says whether it is. Let each look be positive with a probability of at least
p_t = (K - f_t) / n_t, given the past: a random image is, with equality, and an image of a ranking is where the ranking
finds positives at least as often as chance. With a factor r in [0, 1) and any rule that says before a look whether it
counts,

    M(K) = prod_t r^y_t * ((1 - r * p_t) / (1 - p_t))^(1 - y_t)    over the looks that count

is a test supermartingale where K is the truth, and so is the mean over several factors and rules (Ville, as above).
Looks of a ranking count in a run without positives alone, since each positive costs evidence. M rises with K, and falls
with each y_t and f_t, so a row without a label counts as positive.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

DISTANCES = 0.26 / 2.0 ** np.arange(4)  # |K' - K| / sqrt(K * pile): 2.6 sd of an estimate from 100, 400, ... draws
WEIGHTS_BELOW = np.array([0.25, 0.2, 0.2, 0.2, 0.15])  # of K' = 0, and of K' at the distances
WEIGHTS_ABOVE = np.full(4, 0.25)
REMAINING_MISSES = np.array([0.0, 0.25, 0.5, 0.75])  # (1 - s') / (1 - s) of the alternatives s' of a sensitivity s
MISS_WEIGHTS = np.array([0.5, 0.2, 0.2, 0.1])
FACTORS = (0.0, 0.125, 0.5)  # r
RUNS = (0, 20, 80, 320)  # looks without a positive, after which a look of the ranking counts
CELLS = (64, 20, 8)  # ranges of totals of an urn that are looked at together, with two, three, four urns


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
        f_i, positive rows of the urn taken out before the draw.
    urn : ndarray of int64, (m,)
        Number of the urn.
    """

    positive: np.ndarray
    unknown: np.ndarray
    positives_before: np.ndarray
    urn: np.ndarray

    def log_ratios(self, total: float, alternatives: np.ndarray, urn: int = 0) -> np.ndarray:
        """Logarithm of L(K') / L(K) of an urn after each draw; draws from other urns leave it as it is.

        Parameters
        ----------
        total : float
            K, for which every draw must be possible.
        alternatives : ndarray of float64, (j,)
            K'. A share (K' - f_i) / n_i outside [0, 1] is clipped.
        urn : int

        Returns
        -------
        ndarray of float64, (j, m)
            -inf from the draw on that is impossible under K'.
        """
        of = self.urn == urn
        positive, unknown, before = self.positive[of], self.unknown[of], self.positives_before[of]
        hidden = total - before  # (l,)
        other = np.clip(alternatives[:, None] - before, 0.0, unknown)  # (j, l)
        ratio = np.where(positive, other, unknown - other)
        ratio /= np.where(positive, hidden, unknown - hidden)
        log_ratio = np.zeros((len(alternatives), len(of)))
        with np.errstate(divide="ignore"):
            log_ratio[:, of] = np.log(ratio)
        return np.cumsum(log_ratio, axis=1)

    def with_negatives(self, rows: np.ndarray) -> DrawHistory:
        """With some positive draws made negative; `rows`, int64 (m,), are of the draws to change, 0 for all others."""
        before = self.positives_before.copy()
        for urn in np.unique(self.urn):
            of = self.urn == urn
            before[of] -= np.cumsum(rows[of]) - rows[of]
        return DrawHistory(self.positive & (rows == 0), self.unknown, before, self.urn)

    def extended(self, positives: int, draws: int, *, unknown: int, positives_before: int, urn: int = 0) -> DrawHistory:
        """With further draws of single rows from an urn, among which positives lie evenly.

        `unknown` and `positives_before` are n and f before the first of them.
        """
        steps = np.arange(draws + 1)
        drawn = (steps * positives + draws // 2) // max(draws, 1)  # positives before each draw, and at last
        return DrawHistory(
            np.append(self.positive, np.diff(drawn) > 0),
            np.append(self.unknown, unknown - steps[:-1]),
            np.append(self.positives_before, positives_before + drawn[:-1]),
            np.append(self.urn, np.full(draws, urn)),
        )


def evidence_above(history: DrawHistory, total: float, rows: int, urn: int = 0) -> np.ndarray:
    """log E(K) of an urn after each draw, float64 (m,), by alternatives below K; increases with K.

    Parameters
    ----------
    history : DrawHistory
    total : float
        K, for which every draw must be possible.
    rows : int
        Of the urn.
    urn : int
    """
    below = np.maximum(total - DISTANCES * np.sqrt(total * rows), 0.0)
    return _mixed(history.log_ratios(total, np.append(0.0, below), urn), WEIGHTS_BELOW)


def evidence_below(history: DrawHistory, total: float, rows: int, urn: int = 0) -> np.ndarray:
    """As `evidence_above`, by alternatives above K; decreases with K."""
    above = total + DISTANCES * np.sqrt((total + 1.0) * rows)
    return _mixed(history.log_ratios(total, above, urn), WEIGHTS_ABOVE)


def _mixed(log_ratios: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.asarray(np.logaddexp.reduce(log_ratios + np.log(weights)[:, None], axis=0))


def greatest_total(
    history: DrawHistory, rows: np.ndarray, *, least: np.ndarray, greatest: np.ndarray, error: float
) -> int:
    """Upper limit of the sum of K over all urns, which is ever too small with a probability of at most `error`.

    `rows` are those of each urn, `least` and `greatest` the K of each that the labels allow; int64 (u,).
    """

    def evidence(total: int, urn: int) -> np.ndarray:
        return evidence_above(history, total, int(rows[urn]), urn)

    return _greatest_sum(evidence, least.tolist(), greatest.tolist(), -np.log(error))


def least_total(
    history: DrawHistory, rows: np.ndarray, *, least: np.ndarray, greatest: np.ndarray, error: float
) -> int:
    """Lower limit of the sum of K, ever too great with a probability of at most `error`; as for `greatest_total`."""

    def evidence(total: int, urn: int) -> np.ndarray:
        return evidence_below(history, -total, int(rows[urn]), urn)

    return -_greatest_sum(evidence, (-greatest).tolist(), (-least).tolist(), -np.log(error))


def _greatest_sum(
    evidence: Callable[[int, int], np.ndarray],
    least: Sequence[int],
    greatest: Sequence[int],
    limit: float,
    *,
    urn: int = 0,
    before: np.ndarray | float = 0.0,
) -> int:
    """Greatest sum of totals, one for each urn from one on, whose evidence never reached a limit; else the least sum.

    Evidence increases with each total, so the last total is found by bisection. The totals of the other urns are taken
    in `CELLS` ranges, each with the evidence of its start and the sum of its end, which may only widen the interval.
    `before` is the evidence of the totals of the urns before.
    """
    others = before + sum(evidence(least[other], other) for other in range(urn + 1, len(least)))

    def excluded(total: int) -> bool:
        return bool(np.max(others + evidence(total, urn), initial=0.0) >= limit)  # E is 1 before the first draw

    last = max(least[urn], _first_where(excluded, least[urn], greatest[urn]) - 1)
    if urn == len(least) - 1:
        return last
    starts = np.unique(np.linspace(least[urn], last + 1, CELLS[min(len(least), 4) - 2] + 1).astype(int)).tolist()
    return max(
        end - 1 + _greatest_sum(evidence, least, greatest, limit, urn=urn + 1, before=before + evidence(start, urn))
        for start, end in pairwise(starts)
    )


@dataclass(frozen=True)
class Looks:
    """Looks in order, a picture once: a random image when it was drawn, others when they were first decided.

    Attributes
    ----------
    positive : ndarray of bool, (t,)
        y_t by the label in force; a picture without one is positive.
    unknown, positives_before : ndarray of float64, (t,)
        n_t and f_t.
    run : ndarray of float64, (t,)
        Decisions since the last positive, as they were made; inf for a random image, which always counts.
    left : int
        Rows that nobody has looked at.
    found : int
        Rows that were looked at and are positive, or without a label.
    """

    positive: np.ndarray
    unknown: np.ndarray
    positives_before: np.ndarray
    run: np.ndarray
    left: int
    found: int

    def evidence(self, total: float) -> np.ndarray:
        """Logarithm of the mean of M(K) after each look, float64 (t,); K must allow every look."""
        hidden = total - self.positives_before
        paths = []
        with np.errstate(divide="ignore"):
            ruled_out = np.log(self.unknown - hidden)
            for factor in FACTORS:
                negative = np.log(self.unknown - factor * hidden) - ruled_out
                step = np.where(self.positive, np.log(factor), negative)
                paths += [np.cumsum(np.where(self.run >= run, step, 0.0)) for run in RUNS]
        return np.asarray(np.logaddexp.reduce(paths, axis=0) - np.log(len(paths)))

    def greatest_total(self, error: float) -> int:
        """Largest K that was never excluded; it is ever too small with a probability of at most `error`."""

        def excluded(total: int) -> bool:
            return bool(np.max(self.evidence(total), initial=0.0) >= -np.log(error))

        return max(self.found, _first_where(excluded, self.found, self.found + self.left) - 1)

    def without_positives(self, more: int) -> Looks:
        """With further looks of the ranking at single rows, none of which is positive."""
        steps, run = np.arange(more), min(self.run[-1], RUNS[-1]) if self.run.size else 0
        return Looks(
            np.append(self.positive, np.zeros(more, bool)),
            np.append(self.unknown, self.left - steps),
            np.append(self.positives_before, np.full(more, self.found)),
            np.append(self.run, run + steps),
            self.left - more,
            self.found,
        )


def likeliest_total(history: DrawHistory, *, least: int, greatest: int, urn: int = 0) -> int:
    """K of an urn of the greatest likelihood L(K), which is log-concave; `least` without a draw."""
    of = history.urn == urn
    positive, unknown, before = history.positive[of], history.unknown[of], history.positives_before[of]

    def past(total: int) -> bool:
        hidden = total - before
        return bool(np.sum(1.0 / hidden[positive]) <= np.sum(1.0 / (unknown - hidden)[~positive]))

    return min(greatest, _first_where(past, least, greatest))


def _first_where(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Smallest of the integers low, ..., high from which on something holds; high + 1 where it never does."""
    return low + bisect_left(range(low, high + 1), True, key=holds)


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


def share_found(found: int, hidden: int) -> float:
    """Share of the positives that are found; 1 where there is none."""
    return found / (found + hidden) if found + hidden else 1.0
