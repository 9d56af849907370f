"""The batch solver: every head's risk over all rows, minimised to convergence.

The result of a head does not depend on which heads are trained with it, up to rounding. The solver
minimises until the norm of the preconditioned gradient is below `TOLERANCE` times its initial value.
Where rows are many, products are at reduced precision first (`pucache.heads.stages`). Then margins and
gradient are computed once in float32, and products at reduced precision add the changes since: their errors
are relative to the changes, so they are below the tolerance.

The non-negative risks have a kink where the negative part reaches its bound. R+ + max(R-, -beta) is
smoothed there over a width of `WIDTH`, which raises the objective by at most WIDTH * log(2).
(Kiryo's gamma applies to minibatch steps only.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..progress import Progress
from ..threads import RunAll, run_in_turn, worker_threads
from .fitted import FittedHeads
from .lbfgs import Minimum, Objective, Preconditioner
from .loss_sums import AnchoredSum, LossSum, anchor_at
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
    with worker_threads(problem.design.workers(threads)) as run_all:
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

    def __call__(self, parameters: Tensor, head: Tensor, reduced: bool = False) -> tuple[Tensor, Tensor]:
        """Values (A,) and gradients (A, d + 1) of the heads numbered ``head`` (A,) at ``parameters`` (A, d + 1).

        With ``reduced``, unlabelled rows are rounded to bfloat16 where the processor multiplies it.
        """
        return self._combine(parameters, head, self._over_unlabelled(head, lambda: LossSum(parameters), reduced))

    @property
    def reduces(self) -> bool:
        """Whether evaluation at reduced precision is faster."""
        return self._problem.design.reduces

    def anchored(self, parameters: Tensor) -> Objective:
        """The objective near ``parameters`` (K, d + 1) of all heads, with products of rounded rows and changes."""
        all_heads = torch.arange(len(parameters), device=parameters.device)
        anchor = anchor_at(
            parameters, self._problem.design.unlabelled, lambda new_sum: self._over_unlabelled(all_heads, new_sum)
        )
        if anchor is None:
            return self

        def evaluate(parameters: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
            total = self._over_unlabelled(head, lambda: AnchoredSum(parameters, head, anchor), reduced=True)
            total.gradient += anchor.gradient[head]
            return self._combine(parameters, head, total)

        return evaluate

    def _over_unlabelled(self, head: Tensor, new_sum: Callable[[], LossSum], reduced: bool = False) -> LossSum:
        """Negative part of the risk over the unlabelled rows."""
        surrogate, c = str(self._problem.risk.surrogate), self.coefficients
        column = self._column[head]

        def sum_group(group: range) -> LossSum:
            total = new_sum()
            for rows, X in self._problem.design.unlabelled.blocks(group, reduced):
                weights = self._weights_unlabelled[:, rows][column]
                total.add(X, rows, *_weighted(weights * c.u[head, None], *rising(surrogate, total.margins(X, rows))))
            return total

        total, *others = self._run_all([partial(sum_group, group) for group in self._groups])
        for other in others:
            total.merge(other)
        self.passes += 1
        self._progress.advance(1)
        return total

    def _over_positives(self, parameters: Tensor, head: Tensor) -> tuple[LossSum, LossSum]:
        """Positive and negative part of the risk over the labelled rows."""
        surrogate, c = str(self._problem.risk.surrogate), self.coefficients
        column = self._column[head]
        positive_part, negative_part = LossSum(parameters), LossSum(parameters)
        for rows, X in self._problem.design.positive:
            weights = self._weights_positive[:, rows][column]
            margins = positive_part.margins(X, rows)
            positive_part.add(X, rows, *_weighted(weights * c.a[head, None], *falling(surrogate, margins)))
            negative_part.add(X, rows, *_weighted(weights * c.p[head, None], *rising(surrogate, margins)))
        return positive_part, negative_part

    def _combine(self, parameters: Tensor, head: Tensor, unlabelled: LossSum) -> tuple[Tensor, Tensor]:
        positive_part, negative_part = self._over_positives(parameters, head)
        negative_part.merge(unlabelled)
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
