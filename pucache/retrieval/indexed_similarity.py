"""Similarity of the rows that an approximate index finds."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..labels.labels import Labels
from ..neighbours.index import CANDIDATES, RECALL_AT, Index, open_or_build
from ..neighbours.search import FAISS_CPU
from ..progress import Progress
from .ranking import Scores
from .similarity import QueryComparison, Similarity

_ROWS_PER_BLOCK = 1 << 14
_LISTED_ROWS = 1 << 22  # row numbers that a search returns at once
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class IndexedSimilarity:
    """Exact similarities of the rows that an index finds near the positives; no score for all others."""

    similarity: Similarity
    factory: str
    _opened: dict[tuple[str, ...], Index] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Description for messages and pages."""
        return f"{self.similarity.name}, {self.factory} index"

    def __call__(
        self, cache: EmbeddingCache, labels: Labels, count: int | None = None, progress: Progress | None = None
    ) -> Scores:
        """Search for `count` rows and the labelled ones near each query, and score them."""
        index = self._index_of(cache, progress)
        _log.info("%s index: recall@%d %.3f on %d rows", self.factory, RECALL_AT, index.recall, index.sample)
        cache.check("embeddings")
        queries = self.similarity.queries(cache, labels, index.whitening)
        k = len(cache) if count is None else min(count + int((~labels.unlabelled).sum()), len(cache))
        rows = _rows_near(index, queries, k, len(cache))
        values = np.full(len(cache), -np.inf, np.float32)
        comparison = QueryComparison(queries, self.similarity.neighbours)
        for part in np.array_split(rows, 1 + len(rows) // _ROWS_PER_BLOCK):
            values[part] = comparison.scores(index.whitening.centred_units(cache.take(part)))
        return Scores(values, complete=k == len(cache), search_by=FAISS_CPU)

    def _index_of(self, cache: EmbeddingCache, progress: Progress | None) -> Index:
        """The index of a cache; that of the last call where the cache is the same."""
        checksums = tuple(cache.checksums)
        if checksums not in self._opened:
            self._opened.clear()
            self._opened[checksums] = open_or_build(cache, self.factory, progress=progress)
        return self._opened[checksums]


def _rows_near(index: Index, queries: np.ndarray, k: int, n: int) -> np.ndarray:
    """Rows that the index finds near any of the queries, ascending."""
    near = np.zeros(n, bool)
    step = max(1, _LISTED_ROWS // (CANDIDATES * k))
    for start in range(0, len(queries), step):
        rows = index.candidates(queries[start : start + step], k)
        near[rows[rows >= 0]] = True
    return np.flatnonzero(near)
