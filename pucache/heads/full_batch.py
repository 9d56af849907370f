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
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..progress import Progress
from ..threads import RunAll, run_in_turn, worker_threads
from .design_matrix import RowBlocks
from .device_rows import DeviceBlocks, download
from .lbfgs import Minimum, Objective, Preconditioner
from .linear_heads import FittedHeads
from .loss_sums import LossSum, anchored
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
        return _train(RiskObjective(problem, progress, run_all), problem, start, tolerance)


def _train(objective: RiskObjective, problem: HeadProblem, start: FittedHeads | None, tolerance: float) -> FittedHeads:
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
    return _fitted(problem, minimum, objective)


def _preconditioner(problem: HeadProblem, objective: RiskObjective) -> Preconditioner:
    # The covariance of all rows knows no labels. Steps scaled by the moments of P would tell a head of a cross-fit
    # what the held-out positives look like: at weak penalties, where many minima are alike, these then rank first.
    curvature = _CURVATURE[str(problem.risk.surrogate)] * objective.coefficients.total
    return CovariancePreconditioner(problem.design, curvature, objective.penalty)


def _fitted(problem: HeadProblem, minimum: Minimum, objective: RiskObjective) -> FittedHeads:
    reported = objective.report(minimum.parameters)
    parameters, risk, clamp_factor, residual = download(minimum.parameters, *reported, minimum.decrement)
    return FittedHeads.of_standardised(
        parameters,
        problem.design.moments,
        risk=risk,
        clamped=1 - clamp_factor,
        residual=residual,
        passes=objective.passes,
    )


@dataclass(frozen=True)
class _Terms:
    """What the sums need of the heads that are evaluated.

    Attributes
    ----------
    head : (A,) tensor
        Their numbers.
    a, u, p, penalty : (A, 1) tensor
    column : (A,) tensor or None
        Columns of their weights; None where these are all the columns there are, in order, or one for all heads.
    """

    head: Tensor
    a: Tensor
    u: Tensor
    p: Tensor
    penalty: Tensor
    column: Tensor | None

    def weights(self, of_columns: Tensor, rows: slice) -> Tensor:
        """Weights of the rows of a block, (A, b) or (1, b), from those of all columns, (C, m)."""
        weights = of_columns[:, rows]
        return weights if self.column is None else weights[self.column]


