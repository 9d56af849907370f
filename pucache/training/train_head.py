"""Trains a linear head on positive and unlabelled rows: the whole method, in order, is `train_head`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..estimates.audited_prior import COMBINED, NO_IMAGES, AuditedPrior, ReviewedPile
from ..estimates.calibration import design_effect, fit_tilt, stated_tilt
from ..estimates.dataset_shift import (
    MOST_BYTES,
    MOST_POSITIVES,
    MOST_ROWS,
    PileSample,
    along,
    fingerprints,
    greatest_distance,
)
from ..estimates.figures import Figures
from ..estimates.intervals import Estimate
from ..estimates.label_requirements import ASSUMED_PRIOR, LabelCount
from ..estimates.priors import PriorEstimate, estimate, profile_interval
from ..estimates.review_weights import TrainingLabels
from ..estimates.share_of_new_images import PileMargins, on_one_scale
from ..estimates.thresholds import choose_threshold, parse_rule
from ..heads.risks import PURisk
from ..heads.solve import SOLVERS
from ..progress import Progress, Silent
from ..seeds import check_seed, drawn_seed
from ..storage.rows import take_rows
from .cross_fitting import PENALTIES, CrossFit, CrossFitter, HeadSettings, deal_folds
from .distillation import Distillation, DistillationRows, distil
from .model_file import TrainedState
from .neighbour_evidence import LEAST_POSITIVES, METHODS, NeighbourSettings, agreement_gain, halves_of, method_of
from .training_set import TrainingSet

_LEAST_HIDDEN = 0.25  # of the positives that are known; after a review with fewer, neighbours have little to add
_CHANCE = 0.5  # PAUC of a ranking that knows nothing
_STAGES = 3  # steps of progress: prior for training, heads, distillation
log = logging.getLogger("pucache")
_INTEGER = (int, np.integer)
_NUMBER = (*_INTEGER, float, np.floating)


@dataclass(frozen=True)
class TrainingSettings:
    """Parameters of `pucache.PULinearClassifier`, checked, with the seed drawn and what is chosen by default."""

    heads: HeadSettings
    penalties: tuple[float, ...]  # to choose from; with ``sgd``, ``auto`` is 0, as in Dorigatti et al.
    method: str
    prior: float | None
    threshold: float | str
    deploy_prior: float | None
    n_folds: int

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> TrainingSettings:
        """Settings by parameters of the classifier; raises `ValueError` for one outside its domain."""
        for name in ("prior", "deploy_prior"):
            share = parameters[name]
            if share is not None and not (isinstance(share, _NUMBER) and 0 < share < 1):
                raise ValueError(
                    f"{name} must lie strictly between 0 and 1, got {share!r}; it is a share of positives"
                    + (" among the unlabelled; None, in commands auto, estimates it" if name == "prior" else "")
                )
        penalty, solver, n_folds = parameters["penalty"], parameters["solver"], parameters["n_folds"]
        if not (isinstance(n_folds, _INTEGER) and n_folds >= 2):
            raise ValueError(f"n_folds must be a whole number, at least 2, got {n_folds!r}")
        check_seed(parameters["random_state"])
        if penalty != "auto" and not (isinstance(penalty, _NUMBER) and 0 <= penalty < np.inf):
            raise ValueError(f"penalty must be 'auto' or a finite number >= 0, got {penalty!r}")
        if solver not in SOLVERS:
            raise ValueError(f"unknown solver {solver!r}; use {' or '.join(SOLVERS)}")
        if parameters["sgd_settings"] is not None and solver != "sgd":
            raise ValueError("sgd_settings are for solver='sgd'; leave them out or choose that solver")
        method = method_of(parameters["method"], parameters["loss"], solver)
        if method not in METHODS:
            raise ValueError(f"unknown method {method!r}; use {' or '.join(METHODS)}")
        if method == "distilled" and solver != "batch":
            raise ValueError("method='distilled' needs solver='batch'; leave one of the two out")
        parse_rule(parameters["threshold"])
        risk = PURisk(parameters["loss"], parameters["surrogate"], target_prior=parameters["target_prior"])
        automatic = PENALTIES if solver == "batch" else (0.0,)
        return cls(
            heads=HeadSettings(risk, solver, parameters["sgd_settings"], drawn_seed(parameters["random_state"])),
            penalties=automatic if penalty == "auto" else (float(penalty),),
            method=method,
            prior=parameters["prior"],
            threshold=parameters["threshold"],
            deploy_prior=parameters["deploy_prior"],
            n_folds=int(n_folds),
        )


def train_head(data: TrainingSet, settings: TrainingSettings, progress: Progress | None = None) -> TrainedState:
    """Choose the penalty, train one head on all rows, distil it where neighbours help, calibrate and estimate."""
    labels, rule = data.training, settings.threshold
    audited = labels.audited if settings.prior is None else None
    given = settings.prior if audited is None else audited.likeliest
    linear, distillation = _trained(data, settings, given, progress)
    chosen = distillation if distillation is not None and distillation.evidence.weight else linear
    margins, unlabelled = chosen.margins, chosen.margins[labels.s == 0]
    final = data.design.margins(chosen.head)[:, 0]
    count = data.label_count
    effect = _design_effect(data, margins, count, linear.fold)
    prior, prior_estimate, audited, sources = _estimate_prior(labels, margins, count, given, audited, effect)
    of_figures = labels.with_confirmed(margins, prior, audited)  # margins, s and weights of positives and unlabelled
    of_posteriors = count
    if of_figures is not None:  # confirmed positives count for posteriors, and not for figures by the labels
        confirmed = LabelCount.of(labels.training_s, groups=data.rows.together, weights=labels.weights)
        of_posteriors = replace(count, labels=confirmed.labels)
    of_figures = of_figures or (margins, labels.s, labels.weights)
    n_labelled = int(labels.s.sum())
    n_unlabelled = len(unlabelled) if data.rows.sample is None else data.rows.sample.unlabelled
    share = settings.deploy_prior or _deployed_share(prior, n_labelled, n_unlabelled)
    tilt = fit_tilt(*of_figures, prior)
    # with less than one hidden positive expected, posteriors have nothing to sum to
    sum_to = prior if prior * len(unlabelled) >= 1 else None
    few: dict[str, float] = {} if of_posteriors.has_estimates else {"near": prior}
    is_unsure = not of_posteriors.has_points or sum_to is None
    if is_unsure and given is None and settings.deploy_prior is None:
        few["most"] = float(np.median(margins[labels.s == 1]))
    threshold = choose_threshold(tilt, unlabelled, rule, share, **few)
    stated_by = tilt if sum_to is None else stated_tilt(*of_figures, prior=sum_to, design_effect=effect)
    prior_range = (prior, prior) if prior_estimate is None else (prior_estimate.low, prior_estimate.high)
    is_known = audited is not None or prior_estimate is None or prior_estimate.prior is not None
    known: dict[str, Any] = {"labels": count, "prior_range": prior_range if is_known else None, "threshold": threshold}
    known |= {"prior": prior, "design_effect": effect, "seed": settings.heads.seed}
    # on the scale of the final head as many rows are above the threshold as it calls positive
    figures = Figures.of(on_one_scale(margins, final, labels.s), labels.s, **known)
    if audited is not None:
        pile = ReviewedPile(unlabelled, labels.decided, audited, prior, tilt)
        # rows are unknown to the heads that give their held-out margins, as new images are to the final head
        by_labels = Figures.of(margins, labels.s, **known)["recall"] if sources == COMBINED else Estimate()
        of_new_images = pile.of_new_images(unlabelled > threshold, by_labels, effect)
        of_pile = pile.figures(final[labels.s == 0] > threshold)
        figures = figures.reviewed(of_pile, of_new_images, draws=audited.hidden.draws, sources=sources)
    elif labels.confirmed_weight:
        figures = figures.reviewed({}, {}, draws=0, sources=NO_IMAGES)
    figures = figures.with_prior(prior_estimate)
    figures = replace(
        figures,
        labels=of_posteriors,
        counted={"risk": float(chosen.head.risk[0]), "clamped": float(chosen.head.clamped[0]), **figures.counted},
        assumed_prior=prior if settings.prior is None and not of_posteriors.has_estimates else None,
        design_effect=None if data.rows.group is None else effect,
    )
    figures = _agreeing(figures, settings.prior)
    estimated = None if figures.prior is None else figures.prior.prior
    return TrainedState(
        coef_=chosen.head.coef[:1],
        intercept_=np.array(chosen.head.intercept[:1], np.float64),
        threshold_=threshold,
        prior_=estimated if settings.prior is None else prior,
        share_=share,
        penalty_=linear.penalty,
        seed_=settings.heads.seed,
        tilt_=stated_by,
        figures_=figures,
        n_labelled_=n_labelled,
        n_unlabelled_=n_unlabelled,
        n_confirmed_=int((labels.training_s > labels.s).sum()),
        n_negatives_=int(labels.known_negative.sum()),
        unlabelled_sample_=data.rows.sample,
        classes_=np.array([0, 1], np.int8),
        encoder_=None if data.rows.cache is None else data.rows.cache.encoder,
        neighbours_=None
        if distillation is None
        else _neighbour_settings(distillation, given, rule, share, sum_to, effect),
        method_="linear" if chosen is linear else "distilled",
        n_groups_=None if data.rows.group is None else len(np.unique(data.rows.group)),
        pile_margins_=PileMargins.of(*of_figures, given, effect),
        pile_sample_=_pile_sample(data, margins, final, settings.heads.seed),
        fold_coef_=chosen.fold_heads.coef,
        fold_intercept_=chosen.fold_heads.intercept,
        held_out_margins_=margins,
        classifier_margins_=linear.margins,
    )


def _trained(
    data: TrainingSet, settings: TrainingSettings, given: float | None, progress: Progress | None
) -> tuple[CrossFit, Distillation | None]:
    """The linear heads at the best penalty, and what is distilled from them where neighbours are looked at."""
    labels, seed = data.training, settings.heads.seed
    with progress or Silent() as stages:
        stages.start(_STAGES, "training")
        deals = deal_folds(labels.training_s, settings.n_folds, seed, data.rows.together)
        fitter = CrossFitter(data.design, labels, deals, _training_prior(data, deals, given, settings), settings.heads)
        stages.advance(1)
        halves = _halves(data, deals, seed) if settings.method == "distilled" else None
        linear = fitter.cross_fit(settings.penalties, halves)
        stages.advance(1)
        distillation = None if halves is None else _distil(data, linear, halves, given)
        stages.advance(1)
    return linear, distillation


def _agreeing(figures: Figures, given: float | None) -> Figures:
    """Say where the interval of PAUC covers that of chance, or lies above what a given prior allows.

    An unlabelled row is positive with the prior's probability, and then ranks above a labelled one half of the time.
    Figures that depend on a prior that is too large are left out.
    """
    if (interval := figures["pauc"].interval) is None:
        return figures
    if given is not None and interval[0] > (most := 1 - given / 2):
        log.warning(
            "the given prior, %.4g, is too large for these labels: with it the AUC of labelled against unlabelled is "
            "at most %.2f, and it is %.2f to %.2f; give a smaller one, or none",
            *(given, most, *interval),
        )
        figures = figures.without_prior()
    if interval[0] <= _CHANCE:
        log.warning(
            "held-out ranking is no better than chance (AUC of labelled against unlabelled %.2f to %.2f, chance has "
            "%.1f): look whether the labels are of these rows, whether a few columns outweigh the others, and whether "
            "the labelled look alike",
            *(*interval, _CHANCE),
        )
    return figures


def _pile_sample(data: TrainingSet, margins: np.ndarray, final: np.ndarray, seed: int) -> PileSample:
    """Draw labelled and unlabelled rows, with which new images are compared, and their held-out margins.

    `final` (n,) are the margins of all rows by the head of all rows.
    """
    labels, generator, drawn = data.training, np.random.default_rng(seed), []
    for value, most in ((1, MOST_POSITIVES), (0, MOST_ROWS - min(MOST_POSITIVES, int(labels.s.sum())))):
        weights = (labels.s == value) * (1.0 if labels.weights is None else labels.weights.astype(np.float64))
        size = min(most, int(np.count_nonzero(weights)))
        drawn.append(np.sort(generator.choice(len(weights), size, replace=False, p=weights / weights.sum())))
    q = min(64, MOST_BYTES // (2 * (data.design.d + MOST_ROWS)))
    moments, leading = data.design.moments, data.design.leading
    directions = leading.directions.cpu().numpy()[:, ::-1][:, :q].astype(np.float16)
    middle = moments.centre + moments.spread * leading.centre.cpu().numpy()
    centre = middle @ directions.astype(np.float32)
    X = np.concatenate([take_rows(data.design.X, numbers) for numbers in drawn])
    return PileSample(
        directions=np.ascontiguousarray(directions),
        centre=centre,
        spread=moments.spread,
        rows=along(X, directions, centre, moments.spread).astype(np.float16),
        margins=margins[np.concatenate(drawn)],
        n_labelled=len(drawn[0]),
        held_out_distance=greatest_distance(margins[labels.s == 0], final[labels.s == 0]),
        fingerprints=fingerprints(X),
    )


def _training_prior(data: TrainingSet, deals: np.ndarray, given: float | None, settings: TrainingSettings) -> float:
    """Prior that the risk is minimised with; where none is given, by heads of the default risk, which needs none."""
    labels, prior = data.training, given
    if prior is not None:
        labels.check(prior)
    elif settings.heads.risk.needs_prior:
        default = CrossFitter(data.design, labels, deals, settings=HeadSettings(seed=settings.heads.seed)).cross_fit()
        prior = estimate(default.margins, labels.s, labels.weights, bounds=labels.bounds)
    return labels.training_prior(prior) if prior else 0.5


def _halves(data: TrainingSet, deals: np.ndarray, seed: int) -> np.ndarray | None:
    """Halves of the labels, by which neighbours are judged; None where they are too few, or no chain sees one."""
    labels, groups = data.training, data.rows.together
    weighted = np.ones(len(deals), bool) if labels.weights is None else labels.weights > 0
    positives = np.flatnonzero((labels.training_s == 1) & weighted)
    different = len(positives) if groups is None else len(np.unique(groups[positives]))
    if different < LEAST_POSITIVES or any(len(np.unique(fold)) < 2 for fold in deals[(labels.s == 1) & weighted].T):
        return None
    return halves_of(labels, groups, seed)


def _distil(data: TrainingSet, linear: CrossFit, halves: np.ndarray, given: float | None) -> Distillation | None:
    """Distil the linear head, with the evidence on what neighbours are worth.

    None after a review that left few positives hidden: the margins of the pile then follow from known neighbours, and
    threshold and precision would not hold for new images.
    """
    labels = data.training
    tilt = fit_tilt(linear.margins, labels.s, labels.weights, given)
    if labels.confirmed_weight and labels.hidden(tilt.prior) < _LEAST_HIDDEN * labels.known_positive_weight:
        return None
    sampled = DistillationRows.of(data.design, labels, linear.fold, data.rows.graph, data.rows.labelled)
    margins = sampled.design.margins(linear.of_halves)
    agreement = agreement_gain(margins, sampled.take(halves), sampled.labels, sampled.graph, prior=tilt.prior)
    count = LabelCount.of(labels.training_s, groups=data.rows.group, weights=labels.training_weights)
    return distil(sampled, data.design, linear, tilt, agreement, count.labels)


def _neighbour_settings(
    distillation: Distillation,
    given: float | None,
    rule: float | str,
    share: float,
    sum_to: float | None,
    effect: float,
) -> NeighbourSettings:
    """Calibrate the scores with neighbours; None for `sum_to` where no posterior is stated."""
    labels, scores = distillation.sampled.labels, distillation.scores
    tilt = fit_tilt(scores, labels.s, labels.weights, given)
    return NeighbourSettings(
        evidence=distillation.evidence,
        weight=distillation.evidence.weight,
        search=distillation.sampled.graph.search,
        share=distillation.share,
        tilt=tilt
        if sum_to is None
        else stated_tilt(scores, labels.s, labels.weights, prior=sum_to, design_effect=effect),
        threshold=choose_threshold(tilt, scores[labels.s == 0], rule, share),
    )


def _design_effect(data: TrainingSet, margins: np.ndarray, count: LabelCount, fold: np.ndarray) -> float:
    """Rows that are worth an independent one; 1 without groups, and where the labels are too few for estimates."""
    labels, groups = data.training, data.rows.group
    if groups is None:
        return 1.0
    if count.labels == 1 < labels.s.sum():
        log.warning(
            "all %d labelled positives are of one group and count as one label: label positives of other groups",
            labels.s.sum(),
        )
    return design_effect(margins, labels.s, labels.weights, groups, fold) if count.has_estimates else 1.0


def _estimate_prior(
    labels: TrainingLabels,
    margins: np.ndarray,
    count: LabelCount,
    given: float | None,
    audited: AuditedPrior | None,
    effect: float,
) -> tuple[float, PriorEstimate | None, AuditedPrior | None, str]:
    """The prior as given, by audit and labels, from held-out margins, or assumed where the labels are too few.

    Also the audit, as the labels narrow it, and what the figures then rest on.
    """
    prior, estimated, sources = given, None, ""
    if (prior is None or audited is not None) and count.has_estimates:
        most = np.inf if effect == 1 else count.labels
        grouped: dict[str, float] = {"design_effect": effect, "most_labels": most}
        bounds = labels.interval_bounds
        found = profile_interval(margins, labels.s, weights=labels.weights, bounds=bounds, **grouped)
        estimated = labels.within_review(found)
        prior = estimated.prior
    elif prior is None:
        prior = float(np.clip(ASSUMED_PRIOR, *labels.bounds))
    assert prior is not None  # an estimate lacks its number only once it is stated
    if audited is None:
        estimated = None if estimated is None else labels.stated(estimated)
    else:
        audited, sources = audited.combined(estimated, has_points=count.has_points)
        estimated = audited.estimate(audited.likeliest or prior)
        prior = estimated.prior or prior
        estimated = estimated if audited.likeliest is not None else replace(estimated, prior=None)
    return float(prior), estimated, audited, sources


def _deployed_share(prior: float, n_labelled: int, n_unlabelled: int) -> float:
    """The prior; where it means less than one hidden positive, the unlabelled are negatives and all rows count."""
    if prior * n_unlabelled >= 1:
        return prior
    labelled_share = n_labelled / (n_labelled + n_unlabelled)
    return labelled_share + (1 - labelled_share) * prior
