"""Ranking by similarity among the rows that an index finds."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import numpy as np

from ..cache import EmbeddingCache
from ..labels import Labels
from ..progress import Progress
from .index import AT, RECALL, open_or_build
from .scores import Scores
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
    k : int
        Unlabelled rows sought for each query.
    memory : int, optional
        Bytes that building the index may take.
    """

    similarity: Similarity
    kind: str
    k: int
    memory: int | None = None
    progress: Progress | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """What to call it."""
        return f"{self.similarity.name}, {self.kind} index"

    def __call__(self, cache: EmbeddingCache, labels: Labels) -> Scores:
        """Score what is found."""
        index = open_or_build(cache, self.kind, memory=self.memory, progress=self.progress)
        told = index.trailer
        _log.info(
            "%s index: recall@%d %.3f on %d rows%s",
            self.kind, AT, told.recall, told.sample, "" if told.recall >= RECALL else f" (asked for {RECALL})",
        )  # fmt: skip
        cache.check("embeddings")
        queries = self.similarity.queries(cache, labels, index.space)
        known = int((~labels.unlabelled).sum())
        rows = np.unique(index.search(queries, min(self.k + known, len(cache)), device=self.similarity.device))
        rows = rows[rows >= 0]
        values = np.full(len(cache), -np.inf, np.float32)
        for part in np.array_split(rows, 1 + len(rows) // _AT_ONCE):
            values[part] = self.similarity.of(index.space.unit(cache.take(part)), queries)
        return Scores(values)
