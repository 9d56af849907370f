"""Trained linear heads and their margins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..storage.rows import RowMatrix, release_pages
from ..threads import one_blas_thread
from .moments import Moments

_ROWS = 4096  # rows whose margins are computed at once
_OF_HEADS = ("coef", "intercept", "risk", "clamped", "residual")  # attributes with an entry for each head


@dataclass(frozen=True)
class FittedHeads:
    """Trained linear heads, for X as given.

    Attributes
    ----------
    coef : ndarray of float32, (K, d)
    intercept : ndarray of float32, (K,)
    risk : ndarray of float32, (K,)
        Reported risk without the penalty; with ``sgd`` its mean over the batches of the last epoch.
    clamped : ndarray of float32, (K,)
        Activity of the clamp on the negative part: with ``sgd`` the share of the last epoch's batches
        in which it acts; with ``batch`` the share of the gradient that it removes.
    residual : ndarray of float32, (K,)
        With ``batch`` the norm of the preconditioned gradient relative to its initial value; NaN with
        ``sgd``.
    passes : int
        Passes over the data.
    """

    coef: np.ndarray
    intercept: np.ndarray
    risk: np.ndarray
    clamped: np.ndarray
    residual: np.ndarray
    passes: int

    @classmethod
    def of_standardised(cls, parameters: np.ndarray, moments: Moments, **fields: Any) -> FittedHeads:
        """Heads for X, from coefficients and intercepts (K, d + 1) for (X - centre) / spread, and all other fields."""
        values = parameters.astype(np.float64)
        coef = values[:, :-1] / moments.spread
        intercept = values[:, -1] - coef @ moments.centre.astype(np.float64)
        return cls(coef=coef.astype(np.float32), intercept=intercept.astype(np.float32), **fields)

    def standardised(self, moments: Moments) -> np.ndarray:
        """Coefficients and intercepts for (X - centre) / spread, float32 (K, d + 1)."""
        intercept = self.intercept + self.coef @ moments.centre
        return np.column_stack([self.coef * moments.spread, intercept]).astype(np.float32)

    @one_blas_thread
    def margins(self, X: RowMatrix) -> np.ndarray:
        """Margins of every head on X, (n, d), which may be mapped: float32 (n, K)."""
        result = np.empty((len(X), len(self.coef)), np.float32)
        for begin in range(0, len(X), _ROWS):
            rows = slice(begin, begin + _ROWS)
            result[rows] = np.asarray(X[rows], np.float32) @ self.coef.T + self.intercept
            release_pages(X)
        return result

    def take(self, heads: ArrayLike) -> FittedHeads:
        """Select heads by their numbers, int (J,)."""
        return replace(self, **{name: getattr(self, name)[np.asarray(heads)] for name in _OF_HEADS})

    def joined(self, other: FittedHeads) -> FittedHeads:
        """These heads followed by the other ones."""
        both = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in _OF_HEADS}
        return replace(self, **both, passes=max(self.passes, other.passes))

    def zero(self) -> FittedHeads:
        """As many heads of zeros: an uninformed starting point."""
        return replace(self, coef=np.zeros_like(self.coef), intercept=np.zeros_like(self.intercept))

    def mean(self) -> FittedHeads:
        """One head with the mean coefficients and intercept: a starting point for further training."""
        first = self.take([0])
        return replace(first, coef=self.coef.mean(0, keepdims=True), intercept=self.intercept.mean(0, keepdims=True))
