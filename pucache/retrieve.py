"""Ranks the unlabelled images: by similarity to the labelled positives, or by a model.

The only user of faiss. Vectors are centred on the cache's mean and normalised, so the inner product
is a cosine; centring takes away what all images share, without which the mean cosine ranks far worse
(docs/results/cifar10.md has both).
"""

from __future__ import annotations

from collections.abc import Callable

import faiss
import numpy as np

from .cache import EmbeddingCache
from .classifier import PULinearClassifier
from .labels import check_labels
from .retrieval.ranking import Ranking

SIMILARITIES = ("centroid", "max")


def retrieve(
    cache: EmbeddingCache,
    s: np.ndarray,
    *,
    k: int = 100,
    model: PULinearClassifier | None = None,
    similarity: str = "centroid",
) -> Ranking:
    """Find the `k` unlabelled images that are most likely positive.

    Parameters
    ----------
    cache : EmbeddingCache
    s : ndarray of int8, (n,)
        1 labelled positive (left out of the ranking), 0 unlabelled.
    k : int
        From 1; what exceeds the unlabelled rows is cut to them.
    model : PULinearClassifier, optional
        Rank by its margin instead of by similarity.
    similarity : {"centroid", "max"}
        Mean of the cosines to all positives, or the cosine to the nearest one.

    Returns
    -------
    Ranking

    Raises
    ------
    ModelError
        The model is of another encoder.
    CacheError
        The cache is damaged, or holds embeddings that are not finite.
    ValueError
        k < 1, an unknown similarity, `s` of another length, or no labelled or no unlabelled row.
    """
    check_labels(s)
    if len(s) != len(cache):
        raise ValueError(f"s has {len(s)} labels, but {cache.name} has {len(cache)} rows")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if similarity not in SIMILARITIES:
        raise ValueError(f"unknown similarity {similarity!r}; use {' or '.join(SIMILARITIES)}")
    cache.check("keys")
    if model is not None:
        best = _Best(k)
        for rows, margins in model.margins_of(cache):
            candidates = np.arange(rows.start, rows.stop)[s[rows] == 0]
            best.offer(candidates, margins[s[rows] == 0])
    else:
        best = _by_similarity(cache, s, k, similarity)
    return Ranking(best.rows, [cache.keys[int(row)] for row in best.rows], best.scores)


def _by_similarity(cache: EmbeddingCache, s: np.ndarray, k: int, similarity: str) -> _Best:
    prepare = _centred(cache)
    queries = np.concatenate([prepare(X[s[rows] == 1]) for rows, X in cache.blocks()])
    if similarity == "centroid":  # the mean of the cosines to all queries is the product with their mean
        queries = queries.mean(0, keepdims=True)
    best = _Best(k)
    for rows, X in cache.blocks():
        candidates = np.arange(rows.start, rows.stop)[s[rows] == 0]
        if len(candidates):  # the nearest query of each row, not the nearest rows of each query: that would drop ties
            scores, _ = faiss.knn(prepare(X[s[rows] == 0]), queries, 1, metric=faiss.METRIC_INNER_PRODUCT)
            best.offer(candidates, scores[:, 0])
    return best


def _centred(cache: EmbeddingCache) -> Callable[[np.ndarray], np.ndarray]:
    total = np.zeros(cache.encoder.dim)
    for rows, X in cache.blocks(check=True):
        block = X.sum(0, dtype=np.float64)
        if not np.isfinite(block).all():
            raise cache.not_finite(rows.start + np.flatnonzero(~np.isfinite(X).all(1)))
        total += block
    mean = (total / len(cache)).astype(np.float32)

    def prepare(X: np.ndarray) -> np.ndarray:
        vectors = X.astype(np.float32) - mean
        faiss.normalize_L2(vectors)
        return vectors

    return prepare


class _Best:
    """The k highest scores seen so far, highest first; of equal scores the earlier row."""

    def __init__(self, k: int):
        self._k = k
        self.rows = np.empty(0, np.int64)
        self.scores = np.empty(0, np.float32)

    def offer(self, rows: np.ndarray, scores: np.ndarray) -> None:
        rows, scores = np.concatenate([self.rows, rows]), np.concatenate([self.scores, scores])
        order = np.lexsort((rows, -scores))[: self._k]
        self.rows, self.scores = rows[order], scores[order]