class RiskObjective:
    """Value and gradient of the heads' penalised risks."""

    def __init__(self, problem: HeadProblem, progress: Progress, run_all: RunAll = run_in_turn):
        self._problem, self._progress, self.passes = problem, progress, 0
        design, heads = problem.design, len(problem)
        self._groups, self._run_all = design.unlabelled.groups(heads), run_all
        self._positive_blocks = [block for group in design.positive.groups(heads) for block in group]
        self._weights_positive, total_positive = problem.normalised_weights(design.positive_rows)
        self._weights_unlabelled, total_unlabelled = problem.normalised_weights(design.unlabelled_rows)
        self._column = problem.tensor(problem.column)
        self.coefficients = problem.coefficients(total_positive, total_unlabelled)
        self.penalty = problem.tensor(problem.penalty) * self.coefficients.total
        self._terms_of_last: _Terms | None = None

    def __call__(self, parameters: Tensor, head: Tensor, reduced: bool = False) -> tuple[Tensor, Tensor]:
        """Values (A,) and gradients (A, d + 1) of the heads numbered ``head`` (A,) at ``parameters`` (A, d + 1).

        With ``reduced``, unlabelled rows are rounded to bfloat16 where the processor multiplies it.
        """
        return self.combine(parameters, head, self.over_unlabelled(head, lambda: LossSum(parameters), reduced))

    @property
    def reduces(self) -> bool:
        """Whether evaluation at reduced precision is faster."""
        return self._problem.design.reduces

    @property
    def unlabelled(self) -> RowBlocks | DeviceBlocks:
        """Blocks of the unlabelled rows."""
        return self._problem.design.unlabelled

    def anchored(self, parameters: Tensor) -> Objective:
        """The objective near ``parameters`` (K, d + 1) of all heads, with products of rounded rows and changes."""
        return anchored(self, parameters) or self

    def over_unlabelled(self, head: Tensor, new_sum: Callable[[], LossSum], reduced: bool = False) -> LossSum:
        """Negative part of the risk over the unlabelled rows."""
        surrogate, terms = str(self._problem.risk.surrogate), self._terms(head)

        def sum_group(group: list[slice]) -> LossSum:
            total = new_sum()
            for rows, X in self.unlabelled.blocks(group, reduced):
                weights = terms.weights(self._weights_unlabelled, rows) * terms.u
                total.add(X, rows, *_weighted(weights, *rising(surrogate, total.margins(X, rows))))
            return total

        total, *others = self._run_all([partial(sum_group, group) for group in self._groups])
        for other in others:
            total.merge(other)
        self.passes += 1
        self._progress.advance(1)
        return total

    def combine(self, parameters: Tensor, head: Tensor, unlabelled: LossSum) -> tuple[Tensor, Tensor]:
        """Values and gradients from the negative part over the unlabelled rows."""
        positive_part, negative_part = self._parts(parameters, head, unlabelled)
        bounded, factor = self._bounded(negative_part.value)
        penalty, coef = self._terms(head).penalty, parameters[:, :-1]
        gradient = positive_part.gradient.addcmul_(negative_part.gradient, factor[:, None])
        gradient[:, :-1].addcmul_(coef, penalty)
        return positive_part.value + bounded + 0.5 * penalty[:, 0] * coef.square().sum(1), gradient

    def report(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Risk of each head without penalty and smoothing, (K,), and the share of R- that the clamp leaves, (K,)."""
        all_heads = torch.arange(len(parameters), device=parameters.device)
        unlabelled = self.over_unlabelled(all_heads, lambda: LossSum(parameters))
        positive_part, negative_part = self._parts(parameters, all_heads, unlabelled)
        risk = self._problem.risk.combine(positive_part.value, negative_part.value)[0]
        return risk, self._bounded(negative_part.value)[1]

    def _parts(self, parameters: Tensor, head: Tensor, unlabelled: LossSum) -> tuple[LossSum, LossSum]:
        """Positive and negative part of the risk."""
        surrogate, terms = str(self._problem.risk.surrogate), self._terms(head)
        positive_part, negative_part = LossSum(parameters), LossSum(parameters)
        for rows, X in self._problem.design.positive.blocks(self._positive_blocks):
            weights = terms.weights(self._weights_positive, rows)
            margins = positive_part.margins(X, rows)
            positive_part.add(X, rows, *_weighted(weights * terms.a, *falling(surrogate, margins)))
            negative_part.add(X, rows, *_weighted(weights * terms.p, *rising(surrogate, margins)))
        negative_part.merge(unlabelled)
        return positive_part, negative_part

    def _bounded(self, negative: Tensor) -> tuple[Tensor, Tensor]:
        """R- held above -beta where the risk clamps it, (A,), and the derivative of that in R-, (A,)."""
        risk = self._problem.risk
        if not risk.clamped:
            return negative, torch.ones_like(negative)
        above = (negative + risk.beta) / WIDTH
        return softplus(above) * WIDTH - risk.beta, torch.sigmoid(above)

    def _terms(self, head: Tensor) -> _Terms:
        """Terms of some heads; evaluations in a row mostly ask for the same."""
        last, everything = self._terms_of_last, len(head) == len(self._problem)
        if last is None or last.head is not head:
            c = self.coefficients
            of_heads = (values if everything else values[head] for values in (c.a, c.u, c.p, self.penalty))
            columns = len(self._weights_unlabelled)
            in_order = everything and np.array_equal(self._problem.column, np.arange(columns))
            column = None if columns == 1 or in_order else self._column if everything else self._column[head]
            a, u, p, penalty = (values[:, None] for values in of_heads)
            last = self._terms_of_last = _Terms(head, a, u, p, penalty, column)
        return last


def _weighted(weights: Tensor, loss: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted sum of the losses over rows, (A,), and weighted derivatives, (A, b)."""
    return (weights * loss).sum(1), slope.mul_(weights)
