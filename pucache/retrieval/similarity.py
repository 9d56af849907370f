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
        whitening = Whitening.estimate(cache)
        queries = self.queries(cache, labels, whitening)
        scores = np.empty(len(cache), np.float32)
        progress = progress or Silent()
        progress.start(len(cache), "comparing")
        for rows, X in cache.blocks():
            scores[rows] = self.scores(whitening.centred_units(X), queries)
            progress.advance(rows.stop - rows.start)
        return Scores(scores)

    def queries(self, cache: EmbeddingCache, labels: Labels, whitening: Whitening) -> np.ndarray:
        """Vectors to compare rows with, float32: one direction (1, d), or every positive (p, d)."""
        positives = whitening.centred_units(cache.take(np.flatnonzero(labels.positive)))
        if self.kind in ("topk", "max"):
            return positives
        mean = positives.mean(0, dtype=np.float64).astype(np.float32)
        if self.kind == "whitened" and whitening.total_variance > 0:
            mean = whitening.solve(mean, whitening.total_variance / len(positives))
        return mean[None].astype(np.float32)

    def scores(self, units: np.ndarray, queries: np.ndarray) -> np.ndarray:
        """Scores of centred unit rows, (b,)."""
        if self.kind in ("topk", "max"):
            from ..neighbours.knn import nearest  # imports faiss

            cosines, _ = nearest(units, queries, TOP if self.kind == "topk" else 1, device=self.device)
            return cosines.mean(1)
        return np.vecdot(units, queries[0])  # row by row, so that equal rows score equally in any block
