"""Trains many linear heads at once.

A head has a column of row weights, a prior, a penalty and a seed. One pass over X serves all K heads
by two matrix products, margins = coef @ X.T and gradient = step @ X, so folds, priors, penalties,
seeds and bootstrap draws cost little more than one fit.

The batch solver minimises each head's objective (`pucache.heads.objective`) until the norm of the preconditioned
gradient is below a tolerance times its initial value. The result of a head does not depend on which heads are
trained with it, up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..devices import choose_device
from ..progress import Progress, Silent
from ..storage.rows import RowMatrix
from ..threads import limited_threads, worker_threads
from . import minibatch
from .design_matrix import DesignMatrix
from .lbfgs import minimise
from .linear_heads import FittedHeads
from .minibatch import SGDSettings
from .moments import Moments
from .objective import HeadObjective, HeadProblem, risk_objective, soft_target_objective
from .preconditioner import LeadingDirections, Preconditioner, systematic_sample
from .risks import PURisk

SOLVERS = ("batch", "sgd")
TOLERANCE = 3e-4  # relative norm of the preconditioned gradient; about the accuracy of scikit-learn's default
SOFT_TOLERANCE = 2e-3  # of heads on soft targets; the ranking by margins no longer changes
_MAX_PASSES = 300  # over the data
_INITIAL_BOUND = 0.01  # of the initial coefficients
_CURVATURE = {"sigmoid": 0.1, "logistic": 0.25}  # the greatest second derivatives of the losses
_MAX_DIMENSIONS = 2048  # whose second moments are decomposed, which takes time as the cube
_LEAST_MEAN = 1e-6  # of the targets that an initial intercept is computed from
_LEAST_CURVATURE = 0.02  # relative to the one at the initial intercept; for targets of 0 and 1


def fit_heads(
    X: RowMatrix | DesignMatrix,
    s: np.ndarray | None = None,
    *,
    prior: ArrayLike = 0.5,
    weights: np.ndarray | None = None,
    column: ArrayLike | None = None,
    penalty: ArrayLike = 0.0,
    seed: ArrayLike = 0,
    risk: PURisk | None = None,
    solver: str = "batch",
    sgd_settings: SGDSettings | None = None,
    tolerance: ArrayLike = TOLERANCE,
    start: FittedHeads | None = None,
    moments: Moments | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> FittedHeads:
    """Train K linear heads.

    Parameters
    ----------
    X : ndarray or StackedRows of float16 or float32, (n, d), or DesignMatrix
        Rows; they may be mapped. Several fits on the same rows and labels share their preparation if a
        `DesignMatrix` is passed.
    s : ndarray, (n,)
        1 labelled positive, 0 unlabelled; part of a `DesignMatrix` already.
    prior : float or (K,)
        Prior of each head, in (0, 1). Here and below, a single value applies to all heads.
    weights : ndarray, (n, C), optional
        Row weights; 0 leaves a row out. All ones by default.
    column : int or (K,), optional
        The column of weights that each head uses; head k uses column k by default.
    penalty : float or (K,)
        Adds 0.5 * penalty * norm(coef)^2 to the risk divided by the sum of its coefficients'
        magnitudes, for coef on X divided by the root mean square distance of its rows from their
        mean. So the penalty has no unit, suits any encoder, and does not depend on the prior.
    seed : int or (K,)
        Seed of the initial coefficients.
    risk : PURisk, optional
        Imbalanced uPU with the sigmoid loss by default.
    solver : {"batch", "sgd"}
        ``batch`` minimises the risk to convergence; ``sgd`` is the protocol of Dorigatti et al.,
        see `pucache.heads.minibatch`.
    sgd_settings : SGDSettings, optional
        For ``sgd``.
    tolerance : float or (K,)
        For ``batch``: `FittedHeads.residual` at which a head is finished.
    start : FittedHeads, optional
        For ``batch``: K heads to start from, in place of small random ones.
    moments : Moments, optional
        Of X, where they have been computed already; part of a `DesignMatrix`.
    device : str
        Ignored for a `DesignMatrix`, which has its own.
    progress : Progress, optional

    Returns
    -------
    FittedHeads

    Raises
    ------
    ValueError
        Unknown solver or device.
    """
    if solver not in SOLVERS:
        raise ValueError(f"unknown solver {solver!r}; use {' or '.join(SOLVERS)}")
    design = X if isinstance(X, DesignMatrix) else DesignMatrix(X, np.asarray(s), moments, choose_device(device))
    problem = HeadProblem.of(
        design, risk or PURisk(), weights=weights, prior=prior, penalty=penalty, seed=seed, column=column
    )
    settings = sgd_settings or SGDSettings()
    with progress or Silent() as shown, torch.inference_mode(), flushed_denormals():
        if solver == "sgd":
            with limited_threads(len(problem) * settings.batch_size * design.d):
                return minibatch.train(problem, settings, shown)
        shown.start(None, "training")
        # products have one thread each: blocks of rows are divided among the threads
        with limited_threads(0) as threads, worker_threads(design.workers(threads)) as run_all:
            objective, scale = risk_objective(problem, shown, run_all)
            # The directions of all rows know no labels. Steps scaled by the moments of P would tell a head of a
            # cross-fit what the held-out positives look like: at weak penalties, where many minima are alike, these
            # then rank first.
            curvature = _CURVATURE[str(problem.risk.surrogate)] * scale
            preconditioner = Preconditioner(design.leading, curvature, objective.penalty)
            initial = problem.initial_parameters(_INITIAL_BOUND)
            return _minimised(objective, preconditioner, initial, design, start, tolerance)


class SoftTargetTrainer:
    """Trains one linear head for each column of targets: probabilities in place of labels.

    Head k minimises over coefficients w and intercept b the cross-entropy of targets and margins m = X w + b::

        sum_i weight_ik * (softplus(m_i) - target_ik * m_i) + 0.5 * penalty * norm(w)^2

    where the weights of a head sum to one, and w counts on X divided by the root mean square distance of
    its rows from their mean. Targets of 0 and 1 give logistic regression, and any other target is two rows of
    one label each, weighted by it.

    The second moments that steps are scaled by are computed for the first targets, and serve all later ones.

    Parameters
    ----------
    design : DesignMatrix
        Rows; its labels are not used.
    weights : ndarray, (n,) or (n, K), optional
        Row weights >= 0, with at least one positive in each column; 0 leaves a row out. All equal by default.
    penalty : float or (K,)
    tolerance : float
        `FittedHeads.residual` at which a head is finished.
    """

    def __init__(
        self,
        design: DesignMatrix,
        *,
        weights: np.ndarray | None = None,
        penalty: ArrayLike = 2e-6,
        tolerance: float = SOFT_TOLERANCE,
    ):
        self._design, self._weights, self._tolerance = design, weights, tolerance
        self._penalty = np.atleast_1d(penalty)
        self._leading: LeadingDirections | None = None

    def fit(self, targets: np.ndarray, *, start: FittedHeads | None = None) -> FittedHeads:
        """Train the heads.

        Targets (n, K) or (n,) are probabilities of the positive class, in [0, 1]. They start from the K heads of
        `start`, or from coefficients of zero. ``risk`` is the weighted mean of the cross-entropy. Raises ValueError for
        shapes that do not agree, and for targets or weights outside their domain.
        """
        design = self._design
        targets, weights = _checked(len(design), targets, self._weights)
        mean = (weights * targets).sum(0).clip(_LEAST_MEAN, 1 - _LEAST_MEAN)
        initial = torch.zeros((len(mean), design.d + 1), device=design.device)
        initial[:, -1] = torch.tensor(mean, device=design.device).logit()  # the best one where coefficients are zero
        with (
            torch.inference_mode(),
            flushed_denormals(),
            limited_threads(0) as threads,
            worker_threads(design.workers(threads)) as run_all,
        ):
            objective = soft_target_objective(design, targets, weights, self._penalty, run_all)
            preconditioner = self._preconditioner(targets, weights, mean, objective.penalty)
            return _minimised(objective, preconditioner, initial, design, start, self._tolerance)

    def _preconditioner(
        self, targets: np.ndarray, weights: np.ndarray, mean: np.ndarray, penalty: Tensor
    ) -> Preconditioner:
        """Of the second derivatives where every margin is the log-odds of its target."""
        second = weights * (targets * (1 - targets) + _LEAST_CURVATURE * mean * (1 - mean))  # (n, K)
        curvature, design = second.sum(0), self._design
        if self._leading is None and design.d > _MAX_DIMENSIONS:
            self._leading = design.leading
        elif self._leading is None:  # the mean over the heads of each row's share serves all of them
            rows, shares = systematic_sample((second / curvature).mean(1))
            sampled = torch.tensor(shares, dtype=torch.float32, device=design.device)
            self._leading = LeadingDirections.of_sample(design.standardised(rows), design.d, sampled)
        return Preconditioner(
            self._leading, torch.tensor(curvature, dtype=torch.float32, device=design.device), penalty
        )


def _checked(n: int, targets: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Targets (n, K) and weights (n, K) or (n, 1), float32 and valid, the latter with sums of one."""
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
    return targets.astype(np.float32, copy=False), (weights / total).astype(np.float32)


