"""Minimisation with matrix products at reduced precision first, then in float32."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from torch import Tensor

from .lbfgs import Minimiser, Minimum, Objective, Preconditioner
from .precision import reduced_precision

_COARSE_TOLERANCE = 1e-2  # what reduced precision reaches without stalling
_GAIN = 0.1  # of the gradient in one stage: what rounded changes since its start reach
_PROGRESS = 0.5  # stages end where one of them leaves more than this of the gradient, as that is rounding


class StagedObjective(Protocol):
    """An objective that can also be evaluated with less precision."""

    @property
    def reduces(self) -> bool:
        """Whether evaluation at reduced precision is faster."""

    def __call__(self, parameters: Tensor, head: Tensor, reduced: bool = False) -> tuple[Tensor, Tensor]:
        """Evaluate as `pucache.heads.lbfgs.Objective` says, at reduced precision where asked for."""

    def anchored(self, parameters: Tensor) -> Objective:
        """Return an objective with less precision that is exact at the parameters of all heads, or this one."""


def minimise_in_two_stages(
    objective: StagedObjective,
    start: Tensor,
    preconditioner: Preconditioner,
    *,
    tolerance: float,
    evaluations: int,
    reference: Tensor | None = None,
) -> Minimum:
    """Minimise as `pucache.heads.lbfgs.minimise` does, at reduced precision as far as that goes.

    Parameters
    ----------
    objective : StagedObjective
    start : (K, p) tensor
    preconditioner : callable
    tolerance : float
    evaluations : int
        Of the first stage, and of all others.
    reference : (K,) tensor, optional

    Returns
    -------
    Minimum
    """
    minimiser = Minimiser(start, preconditioner, reference)
    if not objective.reduces:
        minimiser.run(objective, tolerance=tolerance, evaluations=evaluations)
        return minimiser.minimum()
    with reduced_precision(start.device):
        minimiser.run(
            partial(objective, reduced=True), tolerance=max(tolerance, _COARSE_TOLERANCE), evaluations=evaluations
        )
    left, before, limit = _greatest_decrement(minimiser), float("inf"), evaluations + minimiser.evaluations
    while left > tolerance and left < _PROGRESS * before and minimiser.evaluations < limit:
        nearby = objective.anchored(minimiser.parameters)
        target = tolerance if nearby is objective else max(tolerance, _GAIN * left)
        minimiser.run(nearby, tolerance=target, evaluations=limit - minimiser.evaluations)
        left, before = _greatest_decrement(minimiser), left
    return minimiser.minimum()


def _greatest_decrement(minimiser: Minimiser) -> float:
    return float(minimiser.minimum().decrement.max())
