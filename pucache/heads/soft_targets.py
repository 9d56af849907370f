r"""Linear heads trained on soft targets: probabilities in place of labels.

Head k minimises over coefficients w and intercept b, with margins m = X w + b::

    sum_i weight_ik * (softplus(m_i) - target_ik * m_i) + 0.5 * penalty * norm(w)^2

where the weights of a head sum to one, and w counts on X divided by the root mean square distance of
its rows from their mean. It is the cross-entropy of targets and margins, so targets of 0 and 1 give
logistic regression, and any other target is two rows of one label each, weighted by it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import softplus

from ..devices import choose_device
from ..progress import Progress, Silent
from ..threads import RunAll, limited_threads, run_in_turn, worker_threads
from .design_matrix import DesignMatrix, RowBlocks
from .device_rows import DeviceBlocks
from .fit import flushed_denormals
from .fitted import FittedHeads
from .lbfgs import Minimum, Objective, Preconditioner
from .loss_sums import LossSum, anchored
from .moments import Moments
from .preconditioner import MAX_DIMENSIONS, CovariancePreconditioner, HessianPreconditioner
from .second_moments import SecondMoments
from .stages import minimise_in_two_stages

TOLERANCE = 2e-3  # relative norm of the preconditioned gradient; the ranking by margins no longer changes
_MAX_PASSES = 300  # over the data
_LEAST_MEAN = 1e-6  # of the targets that an initial intercept is computed from
_LEAST_CURVATURE = 0.02  # relative to the one at the initial intercept; for targets of 0 and 1


def fit_soft_targets(
    X: np.ndarray | DesignMatrix,
    targets: np.ndarray,
    *,
    weights: np.ndarray | None = None,
    penalty: ArrayLike = 2e-6,
    start: FittedHeads | None = None,
    tolerance: float = TOLERANCE,
    moments: Moments | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> FittedHeads:
    """Train one linear head for each column of targets.

    Parameters
    ----------
    X : ndarray of float16 or float32, (n, d), or DesignMatrix
        Rows; an array may be a memory map. The labels of a `DesignMatrix` are not used, its
        preparation is.
    targets : ndarray of float, (n, K) or (n,)
        Probabilities of the positive class, in [0, 1].
    weights : ndarray, (n,) or (n, K), optional
        Row weights >= 0, with at least one positive in each column; 0 leaves a row out. All equal by default.
    penalty : float or (K,)
        Adds 0.5 * penalty * norm(coef)^2, for coef on X divided by the root mean square distance of its
        rows from their mean, as in `pucache.heads.fit.fit_heads`.
    start : FittedHeads, optional
        K heads to start from; by default coefficients of zero.
    tolerance : float
        `FittedHeads.residual` at which a head is finished.
    moments : Moments, optional
        Of X, where they have been computed already; part of a `DesignMatrix`.
    device : str
        Ignored for a `DesignMatrix`, which has its own.
    progress : Progress, optional

    Returns
    -------
    FittedHeads
        ``risk`` is the weighted mean of the cross-entropy.

    Raises
    ------
    ValueError
        Shapes do not agree, or targets or weights are outside their domain.
    """
    if not isinstance(X, DesignMatrix):
        X = DesignMatrix(X, np.zeros(len(X), np.int8), moments, choose_device(device))
    return SoftTargetTrainer(X, weights=weights, penalty=penalty, tolerance=tolerance).fit(
        targets, start=start, progress=progress
    )


class SoftTargetTrainer:
    """Trains linear heads on targets that change a little from time to time.

    The second moments that steps are scaled by are computed for the first targets, and serve all later ones.

    Parameters
    ----------
    design : DesignMatrix
    weights, penalty, tolerance
        As for `fit_soft_targets`.
    """

    def __init__(
        self,
        design: DesignMatrix,
        *,
        weights: np.ndarray | None = None,
        penalty: ArrayLike = 2e-6,
        tolerance: float = TOLERANCE,
    ):
        self._design, self._weights, self._tolerance = design, weights, tolerance
        self._penalty = np.atleast_1d(penalty)
        self._moments: SecondMoments | None = None

    def fit(
        self, targets: np.ndarray, *, start: FittedHeads | None = None, progress: Progress | None = None
    ) -> FittedHeads:
        """Train one head for each column of targets.

        Parameters
        ----------
        targets, start, progress
            As for `fit_soft_targets`.

        Returns
        -------
        FittedHeads
        """
        design = self._design
        targets, weights = _checked(len(design), targets, self._weights)
        with progress or Silent() as shown, torch.inference_mode(), flushed_denormals():
            shown.start(None, "training")
            objective = _Objective(design, targets, weights, self._penalty, shown)
            preconditioner = self._preconditioner(objective)
            with limited_threads(0) as threads, worker_threads(design.workers(threads)) as run_all:
                objective.run_all = run_all
                return _train(objective, preconditioner, design, start, self._tolerance)

    def _preconditioner(self, objective: _Objective) -> Preconditioner:
        """Approximate inverse Hessians; the mean over the heads of each row's share in them serves all."""
        design, curvature, penalty = self._design, objective.curvature, objective.penalty
        if design.d > MAX_DIMENSIONS:
            return CovariancePreconditioner(design, curvature, penalty)
        with limited_threads(len(design) * design.d):
            if self._moments is None:
                self._moments = SecondMoments.of_sample(design, objective.importance)
            return HessianPreconditioner(self._moments, curvature, penalty)


