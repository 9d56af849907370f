"""A spread-out selection of rows, to find a first positive where none is known.

Rows of a sample are selected as k-means++ selects its seeds (Arthur and Vassilvitskii 2007): each with a probability
in proportion to its squared distance to the nearest row selected before. Distances are between whitened rows, so that
no direction counts for its variance alone.
"""

from __future__ import annotations

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..neighbours.whitening import Whitening

SAMPLE = 4096  # rows to select from


class SpreadSelection:
    """Rows in the order of selection, made longer on demand.

    Parameters
    ----------
    cache : EmbeddingCache
    candidates : ndarray of int64, (m,), ascending
        Rows to select from; a sample of `SAMPLE` is taken where there are more.
    rng : Generator
    """

    def __init__(self, cache: EmbeddingCache, candidates: np.ndarray, rng: np.random.Generator):
        if len(candidates) > SAMPLE:
            candidates = np.sort(rng.choice(candidates, SAMPLE, replace=False))
        self._candidates, self._rng = candidates, rng
        self._order: list[int] = []
        self._distance = np.ones(len(candidates), np.float32)  # squared, to the nearest selected row
        self._Z = np.empty((0, 1), np.float32)
        if len(candidates):
            X = cache.take(candidates)
            whitening = Whitening.estimate(X)
            self._Z = whitening.whiten(whitening.centred_units(X))  # (m, q)

    @property
    def rows(self) -> np.ndarray:
        """Rows selected up to now, int64 (k,)."""
        return self._candidates[self._order]

    @property
    def exhausted(self) -> bool:
        """Whether the whole sample is selected."""
        return len(self._order) == len(self._candidates)

    def extend(self, count: int) -> None:
        """Select further rows, up to the end of the sample."""
        for _ in range(min(count, len(self._candidates) - len(self._order))):
            self._order.append(self._drawn())

    def _drawn(self) -> int:
        """Position of a row, which is never drawn again."""
        weights = self._distance.astype(np.float64)
        if not weights.any():  # copies of rows selected before
            weights = np.ones(len(weights))
            weights[self._order] = 0
        chosen = int(self._rng.choice(len(weights), p=weights / weights.sum()))
        distance = np.maximum(2 - 2 * (self._Z @ self._Z[chosen]), 0)
        np.minimum(self._distance, np.where(distance > 1e-6, distance, 0), out=self._distance)
        self._distance[chosen] = 0
        return chosen
