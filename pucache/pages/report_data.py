"""Data of the report: labels, a trained and a ranking model, estimates of the prior and a sweep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..estimates.intervals import prior_range, stated_estimates
from ..estimates.label_requirements import LabelCount
from ..estimates.priors import PriorEstimate
from ..estimates.scar import ScarCheck
from ..heads.risks import PURisk
from ..labels.near_duplicates import unlabelled_twins
from ..progress import Progress
from ..training.estimate_prior import estimate_prior_on, estimates_from_margins
from ..training.labelled_cache import LabelledCache
from ..training.prior_sweep import Sweep, sweep_on
from ..training.sklearn_classifier import PULinearClassifier
from ..training.train_on_cache import is_audited, scar_of, train_on_cache
from .report_statistics import HeldOut

_COEF_TOLERANCE = 5e-3  # relative distance of equal models; processors round differently


@dataclass(frozen=True)
class ReportData:
    """Data of the report, from which its numbers, charts and galleries are computed.

    Attributes
    ----------
    data : LabelledCache
    trained : PULinearClassifier
        Trained on `data` for the report, with a held-out margin for each row.
    ranker : PULinearClassifier
        Ranks the unlabelled images: the model passed to `report`, or `trained`.
    margins : ndarray of float32, (n,)
        Margins by `ranker`.
    count : LabelCount
        Number of labels, which says what may be estimated.
    prior_estimates : list of PriorEstimate
        One per method; the first is that of the tilt. Empty where the labels are too few.
    sweep : Sweep or None
        None where the labels are too few.
    truth : ndarray of int8, (n,), or None
        True class: 1, 0, or -1 where it is unknown.
    """

    data: LabelledCache
    trained: PULinearClassifier
    ranker: PULinearClassifier
    margins: np.ndarray
    count: LabelCount
    prior_estimates: list[PriorEstimate]
    sweep: Sweep | None
    truth: np.ndarray | None

    @cached_property
    def labelled(self) -> np.ndarray:
        """Rows of labelled positives, int64, ascending."""
        return np.flatnonzero(self.data.s == 1)

    @cached_property
    def unlabelled(self) -> np.ndarray:
        """Rows that are not labelled, int64, ascending, reviewed rows included; the estimates are about these."""
        return np.flatnonzero(self.data.s == 0)

    @cached_property
    def twins(self) -> tuple[np.ndarray, np.ndarray]:
        """Unlabelled rows that show the same picture as a labelled positive, and that positive's row."""
        return _undecided_twins(self.data)

    @cached_property
    def held_out(self) -> HeldOut:
        """Held-out margins, with the truth of the unlabelled rows."""
        margins = self.trained.held_out_margins_
        return HeldOut(
            positive=margins[self.labelled],
            unlabelled=margins[self.unlabelled],
            tilt=self.trained.tilt_,
            threshold=self.trained.threshold_,
            truth=None if self.truth is None else self.truth[self.unlabelled],
        )

    @cached_property
    def scar(self) -> ScarCheck:
        """Comparison of the labelled positives with the likely ones."""
        return scar_of(self.data, self.trained)

    @property
    def has_held_out(self) -> bool:
        """Whether rows could be held out; this needs two labelled and two unlabelled pictures."""
        return min(len(np.unique(self.data.group[rows])) for rows in (self.labelled, self.unlabelled)) > 1

    @property
    def prior_interval(self) -> tuple[float, float] | None:
        """Interval of the prior; None if the prior is a parameter, there is no interval, or it lies outside."""
        if self.trained.prior_estimate_ is not None and is_audited(self.trained):
            return self.trained.prior_estimate_.low, self.trained.prior_estimate_.high
        if not self.prior_estimates or self.trained.prior is not None:
            return None
        tilt, prior = self.prior_estimates[0], self.trained.prior_
        valid = prior_range(prior, tilt) is not None and tilt.low <= prior <= tilt.high
        return (tilt.low, tilt.high) if valid else None

    @cached_property
    def estimates(self) -> dict[str, Any]:
        """`PULinearClassifier.estimates_`, with intervals that rest on `prior_interval`."""
        if is_audited(self.trained):
            return self.trained.estimates_
        trained, interval = self.trained, self.prior_interval
        if trained.prior is not None:
            interval = trained.prior, trained.prior
        stated = stated_estimates(
            trained.held_out_margins_,
            self.data.s,
            labels=self.count,
            prior=trained.prior_,
            prior_range=interval,
            threshold=trained.threshold_,
            seed=trained.seed,
        )
        return {name: trained.estimates_[name] for name in ("risk", "clamped")} | stated

    @property
    def trained_on_other_labels(self) -> bool:
        """Whether `ranker` was trained on other labels or another cache."""
        ranker, trained = self.ranker, self.trained
        if (ranker.n_labelled_, ranker.n_unlabelled_) != (trained.n_labelled_, trained.n_unlabelled_):
            return True
        distance = np.linalg.norm(ranker.coef_ - trained.coef_)
        return bool(distance > _COEF_TOLERANCE * np.linalg.norm(trained.coef_))

    def posterior(self, rows: np.ndarray) -> np.ndarray:
        """Probability of being positive, (m,): held out for labelled rows, by `ranker` for the others."""
        by_ranker = self.ranker.tilt_.posterior(self.margins[rows])
        held_out = self.trained.tilt_.posterior(self.trained.held_out_margins_[rows])
        return np.where(self.data.s[rows] == 1, held_out, by_ranker)

    def margins_of(self, rows: np.ndarray) -> np.ndarray:
        """Margins, (m,): held out for labelled rows, by `ranker` for the others."""
        return np.where(self.data.s[rows] == 1, self.trained.held_out_margins_[rows], self.margins[rows])

    @cached_property
    def ranked(self) -> np.ndarray:
        """Undecided rows without twins of positives, by falling margin; int64."""
        return _ranked(self.data, self.margins)


