"""How a classifier comes of positive and unlabelled rows: penalty, prior and head, in that order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..heads.design_matrix import Moments
from ..heads.fit import FittedHeads, Protocol, fit_heads
from ..heads.full_batch import TOLERANCE
from ..heads.risks import PURisk
from ..progress import Progress
from .cross_fitting import CrossFit, CrossFitter
from .folds import deal
from .priors import PriorEstimate, estimate, interval
from .review_weights import TrainingLabels

_STAGES = 4


@dataclass(frozen=True)
class Plan:
    """What to train; the fields are parameters of `pucache.PULinearClassifier`, the risk put together."""

    risk: PURisk
    prior: float | None
    penalty: float | str
    solver: str
    protocol: Protocol | None
    n_folds: int
    draws: int
    seed: int
    device: str


@dataclass(frozen=True)
class Fit:
    """What came of a plan.

    Attributes
    ----------
    head : FittedHeads
        One head, of all rows.
    held_out : ndarray of float32, (n,)
        Margin of each row by a head that did not see it.
    penalty, prior : float
    estimate : PriorEstimate or None
        None where the prior was given.
    """

    head: FittedHeads
    held_out: np.ndarray
    penalty: float
    prior: float
    estimate: PriorEstimate | None


def fit(
    X: np.ndarray,
    known: TrainingLabels,
    group: np.ndarray | None,
    plan: Plan,
    progress: Progress,
) -> Fit:
    """Carry out a plan on rows X, (n, d), with what is known of them, and groups, (n,)."""
    progress.start(_STAGES, "training")
    common: dict[str, Any] = {"moments": Moments.of(X), "seed": plan.seed, "device": plan.device}
    fold = deal(known.trained, plan.n_folds, plan.seed, group)
    told = plan.prior
    if told is not None:
        known.check(told)
    if told is None and plan.risk.needs_prior:
        free = CrossFitter(X, known, fold, risk=PURisk(), prior=0.5, **common).choose()
        told = estimate(free.margins, known.s, weights=known.weights, bounds=known.bounds)
    prior = known.training_prior(told) if told else 0.5
    common |= {"risk": plan.risk, "prior": prior, "solver": plan.solver, "protocol": plan.protocol}
    progress.advance(1)
    fitter = CrossFitter(X, known, fold, **common)
    fitted = _at_the_penalty(fitter, plan)
    progress.advance(1)
    estimated = None if plan.prior is not None else _estimate(fitter, fitted, known, plan)
    progress.advance(1)
    head = fit_heads(
        X,
        known.trained,
        weights=None if known.training_weights is None else known.training_weights[:, None],
        penalty=fitted.penalty,
        start=_mean(fitted.heads) if plan.solver == "batch" else None,
        **common,
    )
    progress.advance(1)
    found = plan.prior if estimated is None else estimated.prior
    return Fit(head, fitted.margins, fitted.penalty, float(found or 0.0), estimated)


def _at_the_penalty(fitter: CrossFitter, plan: Plan) -> CrossFit:
    if plan.penalty == "auto" and plan.solver == "batch":
        return fitter.choose()
    penalty = 0.0 if plan.penalty == "auto" else float(plan.penalty)  # the authors' protocol has none
    return fitter.at((penalty,), tolerance=TOLERANCE)[0]


def _estimate(fitter: CrossFitter, fitted: CrossFit, known: TrainingLabels, plan: Plan) -> PriorEstimate:
    bounds = known.bounds
    prior = estimate(fitted.margins, known.s, weights=known.weights, bounds=bounds)
    draws = fitter.resampled(fitted, plan.draws, plan.seed)
    drawn = [estimate(draw.margins, draw.s, weights=draw.weights, bounds=bounds) for draw in draws]
    return interval("tilt", prior, np.array(drawn), bounds=bounds)


def _mean(heads: FittedHeads) -> FittedHeads:
    """One head in the middle of several, to start from."""
    first = heads.take([0])
    coef, intercept = heads.coef.mean(0, keepdims=True), heads.intercept.mean(0, keepdims=True)
    return FittedHeads(coef, intercept, first.risk, first.clamped, first.residual, heads.passes)
