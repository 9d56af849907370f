"""Numbers on the report page: the training, its estimates, and one dict of them for page and JSON."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..cache.writer import creation_time
from ..estimates.audited_prior import METHOD as AUDIT
from ..estimates.calibration import fit_tilt
from ..estimates.figures import Figures
from ..estimates.label_requirements import LabelCount
from ..estimates.priors import PriorEstimate
from ..estimates.scar import ScarCheck
from ..labels.labels import LOOK_AGAIN, PULabels
from ..labels.near_duplicates import unlabelled_twins
from ..progress import Progress
from ..storage.urls import without_secrets
from ..training.estimate_prior import prior_by_labels
from ..training.sklearn_classifier import PULinearClassifier
from ..training.training_set import TrainingSet
from ..version import __version__
from .charts import HeldOut, margin_histogram, precision_recall, reliability

_COEF_TOLERANCE = 5e-3  # relative distance of equal models; processors round differently
_FAILURE_REASONS = 10  # most frequent reasons listed
_PACKAGES = ("numpy", "torch", "scikit-learn", "scipy", "matplotlib")
_FAISS = ("faiss-gpu", "faiss-cpu")


@dataclass(frozen=True)
class TrainedReport:
    """What numbers, charts and galleries are computed from."""

    data: TrainingSet
    trained: PULinearClassifier  # on `data` for the report, with a held-out margin for each row
    ranker: PULinearClassifier  # ranks the unlabelled images: the model passed to `report`, or `trained`
    margins: np.ndarray  # by `ranker`, float32 (n,)
    count: LabelCount  # says what may be estimated
    prior_estimates: list[PriorEstimate]  # by the labels; empty where they are too few
    truth: np.ndarray | None  # class, int8 (n,): 1, 0, or -1 where it is unknown

    @cached_property
    def labelled(self) -> np.ndarray:
        """Rows of labelled positives, int64, ascending."""
        return np.flatnonzero(self.data.labels.s == 1)

    @cached_property
    def unlabelled(self) -> np.ndarray:
        """Rows that are not labelled, int64, ascending, reviewed rows included; the estimates are about these."""
        return np.flatnonzero(self.data.labels.s == 0)

    @cached_property
    def look_again(self) -> np.ndarray:
        """Labelled and reviewed rows that a training without them contradicts, at most 20, worst first; int64."""
        margins = self.trained.held_out_margins_
        posterior = self.trained.tilt_.posterior(margins)
        return self.data.labels.contradicted(margins > self.trained.threshold_, posterior)[:LOOK_AGAIN]

    @cached_property
    def twins(self) -> tuple[np.ndarray, np.ndarray]:
        """Undecided rows that show the same picture as a positive, and that positive's row."""
        rows, labelled_rows = unlabelled_twins(self.data.twin, self.data.labels.positive)
        undecided = self.data.labels.unlabelled[rows]
        return rows[undecided], labelled_rows[undecided]

    @cached_property
    def ranked(self) -> np.ndarray:
        """Undecided rows without twins of positives, by falling margin; int64."""
        undecided = np.flatnonzero(self.data.labels.unlabelled)
        candidates = np.setdiff1d(undecided, self.twins[0], assume_unique=True)
        return candidates[np.argsort(-self.margins[candidates], kind="stable")]

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
        return self.data.scar(self.trained)

    @property
    def prior_interval(self) -> tuple[float, float] | None:
        """Interval of the prior, as `train_pu` states it; None if the prior is a parameter, or there is no interval."""
        estimate = self.trained.prior_estimate_
        return (estimate.low, estimate.high) if estimate is not None and estimate.has_interval else None

    @property
    def trained_on_other_labels(self) -> bool:
        """Whether `ranker` was trained on other labels or another cache."""
        ranker, trained = self.ranker, self.trained
        if (ranker.n_labelled_, ranker.n_unlabelled_) != (trained.n_labelled_, trained.n_unlabelled_):
            return True
        distance = np.linalg.norm(ranker.coef_ - trained.coef_)
        return bool(distance > _COEF_TOLERANCE * np.linalg.norm(trained.coef_))

    def posterior(self, rows: np.ndarray) -> np.ndarray:
        """Probability of being positive, (m,): held out for labelled and reviewed rows, by `ranker` for the others."""
        by_ranker = self.ranker.tilt_.posterior(self.margins[rows])
        held_out = self.trained.tilt_.posterior(self.trained.held_out_margins_[rows])
        return np.where(self.data.labels.unlabelled[rows], by_ranker, held_out)

    def margins_of(self, rows: np.ndarray) -> np.ndarray:
        """Margins, (m,): held out for labelled and reviewed rows, by `ranker` for the others."""
        return np.where(self.data.labels.unlabelled[rows], self.margins[rows], self.trained.held_out_margins_[rows])


