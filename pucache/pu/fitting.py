"""Trains a linear head on positive and unlabelled rows: penalty, prior and head, in that order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..heads.design_matrix import DesignMatrix
from ..heads.fit import fit_heads
from ..heads.fitted import FittedHeads
from ..heads.full_batch import TOLERANCE
from ..heads.minibatch import SGDSettings
from ..heads.risks import PURisk
from ..progress import Progress
from .cross_fitting import CrossFit, CrossFitter
from .folds import assign_folds
from .priors import PriorEstimate, estimate, interval
from .review_weights import TrainingLabels

_STAGES = 4  # steps of progress: prior for training, cross-fit, interval, final head


@dataclass(frozen=True)
class FitSettings:
    """Training settings; the fields are parameters of `pucache.PULinearClassifier`."""

    risk: PURisk
    prior: float | None
    penalty: float | str
    solver: str
    sgd_settings: SGDSettings | None
    n_folds: int
    draws: int
    seed: int


@dataclass(frozen=True)
class Fit:
    """Result of training.

    Attributes
    ----------
    head : FittedHeads
        One head, trained on all rows.
    cross_fitter : CrossFitter
        Trained the heads of the cross-fit; refits them on bootstrap draws.
    cross_fit : CrossFit
        Held-out margins at the chosen penalty.
    prior : float
        Given or estimated.
    prior_estimate : PriorEstimate or None
        None where the prior was given.
    """

    head: FittedHeads
    cross_fitter: CrossFitter
    cross_fit: CrossFit
    prior: float
    prior_estimate: PriorEstimate | None

    @property
    def held_out_margins(self) -> np.ndarray:
        """Margin of each row by a head that did not see it, float32 (n,)."""
        return self.cross_fit.margins


def fit_positive_unlabelled(
    design: DesignMatrix,
    labels: TrainingLabels,
    groups: np.ndarray | None,
    settings: FitSettings,
    progress: Progress,
) -> Fit:
    """Choose the penalty, estimate the prior, and train one head on all rows.

    Parameters
    ----------
    design : DesignMatrix
        Rows, with ``labels.training_s``.
    labels : TrainingLabels
    groups : ndarray of int64, (n,), or None
        Rows of one group stay in one fold.
    settings : FitSettings
    progress : Progress
    """
    progress.start(_STAGES, "training")
    fold = assign_folds(labels.training_s, settings.n_folds, settings.seed, groups)
    prior = settings.prior
    if prior is not None:
        labels.check(prior)
    elif settings.risk.needs_prior:
        prior = _prior_by_default_risk(design, labels, fold, settings)
    training_prior = labels.training_prior(prior) if prior else 0.5
    progress.advance(1)
    cross_fitter = CrossFitter(
        design,
        labels,
        fold,
        risk=settings.risk,
        prior=training_prior,
        solver=settings.solver,
        sgd_settings=settings.sgd_settings,
        seed=settings.seed,
    )
    cross_fit = _cross_fit(cross_fitter, settings)
    progress.advance(1)
    prior_estimate = None if settings.prior is not None else _estimate_prior(cross_fitter, cross_fit, labels, settings)
    progress.advance(1)
    head = _final_head(design, labels, training_prior, cross_fit, settings)
    progress.advance(1)
    final_prior = settings.prior if prior_estimate is None else prior_estimate.prior
    return Fit(
        head=head,
        cross_fitter=cross_fitter,
        cross_fit=cross_fit,
        prior=float(final_prior or 0.0),
        prior_estimate=prior_estimate,
    )


def _prior_by_default_risk(
    design: DesignMatrix, labels: TrainingLabels, fold: np.ndarray, settings: FitSettings
) -> float:
    """Estimate the prior with heads of the default risk, which needs none."""
    default = CrossFitter(design, labels, fold, risk=PURisk(), prior=0.5, seed=settings.seed).choose_penalty()
    return estimate(default.margins, labels.s, weights=labels.weights, bounds=labels.bounds)


def _cross_fit(cross_fitter: CrossFitter, settings: FitSettings) -> CrossFit:
    if settings.penalty == "auto" and settings.solver == "batch":
        return cross_fitter.choose_penalty()
    penalty = 0.0 if settings.penalty == "auto" else float(settings.penalty)  # Dorigatti et al. use no penalty
    return cross_fitter.fit((penalty,), tolerance=TOLERANCE)[0]


def _estimate_prior(
    cross_fitter: CrossFitter, cross_fit: CrossFit, labels: TrainingLabels, settings: FitSettings
) -> PriorEstimate:
    bounds = labels.bounds
    prior = estimate(cross_fit.margins, labels.s, weights=labels.weights, bounds=bounds)
    draws = cross_fitter.bootstrap(cross_fit, settings.draws, settings.seed)
    drawn = [estimate(draw.margins, draw.s, weights=draw.weights, bounds=bounds) for draw in draws]
    return interval("tilt", prior, np.array(drawn), bounds=bounds)


def _final_head(
    design: DesignMatrix,
    labels: TrainingLabels,
    training_prior: float,
    cross_fit: CrossFit,
    settings: FitSettings,
) -> FittedHeads:
    return fit_heads(
        design,
        weights=None if labels.training_weights is None else labels.training_weights[:, None],
        prior=training_prior,
        penalty=cross_fit.penalty,
        start=cross_fit.heads.mean() if settings.solver == "batch" else None,
        risk=settings.risk,
        solver=settings.solver,
        sgd_settings=settings.sgd_settings,
        seed=settings.seed,
    )
