r"""Similarity of rows to the labelled positives.

    whitened   z @ (C + t I)^-1 @ mean_P z,   t = trace(C) / (number of positives)
    centroid   z @ mean_P z:  mean cosine to all positives
    topk       mean cosine to the `TOP` nearest positives
    max        cosine to the nearest positive

z is a centred unit row (`pucache.neighbours.whitening`), C the covariance of all rows. The first is the direction
of Fisher's discriminant with all rows as the negatives. Its ridge t is the uncertainty of a mean of few positives:
with many positives it becomes the discriminant, with few the centroid.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..neighbours.backends import NUMPY_CPU, find_gpu
from ..neighbours.whitening import Whitening
from ..progress import Progress, Silent
from ..pu.labels import Labels
from .scorer import Scores

SIMILARITIES = ("whitened", "centroid", "topk", "max")
TOP = 50


@dataclass(frozen=True)
class Similarity:
    """Scores every row by its similarity to the labelled and confirmed positives.

    Parameters
    ----------
    kind : {"whitened", "centroid", "topk", "max"}
    device : str

    Raises
    ------
    ValueError
        Unknown kind.
    """

    kind: str = "whitened"
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.kind not in SIMILARITIES:
            raise ValueError(f"unknown similarity {self.kind!r}; use {', '.join(SIMILARITIES)}")

    @property
    def name(self) -> str:
        """Description for messages and pages."""
        return f"similarity ({self.kind})"

    def __call__(
        self, cache: EmbeddingCache, labels: Labels, count: int | None = None, progress: Progress | None = None
    ) -> Scores:
        """Score every row, block by block."""
        progress = progress or Silent()
        progress.start(len(cache), "comparing")
        gpu = find_gpu(self.device, values=len(cache) * cache.encoder.dim)
        if gpu is not None:
            from .device_similarity import device_scores

            return device_scores(self, cache, labels, gpu, progress)
        whitening = Whitening.estimate(cache)
        compared = Compared(self, self.queries(cache, labels, whitening), device="cpu")
        scores = np.empty(len(cache), np.float32)
        for rows, X in cache.blocks():
            scores[rows] = compared.scores(whitening.centred_units(X))
            progress.advance(rows.stop - rows.start)
        return Scores(scores, search_by=compared.search_by)

    def queries(self, cache: EmbeddingCache, labels: Labels, whitening: Whitening) -> np.ndarray:
        """Vectors to compare rows with, float32: one direction (1, d), or every positive (p, d)."""
        return self.queries_of(cache.take(np.flatnonzero(labels.positive)), whitening)

    def queries_of(self, positives: np.ndarray, whitening: Whitening) -> np.ndarray:
        """Queries as `queries`, of the embeddings of the positives, (p, d) as stored."""
        positives = whitening.centred_units(positives)
        if self.kind in ("topk", "max"):
            return positives
        mean = positives.mean(0, dtype=np.float64).astype(np.float32)
        if self.kind == "whitened" and whitening.total_variance > 0:
            mean = whitening.solve(mean, whitening.total_variance / len(positives))
        return mean[None].astype(np.float32)

    @property
    def neighbours(self) -> int:
        """Positives that a row is compared with: the nearest so many; 0 for their direction."""
        return {"topk": TOP, "max": 1}.get(self.kind, 0)


class Compared:
    """Queries of a similarity, ready to be compared with blocks of rows.

    Parameters
    ----------
    similarity : Similarity
    queries : ndarray of float32, (p, d)
        Of `Similarity.queries`.
    device : str

    Attributes
    ----------
    search_by : str
        What compares.
    """

    def __init__(self, similarity: Similarity, queries: np.ndarray, *, device: str):
        self._queries, self.search_by = queries, NUMPY_CPU
        self._search = None
        if similarity.neighbours:
            from ..neighbours.knn import RowSearch

            self._search = RowSearch(queries, similarity.neighbours, device=device)
            self.search_by = self._search.search_by

    def scores(self, units: np.ndarray) -> np.ndarray:
        """Scores of centred unit rows, (b,)."""
        if self._search is not None:
            return self._search.nearest(units)[0].mean(1)
        return np.vecdot(units, self._queries[0])  # row by row, so that equal rows score equally in any block
