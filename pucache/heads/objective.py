r"""The objective of linear heads, for risks and for soft targets, in blocks of rows.

For head k, with margins m_i = X_i w + b and l the surrogate loss, the objective is::

    sum_i a_ik * l(m_i) + phi(sum_i b_ik * l(-m_i)) + 0.5 * penalty_k * norm(w)^2

phi is the identity, or for the non-negative risks max(t, -beta), smoothed over a width of `WIDTH`, which raises it by
at most WIDTH * log(2). (Kiryo's gamma applies to minibatch steps only.) The weights a and b are kept for each row and
*column*, and multiplied by a coefficient of the head block by block. A risk has them from its means
(`pucache.heads.risks`); a soft target t with weight w has a = w * t and b = w * (1 - t).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import softplus

from ..progress import Progress, Silent
from ..threads import RunAll
from .design_matrix import DesignMatrix, RowBlocks
from .risks import Coefficients, PURisk, negative_loss, positive_loss

WIDTH = 2e-3  # of the smoothed kink, in units of the risk
Loss = Callable[[str, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class HeadProblem:
    """K heads to be trained by a risk; see `pucache.heads.solve.fit_heads`."""

    design: DesignMatrix
    risk: PURisk
    weights: np.ndarray | None  # (n, C), of the rows; None for one column of ones
    column: np.ndarray  # (K,), as `prior`, `penalty` and `seed`
    prior: np.ndarray
    penalty: np.ndarray
    seed: np.ndarray

    @classmethod
    def of(
        cls,
        design: DesignMatrix,
        risk: PURisk,
        *,
        weights: np.ndarray | None = None,
        prior: ArrayLike = 0.5,
        penalty: ArrayLike = 0.0,
        seed: ArrayLike = 0,
        column: ArrayLike | None = None,
    ) -> HeadProblem:
        """Broadcast the parameters of the heads to one length K."""
        columns = np.arange(1 if weights is None else weights.shape[1]) if column is None else np.atleast_1d(column)
        prior, penalty, seed, columns = np.broadcast_arrays(*map(np.atleast_1d, (prior, penalty, seed, columns)))
        return cls(
            design=design,
            risk=risk,
            weights=weights,
            column=columns.astype(np.int64),
            prior=prior.astype(np.float32),
            penalty=penalty.astype(np.float32),
            seed=seed.astype(np.int64),
        )

    def __len__(self) -> int:
        return len(self.prior)

    def tensor(self, values: np.ndarray) -> Tensor:
        """Copy of an array on the device."""
        return torch.tensor(values, device=self.design.device)

    def normalised_weights(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Weights of some rows, scaled to sum to one in each column, (C, m), and their sums before, (C,)."""
        if self.weights is None:
            weights = np.ones((1, len(rows)), np.float32)
        else:
            weights = np.ascontiguousarray(self.weights[rows].T, np.float32)
        total = weights.sum(1, dtype=np.float64).astype(np.float32)
        weights /= np.where(total > 0, total, 1)[:, None]
        return self.tensor(weights), self.tensor(total)

    def coefficients(self, total_positive: Tensor, total_unlabelled: Tensor) -> Coefficients:
        """Coefficients of each head's risk, given the total weight of P and of U in each column, (C,)."""
        share = total_positive / (total_positive + total_unlabelled).clamp(min=1e-30)
        return self.risk.coefficients(self.tensor(self.prior), share[self.tensor(self.column)])

    def initial_parameters(self, bound: float) -> Tensor:
        """Coefficients and intercepts drawn uniformly from (-bound, bound), one stream per seed; (K, d + 1)."""
        draws = {
            seed: torch.empty(self.design.d + 1).uniform_(-bound, bound, generator=torch.Generator().manual_seed(seed))
            for seed in self.seed.tolist()
        }
        return torch.stack([draws[seed] for seed in self.seed.tolist()]).to(self.design.device)


@dataclass(frozen=True)
class LossTerm:
    """Weighted losses of the rows of one side: coefficient_k * weights_i,column(k) * l(m_i) or l(-m_i)."""

    loss: Loss  # `negative_loss` or `positive_loss`
    weights: Tensor  # (C, m)
    column: Tensor  # (K,), int64
    coefficient: Tensor  # (K,)
    clamped: bool = False  # whether phi applies to it

    def of_heads(self, head: Tensor, rows: slice) -> Tensor:
        """Weights of the rows of a block for the heads numbered ``head`` (A,), (A, b)."""
        weights = self.weights[:, rows]
        weights = weights if len(weights) == 1 else weights[self.column[head]]
        return weights * self.coefficient[head, None]


