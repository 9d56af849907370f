"""Comparison of blocks of rows with the queries of a similarity."""

from __future__ import annotations

import numpy as np

from ..neighbours.backends import NUMPY_CPU


class QueryComparison:
    """Queries of a similarity, ready to be compared with blocks of rows.

    Parameters
    ----------
    queries : ndarray of float32, (p, d)
        Of `pucache.retrieval.similarity.Similarity.queries`.
    neighbours : int
        Queries that a row is compared with: the nearest so many, at least 1; 0 where there is one query, a direction.
    device : str

    Attributes
    ----------
    search_by : str
        What compares.
    """

    def __init__(self, queries: np.ndarray, neighbours: int, *, device: str):
        self._queries, self.search_by = queries, NUMPY_CPU
        self._search = None
        if neighbours:
            from ..neighbours.knn import RowSearch

            self._search = RowSearch(queries, neighbours, device=device)
            self.search_by = self._search.search_by

    def scores(self, units: np.ndarray) -> np.ndarray:
        """Scores of centred unit rows, (b,)."""
        if self._search is not None:
            return self._search.nearest(units)[0].mean(1)
        return np.vecdot(units, self._queries[0])  # row by row, so that equal rows score equally in any block