def prepare(
    data: LabelledCache,
    model: PULinearClassifier | None,
    *,
    truth: np.ndarray | None,
    seed: int,
    device: str,
    progress: Progress | None,
    on_ranked: Callable[[np.ndarray], None] | None = None,
) -> ReportData:
    """Train with the parameters of `model`, estimate the prior by each method, and sweep over priors.

    Parameters
    ----------
    data : LabelledCache
    model : PULinearClassifier or None
        None: train at the defaults, with `seed`.
    truth : ndarray of int8, (n,), or None
    seed : int
    device : str
    progress : Progress or None
    on_ranked : callable, optional
        Called with `ReportData.ranked` as soon as it is known: before the training if there is a model, after it
        otherwise.
    """

    def rank(ranker: PULinearClassifier) -> np.ndarray:
        margins = _margins(ranker, data)
        if on_ranked:
            on_ranked(_ranked(data, margins))
        return margins

    parameters = {"seed": seed} if model is None else model.get_params(deep=False)
    trained = PULinearClassifier(**parameters | {"device": device})
    margins = None if model is None else rank(model)
    train_on_cache(trained, data, progress=progress)
    if margins is None:
        margins = rank(trained)
    count = LabelCount.of(data.s, groups=data.group)
    prior_estimates, sweep = [], None
    if count.has_estimates:
        prior_estimates = _prior_estimates(data, trained, progress)
        sweep = _sweep(data, trained, truth, progress)
    data.release()
    return ReportData(
        data=data,
        trained=trained,
        ranker=model or trained,
        margins=margins,
        count=count,
        prior_estimates=prior_estimates,
        sweep=sweep,
        truth=truth,
    )


def _sweep(
    data: LabelledCache, trained: PULinearClassifier, truth: np.ndarray | None, progress: Progress | None
) -> Sweep:
    at_its_penalty = PULinearClassifier(**trained.get_params() | {"penalty": trained.penalty_})
    return sweep_on(
        data,
        at_its_penalty,
        seeds=(trained.seed,),
        truth=truth if truth is not None and _has_both_classes(truth, data.s) else None,
        progress=progress,
    )


def _undecided_twins(data: LabelledCache) -> tuple[np.ndarray, np.ndarray]:
    """Undecided rows that show the same picture as a positive, and that positive's row."""
    rows, labelled_rows = unlabelled_twins(data.group, data.labels.positive)
    undecided = data.labels.unlabelled[rows]
    return rows[undecided], labelled_rows[undecided]


def _ranked(data: LabelledCache, margins: np.ndarray) -> np.ndarray:
    """Undecided rows without twins of positives, by falling margin; int64."""
    twins, _ = _undecided_twins(data)
    candidates = np.setdiff1d(np.flatnonzero(data.labels.unlabelled), twins, assume_unique=True)
    return candidates[np.argsort(-margins[candidates], kind="stable")]


def _prior_estimates(data: LabelledCache, model: PULinearClassifier, progress: Progress | None) -> list[PriorEstimate]:
    """Estimate the prior by each method; reuse the cross-fit of the training if it has the default risk."""
    if not _is_default_cross_fit(model):
        return estimate_prior_on(data, n_folds=model.n_folds, seed=model.seed, device=model.device, progress=progress)
    return estimates_from_margins(data, model.held_out_margins_)


def _is_default_cross_fit(model: PULinearClassifier) -> bool:
    """Whether training cross-fits as `estimate_prior_on` does."""
    risk = PURisk(model.loss, model.surrogate, target_prior=model.target_prior)
    return risk == PURisk() and model.prior is None and model.solver == "batch" and model.penalty == "auto"


def _has_both_classes(truth: np.ndarray, s: np.ndarray) -> bool:
    """Whether the unlabelled rows hold both true classes, without which there is no true curve."""
    unlabelled_truth = truth[s == 0]
    return bool((unlabelled_truth == 1).any() and (unlabelled_truth == 0).any())


def _margins(model: PULinearClassifier, data: LabelledCache) -> np.ndarray:
    if data.sampled is not None:
        model.check_fits(data.cache)
        return model.margins(data.X)
    margins = np.empty(len(data.s), np.float32)
    for rows, block in model.margins_of(data.cache):
        margins[rows] = block
    return margins