def _minimised(
    objective: HeadObjective,
    preconditioner: Preconditioner,
    initial: Tensor,
    design: DesignMatrix,
    start: FittedHeads | None,
    tolerance: ArrayLike,
) -> FittedHeads:
    parameters, reference = initial, None
    if start is not None:  # the tolerance refers to the gradient at the common initial point, wherever the start is
        every = torch.arange(len(initial), device=initial.device)
        gradient = objective(initial, every)[1]
        reference = (gradient * preconditioner(gradient, every)).sum(1).clamp(min=0).sqrt()
        parameters = torch.tensor(start.standardised(design.moments), device=design.device)
    parameters, value, residual = minimise(
        objective, parameters, preconditioner, tolerance=tolerance, reference=reference, evaluations=_MAX_PASSES
    )
    risk, clamped = objective.report(parameters, value)
    return FittedHeads.of_standardised(
        parameters.cpu().numpy(),
        design.moments,
        risk=risk.cpu().numpy(),
        clamped=clamped.cpu().numpy(),
        residual=residual.cpu().numpy(),
        passes=objective.passes,
    )


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Treat numbers below 1e-38 as zero: saturated sigmoids produce many, and they are slow on a CPU."""
    was_on = not np.float32(2**-126) * np.float32(0.5)  # torch has no function that tells
    try:
        torch.set_flush_denormal(True)
        yield
    finally:
        torch.set_flush_denormal(was_on)