def train(
    data: TrainingSet,
    model: PULinearClassifier | None,
    *,
    truth: np.ndarray | None,
    seed: int,
    device: str,
    progress: Progress | None,
) -> TrainedReport:
    """Train with the parameters of `model` (None: the defaults, with `seed`), and estimate the prior.

    `truth` is int8, (n,).
    """
    parameters = {} if model is None else model.get_params(deep=False)
    random_state = seed if model is None else model.seed_
    trained = PULinearClassifier(**parameters | {"random_state": random_state, "device": device})
    trained.train(data, progress)
    count = data.label_count
    prior_estimates = [prior_by_labels(data, trained)] if count.has_estimates else []
    data.release()
    ranker = model or trained
    return TrainedReport(data, trained, ranker, _margins(ranker, data), count, prior_estimates, truth)


def _margins(model: PULinearClassifier, data: TrainingSet) -> np.ndarray:
    if data.rows.numbers is not None:
        model.check_fits(data.cache)
        return model.margins(data.rows.X)
    return model.all_margins(data.cache)


def training_numbers(report: TrainedReport) -> dict[str, Any]:
    """Numbers of the labels, the training and its estimates, for JSON.

    Returns
    -------
    dict
        Reviewed images are among the `unlabelled`. `unlabelled_sample` is None where all were trained on. `labels`
        counts the different pictures that are labelled, which decide what may be estimated; where they are too few,
        `note` says so, charts of estimates are empty, and `prior`, `hidden_positives` and single figures are None.
        `audit_draws` are the images drawn at random in a review, on which prior, hidden positives, recall, precision
        and F1 then rest; `prior` is that of the training, from labels too, and `hidden_positives` are those of the
        review's sentence. `audit_statements` say what follows from them, in the words of the review, and
        `figures_of_new_images` what the classifier is worth on new images, "" without them.
        `true` and `true_by_model` are true metrics of the held-out margins, and of the ranking
        model if it was trained on other labels. Where groups were given, `groups` has the numbers of them, of those
        that hold a known positive, and of further ones of which an undecided image is above the threshold.
    """
    data, trained, held_out, count = report.data, report.trained, report.held_out, report.count
    failures, reviewed, true = data.cache.failures, data.labels.reviewed, held_out.true()
    _, group_sizes = np.unique(data.twin, return_counts=True)
    confirmed = int((reviewed == 1).sum())
    figures = trained.figures_
    ends = {name: figures[name].interval for name in ("recall", "precision", "f1", "auc")}
    return {
        "images": len(data.cache),
        "labelled": len(report.labelled),
        "unlabelled": data.n_unlabelled,
        "unlabelled_sample": None if data.rows.sample is None else data.rows.sample.to_json(),
        "labels": count.labels,
        "seed": trained.seed_,
        "note": figures.note,
        "failures": {"count": len(failures), "reasons": dict(Counter(failures.values()).most_common(_FAILURE_REASONS))},
        "duplicates": {"groups": int((group_sizes > 1).sum()), "copies": int((group_sizes - 1).sum())},
        "reviewed": {"confirmed": confirmed, "negative": int((reviewed == -1).sum())},
        "twins_found": len(report.twins[0]),
        "scar": report.scar.to_dict(),
        "doubted": int((held_out.positive <= held_out.threshold).sum()),
        "look_again": list(map(str, data.keys(report.look_again))),
        "prior": trained.prior_,
        "prior_is_given": trained.prior is not None,
        "prior_estimates": {estimate.method: asdict(estimate) for estimate in report.prior_estimates},
        "hidden_positives": _hidden_positives(report, confirmed),
        "audit_draws": figures.prior.draws if figures.prior else 0,
        "figures_of_new_images": figures.new_images_text,
        "audit_statements": [] if report.data.labels.hidden is None else list(report.data.labels.hidden.statements),
        # takes two labelled and two unlabelled pictures
        "held_out": min(len(np.unique(data.together[rows])) for rows in (report.labelled, report.unlabelled)) > 1,
        "intervals": {name: None if interval is None else list(interval) for name, interval in ends.items()},
        "true_prior": None if true is None else true["n_positive"] / true["n"],
        "estimates": figures.to_json(),
        "true": true,
        "true_by_model": _true_by_model(report),
        "model": {
            "threshold": trained.threshold_,
            "penalty": trained.penalty_,
            "trained_on_other_labels": report.trained_on_other_labels,
        },
        "figures": _figures(report),
    } | _groups(report)


