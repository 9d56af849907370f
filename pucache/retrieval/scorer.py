"""Interface of everything that scores the rows of a cache for retrieval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..labels.labels import Labels
from ..progress import Progress


@dataclass(frozen=True)
class Scores:
    """Scores of all rows of a cache.

    Attributes
    ----------
    values : ndarray of float32, (n,)
        Higher is more likely positive; -inf for rows without a score.
    posterior : callable or None
        Maps row numbers to the probability of being positive, where a model took part.
    complete : bool
        Whether every row has a score.
    note : str
        Why neighbours count, or do not, where a model took part; "" where it was not asked.
    search : str
        How neighbours were searched; "" where they do not count.
    search_by : str
        What compared rows, such as "torch on the GPU"; "" where none were compared now.
    """

    values: np.ndarray
    posterior: Callable[[np.ndarray], np.ndarray] | None = None
    complete: bool = True
    note: str = ""
    search: str = ""
    search_by: str = ""


class Scorer(Protocol):
    """Scores the rows of a cache, given the labels of some."""

    @property
    def name(self) -> str:
        """Description for messages and pages, such as "similarity (centroid)"."""

    def __call__(
        self, cache: EmbeddingCache, labels: Labels, count: int | None = None, progress: Progress | None = None
    ) -> Scores:
        """Score every row, or at least the `count` unlabelled rows of the highest scores."""
