"""Search effort of an approximate index: the least that reaches a recall on a sample of rows.

An ivfpq index only finds candidates, which are compared exactly afterwards. So its recall is the share of true
neighbours among the candidates, and the number of candidates is tuned too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..progress import Progress
from .backends import require_faiss
from .knn import nearest
from .neighbour_lists import merge_neighbours
from .whitening import Whitening

RECALL, RECALL_AT = 0.99, 100  # share of the 100 true neighbours of a row to find
_SAMPLE = 256  # rows whose true neighbours are searched by brute force
_MAX_GRAPH_EFFORT = 1 << 13
_EQUAL = 1e-6  # difference of inner products in float32
_MAX_CANDIDATES = 32  # of an ivfpq index, for each neighbour
_CELL_RECALL = (1 + RECALL) / 2  # of the greatest number of candidates: half of the misses may be due to the cells
_LEAST_GAIN = 0.001  # of recall by twice the cells, below which more of them are of no use


@dataclass(frozen=True)
class Tuning:
    """How an index is searched.

    Attributes
    ----------
    effort : int
        Cells visited, or candidates kept while the graph is followed.
    recall : float
        Share of the true nearest neighbours found, mean over the sample.
    candidates : int
        Rows to find for each neighbour that is wanted.
    """

    effort: int
    recall: float
    candidates: int = 1


def spaced_rows(
    cache: EmbeddingCache, whitening: Whitening, count: int, directions: np.ndarray | None = None
) -> np.ndarray:
    """Centred unit rows, evenly spaced over the cache, at most `count`; float32 (m, d).

    With directions (p, d): the coordinates of these rows along them, (m, p).
    """
    step = -(-len(cache) // count)
    dim = cache.encoder.dim if directions is None else len(directions)
    sample = np.empty((-(-len(cache) // step), dim), np.float32)
    for rows, X in cache.blocks():
        first = -(-rows.start // step)
        part = whitening.centred_units(X[first * step - rows.start :: step])
        sample[first : first + len(part)] = part if directions is None else part @ directions.T
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


def tune(index: Any, kind: str, sample: np.ndarray, neighbours: np.ndarray) -> Tuning:
    """The least effort that reaches `RECALL`, else the greatest that is of use.

    Parameters
    ----------
    index : faiss.Index
    kind : {"ivf", "hnsw", "ivfpq"}
    sample : ndarray of float32, (m, d)
    neighbours : ndarray of int64, (m, k)
        Of `true_neighbours`.

    Returns
    -------
    Tuning
    """
    if kind == "ivfpq":
        return _tune_codes(index, sample, neighbours)
    effort, recall = 1, 0.0
    for effort in _efforts(index, kind, neighbours.shape[1]):
        set_effort(index, kind, effort)
        recall = _recall(index.search(sample, neighbours.shape[1])[1], neighbours)
        if recall >= RECALL:
            break
    return Tuning(effort, recall)


def _tune_codes(index: Any, sample: np.ndarray, neighbours: np.ndarray) -> Tuning:
    """Cells such that the most candidates reach `_CELL_RECALL`; then the fewest candidates that reach `RECALL`."""
    k = neighbours.shape[1]
    rows, reached = np.empty((len(sample), 0), np.int64), {0: 0.0}
    for effort in _efforts(index, "ivfpq", k):
        set_effort(index, "ivfpq", effort)
        rows = index.search(sample, min(_MAX_CANDIDATES * k, index.ntotal))[1]
        reached[effort] = _recall(rows, neighbours)
        half = max(tried for tried in reached if tried <= effort // 2)
        if reached[effort] >= _CELL_RECALL or (half and reached[effort] - reached[half] < _LEAST_GAIN):
            break
    wanted = RECALL if reached[effort] >= RECALL else reached[effort] - _LEAST_GAIN
    recall, candidates = 0.0, 1
    for candidates in (1 << power for power in range(_MAX_CANDIDATES.bit_length())):
        recall = _recall(rows[:, : candidates * k], neighbours)
        if recall >= wanted:
            break
    return Tuning(effort, recall, candidates)


def _recall(rows: np.ndarray, neighbours: np.ndarray) -> float:
    """Share of the neighbours, (m, k), that are among the rows, (m, any), mean over m."""
    return float(np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in zip(rows, neighbours, strict=True)]))


def set_effort(index: Any, kind: str, effort: int) -> None:
    """Set how many cells (ivf, ivfpq) or candidates (hnsw) a faiss index visits."""
    if kind == "hnsw":
        index.hnsw.efSearch = effort
    else:
        cells = _cells_of(index)
        cells.nprobe = min(effort, cells.nlist)


def _cells_of(index: Any) -> Any:
    """The ``IndexIVF``, behind a projection or not, on the CPU or on a GPU."""
    return index if hasattr(index, "nlist") else require_faiss().extract_index_ivf(index)


def _efforts(index: Any, kind: str, k: int) -> Iterator[int]:
    """Efforts to try, rising by a quarter."""
    effort, greatest = (k, _MAX_GRAPH_EFFORT) if kind == "hnsw" else (1, _cells_of(index).nlist)
    while effort < greatest:
        yield effort
        effort = max(effort + 1, effort * 5 // 4)
    yield greatest
