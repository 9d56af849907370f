"""Approximate inverse Hessians of the heads' risks, from the covariance of the rows."""

from __future__ import annotations

import torch
from torch import Tensor

from .design_matrix import DesignMatrix

_MIN_VARIANCE = 0.01  # relative to the mean variance; smaller ones are treated as rounding


class CovariancePreconditioner:
    """Inverse of curvature * covariance + penalty, where the covariance is known in its leading directions.

    Parameters
    ----------
    design : DesignMatrix
    curvature : (K,) tensor
        Weighted mean of the second derivatives of each head's losses, or a bound of it.
    penalty : (K,) tensor
    """

    def __init__(self, design: DesignMatrix, curvature: Tensor, penalty: Tensor):
        leading, device = design.leading, design.device
        least = _MIN_VARIANCE / design.d  # the variances of all directions sum to one
        self._directions = torch.tensor(leading.directions, dtype=torch.float32, device=device)  # (d, q)
        self._rest = 1 / (curvature * max(leading.rest, least) + penalty)  # (K,)
        variances = torch.tensor(leading.variances.clip(least), dtype=torch.float32, device=device)
        self._along = 1 / (curvature[:, None] * variances + penalty[:, None]) - self._rest[:, None]  # (K, q)
        self._intercept = 1 / curvature

    def __call__(self, vectors: Tensor, head: Tensor) -> Tensor:
        """Approximate inverse Hessians of the heads numbered ``head`` (A,) times vectors (A, d + 1)."""
        coef = vectors[:, :-1]
        result = torch.empty_like(vectors)
        torch.mul(coef, self._rest[head, None], out=result[:, :-1])
        result[:, :-1] += ((coef @ self._directions) * self._along[head]) @ self._directions.T
        result[:, -1] = vectors[:, -1] * self._intercept[head]
        return result
