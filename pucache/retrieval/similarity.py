r"""Similarity of rows to the labelled positives.

    whitened   z @ (C + t I)^-1 @ mean_P z,   t = trace(C) / (number of positives)
    topk       mean cosine to the `TOP` nearest positives

z is a centred unit row (`pucache.neighbours.whitening`), C the covariance of all rows. The first is the direction
of Fisher's discriminant with all rows as the negatives. Its ridge t is the uncertainty of a mean of few positives:
with many positives it becomes the discriminant, with few their mean. The second is for positives of several kinds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..labels.labels import PULabels
from ..neighbours.search import FAISS_CPU, NUMPY_CPU, TORCH_GPU, find_gpu, row_search
from ..neighbours.whitening import Whitening, cached_whitening, centred_units, put
from ..progress import Progress, Silent
from .ranking import Scores

if TYPE_CHECKING:
    import torch


SIMILARITIES = ("whitened", "topk")
TOP = 50


@dataclass(frozen=True)
class Similarity:
    """Scores every row by its similarity to the labelled and confirmed positives."""

    kind: str = "whitened"
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.kind not in SIMILARITIES:
            raise ValueError(f"unknown similarity {self.kind!r}; use whitened (for centroid) or topk (for max)")

    @property
    def name(self) -> str:
        """Description for messages and pages."""
        return f"similarity ({self.kind})"

    def __call__(
        self, cache: EmbeddingCache, labels: PULabels, count: int | None = None, progress: Progress | None = None
    ) -> Scores:
        """Score every row, block by block."""
        return self.of_vectors(cache, cache.take(np.flatnonzero(labels.positive)), progress)

    def of_vectors(self, cache: EmbeddingCache, vectors: np.ndarray, progress: Progress | None = None) -> Scores:
        """Score every row, block by block, by its similarity to vectors (p, d), rows of the cache or others."""
        progress = progress or Silent()
        progress.start(len(cache), "comparing")
        gpu = find_gpu(self.device, values=len(cache) * cache.encoder.dim)
        whitening, verified = cached_whitening(cache)
        return self.compare(cache, whitening, self.queries(vectors, whitening), progress, gpu, check=not verified)

    def compare(
        self,
        cache: EmbeddingCache,
        whitening: Whitening,
        queries: np.ndarray,
        progress: Progress | None = None,
        gpu: torch.device | None = None,
        *,
        check: bool = False,
    ) -> Scores:
        """Score every row by its similarity to the queries, block by block; with `check`, verify the rows meanwhile."""
        mean, vectors = put(whitening.mean, gpu), put(queries, gpu)
        search = row_search(vectors, gpu) if self.kind == "topk" else None
        scores = np.empty(len(cache), np.float32)
        for rows, X in cache.blocks(check=check):
            units = centred_units(put(X, gpu), mean)
            if search is not None:
                found = search(units, TOP)[0]
                scores[rows] = (found if gpu is None else found.cpu().numpy()).mean(1)
            elif gpu is None:  # row by row, so that equal rows score equally in any block
                scores[rows] = np.vecdot(units, vectors[0])
            else:
                scores[rows] = units.mul_(vectors[0]).sum(1).cpu().numpy()
            if progress is not None:
                progress.advance(rows.stop - rows.start)
        return Scores(scores, search_by=TORCH_GPU if gpu else FAISS_CPU if search else NUMPY_CPU)

    def queries(self, vectors: np.ndarray, whitening: Whitening) -> np.ndarray:
        """What rows are compared with, float32: the direction of vectors (1, d), or each of them (p, d)."""
        positives = whitening.centred_units(vectors)
        if self.kind == "topk":
            return positives
        mean = positives.mean(0, dtype=np.float64).astype(np.float32)
        if whitening.total_variance > 0:
            mean = whitening.solve(mean, whitening.total_variance / len(positives))
        return mean[None].astype(np.float32)
