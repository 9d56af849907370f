"""Numbers on the report page; their names are the keys of ``pucache report --json``."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..estimates.intervals import interval_of
from ..estimates.label_requirements import LabelCount
from ..estimates.metrics import with_labels
from ..estimates.priors import PriorEstimate
from ..training.train_on_cache import is_audited, label_note, stated_prior
from . import report_statistics
from .report_data import ReportData

FAILURE_REASONS = 10  # most frequent reasons listed


@dataclass(frozen=True)
class Failures:
    """Images that could not be read: their number, and the number for each of the most frequent reasons."""

    count: int
    reasons: dict[str, int]


@dataclass(frozen=True)
class Duplicates:
    """Groups of images that show the same picture, and images beyond the first of each group."""

    groups: int
    copies: int


@dataclass(frozen=True)
class Reviewed:
    """Reviewed images: confirmed positives and known negatives."""

    confirmed: int
    negative: int


@dataclass(frozen=True)
class HiddenPositives:
    """Positives expected beyond the known ones, with the interval if there is one.

    `expected` is None where the labels are too few for a single figure.
    """

    expected: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Intervals:
    """Intervals of the figures at the threshold and of the ranking; None if there is none."""

    recall: list[float] | None
    precision: list[float] | None
    f1: list[float] | None
    auc: list[float] | None


@dataclass(frozen=True)
class ModelNumbers:
    """Threshold and penalty of the training; whether the ranking model was trained on other labels."""

    threshold: float
    penalty: float
    trained_on_other_labels: bool


@dataclass(frozen=True)
class Charts:
    """Values of the charts, see `pucache.pages.report_statistics`; `sweep` has a dict for each prior.

    Charts of estimates are empty where the labels are too few for them.
    """

    margins: dict[str, list[float]]
    precision_recall: dict[str, dict[str, Any]]
    reliability: dict[str, list[float]]
    sweep: list[dict[str, Any]]


@dataclass(frozen=True)
class Pictures:
    """Thumbnails of the galleries: requested, missing, and the count per reason, the most frequent first."""

    asked: int
    missing: int
    problems: dict[str, int]


@dataclass(frozen=True)
class MapNumbers:
    """The map: images shown, share of the variance explained, and shares of likely positives.

    `near_labelled` is the share among the neighbours of labelled positives, `everywhere` that among all images; both
    are None where the labels are too few for estimates.
    """

    shown: int
    explained: float
    near_labelled: float | None
    everywhere: float | None


@dataclass(frozen=True)
class TrainingNumbers:
    """Numbers of the labels, the training and its estimates.

    Attributes
    ----------
    images, labelled, unlabelled : int
        Reviewed images are among the unlabelled.
    unlabelled_sample : dict or None
        Fields of `pucache.labels.sample.UnlabelledSample`; pictures, charts and duplicates are of the sample
        and the labelled positives then. None where all unlabelled images were trained on.
    labels : int
        Different pictures that are labelled; they decide what may be estimated.
    note : str
        What is not estimated because the labels are too few; "" where nothing is left out.
    failures : Failures
    duplicates : Duplicates
    reviewed : Reviewed
    twins_found : int
        Undecided images that show the same picture as a positive.
    scar : dict
        `ScarCheck.to_dict`.
    doubted : int
        Labelled positives at or below the threshold.
    prior : float or None
        None where the labels are too few for a single figure.
    prior_told : bool
        Whether the prior is a parameter of the model rather than estimated.
    prior_estimates : dict of str to dict
        By method; without intervals and single figures that the labels are too few for.
    hidden_positives : HiddenPositives
    audit_draws : int
        Images drawn at random in a review, on which prior, hidden positives, recall, precision and F1 then rest; 0
        where they rest on the labelled positives.
    held_out : bool
        Whether any row could be held out.
    intervals : Intervals
    true_prior : float or None
    estimates : dict
        As `PULinearClassifier.estimates_`.
    true, true_by_model : dict or None
        True metrics of the held-out margins, and of the ranking model if it was trained on other labels.
    model : ModelNumbers
    sweep_verdict : str
        "" where there is no sweep.
    figures : Charts
    """

    images: int
    labelled: int
    unlabelled: int
    unlabelled_sample: dict[str, Any] | None
    labels: int
    note: str
    failures: Failures
    duplicates: Duplicates
    reviewed: Reviewed
    twins_found: int
    scar: dict[str, Any]
    doubted: int
    prior: float | None
    prior_told: bool
    prior_estimates: dict[str, dict[str, Any]]
    hidden_positives: HiddenPositives
    audit_draws: int
    held_out: bool
    intervals: Intervals
    true_prior: float | None
    estimates: dict[str, Any]
    true: dict[str, float] | None
    true_by_model: dict[str, float] | None
    model: ModelNumbers
    sweep_verdict: str
    figures: Charts

    @property
    def count(self) -> LabelCount:
        """Number of labels, which says what may be estimated."""
        return LabelCount(self.labels)


@dataclass(frozen=True)
class ReportNumbers(TrainingNumbers):
    """All numbers on the page.

    Attributes
    ----------
    pictures : Pictures
    map : MapNumbers
    provenance : dict
        See `pucache.pages.provenance`.
    warnings : list of str
    """

    pictures: Pictures
    map: MapNumbers
    provenance: dict[str, Any]
    warnings: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Nested dicts, for JSON."""
        return asdict(self)


