"""The batch solver: every head's risk over all rows, minimised to convergence.

The result of a head does not depend on which heads are trained with it, up to rounding. The solver
first minimises with matrix products at reduced precision, then in float32 until the norm of the
preconditioned gradient is below `TOLERANCE` times its initial value.

The non-negative risks have a kink where the negative part reaches its bound. R+ + max(R-, -beta) is
smoothed there over a width of `WIDTH`, which raises the objective by at most WIDTH * log(2).
(Kiryo's gamma applies to minibatch steps only.)
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..progress import Progress
from ..threads import RunAll, run_in_turn, worker_threads
from .fitted import FittedHeads
from .lbfgs import Minimum, Preconditioner
from .loss_sums import LossSum
from .preconditioner import CovariancePreconditioner
from .problem import HeadProblem
from .risks import falling, rising
from .stages import minimise_in_two_stages

TOLERANCE = 3e-4  # relative norm of the preconditioned gradient; about the accuracy of scikit-learn's default
WIDTH = 2e-3  # of the smoothed kink, in units of the risk
_MAX_PASSES = 300  # over the data
_INITIAL_BOUND = 0.01  # of the initial coefficients
_CURVATURE = {"sigmoid": 0.1, "logistic": 0.25}  # the greatest second derivatives of the losses


def train(
    problem: HeadProblem,
    *,
    start: FittedHeads | None = None,
    tolerance: float = TOLERANCE,
    threads: int = 1,
    progress: Progress,
) -> FittedHeads:
    """Minimise the penalised risk of each head.

    Parameters
    ----------
    problem : HeadProblem
    start : FittedHeads, optional
        Heads to start from; small random ones by default.
    tolerance : float
        Relative norm of the preconditioned gradient at which a head is finished.
    threads : int
        On the CPU, at most so many threads sum over blocks of rows; the result does not depend on them.
    progress : Progress

    Returns
    -------
    FittedHeads
    """
    progress.start(None, "training")
    on_cpu = problem.device.type == "cpu"
    groups = len(problem.design.unlabelled.groups())
    with worker_threads(min(threads, groups) if on_cpu else 1) as run_all:
        return _train(_Objective(problem, progress, run_all), problem, start, tolerance)


def _train(objective: _Objective, problem: HeadProblem, start: FittedHeads | None, tolerance: float) -> FittedHeads:
    all_heads = torch.arange(len(problem), device=problem.device)
    preconditioner = _preconditioner(problem, objective)
    parameters, reference = problem.initial_parameters(_INITIAL_BOUND), None
    if start is not None:  # the tolerance refers to the gradient at the common initial point, wherever the start is
        gradient = objective(parameters, all_heads)[1]
        reference = (gradient * preconditioner(gradient, all_heads)).sum(1).clamp(min=0).sqrt()
        parameters = problem.tensor(start.standardised(problem.design.moments))
    minimum = minimise_in_two_stages(
        objective, parameters, preconditioner, tolerance=tolerance, reference=reference, evaluations=_MAX_PASSES
    )
    objective(minimum.parameters, all_heads)  # so that risk and clamp are reported at the final parameters
    return _fitted(problem, minimum, objective)


def _preconditioner(problem: HeadProblem, objective: _Objective) -> Preconditioner:
    # The covariance of all rows knows no labels. Steps scaled by the moments of P would tell a head of a cross-fit
    # what the held-out positives look like: at weak penalties, where many minima are alike, these then rank first.
    curvature = _CURVATURE[str(problem.risk.surrogate)] * objective.coefficients.total
    return CovariancePreconditioner(problem.design, curvature, objective.penalty)


def _fitted(problem: HeadProblem, minimum: Minimum, objective: _Objective) -> FittedHeads:
    return FittedHeads.of_standardised(
        minimum.parameters.cpu().numpy(),
        problem.design.moments,
        risk=objective.reported_risk.cpu().numpy(),
        clamped=1 - objective.clamp_factor.cpu().numpy(),
        residual=minimum.decrement.cpu().numpy(),
        passes=objective.passes,
    )


class _Objective:
    """Value and gradient of the heads' penalised risks; keeps the last reported risk of each head."""

    def __init__(self, problem: HeadProblem, progress: Progress, run_all: RunAll = run_in_turn):
        self._problem, self._progress, self.passes = problem, progress, 0
        design = problem.design
        self._groups, self._run_all = design.unlabelled.groups(), run_all
        self._weights_positive, total_positive = problem.normalised_weights(design.positive_rows)
        self._weights_unlabelled, total_unlabelled = problem.normalised_weights(design.unlabelled_rows)
        self._column = problem.tensor(problem.column)
        self.coefficients = problem.coefficients(total_positive, total_unlabelled)
        self.penalty = problem.tensor(problem.penalty) * self.coefficients.total
        self.reported_risk = torch.zeros_like(self.penalty)
        self.clamp_factor = torch.ones_like(self.penalty)

    def __call__(self, parameters: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
        """Values (A,) and gradients (A, d + 1) of the heads numbered ``head`` (A,) at ``parameters`` (A, d + 1)."""
        surrogate, c = str(self._problem.risk.surrogate), self.coefficients
        positive_part, negative_part = LossSum(parameters), LossSum(parameters)  # R+ and R-
        for rows, X in self._problem.design.positive:
            weights = self._weights_positive[self._column[head]][:, rows]
            margins = positive_part.margins(X)
            positive_part.add(X, *_weighted(weights * c.a[head, None], *falling(surrogate, margins)))
            negative_part.add(X, *_weighted(weights * c.p[head, None], *rising(surrogate, margins)))

        def sum_group(group: range) -> LossSum:
            total = negative_part if group is self._groups[0] else LossSum(parameters)
            for rows, X in self._problem.design.unlabelled.blocks(group):
                weights = self._weights_unlabelled[:, rows][self._column[head]]
                total.add(X, *_weighted(weights * c.u[head, None], *rising(surrogate, total.margins(X))))
            return total

        for total in self._run_all([partial(sum_group, group) for group in self._groups]):
            if total is not negative_part:
                negative_part.merge(total)
        self.passes += 1
        self._progress.advance(1)
        return self._combine(parameters, head, positive_part, negative_part)

    def _combine(
        self, parameters: Tensor, head: Tensor, positive_part: LossSum, negative_part: LossSum
    ) -> tuple[Tensor, Tensor]:
        risk = self._problem.risk
        self.reported_risk[head] = risk.combine(positive_part.value, negative_part.value)[0]
        bounded, factor = negative_part.value, torch.ones_like(negative_part.value)
        if risk.clamped:
            above = (negative_part.value + risk.beta) / WIDTH
            bounded, factor = softplus(above) * WIDTH - risk.beta, torch.sigmoid(above)
        self.clamp_factor[head] = factor
        penalty, coef = self.penalty[head], parameters[:, :-1]
        gradient = positive_part.gradient.addcmul_(negative_part.gradient, factor[:, None])
        gradient[:, :-1].addcmul_(coef, penalty[:, None])
        return positive_part.value + bounded + 0.5 * penalty * coef.square().sum(1), gradient


def _weighted(weights: Tensor, loss: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted sum of the losses over rows, (A,), and weighted derivatives, (A, b)."""
    return (weights * loss).sum(1), slope.mul_(weights)
