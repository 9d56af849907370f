"""Limits of the number of positives in a pile, from random draws out of strata that change.

A stratum has K positive rows. Draw i is uniform over the n_i rows that have not left it, of which K - f_i are positive:
f_i positive rows had left before, by whatever rule. y_i says whether a positive was drawn. With alternatives K'_j of
each K and weights w_j that sum to 1,

    E(K) = sum_j w_j * L(K'_j) / L(K),    L(K) = prod_i ((K - f_i) / n_i)^y_i * (1 - (K - f_i) / n_i)^(1 - y_i)

is a test martingale where K is the truth: it ever reaches 1 / error with a probability of at most `error` (Ville).
Alternatives below K test for the upper limit, alternatives above K for the lower one. Both tests are monotone in K, in
each y_i and in each f_i. The product of E(K_u) over several strata u is a test martingale of all K_u together, also of
strata that begin later: the limits are the extremes of sum_u K_u where this product never reached 1 / error.
docs/method.md has the proofs. Martingales without replacement: Waudby-Smith and Ramdas, 2020 (arXiv 2006.04347).

**Looks of a ranking** limit the number too, where it is no worse than chance. Look t is at one of n_t rows, of which
K - f_t are positive; y_t says whether it is. Let each look be positive with a probability of at least
p_t = (K - f_t) / n_t, given the past: a random image is, with equality, and an image of a ranking is where the ranking
finds positives at least as often as chance. With a factor r in [0, 1) and any rule that says before a look whether it
counts,

    M(K) = prod_t r^y_t * ((1 - r * p_t) / (1 - p_t))^(1 - y_t)    over the looks that count

is a test supermartingale where K is the truth, and so is the mean over several factors and rules (Ville). Looks of a
ranking count in a run without positives alone, since each positive costs evidence. M rises with K, and falls with each
y_t and f_t, so a row without a label counts as positive.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

DISTANCES = 0.26 / 2.0 ** np.arange(4)  # |K' - K| / sqrt(K * rows): 2.6 sd of an estimate from 100, 400, ... draws
WEIGHTS_BELOW = np.array([0.25, 0.2, 0.2, 0.2, 0.15])  # of K' = 0, and of K' at the distances
WEIGHTS_ABOVE = np.full(4, 0.25)
SIDES = 0.95, 0.05  # weights of the evidence against totals that are too great, and of that against too small ones
CELLS = (64, 20, 8)  # ranges of totals of a stratum that are looked at together, with two, three, four strata

FACTORS = (0.0, 0.125, 0.5)  # r
RUNS = (0, 20, 80, 320)  # looks without a positive, after which a look of the ranking counts
_LEAST_FALL = 0.97  # a yield that falls less is taken to fall so


@dataclass(frozen=True, eq=False)
class Stratum:
    """Pictures of some rows that left, in order. Those without a label are positive for the upper limit and negative
    for the lower one."""

    rows: int
    label: np.ndarray  # int64 (t,): 1 positive, 0 negative, -1 neither
    copies: np.ndarray  # int64 (t,): rows
    draw: np.ndarray  # int64 (t,): number of the entry by which it was drawn at random; 0: it left otherwise
    waits: np.ndarray  # bool (t,): whether it is yet to be decided or skipped

    def sum(self, label: int) -> int:
        """Rows that left and have a label."""
        return int(self.copies[self.label == label].sum())

    @property
    def left(self) -> int:
        """Rows that have not left."""
        return self.rows - int(self.copies.sum())

    @property
    def drawn(self) -> np.ndarray:
        """Which pictures were drawn at random, bool (t,)."""
        return np.asarray(self.draw > 0)

    def draws(self, unresolved: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """y_i, n_i and f_i of each random draw, (m,), where pictures without a label are positive (1) or not (0)."""
        positive = np.where(self.label < 0, unresolved, self.label)
        found, gone = positive * self.copies, self.copies
        before, unknown = np.cumsum(found) - found, self.rows - (np.cumsum(gone) - gone)
        drawn = self.drawn
        return positive[drawn] > 0, unknown[drawn].astype(float), before[drawn].astype(float)

    def range(self, unresolved: int) -> tuple[int, int]:
        """Least and greatest K that the labels allow."""
        open_ = self.sum(-1)
        return self.sum(1) + open_ * unresolved, self.rows - self.sum(0) - open_ * (1 - unresolved)

    def log_ratios(self, total: float, others: np.ndarray, unresolved: int) -> np.ndarray:
        """Logarithm of L(K') / L(K) after each draw, float64 (j, m), for others K' (j,); shares of K' are clipped.

        -inf from the draw on that is impossible under K' or K.
        """
        positive, unknown, before = self.draws(unresolved)
        hidden, other = total - before, np.clip(others[:, None] - before, 0.0, unknown)
        chance = np.where(positive, hidden, unknown - hidden)  # times n_i
        with np.errstate(divide="ignore", invalid="ignore"):
            log_ratio = np.log(np.where(positive, other, unknown - other)) - np.log(np.maximum(chance, 0.0))
        return np.cumsum(np.where(chance > 0, log_ratio, -np.inf), axis=1)

    def evidence_above(self, total: float) -> np.ndarray:
        """log E(K) after each draw, float64 (m,), by alternatives below K; increases with K."""
        below = np.maximum(total - DISTANCES * np.sqrt(total * self.rows), 0.0)
        return _log_mean(self.log_ratios(total, np.append(0.0, below), 1), WEIGHTS_BELOW)

    def evidence_below(self, total: float) -> np.ndarray:
        """As `evidence_above`, by alternatives above K; decreases with K."""
        above = total + DISTANCES * np.sqrt((total + 1.0) * self.rows)
        return _log_mean(self.log_ratios(total, above, 0), WEIGHTS_ABOVE)

    def likeliest(self) -> int:
        """K of the greatest likelihood, which is log-concave; the least one without a draw."""
        positive, unknown, before = self.draws(0)

        def past(total: int) -> bool:
            hidden = total - before
            return bool(np.sum(1.0 / hidden[positive]) <= np.sum(1.0 / (unknown - hidden)[~positive]))

        least, greatest = self.range(0)
        return min(greatest, first_where(past, least, greatest))

    def answered(self, positives: int) -> Stratum:
        """With the first so many of the pictures that wait positive, and the others negative."""
        label, waiting = self.label.copy(), np.flatnonzero(self.waits)
        label[waiting[:positives]], label[waiting[positives:]] = 1, 0
        return replace(self, label=label, waits=np.zeros_like(self.waits))

    def extended(self, positives: int, draws: int, after: int) -> Stratum:
        """With random draws of single rows after a numbered entry, among which positives lie evenly."""
        drawn = (np.arange(draws + 1) * positives + draws // 2) // max(draws, 1)
        return Stratum(
            self.rows,
            np.append(self.label, np.diff(drawn)),
            np.append(self.copies, np.ones(draws, np.int64)),
            np.append(self.draw, after + 1 + np.arange(draws)),
            np.append(self.waits, np.zeros(draws, bool)),
        )


def _log_mean(log_ratios: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.asarray(np.logaddexp.reduce(log_ratios + np.log(weights)[:, None], axis=0))


def first_where(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Smallest of the integers low, ..., high from which on something holds; high + 1 where it never does."""
    return low + bisect_left(range(low, high + 1), True, key=holds)


# --- limits of a sum of totals -------------------------------------------------------------------

Evidence = Callable[[Stratum, int], np.ndarray]


def greatest_total(strata: Sequence[Stratum], error: float) -> int:
    """Upper limit of the sum of K over strata, which is ever too small with a probability of at most `error`."""
    ends = [one.range(1) for one in strata]
    return _GreatestSum(strata, Stratum.evidence_above, Stratum.evidence_below, ends, error).found()


def least_total(strata: Sequence[Stratum], error: float) -> int:
    """Lower limit of the sum of K over strata, ever too great with a probability of at most `error`."""
    ends = [(-greatest, -least) for least, greatest in (one.range(0) for one in strata)]
    rising: Evidence = lambda one, k: one.evidence_below(-k)  # noqa: E731
    falling: Evidence = lambda one, k: one.evidence_above(-k)  # noqa: E731
    return -_GreatestSum(strata, rising, falling, ends, error).found()


class _GreatestSum:
    """Greatest sum of totals, one for each stratum, whose evidence never reached 1 / error; else the least sum.

    `rising` evidence increases with a total, so that of one stratum is found by bisection. With several, a part of the
    evidence is `falling`, against totals that are too small (`SIDES`). The totals of all strata but the last are taken
    in `CELLS` ranges, each with the least evidence and the greatest total in it, which may only widen the interval.
    """

    def __init__(
        self,
        strata: Sequence[Stratum],
        rising: Evidence,
        falling: Evidence,
        ends: Sequence[tuple[int, int]],
        error: float,
    ):
        self._strata, self._rising, self._falling, self._ends = strata, rising, falling, ends
        self._most, (self._main, self._other) = -float(np.log(error)), np.log(SIDES).tolist()
        self._times = np.sort(np.concatenate([one.draw[one.drawn] for one in strata]))

    def found(self) -> int:
        """The sum."""
        cells = [self._cells(one, *end) for one, end in zip(self._strata[:-1], self._ends, strict=False)]
        return int(max(self._search(cells, np.zeros(len(self._times))), sum(least for least, _ in self._ends)))

    def _search(self, cells: Sequence[Sequence[tuple[int, np.ndarray]]], before: np.ndarray) -> float:
        """Greatest sum of the totals of the strata of some cells and of the last one; -inf where each is excluded."""
        if cells:
            return max(end + self._search(cells[1:], before + path) for end, path in cells[0])
        one, (least, greatest) = self._strata[-1], self._ends[-1]
        low = least
        if len(self._strata) > 1:  # below, the falling evidence counts
            low = first_where(lambda k: float(np.append(0.0, self._falling(one, k))[-1]) < 0.0, least, greatest)

        def excluded(total: int) -> bool:
            return self._reaches(before + self._at_all_times(one, self._main + self._rising(one, total)))

        if (last := first_where(excluded, low, greatest) - 1) >= low:
            return last
        below = [(low - 1, self._least_within(one, least, low - 1))] if low > least else []
        below += self._below_the_labels(one, least)
        return next((total for total, path in below if not self._reaches(before + path)), -np.inf)

    def _cells(self, one: Stratum, least: int, greatest: int) -> list[tuple[int, np.ndarray]]:
        """Greatest total of each range of totals, and the least evidence in it."""
        most = (1 + len(self._strata)) * self._most
        last = first_where(lambda k: np.max(self._rising(one, k), initial=0.0) >= most, least, greatest)
        starts = np.linspace(least, min(last, greatest) + 1, CELLS[min(len(self._strata), 4) - 2] + 1).astype(int)
        edges = np.unique(np.append(starts, greatest + 1)).tolist()
        cells = [(end - 1, self._least_within(one, start, end - 1)) for start, end in pairwise(edges)]
        return cells + self._below_the_labels(one, least)

    def _least_within(self, one: Stratum, least: int, greatest: int) -> np.ndarray:
        rising, falling = self._main + self._rising(one, least), self._other + self._falling(one, greatest)
        return self._at_all_times(one, np.logaddexp(rising, falling))

    def _below_the_labels(self, one: Stratum, least: int) -> list[tuple[int, np.ndarray]]:
        """A range of totals that are right only where pictures without a label are not as `rising` takes them."""
        return [(least - 1, self._at_all_times(one, self._other + self._falling(one, least - 1)))] * (one.sum(-1) > 0)

    def _at_all_times(self, one: Stratum, path: np.ndarray) -> np.ndarray:
        """Evidence of a stratum after the draws of all strata; E is 1 before its first draw."""
        return np.append(0.0, path)[np.searchsorted(one.draw[one.drawn], self._times, side="right")]

    def _reaches(self, path: np.ndarray) -> bool:
        return bool(np.max(path, initial=0.0) >= self._most)


# --- looks of a ranking ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Looks:
    """First looks at pictures, in order; float64 (t,). A picture without a label is positive."""

    positive: np.ndarray  # bool (t,): y_t
    unknown: np.ndarray  # n_t
    before: np.ndarray  # f_t
    run: np.ndarray  # decisions since the last positive, as they were made; inf for a random image, which always counts
    ranked: np.ndarray  # bool (m,): labels of the pictures that the ranking showed, in order
    left: int  # rows that nobody has looked at
    found: int  # rows that were looked at and are positive, or without a label

    def evidence(self, total: float) -> np.ndarray:
        """Logarithm of the mean of M(K) after each look, float64 (t,); K must allow every look."""
        hidden = total - self.before
        with np.errstate(divide="ignore"):
            ruled_out = np.log(self.unknown - hidden)
            steps = [
                np.where(self.positive, np.log(factor), np.log(self.unknown - factor * hidden) - ruled_out)
                for factor in FACTORS
            ]
        paths = [np.cumsum(np.where(self.run >= run, step, 0.0)) for step in steps for run in RUNS]
        return np.asarray(np.logaddexp.reduce(paths, axis=0) - np.log(len(paths)))

    def greatest_total(self, error: float) -> int:
        """Largest K that was never excluded; it is ever too small with a probability of at most `error`."""

        def excluded(total: int) -> bool:
            return bool(np.max(self.evidence(total), initial=0.0) >= -np.log(error))

        return max(self.found, first_where(excluded, self.found, self.found + self.left) - 1)

    def expected(self) -> float:
        """Positives that the ranking would still bring, if its yield falls further by the factor by which it fell from
        the second third of its looks to the last one; each third has one positive more, as it may have none."""
        ends = np.arange(1, 4) * len(self.ranked) // 3
        second, last = (1 + int(self.ranked[begin:end].sum()) for begin, end in pairwise(ends))
        fall = min(last / second, _LEAST_FALL)
        return last * fall / (1 - fall)

    def without_positives(self, more: int) -> Looks:
        """With further looks of the ranking at single rows, none of which is positive."""
        steps, run = np.arange(more), min(self.run[-1], RUNS[-1]) if self.run.size else 0
        return Looks(
            np.append(self.positive, np.zeros(more, bool)),
            np.append(self.unknown, self.left - steps),
            np.append(self.before, np.full(more, self.found)),
            np.append(self.run, run + steps),
            np.append(self.ranked, np.zeros(more, bool)),
            self.left - more,
            self.found,
        )
