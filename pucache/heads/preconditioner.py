"""Approximate inverse Hessians of the heads' risks, in an eigenbasis of a sample of rows.

The Hessian of head k is the sum over rows x, with 1 appended, of weight * second derivative * x x^T, plus the
penalty. Up to a factor, the curvature of the head, the weighted second moments of a sample of rows stand for the
sum. Around the sample's mean they fall apart into the intercept and the covariance of the rows, which is known
along its directions of greatest variance; all other directions have one variance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..threads import limited_threads

SAMPLE = 4096  # rows
_ITERATIONS = 3  # of the subspace iteration
_MIN_VARIANCE = 0.01  # relative to the mean variance; smaller ones are treated as rounding


@dataclass(frozen=True)
class LeadingDirections:
    """Directions of greatest variance of rows."""

    centre: Tensor  # (d,): mean of the rows
    directions: Tensor  # (d, q), orthonormal columns
    variances: Tensor  # (q,), along each of them
    rest: float  # mean variance of all other directions; of all directions where there are no others

    @classmethod
    def of_sample(cls, rows: Tensor, count: int, weights: Tensor | None = None) -> LeadingDirections:
        """Directions of a weighted sample, by an eigendecomposition, or fewer than d by subspace iteration.

        At most `count` of them, and no more than rows (m, d). `weights` (m,) sum to one; all are equal by default.
        """
        m, d = rows.shape
        weights = rows.new_full((m,), 1 / m) if weights is None else weights
        with limited_threads(0):  # the same bits for any number of threads
            centre = weights @ rows
            sample = (rows - centre) * weights.sqrt()[:, None]
            basis = _leading_subspace(sample, min(count, m)) if min(count, m) < d else None
            projected = sample if basis is None else sample @ basis
            variances, rotation = torch.linalg.eigh(projected.T @ projected)
            others, total = d - len(variances), float(sample.square().sum())
            rest = max(total - float(variances.sum()), 0.0) / others if others else total / d
            return cls(centre, rotation if basis is None else basis @ rotation, variances.clamp(min=0), rest)


class Preconditioner:
    """Inverse of curvature * second moments + penalty of the coefficients, for K heads.

    `curvature` (K,) is the sum over rows of weight times second derivative, of each head.
    """

    def __init__(self, leading: LeadingDirections, curvature: Tensor, penalty: Tensor):
        device = curvature.device
        self._centre, self._directions = leading.centre.to(device), leading.directions.to(device)
        least = _MIN_VARIANCE / len(self._centre)  # the variances of all directions sum to about one
        variances = leading.variances.to(device).clamp(min=least)
        self._rest = (1 / (curvature * max(leading.rest, least) + penalty))[:, None]  # (K, 1)
        self._along = 1 / (curvature[:, None] * variances + penalty[:, None]) - self._rest  # (K, q)
        self._of_intercept = (1 / curvature)[:, None]

    def __call__(self, vectors: Tensor, head: Tensor) -> Tensor:
        """Approximate inverse Hessians of the heads numbered ``head`` (A,) times vectors (A, d + 1)."""
        intercept = vectors[:, -1:]
        coef = vectors[:, :-1] - intercept * self._centre
        coef = coef * self._rest[head] + ((coef @ self._directions) * self._along[head]) @ self._directions.T
        return torch.cat([coef, intercept * self._of_intercept[head] - (coef @ self._centre)[:, None]], 1)


def systematic_sample(importance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows drawn at `SAMPLE` even steps of the cumulated importance (n,), ascending, and their weights, (m,).

    Importances are at least 0, and not all zero; weights sum to one. Where there are no more than `SAMPLE` rows, all of
    some importance are taken.
    """
    if len(importance) <= SAMPLE:
        rows = np.flatnonzero(importance)
        return rows, importance[rows] / importance.sum(dtype=np.float64)
    cumulated = np.cumsum(importance, dtype=np.float64)
    steps = (np.arange(SAMPLE) + 0.5) / SAMPLE * cumulated[-1]
    rows, times = np.unique(np.searchsorted(cumulated, steps), return_counts=True)
    return rows, times / SAMPLE


def _leading_subspace(sample: Tensor, count: int) -> Tensor:
    """Orthonormal basis (d, count) by subspace iteration, from normal draws that are the same in every run."""
    draws = np.random.default_rng(0).normal(size=(sample.shape[1], count)).astype(np.float32)
    basis = torch.from_numpy(draws).to(sample.device)
    for _ in range(_ITERATIONS):
        basis = torch.linalg.qr(sample.T @ (sample @ basis))[0]
    return basis
