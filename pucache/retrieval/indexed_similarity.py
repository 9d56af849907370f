"""Similarity of the rows that an approximate index finds."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..labels.labels import Labels
from ..neighbours.ann_index import Index, open_or_build
from ..neighbours.index_tuning import RECALL, RECALL_AT
from ..progress import Progress
from .query_comparison import QueryComparison
from .scorer import Scores
from .similarity import Similarity

_ROWS_PER_BLOCK = 1 << 14
_LISTED_ROWS = 1 << 22  # row numbers that a search returns at once
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class IndexedSimilarity:
    """Exact similarities of the rows that an index finds near the positives; no score for all others.

    Parameters
    ----------
    similarity : Similarity
    kind : {"ivf", "hnsw", "ivfpq"}
    memory : int, optional
        Bytes that building the index may take.
    """

    similarity: Similarity
    kind: str
    memory: int | None = None
    _indexes: dict[tuple[str, ...], Index] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Description for messages and pages."""
        return f"{self.similarity.name}, {self.kind} index"

    def __call__(
        self, cache: EmbeddingCache, labels: Labels, count: int | None = None, progress: Progress | None = None
    ) -> Scores:
        """Search for `count` rows and the labelled ones near each query, and score them."""
        index = self._opened_index(cache, progress)
        trailer = index.trailer
        shortfall = "" if trailer.recall >= RECALL else f" (asked for {RECALL})"
        _log.info(
            "%s index: recall@%d %.3f on %d rows%s", self.kind, RECALL_AT, trailer.recall, trailer.sample, shortfall
        )
        cache.check("embeddings")
        queries = self.similarity.queries(cache, labels, index.whitening)
        k = len(cache) if count is None else min(count + int((~labels.unlabelled).sum()), len(cache))
        device = self.similarity.device
        rows = _rows_near(index, queries, k, device=device)
        values = np.full(len(cache), -np.inf, np.float32)
        comparison = QueryComparison(queries, self.similarity.neighbours, device=device)
        for part in np.array_split(rows, 1 + len(rows) // _ROWS_PER_BLOCK):
            values[part] = comparison.scores(index.whitening.centred_units(cache.take(part)))
        return Scores(values, complete=k == len(cache), search_by=index.search_by(k, device=device))

    def _opened_index(self, cache: EmbeddingCache, progress: Progress | None) -> Index:
        """The index of a cache; that of the last call, on the GPU perhaps, where the cache is the same."""
        checksums = tuple(file.checksum for file in cache.files)
        if checksums not in self._indexes:
            self._indexes.clear()
            self._indexes[checksums] = open_or_build(cache, self.kind, memory=self.memory, progress=progress)
        return self._indexes[checksums]


def _rows_near(index: Index, queries: np.ndarray, k: int, *, device: str) -> np.ndarray:
    """Rows that the index finds near any of the queries, ascending."""
    near = np.zeros(index.trailer.n, bool)
    step = max(1, _LISTED_ROWS // index.width(k))
    for start in range(0, len(queries), step):
        rows = index.search(queries[start : start + step], k, device=device)
        near[rows[rows >= 0]] = True
    return np.flatnonzero(near)
