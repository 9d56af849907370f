"""What rows are ranked by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..progress import Progress
from ..pu.labels import Labels


@dataclass(frozen=True)
class Scores:
    """A score for every row.

    Attributes
    ----------
    values : ndarray of float32, (n,)
        Higher is more likely positive; -inf for rows that were not reached.
    posterior : callable or None
        Row numbers -> probability of being positive among the unlabelled, where a model took part.
    complete : bool
        Whether every row was reached.
    """

    values: np.ndarray
    posterior: Callable[[np.ndarray], np.ndarray] | None = None
    complete: bool = True


class Scorer(Protocol):
    """Scores the rows of a cache, given what is known of some."""

    @property
    def name(self) -> str:
        """What to call it."""

    def __call__(
        self, cache: EmbeddingCache, labels: Labels, count: int | None = None, progress: Progress | None = None
    ) -> Scores:
        """Score every row, or at least `count` unlabelled ones of the highest scores."""
