"""Second moments of a weighted sample of rows, and their regularised inverses."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .design_matrix import DesignMatrix
from .device_rows import upload

_SAMPLE = 4096  # rows
_FLOOR = 2e-3  # least ratio, relative to the mean variance; smaller variances are treated as rounding


class SecondMoments:
    """Weighted mean of x x^T over rows x = (X - centre) / spread with 1 appended.

    Parameters
    ----------
    matrix : (d + 1, d + 1) tensor
    """

    def __init__(self, matrix: Tensor):
        self.matrix = matrix
        self.least_ratio = _FLOOR / max(1, len(matrix) - 1)  # the variances of all directions sum to about one
        self._inverses: dict[float, Tensor] = {}

    @classmethod
    def of_sample(cls, design: DesignMatrix, importance: np.ndarray) -> SecondMoments:
        """Estimate them on rows drawn by importance, (n,) >= 0, on the device of the rows."""
        rows, weights = systematic_sample(importance, _SAMPLE)
        standardised = design.standardised(rows)
        sample = standardised.new_ones((len(rows), design.d + 1))
        sample[:, :-1] = standardised
        sample *= upload(np.sqrt(weights)[:, None].astype(np.float32), design.device)
        return cls(sample.T @ sample)

    def inverse(self, ratio: float) -> Tensor:
        """Inverse of the matrix plus ``ratio`` times the identity, the intercept left out; kept for later calls."""
        if ratio not in self._inverses:
            self._inverses[ratio] = self._inverse(ratio)
        return self._inverses[ratio]

    def _inverse(self, ratio: float) -> Tensor:
        regularised = self.matrix.clone()
        regularised.diagonal()[:-1].add_(ratio)
        regularised.diagonal()[-1].add_(self.least_ratio)
        factor, failed = torch.linalg.cholesky_ex(regularised)
        while failed:  # rounding
            regularised.diagonal().mul_(1.01).add_(self.least_ratio)
            factor, failed = torch.linalg.cholesky_ex(regularised)
        return torch.cholesky_inverse(factor)


def systematic_sample(importance: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows drawn at even steps of the cumulated importance, and their weights.

    Parameters
    ----------
    importance : ndarray of float, (n,)
        At least 0, and not all zero.
    count : int
        Draws; where there are no more rows than that, all of some importance are taken.

    Returns
    -------
    rows : ndarray of int64, (m,), ascending
    weights : ndarray of float64, (m,)
        They sum to one.
    """
    if len(importance) <= count:
        rows = np.flatnonzero(importance)
        return rows, importance[rows] / importance.sum(dtype=np.float64)
    cumulated = np.cumsum(importance, dtype=np.float64)
    steps = (np.arange(count) + 0.5) / count * cumulated[-1]
    rows, times = np.unique(np.searchsorted(cumulated, steps), return_counts=True)
    return rows, times / count
