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
from typing import TYPE_CHECKING

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..labels.labels import Labels
from ..neighbours.search import find_gpu
from ..neighbours.whitening import Whitening, centred_units, put
from ..progress import Progress, Silent
from .query_comparison import QueryComparison
from .scorer import Scores

if TYPE_CHECKING:
    import torch

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
        whitening = Whitening.estimate(cache)
        return self.compare(cache, whitening, self.queries(cache, labels, whitening), progress, gpu)

    def compare(
        self,
        cache: EmbeddingCache,
        whitening: Whitening,
        queries: np.ndarray,
        progress: Progress | None = None,
        gpu: torch.device | None = None,
    ) -> Scores:
        """Score every row by its similarity to the queries, block by block."""
        comparison = QueryComparison(queries, self.neighbours, gpu)
        mean = put(whitening.mean, gpu)
        scores = np.empty(len(cache), np.float32)
        for rows, X in cache.blocks():
            scores[rows] = comparison.scores(centred_units(put(X, gpu), mean))
            if progress is not None:
                progress.advance(rows.stop - rows.start)
        return Scores(scores, search_by=comparison.search_by)

    def queries(self, cache: EmbeddingCache, labels: Labels, whitening: Whitening) -> np.ndarray:
        """Vectors to compare rows with, float32: one direction (1, d), or every positive (p, d)."""
        positives = whitening.centred_units(cache.take(np.flatnonzero(labels.positive)))
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
