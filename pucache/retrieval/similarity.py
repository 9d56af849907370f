r"""How alike a row is to the labelled positives.

    whitened   z @ (C + t I)^-1 @ mean_P z,   t = trace(C) / (number of positives)
    centroid   z @ mean_P z:  the mean of the cosines to all positives
    topk       mean of the cosines to the `TOP` nearest positives
    max        cosine to the nearest one

z is a row in the space of `pucache.retrieval.whitening`, C the covariance of all rows there. The first is the direction
of Fisher's discriminant, with all rows in the place of the negatives, held back by as much as the mean of
so few positives is uncertain: of many positives it becomes the discriminant, of few the centroid.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..progress import Progress, Silent
from ..pu.labels import Labels
from .knn import nearest
from .scorer import Scores
from .whitening import Space

SIMILARITIES = ("whitened", "centroid", "topk", "max")
TOP = 50


@dataclass(frozen=True)
class Similarity:
    """Scores every row by its likeness to the known positives.

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
        """What to call it."""
        return f"similarity ({self.kind})"

    def __call__(
        self, cache: EmbeddingCache, labels: Labels, count: int | None = None, progress: Progress | None = None
    ) -> Scores:
        """Score every row, in blocks."""
        space = Space.of(cache)
        queries = self.queries(cache, labels, space)
        scores = np.empty(len(cache), np.float32)
        shown = progress or Silent()
        shown.start(len(cache), "comparing")
        for rows, X in cache.blocks():
            scores[rows] = self.of(space.unit(X), queries)
            shown.advance(rows.stop - rows.start)
        return Scores(scores)

    def queries(self, cache: EmbeddingCache, labels: Labels, space: Space) -> np.ndarray:
        """What rows are compared with, float32: one direction (1, d), or every positive (p, d)."""
        positives = space.unit(cache.take(np.flatnonzero(labels.positive)))
        if self.kind in ("topk", "max"):
            return positives
        mean = positives.mean(0, dtype=np.float64).astype(np.float32)
        if self.kind == "whitened" and space.variance > 0:
            mean = space.whitening(mean, space.variance / len(positives))
        return mean[None].astype(np.float32)

    def of(self, unit_rows: np.ndarray, queries: np.ndarray) -> np.ndarray:
        """Score of rows in the space, (b,)."""
        if self.kind in ("topk", "max"):
            cosines, _ = nearest(unit_rows, queries, TOP if self.kind == "topk" else 1, device=self.device)
            return cosines.mean(1)
        return np.vecdot(unit_rows, queries[0])  # row by row: equal rows score equally, wherever they stand
