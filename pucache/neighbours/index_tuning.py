"""Search effort of an approximate index: the least that reaches a recall on a sample of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..progress import Progress
from .knn import nearest
from .neighbour_lists import merge_neighbours
from .whitening import Whitening

RECALL, RECALL_AT = 0.99, 100  # share of the 100 true neighbours of a row to find
_SAMPLE = 256  # rows whose true neighbours are searched by brute force
_MAX_GRAPH_EFFORT = 1 << 13
_EQUAL = 1e-6  # difference of inner products in float32


def spaced_rows(cache: EmbeddingCache, whitening: Whitening, count: int) -> np.ndarray:
    """Centred unit rows, evenly spaced over the cache, at most `count`; float32 (m, d)."""
    step = -(-len(cache) // count)
    sample = np.empty((-(-len(cache) // step), cache.encoder.dim), np.float32)
    for rows, X in cache.blocks():
        first = -(-rows.start // step)
        part = whitening.centred_units(X[first * step - rows.start :: step])
        sample[first : first + len(part)] = part
    return sample


def true_neighbours(cache: EmbeddingCache, whitening: Whitening, progress: Progress) -> tuple[np.ndarray, np.ndarray]:
    """A sample of rows, (m, d), and the row numbers of their nearest, (m, RECALL_AT), by brute force.

    Rows whose last neighbours are equally near, such as those of blank pictures, are left out: any choice
    among equals is right.
    """
    sample = spaced_rows(cache, whitening, _SAMPLE)
    k = min(RECALL_AT + 1, len(cache))
    best = np.full((len(sample), k), -np.inf, np.float32), np.zeros((len(sample), k), np.int64)
    for rows, X in cache.blocks():
        products, indices = nearest(sample, whitening.centred_units(X), k, device="cpu")
        best = merge_neighbours(best, (products, indices + rows.start), k)
        progress.advance(rows.stop - rows.start)
    products, neighbours = best
    clear = products[:, -2] - products[:, -1] > _EQUAL if k > RECALL_AT else np.ones(len(sample), bool)
    clear |= not clear.any()
    return sample[clear], neighbours[clear, :RECALL_AT]


def least_effort(index: Any, kind: str, sample: np.ndarray, neighbours: np.ndarray) -> tuple[int, float]:
    """The least effort that reaches `RECALL`, else the greatest, and the recall it reaches."""
    effort, recall = 1, 0.0
    for effort in _efforts(index, kind, neighbours.shape[1]):
        set_effort(index, kind, effort)
        _, rows = index.search(sample, neighbours.shape[1])
        recall = float(np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in zip(rows, neighbours, strict=True)]))
        if recall >= RECALL:
            break
    return effort, recall


def set_effort(index: Any, kind: str, effort: int) -> None:
    """Set how many cells (ivf) or candidates (hnsw) a faiss index visits."""
    if kind == "hnsw":
        index.hnsw.efSearch = effort
    else:
        index.nprobe = min(effort, index.nlist)


def _efforts(index: Any, kind: str, k: int) -> Iterator[int]:
    """Efforts to try, rising by a quarter."""
    effort, greatest = (k, _MAX_GRAPH_EFFORT) if kind == "hnsw" else (1, index.nlist)
    while effort < greatest:
        yield effort
        effort = max(effort + 1, effort * 5 // 4)
    yield greatest
