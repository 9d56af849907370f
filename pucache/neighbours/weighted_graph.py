"""A graph of nearest neighbours, and weighted means over the neighbours of each row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from .whitening import Whitening

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

TEMPERATURE = 0.1


@dataclass(frozen=True)
class NeighbourGraph:
    """Nearest rows of a pile, for each of its rows or for other rows.

    Attributes
    ----------
    rows : ndarray of int32, (m, k)
        Row numbers in the pile, nearest first; -1 where there are fewer neighbours.
    cosines : ndarray of float16, (m, k)
        Whitened cosines, falling; -inf where there are fewer neighbours.
    search : str
        How neighbours were searched, such as "exact search" or "search in 316 cells, recall 0.950 on 256 rows".
    exact : bool
        Whether all rows were compared; up to rounding of the cosines.
    whitening : Whitening or None
        Of the pile.
    search_by : str
        What searched, such as "torch on the GPU"; "" for a graph that was read from its file.
    """

    rows: np.ndarray
    cosines: np.ndarray
    search: str = "exact search"
    exact: bool = True
    whitening: Whitening | None = None
    search_by: str = ""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def k(self) -> int:
        """Greatest number of neighbours of a row."""
        return int(self.rows.shape[1])

    def weighted_means(self, values: np.ndarray) -> np.ndarray:
        """Means of values over the neighbours of each row, weighted by exp(cosine / `TEMPERATURE`).

        Parameters
        ----------
        values : ndarray of float32 or float64, (n,) or (n, C)
            Of the rows of the pile.

        Returns
        -------
        ndarray of the type of `values`, (m,) or (m, C)
            A row without neighbours gets the mean of `values` over the pile.

        Raises
        ------
        ValueError
            `values` has fewer rows than the pile.
        """
        n, last = len(values), self.rows.max(initial=-1)
        if n <= last:
            raise ValueError(f"values have {n} rows, but a neighbour has row number {last}: pass one per row")
        if n not in self._weights:
            self._weights[n] = _weight_matrix(self.rows, self.cosines, n)
        means: np.ndarray = self._weights[n] @ values
        means = means.astype(values.dtype, copy=False)
        without = (self.rows < 0).all(1)
        if without.any():
            means[without] = values.mean(0)
        return means

    @cached_property
    def _weights(self) -> dict[int, csr_matrix]:
        """Normalised weights, float32 (m, n), by n."""
        return {}


def _weight_matrix(rows: np.ndarray, cosines: np.ndarray, n: int) -> csr_matrix:
    from scipy.sparse import csr_matrix

    weights, absent = cosines.astype(np.float32), rows < 0
    greatest = weights.max(1, initial=-np.inf, keepdims=True)
    weights -= np.where(greatest > -np.inf, greatest, 0)
    weights /= TEMPERATURE
    np.exp(weights, out=weights)
    weights[absent] = 0
    weights /= np.maximum(weights.sum(1, keepdims=True), np.finfo(np.float32).tiny)
    columns = np.where(absent, 0, rows) if absent.any() else rows
    row_ends = np.arange(len(rows) + 1, dtype=np.int64 if rows.size >> 31 else np.int32) * rows.shape[1]
    return csr_matrix((weights.ravel(), columns.ravel(), row_ends), shape=(len(rows), n))