class HeadObjective:
    """Value and gradient of the heads' objectives, by the sums over groups of blocks that `run_all` runs.

    `penalty` is (K,); `beta` that of the clamp, or None where phi is the identity; `passes` are the evaluations until
    now.
    """

    def __init__(
        self,
        sides: Sequence[tuple[RowBlocks, Sequence[LossTerm]]],
        surrogate: str,
        penalty: Tensor,
        *,
        beta: float | None,
        progress: Progress,
        run_all: RunAll,
    ):
        self._sides, self._surrogate, self.penalty, self._beta = sides, surrogate, penalty, beta
        self._progress, self._run_all, self.passes = progress, run_all, 0

    def __call__(self, parameters: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
        """Values (A,) and gradients (A, d + 1) of the heads numbered ``head`` (A,) at ``parameters`` (A, d + 1)."""
        total, clamped = self._sums(parameters, head)
        bounded, factor = self._phi(clamped[:, -1])
        total[:, :-1].addcmul_(clamped[:, :-1], factor[:, None])
        total[:, -1] += bounded
        penalty, coef = self.penalty[head], parameters[:, :-1]
        total[:, :-2].addcmul_(coef, penalty[:, None])
        return total[:, -1] + 0.5 * penalty * coef.square().sum(1), total[:, :-1]

    def report(self, parameters: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Value of each head without penalty and smoothing, (K,), and the share of the gradient that phi removes, (K,).

        ``value`` (K,) is that of the objective at ``parameters`` (K, d + 1).
        """
        if self._beta is None:
            return value - 0.5 * self.penalty * parameters[:, :-1].square().sum(1), torch.zeros_like(value)
        total, clamped = self._sums(parameters, torch.arange(len(parameters), device=parameters.device))
        return total[:, -1] + clamped[:, -1].clamp(min=-self._beta), 1 - self._phi(clamped[:, -1])[1]

    def _phi(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Phi and its derivative, (A,) each."""
        if self._beta is None:
            return value, torch.ones_like(value)
        above = (value + self._beta) / WIDTH
        return softplus(above) * WIDTH - self._beta, torch.sigmoid(above)

    def _sums(self, parameters: Tensor, head: Tensor) -> Tensor:
        """Gradient and, in the last column, value of the losses outside phi and within it, (2, A, d + 2)."""
        tasks = [
            partial(self._sum_group, blocks, terms, group, parameters, head)
            for blocks, terms in self._sides
            for group in blocks.groups()
        ]
        total, *others = self._run_all(tasks)  # merged in order: the same bits for any number of threads
        for other in others:
            total += other
        self.passes += 1
        self._progress.advance(1)
        return total

    def _sum_group(
        self, blocks: RowBlocks, terms: Sequence[LossTerm], group: list[slice], parameters: Tensor, head: Tensor
    ) -> Tensor:
        coef, intercept = parameters[:, :-1], parameters[:, -1:]
        total = parameters.new_zeros((2, len(head), coef.shape[1] + 2))
        for rows, X in blocks.blocks(group):
            margins = torch.addmm(intercept, coef, X.T)  # (A, b)
            steps: dict[bool, Tensor] = {}  # outside and within phi; two losses of one of them share a product
            for term in terms:
                weights, (loss, slope) = term.of_heads(head, rows), term.loss(self._surrogate, margins)
                total[int(term.clamped), :, -1] += (weights * loss).sum(1)
                step = slope * weights
                steps[term.clamped] = steps[term.clamped] + step if term.clamped in steps else step
            for clamped, step in steps.items():
                total[int(clamped), :, :-2] += step @ X
                total[int(clamped), :, -2] += step.sum(1)
        return total


def risk_objective(problem: HeadProblem, progress: Progress, run_all: RunAll) -> tuple[HeadObjective, Tensor]:
    """The objective of a risk, and the sum of the magnitudes of each head's coefficients, (K,)."""
    (rows_p, blocks_p), (rows_u, blocks_u) = problem.design.sides
    (weights_p, total_p), (weights_u, total_u) = map(problem.normalised_weights, (rows_p, rows_u))
    c, column, clamped = problem.coefficients(total_p, total_u), problem.tensor(problem.column), problem.risk.clamped
    of_positive = [
        LossTerm(positive_loss, weights_p, column, c.a),
        LossTerm(negative_loss, weights_p, column, c.p, clamped),
    ]
    of_unlabelled = [LossTerm(negative_loss, weights_u, column, c.u, clamped)]
    objective = HeadObjective(
        [(blocks_p, of_positive), (blocks_u, of_unlabelled)],
        str(problem.risk.surrogate),
        problem.tensor(problem.penalty) * c.total,
        beta=problem.risk.beta if clamped else None,
        progress=progress,
        run_all=run_all,
    )
    return objective, c.total


def soft_target_objective(
    design: DesignMatrix,
    targets: np.ndarray,
    weights: np.ndarray,
    penalty: np.ndarray,
    run_all: RunAll,
) -> HeadObjective:
    """The weighted cross-entropy of targets (n, K), with weights (n, K) or (n, 1) whose columns sum to one."""
    heads = targets.shape[1]
    column, ones = torch.arange(heads, device=design.device), torch.ones(heads, device=design.device)

    def terms(rows: np.ndarray) -> list[LossTerm]:
        a = weights[rows] * targets[rows]
        sides = ((positive_loss, a), (negative_loss, weights[rows] - a))
        return [
            LossTerm(loss, torch.tensor(np.ascontiguousarray(values.T, np.float32), device=design.device), column, ones)
            for loss, values in sides
        ]

    return HeadObjective(
        [(blocks, terms(rows)) for rows, blocks in design.sides],
        "logistic",
        torch.tensor(penalty, dtype=torch.float32, device=design.device).expand(heads),
        beta=None,
        progress=Silent(),
        run_all=run_all,
    )
