"""The batch solver: every head's risk over all rows, minimised to convergence.

The same heads come out whatever the number of heads trained together, up to rounding. Most of the
way goes by matrix products at reduced precision, the last of it in float32: at the end the
preconditioned gradient is below `TOLERANCE` of what it was at the start.

Where the negative part of a non-negative risk meets its bound, the minimum lies on a kink.
R+ + max(R-, -beta) is therefore smoothed there, over a width of `WIDTH`, which lifts the objective by
at most WIDTH * log(2). (Kiryo's gamma is a matter of minibatch steps and has no part in this.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..progress import Progress
from .design_matrix import Blocks, leading_directions, reduced_precision
from .lbfgs import Minimum, minimise
from .problem import HeadSpec
from .risks import falling, rising

TOLERANCE = 3e-4  # of the preconditioned gradient: the accuracy of scikit-learn's own default
_ROUGH = 2e-3  # what reduced precision reaches
WIDTH = 2e-3  # of the smoothed kink, in units of the risk
_PASSES = 300  # at most, over the data
_START = 0.01  # bound of the initial coefficients
_DIRECTIONS = 64  # that the preconditioner knows
_LEAST = 0.01  # variance, over the mean of all directions, below which one is left to its penalty
_CURVATURE = {"sigmoid": 0.1, "logistic": 0.25}  # greatest second derivatives of the losses


def train(spec: HeadSpec, start: np.ndarray | None, tolerance: float, progress: Progress) -> dict[str, Any]:
    """Minimise the penalised risk of each head.

    Returns
    -------
    dict
        The fields of `pucache.heads.fit.FittedHeads`.
    """
    risk = _Risk(spec, progress)
    progress.start(None, "training")
    everything = torch.arange(len(spec), device=spec.device)
    preconditioner = _Preconditioner(spec, risk.coefficients.total, risk.penalty)
    begin, reference = spec.initial(_START), None
    if start is not None:  # what remains to be done is measured from a common point, wherever the start is
        gradient = risk(begin, everything)[1]
        reference = (gradient * preconditioner(gradient, everything)).sum(1).clamp(min=0).sqrt()
        begin = _scaled(spec, start)
    with reduced_precision(spec.device):
        rough = max(tolerance, _ROUGH)
        found = minimise(risk, begin, preconditioner, tolerance=rough, evaluations=_PASSES, reference=reference)
    if tolerance < _ROUGH:
        begin, reference = found.parameters, found.reference
        found = minimise(risk, begin, preconditioner, tolerance=tolerance, evaluations=_PASSES, reference=reference)
    risk(found.parameters, everything)  # so that what is reported is of where each head ended
    return _on_X(spec, found, risk)


def _scaled(spec: HeadSpec, start: np.ndarray) -> Tensor:
    """Heads on X as heads on its centred and scaled rows."""
    coef, centre = start[:, :-1], spec.moments.centre
    return spec.tensor(np.column_stack([coef * spec.moments.spread, start[:, -1] + coef @ centre]).astype(np.float32))


def _on_X(spec: HeadSpec, found: Minimum, risk: _Risk) -> dict[str, Any]:
    parameters = found.parameters.cpu().numpy().astype(np.float64)
    coef = parameters[:, :-1] / spec.moments.spread
    return {
        "coef": coef.astype(np.float32),
        "intercept": (parameters[:, -1] - coef @ spec.moments.centre.astype(np.float64)).astype(np.float32),
        "risk": risk.reported.cpu().numpy(),
        "clamped": 1 - risk.factor.cpu().numpy(),
        "residual": found.decrement.cpu().numpy(),
        "passes": risk.passes,
    }


class _Risk:
    """Value and gradient of the heads' penalised risks; remembers each head's last reported risk."""

    def __init__(self, spec: HeadSpec, progress: Progress):
        self._spec, self._progress, self.passes = spec, progress, 0
        positive, unlabelled = np.flatnonzero(spec.s), np.flatnonzero(~spec.s)
        self._positive = Blocks(spec.X, positive, spec.moments, spec.device)
        self._unlabelled = Blocks(spec.X, unlabelled, spec.moments, spec.device)
        self._w_positive, total_positive = spec.weights_of(positive)
        self._w_unlabelled, total_unlabelled = spec.weights_of(unlabelled)
        self._column = spec.tensor(spec.column)
        self.coefficients = spec.coefficients(total_positive, total_unlabelled)
        self.penalty = spec.tensor(spec.penalty) * self.coefficients.total
        self.reported, self.factor = torch.zeros_like(self.penalty), torch.ones_like(self.penalty)

    def __call__(self, parameters: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
        surrogate, c = str(self._spec.risk.surrogate), self.coefficients
        upper, lower = _Part(parameters), _Part(parameters)  # R+ and R-
        for part, X in self._positive:
            weights = self._w_positive[self._column[head]][:, part]
            margins = upper.margins(X)
            upper.add(X, weights * c.a[head, None], *falling(surrogate, margins))
            lower.add(X, weights * c.p[head, None], *rising(surrogate, margins))
        for part, X in self._unlabelled:
            weights = self._w_unlabelled[:, part][self._column[head]]
            lower.add(X, weights * c.u[head, None], *rising(surrogate, lower.margins(X)))
        self.passes += 1
        self._progress.advance(1)
        return self._combined(parameters, head, upper, lower)

    def _combined(self, parameters: Tensor, head: Tensor, upper: _Part, lower: _Part) -> tuple[Tensor, Tensor]:
        self.reported[head] = self._spec.risk.combine(upper.value, lower.value)[0]
        held, factor = lower.value, torch.ones_like(lower.value)
        if self._spec.risk.clamped:
            above = (lower.value + self._spec.risk.beta) / WIDTH
            held, factor = softplus(above) * WIDTH - self._spec.risk.beta, torch.sigmoid(above)
        self.factor[head] = factor
        penalty, coef = self.penalty[head], parameters[:, :-1]
        gradient = upper.gradient.addcmul_(lower.gradient, factor[:, None])
        gradient[:, :-1].addcmul_(coef, penalty[:, None])
        return upper.value + held + 0.5 * penalty * coef.square().sum(1), gradient


class _Part:
    """A sum over rows of weight times loss, and its gradient in coefficients and intercept."""

    def __init__(self, parameters: Tensor):
        self._coef, self._intercept = parameters[:, :-1], parameters[:, -1:]
        self.value, self.gradient = torch.zeros_like(parameters[:, 0]), torch.zeros_like(parameters)

    def margins(self, X: Tensor) -> Tensor:
        return torch.addmm(self._intercept, self._coef, X.T)  # (A, b)

    def add(self, X: Tensor, weights: Tensor, loss: Tensor, slope: Tensor) -> None:
        self.value += (weights * loss).sum(1)
        step = slope.mul_(weights)
        self.gradient[:, :-1] += step @ X
        self.gradient[:, -1] += step.sum(1)


class _Preconditioner:
    """The inverse of curvature * covariance + penalty, the covariance known in its leading directions."""

    def __init__(self, spec: HeadSpec, total: Tensor, penalty: Tensor):
        directions, variances, rest = leading_directions(spec.X, spec.moments, _DIRECTIONS)
        curvature = _CURVATURE[str(spec.risk.surrogate)] * total
        least = _LEAST / spec.d  # rows have a variance of one in all; less is taken for rounding
        self._directions = spec.tensor(directions.astype(np.float32))  # (d, q)
        self._rest = 1 / (curvature * max(rest, least) + penalty)  # (K,)
        along = curvature[:, None] * spec.tensor(variances.clip(least).astype(np.float32)) + penalty[:, None]
        self._along = 1 / along - self._rest[:, None]  # (K, q)
        self._intercept = 1 / curvature

    def __call__(self, vectors: Tensor, head: Tensor) -> Tensor:
        coef = vectors[:, :-1]
        result = torch.empty_like(vectors)
        torch.mul(coef, self._rest[head, None], out=result[:, :-1])
        result[:, :-1] += ((coef @ self._directions) * self._along[head]) @ self._directions.T
        result[:, -1] = vectors[:, -1] * self._intercept[head]
        return result
