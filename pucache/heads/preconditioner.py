"""Approximate inverse Hessians of the heads' risks.

The Hessian of a risk is the sum over rows x, with 1 appended, of weight * second derivative * x x^T.
For soft targets, the second moments of a sample of rows, of which each head has a multiple, serve in its
place: they take as long as a few passes, and then about half the passes suffice. Otherwise, and with more
dimensions than `MAX_DIMENSIONS`, the leading directions of the covariance are used.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .design_matrix import DesignMatrix
from .device_rows import upload
from .lbfgs import rows_of
from .second_moments import SecondMoments

MAX_DIMENSIONS = 2048  # of second moments; their inverse takes time as their cube
_MIN_VARIANCE = 0.01  # relative to the mean variance; smaller ones are treated as rounding


class HessianPreconditioner:
    """Inverse of curvature * second moments + penalty, for coefficients and intercept together.

    The ratio of penalty to curvature is rounded to a power of ten, so that few inverses serve all heads.

    Parameters
    ----------
    second_moments : SecondMoments
    curvature, penalty : (K,) tensor
    """

    def __init__(self, second_moments: SecondMoments, curvature: Tensor, penalty: Tensor):
        exponents = (penalty / curvature).clamp(min=second_moments.least_ratio).log10().round()
        distinct, which = torch.unique(exponents.cpu(), return_inverse=True)  # which: (K,)
        self._inverses = [second_moments.inverse(10**exponent) for exponent in distinct.tolist()]
        self._curvature, self._which = curvature, upload(which.numpy(), curvature.device)

    def __call__(self, vectors: Tensor, head: Tensor) -> Tensor:
        """Approximate inverse Hessians of the heads numbered ``head`` (A,) times vectors (A, d + 1)."""
        scaled = vectors / rows_of(self._curvature, head)[:, None]
        if len(self._inverses) == 1:
            return scaled @ self._inverses[0]
        which, result = rows_of(self._which, head), torch.empty_like(vectors)
        for number, inverse in enumerate(self._inverses):
            own = which == number
            if own.is_cuda:  # the host would wait for the numbers of the rows
                result = torch.where(own[:, None], scaled @ inverse, result)
            else:
                result[own] = scaled[own] @ inverse
        return result


class CovariancePreconditioner:
    """Inverse of curvature * covariance + penalty, where the covariance is known in its leading directions.

    Parameters
    ----------
    design : DesignMatrix
    curvature : (K,) tensor
        Sum over rows of weight times second derivative, of each head.
    penalty : (K,) tensor
    """

    def __init__(self, design: DesignMatrix, curvature: Tensor, penalty: Tensor):
        least = _MIN_VARIANCE / design.d  # the variances of all directions sum to one
        self._directions, variances = design.leading_tensors  # (d, q), (q,)
        variances = variances.clip(least)
        self._rest = 1 / (curvature * max(design.leading.rest, least) + penalty)  # (K,)
        self._along = 1 / (curvature[:, None] * variances + penalty[:, None]) - self._rest[:, None]  # (K, q)
        self._intercept = 1 / curvature

    def __call__(self, vectors: Tensor, head: Tensor) -> Tensor:
        """Approximate inverse Hessians of the heads numbered ``head`` (A,) times vectors (A, d + 1)."""
        coef = vectors[:, :-1]
        result = torch.empty_like(vectors)
        torch.mul(coef, rows_of(self._rest, head)[:, None], out=result[:, :-1])
        result[:, :-1] += ((coef @ self._directions) * rows_of(self._along, head)) @ self._directions.T
        result[:, -1] = vectors[:, -1] * rows_of(self._intercept, head)
        return result
