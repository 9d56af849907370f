"""Neighbours of other rows, such as those of new images, in a pile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..progress import Progress, Silent
from .backends import find_gpu
from .graph import NEIGHBOURS, check
from .neighbour_lists import merge_neighbours
from .row_source import RowSource, row_source, subset
from .weighted_graph import NeighbourGraph, graph_of_lists, renumbered
from .whitening import Whitening, whitened_rows

if TYPE_CHECKING:
    import torch

    from .device_graph import QueriedPile

_ROWS_PER_SEARCH = 1 << 16  # rows of a pile that queries are compared with at once


def query_neighbours(
    X: EmbeddingCache | np.ndarray,
    queries: np.ndarray,
    k: int = NEIGHBOURS,
    *,
    whitening: Whitening | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> NeighbourGraph:
    """Find the k nearest rows of a pile to other rows; all are compared.

    For several searches in one pile, make a `NeighbourSearch` of it.

    Parameters
    ----------
    X : EmbeddingCache, or ndarray of float16 or float32, (n, d)
        The pile; read in blocks.
    queries : ndarray of float16 or float32, (m, d)
        Whitened as the pile. One that equals a row of the pile has it as a neighbour.
    k : int
    whitening : Whitening, optional
        Of X, such as `cached_graph(X).whitening`; estimated by default.
    device : str
    progress : Progress, optional

    Returns
    -------
    NeighbourGraph
        Row numbers are those of X, so `weighted_means` takes values of its rows.

    Raises
    ------
    CacheError
        The cache is damaged, or holds embeddings that are not finite.
    ValueError
        Queries of other dimensions; values that are not finite; k below 1.
    """
    return NeighbourSearch(X, whitening=whitening, device=device).nearest(queries, k, progress=progress)


class NeighbourSearch:
    """Searches in one pile for the neighbours of other rows.

    On a GPU the rows of the pile are uploaded and whitened at the first search, and stay there where they fit. On
    the CPU they are read in blocks in every search.

    Parameters
    ----------
    X : EmbeddingCache, or ndarray of float16 or float32, (n, d)
        The pile.
    whitening : Whitening, optional
        Of X; estimated at the first search by default.
    device : str
    """

    def __init__(self, X: EmbeddingCache | np.ndarray, *, whitening: Whitening | None = None, device: str = "auto"):
        self._source, self._whitening, self._device = row_source(X), whitening, device
        self._pile: QueriedPile | None = None

    def nearest(self, queries: np.ndarray, k: int = NEIGHBOURS, *, progress: Progress | None = None) -> NeighbourGraph:
        """Find the k nearest rows of the pile to each query; as `query_neighbours`."""
        check(k)
        source, asked = self._source, row_source(np.asarray(queries))
        if asked.d != source.d:
            raise ValueError(f"queries have {asked.d} dimensions, the rows {source.d}: use one encoder for both")
        if not len(asked) or not len(source):
            return graph_of_lists(len(asked), k, self._whitening)
        gpu = find_gpu(self._device)
        with progress or Silent() as progress:
            if gpu is None:
                self._whitening = self._whitening or Whitening.estimate(source)
                return _query_on_cpu(source, asked, self._whitening, k=k, progress=progress)
            return self._pile_on(gpu).nearest(asked, k, progress=progress)

    def _pile_on(self, gpu: torch.device) -> QueriedPile:
        from .device_graph import QueriedPile

        if self._pile is None:
            self._pile = QueriedPile(self._source, self._whitening, gpu)
        return self._pile


def _query_on_cpu(
    source: RowSource, asked: RowSource, whitening: Whitening, *, k: int, progress: Progress
) -> NeighbourGraph:
    from .blocked_search import nearest_rows, no_neighbours  # imports torch

    Q, query_numbers = whitened_rows(asked, whitening)
    best = no_neighbours(len(Q), k)
    progress.start(len(source), "finding neighbours")
    for start in range(0, len(source), _ROWS_PER_SEARCH):
        part = np.arange(start, min(start + _ROWS_PER_SEARCH, len(source)))
        Z, numbers = whitened_rows(subset(source, part), whitening)
        cosines, neighbours = nearest_rows(Q, Z, k)
        best = merge_neighbours(best, (cosines, renumbered(neighbours, part[numbers])), k)
        progress.advance(len(part))
    return graph_of_lists(len(asked), k, whitening, query_numbers, best)
