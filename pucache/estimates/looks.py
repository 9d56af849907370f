"""An upper limit from every look of a review, where the ranking is no worse than chance.

Look t is at one of n_t rows, of which K - f_t are positive; y_t says whether it is. Let each look be positive with a
probability of at least p_t = (K - f_t) / n_t, given the past: a random image is, with equality, and an image of a
ranking is where the ranking finds positives at least as often as chance. With a factor r in [0, 1) and any rule that
says before a look whether it counts,

    M(K) = prod_t r^y_t * ((1 - r * p_t) / (1 - p_t))^(1 - y_t)    over the looks that count

is a test supermartingale where K is the truth, and so is the mean over several factors and rules (Ville). Looks of a
ranking count in a run without positives alone, since each positive costs evidence. M rises with K, and falls with each
y_t and f_t, so a row without a label counts as positive.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .strata import first_where

FACTORS = (0.0, 0.125, 0.5)  # r
RUNS = (0, 20, 80, 320)  # looks without a positive, after which a look of the ranking counts
_LEAST_FALL = 0.97  # a yield that falls less is taken to fall so


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