def _checked(n: int, targets: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Targets (n, K) and weights (n, K) or (n, 1), valid, the latter with sums of one."""
    targets = np.asarray(targets)
    targets = targets[:, None] if targets.ndim == 1 else targets
    if targets.ndim != 2 or len(targets) != n:
        raise ValueError(f"targets must have shape ({n}, K), got {targets.shape}")
    if not (targets.min(initial=0) >= 0 and targets.max(initial=0) <= 1):
        raise ValueError("targets must lie in [0, 1]")
    weights = np.ones((n, 1), np.float32) if weights is None else np.asarray(weights)
    weights = weights[:, None] if weights.ndim == 1 else weights
    if weights.shape not in ((n, 1), targets.shape):
        raise ValueError(f"weights must have shape ({n},) or {targets.shape}, got {weights.shape}")
    total = weights.sum(0, dtype=np.float64)
    if not (weights.min(initial=0) >= 0 and (total > 0).all() and np.isfinite(total).all()):
        raise ValueError("weights must be finite, >= 0 and not all zero in any column")
    return targets, (weights / total).astype(np.float32)


def _train(
    objective: _Objective,
    preconditioner: Preconditioner,
    design: DesignMatrix,
    start: FittedHeads | None,
    tolerance: float,
) -> FittedHeads:
    all_heads = torch.arange(len(objective), device=design.device)
    parameters, reference = objective.initial_parameters(), None
    if start is not None:  # the tolerance refers to the gradient at the common initial point
        gradient = objective(parameters, all_heads)[1]
        reference = (gradient * preconditioner(gradient, all_heads)).sum(1).clamp(min=0).sqrt()
        parameters = torch.from_numpy(start.standardised(design.moments)).to(design.device)
    minimum = minimise_in_two_stages(
        objective, parameters, preconditioner, tolerance=tolerance, reference=reference, evaluations=_MAX_PASSES
    )
    return _fitted(objective, minimum, design.moments)


def _fitted(objective: _Objective, minimum: Minimum, moments: Moments) -> FittedHeads:
    coef, penalty = minimum.parameters[:, :-1], objective.penalty
    risk = minimum.value - 0.5 * penalty * coef.square().sum(1)
    return FittedHeads.of_standardised(
        minimum.parameters.cpu().numpy(),
        moments,
        risk=risk.cpu().numpy(),
        clamped=np.zeros(len(coef), np.float32),
        residual=minimum.decrement.cpu().numpy(),
        passes=objective.passes,
    )


class _Objective:
    """Value and gradient of the heads' penalised cross-entropies; rows are the positives and then the others."""

    def __init__(
        self,
        design: DesignMatrix,
        targets: np.ndarray,
        weights: np.ndarray,
        penalty: np.ndarray,
        progress: Progress,
    ):
        self._design, self._progress, self.passes = design, progress, 0
        self.run_all: RunAll = run_in_turn
        self._sides = [
            tuple(_columns(values[rows], design.device) for values in (targets, weights))
            for rows in (design.positive_rows, design.unlabelled_rows)
        ]
        (T_positive, w_positive), (T_other, w_other) = self._sides
        mean = (w_positive * T_positive).sum(1) + (w_other * T_other).sum(1)
        self._mean = mean.clamp(_LEAST_MEAN, 1 - _LEAST_MEAN)
        # second derivatives where every margin is the log-odds of its target
        least = _LEAST_CURVATURE * (self._mean * (1 - self._mean))[:, None]
        derivatives = [w * (T * (1 - T) + least) for T, w in self._sides]  # (K, rows of a side)
        self.curvature = derivatives[0].sum(1) + derivatives[1].sum(1)
        self.importance = np.empty(len(design), np.float32)
        for rows, part in zip((design.positive_rows, design.unlabelled_rows), derivatives, strict=True):
            self.importance[rows] = (part / self.curvature[:, None]).mean(0).cpu().numpy()
        self.penalty = torch.as_tensor(penalty, dtype=torch.float32, device=design.device).expand(len(self._mean))

    def __len__(self) -> int:
        return len(self._mean)

    def initial_parameters(self) -> Tensor:
        """Coefficients of zero, and the best intercepts for them, (K, d + 1)."""
        parameters = self._mean.new_zeros((len(self), self._design.d + 1))
        parameters[:, -1] = self._mean.logit()
        return parameters

    @property
    def unlabelled(self) -> RowBlocks | DeviceBlocks:
        """Blocks of the rows without a label."""
        return self._design.unlabelled

    @property
    def reduces(self) -> bool:
        """Whether evaluation at reduced precision is faster."""
        return self._design.reduces

    def anchored(self, parameters: Tensor) -> Objective:
        """The objective near ``parameters`` (K, d + 1) of all heads, with products of rounded rows and changes."""
        return anchored(self, parameters) or self

    def __call__(self, parameters: Tensor, head: Tensor, reduced: bool = False) -> tuple[Tensor, Tensor]:
        """Values (A,) and gradients (A, d + 1) of the heads numbered ``head`` (A,) at ``parameters`` (A, d + 1).

        With ``reduced``, unlabelled rows are rounded to bfloat16 where the processor multiplies it.
        """
        return self.combine(parameters, head, self.over_unlabelled(head, lambda: LossSum(parameters), reduced))

    def over_unlabelled(self, head: Tensor, new_sum: Callable[[], LossSum], reduced: bool = False) -> LossSum:
        """Sum of the cross-entropies over the rows without a label."""
        self.passes += 1
        self._progress.advance(1)
        return self._over(self.unlabelled, self._sides[1], head, new_sum, reduced)

    def _over(
        self,
        blocks: RowBlocks | DeviceBlocks,
        side: tuple[Tensor, ...],
        head: Tensor,
        new_sum: Callable[[], LossSum],
        reduced: bool = False,
    ) -> LossSum:
        targets, weights = (_heads(values, head) for values in side)

        def sum_group(group: list[slice]) -> LossSum:
            total = new_sum()
            for rows, X in blocks.blocks(group, reduced):
                total.add(X, rows, *_cross_entropy(total.margins(X, rows), targets[:, rows], weights[:, rows]))
            return total

        total, *others = self.run_all([partial(sum_group, group) for group in blocks.groups(len(self))])
        for other in others:
            total.merge(other)
        return total

    def combine(self, parameters: Tensor, head: Tensor, unlabelled: LossSum) -> tuple[Tensor, Tensor]:
        """Values and gradients from the sum over the rows without a label."""
        total = unlabelled
        total.merge(self._over(self._design.positive, self._sides[0], head, lambda: LossSum(parameters)))
        penalty, coef = self.penalty[head], parameters[:, :-1]
        total.gradient[:, :-1].addcmul_(coef, penalty[:, None])
        return total.value + 0.5 * penalty * coef.square().sum(1), total.gradient


def _cross_entropy(margins: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted sum over rows, (A,), and its derivatives in the margins, (A, b)."""
    value = (weights * (softplus(margins) - targets * margins)).sum(1)
    return value, margins.sigmoid().sub_(targets).mul_(weights)


def _columns(values: np.ndarray, device: torch.device) -> Tensor:
    """Float32 values of each head in one row, (K, n)."""
    return torch.from_numpy(np.ascontiguousarray(values.T, np.float32)).to(device)


def _heads(values: Tensor, head: Tensor) -> Tensor:
    """Rows of the heads still running, (A, n); one row that serves all heads stays one."""
    return values if len(values) in (1, len(head)) else values[head]