def training_numbers(report: ReportData) -> TrainingNumbers:
    """Numbers of the labels, the training and its estimates."""
    data, trained, held_out = report.data, report.trained, report.held_out
    failures, true, reviewed = data.cache.failures, held_out.true(), data.labels.reviewed
    _, group_sizes = np.unique(data.group, return_counts=True)
    return TrainingNumbers(
        images=len(data.cache),
        labelled=len(report.labelled),
        unlabelled=data.n_unlabelled,
        unlabelled_sample=None if data.sample is None else data.sample.to_json(),
        labels=report.count.labels,
        note=label_note(trained, report.count),
        failures=Failures(count=len(failures), reasons=dict(Counter(failures.values()).most_common(FAILURE_REASONS))),
        duplicates=Duplicates(groups=int((group_sizes > 1).sum()), copies=int((group_sizes - 1).sum())),
        reviewed=Reviewed(confirmed=int((reviewed == 1).sum()), negative=int((reviewed == -1).sum())),
        twins_found=len(report.twins[0]),
        scar=report.scar.to_dict(),
        doubted=int((held_out.positive <= held_out.threshold).sum()),
        prior=stated_prior(trained, report.count)[0],
        prior_told=trained.prior is not None,
        prior_estimates={estimate.method: _stated(estimate, report.count) for estimate in report.prior_estimates},
        hidden_positives=_hidden_positives(report),
        audit_draws=_audit_draws(report),
        held_out=report.has_held_out,
        intervals=_intervals(report.estimates),
        true_prior=None if true is None else true["n_positive"] / true["n"],
        estimates=report.estimates,
        true=true,
        true_by_model=_true_by_model(report),
        model=ModelNumbers(
            threshold=trained.threshold_,
            penalty=trained.penalty_,
            trained_on_other_labels=report.trained_on_other_labels,
        ),
        sweep_verdict="" if report.sweep is None else report.sweep.verdict,
        figures=_charts(report),
    )


def _charts(report: ReportData) -> Charts:
    held_out, points = report.held_out, report.count.has_points
    margins = report_statistics.margin_histogram(held_out)
    if not points:
        del margins["expected"]
    return Charts(
        margins=margins,
        precision_recall=report_statistics.precision_recall(held_out) if points else {},
        reliability=report_statistics.reliability(held_out) if points else {},
        sweep=[] if report.sweep is None else report.sweep.rows,
    )


def _stated(estimate: PriorEstimate, count: LabelCount) -> dict[str, Any]:
    """Fields of an estimate, without the single figure where the labels are too few for it."""
    return asdict(estimate) if count.has_points else asdict(estimate) | {"prior": None}


def _hidden_positives(report: ReportData) -> HiddenPositives:
    confirmed = int((report.data.labels.reviewed == 1).sum())

    def count(share: float) -> float:
        return max(0.0, share * report.data.n_unlabelled - confirmed)

    low, high = (None, None) if report.prior_interval is None else map(count, report.prior_interval)
    prior, _ = stated_prior(report.trained, report.count)
    return HiddenPositives(expected=None if prior is None else count(prior), low=low, high=high)


def _audit_draws(report: ReportData) -> int:
    estimate = report.trained.prior_estimate_
    return estimate.draws if estimate is not None and is_audited(report.trained) else 0


def _intervals(estimates: dict[str, Any]) -> Intervals:
    ends = {name: interval_of(estimates, name) for name in ("recall", "precision", "f1", "auc")}
    return Intervals(**{name: None if interval is None else list(interval) for name, interval in ends.items()})


def _true_by_model(report: ReportData) -> dict[str, float] | None:
    """True metrics of the ranking model, if it was trained on other labels."""
    if report.truth is None or not report.trained_on_other_labels:
        return None
    rows = report.unlabelled[report.truth[report.unlabelled] >= 0]
    if not len(rows):
        return None
    margins = report.margins[rows]
    return with_labels(report.truth[rows], margins, (margins > report.ranker.threshold_).astype(int))
