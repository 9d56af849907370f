r"""The graph of nearest neighbours of a pile of embeddings, and weighted means over neighbours.

    (W v)_i  =  sum_j w_ij v_j,     w_ij ~ exp(c_ij / T),     sum_j w_ij = 1

over the k rows of greatest whitened cosine c_ij (`pucache.neighbours.whitening`), the row itself left out. Rows
that equal another one are its neighbours. A row that equals the mean of the pile has no direction: it has no
neighbours, and is nobody's.

Every row is compared with every other one where that takes seconds. Larger piles are divided into cells
(`pucache.neighbours.cell_search`). The graph is kept beside its cache (`pucache.neighbours.graph_file`).
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..errors import PUCacheError
from ..progress import Progress, Silent
from ..storage.rows import RowMatrix
from .backends import find_gpu
from .graph_file import checksums_of, graph_path, read_graph, write_graph
from .row_source import RowSource, row_source, subset
from .weighted_graph import NeighbourGraph, graph_of_lists, renumbered
from .whitening import Whitening, whitened_rows

NEIGHBOURS = 30
METHODS = ("auto", "exact", "ivf")
_EXACT_PAIRS = {"cpu": 1 << 33, "cuda": 1 << 41}  # rows times rows that are compared in seconds
_log = logging.getLogger(__name__)


def neighbour_graph(
    X: EmbeddingCache | RowMatrix,
    *,
    k: int = NEIGHBOURS,
    rows: np.ndarray | None = None,
    whitening: Whitening | None = None,
    method: str = "auto",
    device: str = "auto",
    progress: Progress | None = None,
) -> NeighbourGraph:
    """Find the k nearest rows of every row by whitened cosine.

    Parameters
    ----------
    X : EmbeddingCache, or ndarray or StackedRows of float16 or float32, (n, d)
        Rows may be mapped; X is read in blocks.
    k : int
    rows : ndarray of int64, (m,), optional
        Ascending: the graph of these rows alone, numbered from 0 to m - 1. They are whitened as rows of X.
    whitening : Whitening, optional
        Of X, where it has been estimated already.
    method : {"auto", "exact", "ivf"}
        Compare all rows, or the rows of near cells; ``auto`` compares all where that takes seconds.
    device : str
    progress : Progress, optional

    Returns
    -------
    NeighbourGraph

    Raises
    ------
    CacheError
        The cache is damaged, or holds embeddings that are not finite.
    ValueError
        An array holds values that are not finite, or a parameter is outside its domain.
    """
    check(k, method)
    source = row_source(X)
    part = source if rows is None else subset(source, rows)
    if not len(part):
        return graph_of_lists(len(part), k, whitening)
    gpu = find_gpu(device)
    if gpu is not None:
        from .device_graph import graph_on_gpu  # imports torch

        exact = is_exact(method, len(part), "cuda")
        return graph_on_gpu(source, rows, whitening, k=k, exact=exact, gpu=gpu, progress=progress)
    whitening = whitening or Whitening.estimate(source)
    with progress or Silent() as progress:
        if is_exact(method, len(part), "cpu"):
            return _exact_graph(part, whitening, k=k, progress=progress)
        return _graph_by_cells(part, whitening, k=k, progress=progress)


def cached_graph(
    cache: EmbeddingCache,
    *,
    k: int = NEIGHBOURS,
    method: str = "auto",
    device: str = "auto",
    progress: Progress | None = None,
) -> NeighbourGraph:
    """Read the graph kept beside a cache; where there is none of this cache, make it and keep it.

    Where it cannot be kept, such as in a folder that is read-only, a warning says so.

    Parameters
    ----------
    cache : EmbeddingCache
    k, method, device, progress
        As for `neighbour_graph`.

    Returns
    -------
    NeighbourGraph

    Raises
    ------
    CacheError
        The cache is damaged, or holds embeddings that are not finite.
    ValueError
        A parameter is outside its domain.
    """
    check(k, method)
    graph = _kept_graph(cache, k, method)
    if graph is None:
        graph = neighbour_graph(cache, k=k, method=method, device=device, progress=progress)
        _keep(cache, graph)
    return graph


def _exact_graph(source: RowSource, whitening: Whitening, *, k: int, progress: Progress) -> NeighbourGraph:
    from .blocked_search import nearest_rows  # imports torch

    Z, numbers = whitened_rows(source, whitening)
    progress.start(len(Z), "finding neighbours")
    best = nearest_rows(Z, Z, k, among_themselves=True, advance=progress.advance)
    return graph_of_lists(len(source), k, whitening, numbers, (best[0], renumbered(best[1], numbers)))


def _graph_by_cells(source: RowSource, whitening: Whitening, *, k: int, progress: Progress) -> NeighbourGraph:
    from .cell_search import nearest_by_cells  # imports torch

    numbers, (cosines, neighbours), search = nearest_by_cells(source, whitening, k, progress=progress)
    graph = graph_of_lists(len(source), k, whitening, numbers, (cosines, renumbered(neighbours, numbers)))
    return replace(graph, search=search, exact=False)


def is_exact(method: str, n: int, device_type: str) -> bool:
    """Whether a method compares all of n rows on a device of this type."""
    return n * n <= _EXACT_PAIRS[device_type] if method == "auto" else method == "exact"


def _kept_graph(cache: EmbeddingCache, k: int, method: str) -> NeighbourGraph | None:
    """The graph beside a cache; None where there is none, or one of another cache, or of another search."""
    path = graph_path(cache)
    try:
        graph, checksums = read_graph(path)
    except PUCacheError as error:
        _log.debug("%s; making it anew", error)
        return None
    if checksums != checksums_of(cache) or len(graph) != len(cache):
        _log.debug("%s is of another state of the cache; making it anew", path)
        return None
    if graph.k != k or (method != "auto" and graph.exact != (method == "exact")):
        _log.debug("%s has %d neighbours by %s; making it anew", path, graph.k, graph.search)
        return None
    return graph


def _keep(cache: EmbeddingCache, graph: NeighbourGraph) -> None:
    try:
        write_graph(graph_path(cache), graph, checksums_of(cache))
    except PUCacheError as error:
        _log.warning("the graph of neighbours is not kept, and made anew each time: %s", error)


def check(k: int, method: str = "exact") -> None:
    """Raise ValueError for less than one neighbour, or an unknown method."""
    if k < 1:
        raise ValueError(f"k must be at least 1 neighbour, got {k}")
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; use {', '.join(METHODS)}")
