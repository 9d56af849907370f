"""Comparison of blocks of rows with the queries of a similarity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..neighbours.search import FAISS_CPU, NUMPY_CPU, TORCH_GPU, row_search
from ..neighbours.whitening import Rows, put

if TYPE_CHECKING:
    import torch


class QueryComparison:
    """Queries of a similarity, ready to be compared with blocks of rows.

    Parameters
    ----------
    queries : ndarray of float32, (p, d)
        Of `pucache.retrieval.similarity.Similarity.queries`.
    neighbours : int
        Queries that a row is compared with: the nearest so many, at least 1; 0 where there is one query, a direction.
    gpu : torch.device, optional
        Where the rows are; the CPU by default.

    Attributes
    ----------
    search_by : str
        What compares.
    """

    def __init__(self, queries: np.ndarray, neighbours: int, gpu: torch.device | None = None):
        self._queries, self._neighbours = put(queries, gpu), neighbours
        self._search = row_search(self._queries, gpu) if neighbours else None
        self.search_by = TORCH_GPU if gpu else FAISS_CPU if neighbours else NUMPY_CPU

    def scores(self, units: Rows) -> np.ndarray:
        """Scores of centred unit rows, float32 (b,)."""
        if self._search is not None:
            return np.asarray(self._search(units, self._neighbours)[0].mean(1))
        # row by row, so that equal rows score equally in any block
        if isinstance(units, np.ndarray):
            return np.asarray(np.vecdot(units, self._queries[0]))
        return np.asarray(units.mul_(self._queries[0]).sum(1).cpu().numpy())
