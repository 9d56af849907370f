"""Minimisation with matrix products at reduced precision first, then in float32."""

from __future__ import annotations

from torch import Tensor

from .design_matrix import reduced_precision
from .lbfgs import Minimum, Objective, Preconditioner, minimise

_COARSE_TOLERANCE = 2e-3  # what reduced precision reaches


def minimise_in_two_stages(
    objective: Objective,
    start: Tensor,
    preconditioner: Preconditioner,
    *,
    tolerance: float,
    evaluations: int,
    reference: Tensor | None = None,
) -> Minimum:
    """Minimise as `pucache.heads.lbfgs.minimise` does, the first stage at reduced precision.

    Parameters
    ----------
    objective, preconditioner : callable
    start : (K, p) tensor
    tolerance : float
    evaluations : int
        Of each stage.
    reference : (K,) tensor, optional

    Returns
    -------
    Minimum
    """
    coarse = max(tolerance, _COARSE_TOLERANCE)
    with reduced_precision(start.device):
        minimum = minimise(
            objective, start, preconditioner, tolerance=coarse, evaluations=evaluations, reference=reference
        )
    if tolerance == coarse:
        return minimum
    return minimise(
        objective,
        minimum.parameters,
        preconditioner,
        tolerance=tolerance,
        evaluations=evaluations,
        reference=minimum.reference,
    )
