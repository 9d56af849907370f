"""Product quantisation: rows stored as 64 bytes, for caches whose rows do not fit into memory.

A row is projected onto the leading directions of the cache (at most 256), these are dealt into 64 groups of equal
variance, and the coordinates of each group are replaced by the nearest of 256 centroids (Jégou, Douze and Schmid
2011). Dealing the directions so that the products of their variances are equal is the parametric solution of
optimized product quantization (Ge, He, Ke and Sun 2013, section 3.2); it needs no training.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from .backends import require_faiss
from .whitening import Whitening

CODE_BYTES = 64  # of a row; fewer where it has fewer dimensions
_CENTROIDS = 256  # of a group: one byte names one of them
_CENTROID_ROWS = 64  # rows that a centroid is learned from
_BITS = 8


def code_bytes(cache: EmbeddingCache) -> int:
    """Bytes of a row's code."""
    return min(CODE_BYTES, cache.encoder.dim, len(cache))


def projection(whitening: Whitening) -> np.ndarray:
    """Leading directions, in the order of the groups that they are dealt into.

    Parameters
    ----------
    whitening : Whitening

    Returns
    -------
    ndarray of float32, (p, d)
        p is a multiple of the number of groups; missing directions are zero.
    """
    count, d = whitening.directions.shape
    groups = min(CODE_BYTES, count)
    size = -(-count // groups)
    rows = np.zeros((groups * size, d), np.float32)
    for group, members in enumerate(_deal(whitening.variances, groups, size)):
        rows[group * size : group * size + len(members)] = whitening.directions[members]
    return rows


def _deal(variances: np.ndarray, groups: int, size: int) -> list[list[int]]:
    """Deal directions into groups whose products of variances are as equal as a greedy choice makes them."""
    logs = np.log(np.maximum(variances, max(float(variances.max()), 1e-30) * 1e-6))
    logs -= logs.min()
    members: list[list[int]] = [[] for _ in range(groups)]
    totals = np.zeros(groups)
    for direction in np.argsort(-variances, kind="stable").tolist():
        group = int(np.argmin(totals))
        members[group].append(direction)
        totals[group] = np.inf if len(members[group]) == size else totals[group] + logs[direction]
    return members


def trained_index(directions: np.ndarray, sample: np.ndarray, cells: int) -> Any:
    """An index that has learned its cells and codes, and holds no row.

    Parameters
    ----------
    directions : ndarray of float32, (p, d)
        Of `projection`.
    sample : ndarray of float32, (m, p)
        Projected rows.
    cells : int
        At most m.

    Returns
    -------
    faiss.IndexPreTransform
        A projection and an ``IndexIVFPQ``.
    """
    faiss = require_faiss()
    p, d = directions.shape
    metric = faiss.METRIC_INNER_PRODUCT
    groups = min(CODE_BYTES, p)
    index = faiss.IndexIVFPQ(faiss.IndexFlatIP(p), p, cells, groups, _BITS, metric)
    index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1  # no warning for small caches
    index.pq.cp.max_points_per_centroid = _CENTROID_ROWS
    if len(sample) < _CENTROIDS:
        sample = np.resize(sample, (_CENTROIDS, p))  # faiss asks for a row for each centroid
    index.train(sample)
    linear = faiss.LinearTransform(d, p, False)
    faiss.copy_array_to_vector(directions.ravel(), linear.A)
    linear.is_trained = True
    return faiss.IndexPreTransform(linear, index)
