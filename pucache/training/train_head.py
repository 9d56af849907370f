"""Trains a linear head on positive and unlabelled rows: the whole method, in order, is `train_head`."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..encoders.spec import EncoderSpec
from ..estimates.audited_prior import COMBINED, AuditedPrior, audited_figures, narrower
from ..estimates.calibration import Tilt, fit_tilt, stated_tilt
from ..estimates.dataset_shift import MOST_BYTES, MOST_POSITIVES, MOST_ROWS, PileSample, greatest_distance
from ..estimates.intervals import prior_range, stated_estimates
from ..estimates.label_requirements import ASSUMED_PRIOR, LabelCount
from ..estimates.priors import PriorEstimate, estimate, profile_interval
from ..estimates.review_weights import TrainingLabels
from ..estimates.share_of_new_images import PileMargins, on_one_scale
from ..estimates.thresholds import choose_threshold, near_share, parse_rule
from ..heads.design_matrix import DesignMatrix
from ..heads.linear_heads import FittedHeads
from ..heads.risks import PURisk
from ..heads.solve import SOLVERS
from ..labels.sample import UnlabelledSample
from ..progress import Progress, Silent
from ..seeds import check_seed, drawn_seed
from ..storage.rows import take_rows
from .cross_fitting import CrossFit, CrossFitter, HeadSettings, deal_folds
from .distillation import Distillation, DistillationRows, GraphSource, distil
from .model_file import FittedState, stated_estimate
from .neighbour_evidence import LEAST_POSITIVES, NeighbourSettings, agreement_gains, halves_of
from .penalty import PENALTIES

if TYPE_CHECKING:
    from .sklearn_classifier import PULinearClassifier

METHODS = ("distilled", "linear")
_LEAST_HIDDEN = 0.25  # of the positives that are known; after a review with fewer, neighbours have little to add
_CHANCE = 0.5  # PAUC of a ranking that knows nothing
_STAGES = 3  # steps of progress: prior for training, heads, distillation
log = logging.getLogger("pucache")
_INTEGER = (int, np.integer)
_NUMBER = (*_INTEGER, float, np.floating)


@dataclass(frozen=True)
class TrainingRows:
    """Rows to train on, of a cache or of a matrix."""

    design: DesignMatrix  # finite rows, with `labels.training_s`
    labels: TrainingLabels
    graph: GraphSource  # of the nearest neighbours of some rows, given their numbers, or of all rows, given None
    groups: np.ndarray | None = None  # (n,): rows of one group stay in one fold
    sample: UnlabelledSample | None = None  # of the unlabelled rows, where the matrix has not all of them
    encoder: EncoderSpec | None = None
    # (m,): rows that any of several concepts labels: a sample for the graph holds them, so that one serves all
    labelled_by_any: np.ndarray | None = None
    # labels of the unlabelled and of the positives
    classes: np.ndarray = field(default_factory=lambda: np.array([0, 1], np.int8))


def train_head(
    classifier: PULinearClassifier, rows: TrainingRows, progress: Progress | None = None
) -> PULinearClassifier:
    """Choose the penalty, train one head on all rows, distil it where neighbours help, calibrate and estimate.

    The classifier's parameters are the settings; it receives the fitted attributes, and is returned.
    """
    settings, labels = check_parameters(classifier), rows.labels
    settings = replace(settings, seed=drawn_seed(classifier.random_state))
    audited = labels.audited if classifier.prior is None else None
    given = classifier.prior if audited is None else audited.likeliest
    with progress or Silent() as stages:
        stages.start(_STAGES, "training")
        deals = deal_folds(labels.training_s, int(classifier.n_folds), settings.seed, rows.groups)
        fitter = CrossFitter(rows.design, labels, deals, _training_prior(rows, deals, given, settings), settings)
        stages.advance(1)
        halves = _halves(rows, deals, settings.seed) if _method(classifier) == "distilled" else None
        linear, head, of_halves = fitter.cross_fit(penalties_of(classifier), halves)
        stages.advance(1)
        distillation = None
        if halves is not None and of_halves is not None:
            distillation = _distil(rows, linear, head, halves, of_halves, given)
        stages.advance(1)
    helpful = distillation if distillation is not None and distillation.evidence.distils else None
    head, margins = (head, linear.margins) if helpful is None else (helpful.head, helpful.margins)
    count = LabelCount.of(labels.s, groups=rows.groups, weights=labels.weights)
    prior, prior_estimate, audited, sources = _estimate_prior(labels, margins, count, given, audited)
    of_figures = labels.with_confirmed(margins, prior, audited)  # margins, s and weights of positives and unlabelled
    if of_figures is not None:
        count = LabelCount.of(labels.training_s, groups=rows.groups, weights=labels.weights)
    of_figures = of_figures or (margins, labels.s, labels.weights)
    tilt = fit_tilt(*of_figures, prior)
    # with less than one hidden positive expected, posteriors have nothing to sum to
    sum_to = prior if prior * (labels.s == 0).sum() >= 1 else None
    stated_by = tilt if sum_to is None else stated_tilt(*of_figures, prior=sum_to)
    n_labelled = int(labels.s.sum())
    n_unlabelled = len(labels.s) - n_labelled if rows.sample is None else rows.sample.unlabelled
    share = classifier.deploy_prior or _deployed_share(prior, n_labelled, n_unlabelled)
    rule, unlabelled = classifier.threshold, margins[labels.s == 0]
    threshold = choose_threshold(tilt, unlabelled, rule, share)
    if not count.has_estimates and parse_rule(rule)[0] == "f1":
        threshold = near_share(threshold, unlabelled, prior)
    final = rows.design.margins(head)[:, 0]
    on_scale = on_one_scale(margins, final, labels.s)
    stated = stated_estimates(
        on_scale,  # so that as many rows are above the threshold as the head calls positive
        labels.s,
        labels=count,
        prior=prior,
        prior_range=prior_range(prior, prior_estimate),
        threshold=threshold,
        seed=settings.seed,
    )
    if audited is not None:
        called = on_scale[labels.s == 0] > threshold
        by_audit = audited_figures(unlabelled, labels.decided, audited, called=called, prior=prior, tilt=tilt)
        stated |= (narrower(by_audit, stated) if sources == COMBINED else by_audit) | {"sources": sources}
    _warn_of_chance(stated)
    estimates = {"risk": float(head.risk[0]), "clamped": float(head.clamped[0]), **stated}
    stated_prior = None if classifier.prior is None else prior
    if prior_estimate is not None:
        prior_estimate = stated_estimate(prior_estimate, estimates, n_labelled)
        stated_prior = None if prior_estimate is None else prior_estimate.prior
    classifier._set_fitted(
        FittedState(
            coef_=head.coef[:1],
            intercept_=np.array(head.intercept[:1], np.float64),
            threshold_=threshold,
            prior_=stated_prior,
            share_=share,
            penalty_=linear.penalty,
            seed_=settings.seed,
            tilt_=stated_by,
            prior_estimate_=prior_estimate,
            estimates_=estimates,
            n_labelled_=n_labelled,
            n_unlabelled_=n_unlabelled,
            n_confirmed_=int((labels.training_s > labels.s).sum()),
            n_negatives_=0 if labels.known_negative is None else int(labels.known_negative.sum()),
            unlabelled_sample_=rows.sample,
            classes_=rows.classes,
            encoder_=rows.encoder,
            neighbours_=None
            if distillation is None
            else _neighbour_settings(distillation, stated_by, given, rule, share, sum_to),
            method_="linear" if helpful is None else "distilled",
            pile_margins_=PileMargins.of(*of_figures, given),
            pile_sample_=_pile_sample(rows, margins, final, settings.seed),
        )
    )
    classifier.held_out_margins_, classifier.classifier_margins_ = margins, linear.margins
    return classifier


def _warn_of_chance(stated: dict[str, Any]) -> None:
    """Say where the interval of PAUC, the ranking of held-out labels, covers that of chance."""
    low, high = stated.get("pauc_low"), stated.get("pauc_high")
    if low is not None and high is not None and low <= _CHANCE:
        log.warning(
            "held-out ranking is no better than chance (PAUC %.2f to %.2f, chance has %.1f): look whether the labels "
            "are of these rows, whether a few columns outweigh the others, and whether the labelled look alike",
            *(low, high, _CHANCE),
        )


def _pile_sample(rows: TrainingRows, margins: np.ndarray, final: np.ndarray, seed: int) -> PileSample:
    """Draw labelled and unlabelled rows, with which new images are compared, and their held-out margins.

    `final` (n,) are the margins of all rows by the head of all rows.
    """
    labels, generator, drawn = rows.labels, np.random.default_rng(seed), []
    for value, most in ((1, MOST_POSITIVES), (0, MOST_ROWS - min(MOST_POSITIVES, int(labels.s.sum())))):
        weights = (labels.s == value) * (1.0 if labels.weights is None else labels.weights.astype(np.float64))
        size = min(most, int(np.count_nonzero(weights)))
        drawn.append(np.sort(generator.choice(len(weights), size, replace=False, p=weights / weights.sum())))
    q = min(64, MOST_BYTES // (2 * (rows.design.d + MOST_ROWS)))
    moments, leading = rows.design.moments, rows.design.leading
    directions = leading.directions.cpu().numpy()[:, ::-1][:, :q].astype(np.float16)
    middle = moments.centre + moments.spread * leading.centre.cpu().numpy()
    sample = PileSample(
        directions=np.ascontiguousarray(directions),
        centre=middle @ directions.astype(np.float32),
        spread=moments.spread,
        rows=np.empty((0, directions.shape[1]), np.float16),
        margins=margins[np.concatenate(drawn)],
        n_labelled=len(drawn[0]),
        held_out_distance=greatest_distance(margins[labels.s == 0], final[labels.s == 0]),
    )
    X = np.concatenate([take_rows(rows.design.X, numbers) for numbers in drawn])
    return replace(sample, rows=sample.project(X).astype(np.float16))


def check_parameters(classifier: PULinearClassifier) -> HeadSettings:
    """Settings of the heads; raises `ValueError` for a parameter outside its domain."""
    for name in ("prior", "deploy_prior"):
        share = getattr(classifier, name)
        if share is not None and not (isinstance(share, _NUMBER) and 0 < share < 1):
            raise ValueError(
                f"{name} must lie strictly between 0 and 1, got {share!r}; it is a share of positives"
                + (" among the unlabelled, or None to estimate it" if name == "prior" else "")
            )
    if not (isinstance(classifier.n_folds, _INTEGER) and classifier.n_folds >= 2):
        raise ValueError(f"n_folds must be a whole number, at least 2, got {classifier.n_folds!r}")
    check_seed(classifier.random_state)
    penalty, solver = classifier.penalty, classifier.solver
    if penalty != "auto" and not (isinstance(penalty, _NUMBER) and 0 <= penalty < np.inf):
        raise ValueError(f"penalty must be 'auto' or a finite number >= 0, got {penalty!r}")
    if solver not in SOLVERS:
        raise ValueError(f"unknown solver {solver!r}; use {' or '.join(SOLVERS)}")
    if classifier.sgd_settings is not None and solver != "sgd":
        raise ValueError("sgd_settings are for solver='sgd'; leave them out or choose that solver")
    method = _method(classifier)
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; use {' or '.join(METHODS)}")
    if method == "distilled" and solver != "batch":
        raise ValueError("method='distilled' needs solver='batch'; leave one of the two out")
    parse_rule(classifier.threshold)
    risk = PURisk(classifier.loss, classifier.surrogate, target_prior=classifier.target_prior)
    return HeadSettings(risk, solver, classifier.sgd_settings)


def penalties_of(classifier: PULinearClassifier) -> tuple[float, ...]:
    """Penalties to choose from; with ``sgd``, ``auto`` is 0, as in Dorigatti et al."""
    if classifier.penalty != "auto":
        return (float(classifier.penalty),)
    return PENALTIES if classifier.solver == "batch" else (0.0,)


def _method(classifier: PULinearClassifier) -> str:
    default = "distilled" if classifier.solver == "batch" and classifier.loss == "imbupu" else "linear"
    return classifier.method or default


def _training_prior(rows: TrainingRows, deals: np.ndarray, given: float | None, settings: HeadSettings) -> float:
    """Prior that the risk is minimised with; where none is given, by heads of the default risk, which needs none."""
    labels, prior = rows.labels, given
    if prior is not None:
        labels.check(prior)
    elif settings.risk.needs_prior:
        default = CrossFitter(rows.design, labels, deals, settings=HeadSettings(seed=settings.seed)).cross_fit()[0]
        prior = estimate(default.margins, labels.s, weights=labels.weights, bounds=labels.bounds)
    return labels.training_prior(prior) if prior else 0.5


def _halves(rows: TrainingRows, deals: np.ndarray, seed: int) -> np.ndarray | None:
    """Halves of the labels, by which neighbours are judged; None where they are too few, or no chain sees one."""
    labels, groups = rows.labels, rows.groups
    weighted = np.ones(len(deals), bool) if labels.weights is None else labels.weights > 0
    positives = np.flatnonzero((labels.training_s == 1) & weighted)
    different = len(positives) if groups is None else len(np.unique(groups[positives]))
    if different < LEAST_POSITIVES or any(len(np.unique(fold)) < 2 for fold in deals[(labels.s == 1) & weighted].T):
        return None
    return halves_of(labels, groups, seed)


def _distil(
    rows: TrainingRows,
    linear: CrossFit,
    head: FittedHeads,
    halves: np.ndarray,
    of_halves: FittedHeads,
    given: float | None,
) -> Distillation | None:
    """Distil the linear head, with the evidence on what neighbours are worth.

    None after a review that left few positives hidden: the margins of the pile then follow from known neighbours, and
    threshold and precision would not hold for new images.
    """
    labels = rows.labels
    tilt = fit_tilt(linear.margins, labels.s, labels.weights, given)
    if labels.confirmed_weight and labels.hidden(tilt.prior) < _LEAST_HIDDEN * labels.known_positive_weight:
        return None
    on = DistillationRows.of(rows.design, labels, linear.fold, rows.graph, rows.labelled_by_any)
    margins = on.design.margins(of_halves)
    agreement = agreement_gains(margins, on.take(halves), on.labels, on.graph, prior=tilt.prior)
    return distil(on, rows.design, linear, head, tilt, agreement)


def _neighbour_settings(
    distillation: Distillation,
    of_head: Tilt,
    given: float | None,
    rule: float | str,
    share: float,
    sum_to: float | None,
) -> NeighbourSettings:
    """Calibrate the scores with neighbours; None for `sum_to` where no posterior is stated."""
    on, scores, evidence = distillation.on, distillation.scores, distillation.evidence
    if evidence.weight and not evidence.distils:
        scores = distillation.classifier_scores(of_head)
    tilt = fit_tilt(scores, on.labels.s, on.labels.weights, given)
    threshold = choose_threshold(tilt, scores[on.labels.s == 0], rule, share)
    if sum_to is not None:
        tilt = stated_tilt(scores, on.labels.s, on.labels.weights, prior=sum_to)
    return NeighbourSettings(
        evidence=evidence,
        search=on.graph.search,
        share=distillation.share,
        tilt=tilt,
        threshold=threshold,
    )


def _estimate_prior(
    labels: TrainingLabels, margins: np.ndarray, count: LabelCount, given: float | None, audited: AuditedPrior | None
) -> tuple[float, PriorEstimate | None, AuditedPrior | None, str]:
    """The prior as given, by audit and labels, from held-out margins, or assumed where the labels are too few.

    Also the audit, as the labels narrow it, and what the figures then rest on.
    """
    prior, estimated, sources = given, None, ""
    if (prior is None or audited is not None) and count.has_estimates:
        estimated = profile_interval(margins, labels.s, weights=labels.weights, bounds=labels.bounds)
        prior = estimated.prior
    elif prior is None:
        prior = float(np.clip(ASSUMED_PRIOR, *labels.bounds))
    assert prior is not None  # an estimate lacks its number only once it is stated
    if audited is not None:
        audited, sources = audited.combined(estimated, has_points=count.has_points)
        estimated = audited.estimate(audited.likeliest or prior)
        prior = estimated.prior or prior
    return float(prior), estimated, audited, sources


def _deployed_share(prior: float, n_labelled: int, n_unlabelled: int) -> float:
    """The prior; where it means less than one hidden positive, the unlabelled are negatives and all rows count."""
    if prior * n_unlabelled >= 1:
        return prior
    labelled_share = n_labelled / (n_labelled + n_unlabelled)
    return labelled_share + (1 - labelled_share) * prior
