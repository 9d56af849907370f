"""Folds of a ranker: they stay while labels come in, so that heads that start from the last ones stay held out."""

from __future__ import annotations

import numpy as np


class RankingFolds:
    """Fold of each row: at random, but positives in turn, in the order in which they become known.

    Parameters
    ----------
    group : ndarray of int64, (n,)
        Number of each row's group, from 0; groups stay together.
    count : int
        Number of folds.
    seed : int
    """

    def __init__(self, group: np.ndarray, count: int, seed: int):
        self._group, self._count = group, count
        self._of_group = np.random.default_rng(seed).integers(count, size=int(group.max()) + 1)
        self._placed = np.zeros(len(self._of_group), bool)
        self._sizes = np.zeros(count, np.int64)

    def place(self, positive: np.ndarray) -> None:
        """Move groups that have become positive to the fold with the fewest."""
        groups = np.unique(self._group[positive])
        for group in groups[~self._placed[groups]]:
            fold = int(self._sizes.argmin())
            self._of_group[group], self._placed[group] = fold, True
            self._sizes[fold] += 1

    @property
    def of_all(self) -> np.ndarray:
        """Of all rows, int64 (n,)."""
        return self._of_group[self._group]

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Of some rows, int64 (m,)."""
        return self._of_group[self._group[rows]]
