"""Trains a linear head on positive and unlabelled rows.

In this order: penalty and cross-fit, head, distillation where neighbours help, and the prior.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..estimates.calibration import Tilt, fit_tilt
from ..estimates.priors import PriorEstimate, bootstrap_interval, estimate, profile_interval
from ..estimates.review_weights import TrainingLabels
from ..heads.design_matrix import DesignMatrix
from ..heads.linear_heads import FittedHeads
from ..heads.minibatch import SGDSettings
from ..heads.risks import PURisk
from ..heads.solve import TOLERANCE, fit_heads
from ..labels.folds import assign_folds
from ..progress import Progress
from .cross_fitting import CrossFit, CrossFitter
from .distillation import DistillationRows, GraphSource, distil, evidence
from .neighbour_choice import LEAST_POSITIVES, agreement_gains
from .neighbour_evidence import WEIGHTS, NeighbourEvidence

METHODS = ("distilled", "linear")
_LEAST_HIDDEN = 0.25  # of the positives that are known; after a review with fewer, neighbours have little to add
_STAGES = 5  # steps of progress: prior for training, cross-fit, head, distillation, prior with interval


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
    method: str = "linear"


@dataclass(frozen=True)
class NeighbourUse:
    """What neighbours are worth to a model, and how scores with neighbours are calibrated.

    Attributes
    ----------
    evidence : NeighbourEvidence
    search : str
        How neighbours were searched.
    share : float
        Share of positives with which the margins of the pile become probabilities.
    tilt : Tilt
        Of held-out scores with neighbours, at the weight of the evidence; of the margins where that is 0.
    scores : ndarray of float32, (u,)
        Held-out scores of unlabelled rows, which a threshold is chosen on.
    """

    evidence: NeighbourEvidence
    search: str
    share: float
    tilt: Tilt
    scores: np.ndarray


@dataclass(frozen=True)
class Fit:
    """Result of training.

    Attributes
    ----------
    head : FittedHeads
        One head, trained on all rows.
    cross_fitter : CrossFitter
        Trained the heads of the classifier's cross-fit; refits them on bootstrap draws.
    classifier_cross_fit : CrossFit
        Held-out margins of the classifier at the chosen penalty, before distillation.
    cross_fit : CrossFit
        Held-out margins of the final kind of head; the classifier's where nothing was distilled.
    prior : float
        Given or estimated.
    prior_estimate : PriorEstimate or None
        None where the prior was given.
    method : {"distilled", "linear"}
        Kind of the head.
    neighbours : NeighbourUse or None
        None where neighbours were not looked at.
    """

    head: FittedHeads
    cross_fitter: CrossFitter
    classifier_cross_fit: CrossFit
    cross_fit: CrossFit
    prior: float
    prior_estimate: PriorEstimate | None
    method: str = "linear"
    neighbours: NeighbourUse | None = None

    @property
    def held_out_margins(self) -> np.ndarray:
        """Margin of each row by a head that did not see its label, float32 (n,)."""
        return self.cross_fit.margins


def fit_positive_unlabelled(
    design: DesignMatrix,
    labels: TrainingLabels,
    groups: np.ndarray | None,
    settings: FitSettings,
    progress: Progress,
    graph_source: GraphSource | None = None,
) -> Fit:
    """Choose the penalty, train one head on all rows, distil it where neighbours help, and estimate the prior.

    Parameters
    ----------
    design : DesignMatrix
        Rows, with ``labels.training_s``.
    labels : TrainingLabels
    groups : ndarray of int64, (n,), or None
        Rows of one group stay in one fold.
    settings : FitSettings
    progress : Progress
    graph_source : callable, optional
        For the method ``distilled``.

    Returns
    -------
    Fit
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
    classifier = _cross_fit(cross_fitter, settings)
    progress.advance(1)
    head = _final_head(design, labels, training_prior, classifier, settings)
    progress.advance(1)
    linear = Fit(
        head=head,
        cross_fitter=cross_fitter,
        classifier_cross_fit=classifier,
        cross_fit=classifier,
        prior=0.0,
        prior_estimate=None,
    )
    fit = linear
    if settings.method == "distilled" and graph_source and _can_distil(labels, fold, groups):
        fit = _distilled(linear, design, labels, groups, settings, graph_source)
    progress.advance(1)
    estimate_on = fit if not settings.draws else linear  # bootstrap draws refit the classifier
    prior_estimate = (
        None if settings.prior is not None else _estimate_prior(cross_fitter, estimate_on.cross_fit, labels, settings)
    )
    progress.advance(1)
    final_prior = settings.prior if prior_estimate is None else prior_estimate.prior
    return replace(fit, prior=float(final_prior or 0.0), prior_estimate=prior_estimate)


def _can_distil(labels: TrainingLabels, fold: np.ndarray, groups: np.ndarray | None) -> bool:
    """Whether there are labels enough to tell whether neighbours help, and each fold's chain sees one."""
    weighted = np.ones(len(fold), bool) if labels.weights is None else labels.weights > 0
    positives = np.flatnonzero((labels.training_s == 1) & weighted)
    different = len(positives) if groups is None else len(np.unique(groups[positives]))
    return different >= LEAST_POSITIVES and len(np.unique(fold[(labels.s == 1) & weighted])) > 1


def _distilled(
    linear: Fit,
    design: DesignMatrix,
    labels: TrainingLabels,
    groups: np.ndarray | None,
    settings: FitSettings,
    graph_source: GraphSource,
) -> Fit:
    """The fit with the distilled head where neighbours help, else with the classifier's; both with the evidence.

    After a review that left few positives hidden it is the classifier's, without evidence: the margins of the pile
    then follow from known neighbours, and its threshold and precision would not hold for new images.
    """
    classifier = linear.classifier_cross_fit
    tilt = fit_tilt(classifier.margins, labels.s, labels.weights, settings.prior)
    if labels.confirmed_weight and labels.hidden(tilt.prior) < _LEAST_HIDDEN * labels.known_positive_weight:
        return linear
    on = DistillationRows.of(design, labels, classifier.fold, graph_source)
    agreement = agreement_gains(
        on.design,
        on.labels,
        on.graph,
        risk=settings.risk,
        training_prior=linear.cross_fitter.prior,
        penalty=classifier.penalty,
        prior=tilt.prior,
        groups=None if groups is None else on.take(groups),
        seed=settings.seed,
    )
    distillation = distil(on, design, classifier, linear.head, tilt)
    judged = evidence(on, classifier, distillation, agreement)
    scores, s = on.take(classifier.margins), on.labels.s
    if judged.weight:
        scores = distillation.held_out_scores[WEIGHTS.index(judged.weight)]
    use = NeighbourUse(
        evidence=judged,
        search=on.graph.search,
        share=distillation.share,
        tilt=fit_tilt(scores, s, on.labels.weights, settings.prior),
        scores=scores[s == 0],
    )
    if not judged.weight:
        return replace(linear, neighbours=use)
    head = replace(distillation.head, risk=linear.head.risk, clamped=linear.head.clamped)
    return replace(linear, head=head, cross_fit=distillation.cross_fit, method="distilled", neighbours=use)


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
    if not settings.draws:
        return profile_interval(cross_fit.margins, labels.s, weights=labels.weights, bounds=bounds)
    prior = estimate(cross_fit.margins, labels.s, weights=labels.weights, bounds=bounds)
    draws = cross_fitter.bootstrap(cross_fit, settings.draws, settings.seed)
    drawn = [estimate(draw.margins, draw.s, weights=draw.weights, bounds=bounds) for draw in draws]
    return bootstrap_interval("tilt", prior, np.array(drawn), bounds=bounds)


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
