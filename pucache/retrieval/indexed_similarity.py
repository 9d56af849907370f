"""Ranking by similarity among the rows that an index finds."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..progress import Progress
from ..pu.labels import Labels
from .ann_index import AT, RECALL, open_or_build
from .scorer import Scores
from .similarity import Similarity

_AT_ONCE = 1 << 14  # rows that are scored at once
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class IndexedSimilarity:
    """Scores the rows that an index finds near the positives; their scores are exact, and others have none.

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
        """What to call it."""
        return f"{self.similarity.name}, {self.kind} index"

    def __call__(
        self, cache: EmbeddingCache, labels: Labels, count: int | None = None, progress: Progress | None = None
    ) -> Scores:
        """Score what is found: for each query as many rows as are wanted, and as are known."""
        index = open_or_build(cache, self.kind, memory=self.memory, progress=progress)
        told = index.trailer
        _log.info(
            "%s index: recall@%d %.3f on %d rows%s",
            self.kind, AT, told.recall, told.sample, "" if told.recall >= RECALL else f" (asked for {RECALL})",
        )  # fmt: skip
        cache.check("embeddings")
        queries = self.similarity.queries(cache, labels, index.space)
        sought = len(cache) if count is None else min(count + int((~labels.unlabelled).sum()), len(cache))
        rows = np.unique(index.search(queries, sought, device=self.similarity.device))
        rows = rows[rows >= 0]
        values = np.full(len(cache), -np.inf, np.float32)
        for part in np.array_split(rows, 1 + len(rows) // _AT_ONCE):
            values[part] = self.similarity.of(index.space.unit(cache.take(part)), queries)
        return Scores(values, complete=sought == len(cache))
