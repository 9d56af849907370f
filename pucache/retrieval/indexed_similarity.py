"""Similarity of the rows that an approximate index finds."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..neighbours.ann_index import open_or_build
from ..neighbours.index_tuning import RECALL, RECALL_AT
from ..progress import Progress
from ..pu.labels import Labels
from .scorer import Scores
from .similarity import Similarity

_ROWS_PER_BLOCK = 1 << 14
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class IndexedSimilarity:
    """Exact similarities of the rows that an index finds near the positives; no score for all others.

    Parameters
    ----------
    similarity : Similarity
    kind : {"ivf", "hnsw"}
    memory : int, optional
        Bytes that building the index may take.
    """

    similarity: Similarity
    kind: str
    memory: int | None = None

    @property
    def name(self) -> str:
        """Description for messages and pages."""
        return f"{self.similarity.name}, {self.kind} index"

    def __call__(
        self, cache: EmbeddingCache, labels: Labels, count: int | None = None, progress: Progress | None = None
    ) -> Scores:
        """Search for `count` rows and the labelled ones near each query, and score them."""
        index = open_or_build(cache, self.kind, memory=self.memory, progress=progress)
        trailer = index.trailer
        shortfall = "" if trailer.recall >= RECALL else f" (asked for {RECALL})"
        _log.info(
            "%s index: recall@%d %.3f on %d rows%s", self.kind, RECALL_AT, trailer.recall, trailer.sample, shortfall
        )
        cache.check("embeddings")
        queries = self.similarity.queries(cache, labels, index.whitening)
        k = len(cache) if count is None else min(count + int((~labels.unlabelled).sum()), len(cache))
        rows = np.unique(index.search(queries, k, device=self.similarity.device))
        rows = rows[rows >= 0]
        values = np.full(len(cache), -np.inf, np.float32)
        for part in np.array_split(rows, 1 + len(rows) // _ROWS_PER_BLOCK):
            values[part] = self.similarity.scores(index.whitening.centred_units(cache.take(part)), queries)
        return Scores(values, complete=k == len(cache))