def numbers_figures(numbers: dict[str, Any]) -> Figures:
    """The figures among the numbers of a report."""
    audit = {"method": AUDIT, "prior": None, "draws": numbers["audit_draws"]} if numbers["audit_draws"] else None
    return Figures.from_json(numbers["estimates"], audit, LabelCount(numbers["labels"]), None)


def _groups(report: TrainedReport) -> dict[str, Any]:
    group, labels = report.data.rows.group, report.data.labels
    if group is None:
        return {}
    found = np.unique(group[labels.positive])
    called = group[labels.unlabelled & (report.margins > np.float32(report.ranker.threshold_))]
    counts = {"groups": len(np.unique(group)), "found": len(found), "called": len(np.setdiff1d(called, found))}
    return {"groups": counts}


def _hidden_positives(report: TrainedReport, confirmed: int) -> dict[str, float | None]:
    """Positives expected beyond the known ones, with the interval if there is one; after a review, what it says."""
    if (audited := report.data.labels.hidden) is not None and audited.perhaps is not None:
        return {"expected": audited.perhaps, "low": audited.low, "high": audited.high}
    if audited is None and confirmed:  # without random images a review says nothing, and the prior is too low
        return {"expected": None, "low": None, "high": None}
    shares = (report.trained.prior_, *(report.prior_interval or (None, None)))
    counts = [None if p is None else max(0.0, p * report.data.n_unlabelled - confirmed) for p in shares]
    return dict(zip(("expected", "low", "high"), counts, strict=True))


def _true_by_model(report: TrainedReport) -> dict[str, float] | None:
    if not report.trained_on_other_labels:
        return None
    by_model = {"unlabelled": report.margins[report.unlabelled], "threshold": report.ranker.threshold_}
    return replace(report.held_out, **by_model).true()


def _figures(report: TrainedReport) -> dict[str, Any]:
    """Values of the charts."""
    held_out, points = report.held_out, report.trained.figures_.has_probabilities
    trained = report.trained  # thresholds are chosen by the likeliest tilt, and so is their curve drawn
    is_reviewed = trained.figures_.sources is not None  # by held-out margins the curve is of other rows
    likeliest = fit_tilt(trained.held_out_margins_, report.data.labels.s, prior=trained.tilt_.prior)
    margins = margin_histogram(held_out)
    if not points:
        del margins["expected"]
    return {
        "margins": margins,
        "precision_recall": precision_recall(replace(held_out, tilt=likeliest)) if points and not is_reviewed else {},
        "reliability": reliability(held_out) if points else {},
    }


# --- where the numbers come from ---------------------------------------------------------------


def provenance(
    cache: EmbeddingCache, labels: Sequence[Any], model: PULinearClassifier, settings: dict[str, Any]
) -> dict[str, Any]:
    """Input files with their hashes, parameters, seeds and package versions, as text for the page and for JSON.

    `labels` are the files or values that labels were read from, `settings` the parameters of `report`, of which None
    and "" are left out.
    """
    parameters = model.get_params(deep=False)
    versions = {name: _version(name) for name in _PACKAGES}
    return {
        "cache": [
            {
                "file": str(file.path),
                "rows": len(file),
                "checksum": file.checksum,
                "source": file.source or "not recorded",
                "created": file.created,
                "pucache": file.pucache_version,
            }
            for file in cache.files
        ],
        "encoder": {name: str(value) for name, value in asdict(cache.encoder).items() if value not in ("", ())},
        "labels": {
            f"{f'labels {number}' if number > 1 else 'labels'}: {field}": value
            for number, source in enumerate(labels, 1)
            for field, value in _label_source(source).items()
        },
        "training": {name: str(value) for name, value in sorted(parameters.items()) if value is not None},
        "report": {name: without_secrets(str(value)) for name, value in settings.items() if value not in (None, "")},
        "versions": {"pucache": __version__, **versions, "faiss": _version(*_FAISS)},
        "created": creation_time(),
    }


def _label_source(source: Any) -> dict[str, str]:
    if isinstance(source, str | os.PathLike) and os.path.isfile(source):
        return {"file": str(source), "sha256": hashlib.sha256(Path(source).read_bytes()).hexdigest()}
    given = str(source) if isinstance(source, str | os.PathLike) else "an array of labels"
    if isinstance(source, PULabels) and (source.reviewed.any() or source.hidden is not None):
        given = "the labels and decisions of a review"
    return {"given as": given}


def _version(*packages: str) -> str:
    """Version of the first of some packages that is installed."""
    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "not installed"
