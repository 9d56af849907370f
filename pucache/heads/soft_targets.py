r"""Linear heads trained on soft targets: probabilities in place of labels.

Head k minimises over coefficients w and intercept b, with margins m = X w + b::

    sum_i weight_ik * (softplus(m_i) - target_ik * m_i) + 0.5 * penalty * norm(w)^2

where the weights of a head sum to one, and w counts on X divided by the root mean square distance of
its rows from their mean. It is the cross-entropy of targets and margins, so targets of 0 and 1 give
logistic regression, and any other target is two rows of one label each, weighted by it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike

from ..devices import choose_device
from ..progress import Progress, Silent
from ..threads import limited_threads, worker_threads
from .cross_entropy import CrossEntropyObjective
from .design_matrix import DesignMatrix
from .device_rows import download, upload
from .lbfgs import Minimum, Preconditioner
from .linear_heads import FittedHeads
from .moments import Moments
from .preconditioner import MAX_DIMENSIONS, CovariancePreconditioner, HessianPreconditioner
from .second_moments import SecondMoments
from .solve import flushed_denormals
from .stages import minimise_in_two_stages

TOLERANCE = 2e-3  # relative norm of the preconditioned gradient; the ranking by margins no longer changes
_MAX_PASSES = 300  # over the data


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
        rows from their mean, as in `pucache.heads.solve.fit_heads`.
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
            objective = CrossEntropyObjective(design, targets, weights, self._penalty, shown)
            preconditioner = self._preconditioner(objective)
            with limited_threads(0) as threads, worker_threads(design.workers(threads)) as run_all:
                objective.run_all = run_all
                return _train(objective, preconditioner, design, start, self._tolerance)

    def _preconditioner(self, objective: CrossEntropyObjective) -> Preconditioner:
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
    objective: CrossEntropyObjective,
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
        parameters = upload(start.standardised(design.moments), design.device)
    minimum = minimise_in_two_stages(
        objective, parameters, preconditioner, tolerance=tolerance, reference=reference, evaluations=_MAX_PASSES
    )
    return _fitted(objective, minimum, design.moments)


def _fitted(objective: CrossEntropyObjective, minimum: Minimum, moments: Moments) -> FittedHeads:
    coef, penalty = minimum.parameters[:, :-1], objective.penalty
    without_penalty = minimum.value - 0.5 * penalty * coef.square().sum(1)
    parameters, risk, residual = download(minimum.parameters, without_penalty, minimum.decrement)
    return FittedHeads.of_standardised(
        parameters,
        moments,
        risk=risk,
        clamped=np.zeros(len(coef), np.float32),
        residual=residual,
        passes=objective.passes,
    )
