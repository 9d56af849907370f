"""Training a classifier on a cache that is joined with its labels, and what it states."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..estimates.audited_prior import CONTRADICTED, CONTRADICTION
from ..estimates.audited_prior import METHOD as AUDIT
from ..estimates.calibration import fit_tilt
from ..estimates.label_requirements import assumption
from ..estimates.scar import ScarCheck, check_scar
from ..progress import Progress
from .labelled_cache import LabelledCache
from .model_file import label_count
from .sklearn_classifier import PULinearClassifier
from .train_head import TrainingRows, TrainingSettings, train_head


def train_on_cache(
    classifier: PULinearClassifier, data: LabelledCache, *, progress: Progress | None = None
) -> PULinearClassifier:
    """Train a classifier on a cache that is joined with its labels.

    Parameters
    ----------
    classifier : PULinearClassifier
        Receives the fitted attributes; its `encoder_` is the encoder of the cache.
    data : LabelledCache
    progress : Progress, optional

    Returns
    -------
    PULinearClassifier
        The classifier that was passed.
    """
    rows = TrainingRows(
        design=data.design_matrix(classifier.device),
        labels=data.training_labels,
        graph=lambda rows: data.neighbour_graph(rows, classifier.device),
        groups=data.together,
        clusters=data.clusters,
        sample=data.sample,
        labelled_by_any=data.labelled_by_any,
        encoder=data.cache.encoder,
    )
    return classifier.adopt(train_head(rows, TrainingSettings.of(classifier.get_params()), progress))


def scar_of(data: LabelledCache, model: PULinearClassifier) -> ScarCheck:
    """Compare labelled positives with likely positives, by the held-out margins of a model's classifier.

    A distilled head is not asked: it calls more rows like the labelled ones, and fewer of other kinds.

    Parameters
    ----------
    data : LabelledCache
    model : PULinearClassifier
        Trained on these data; a model that was loaded has no held-out margins.

    Returns
    -------
    ScarCheck
    """
    margins, labels = model.classifier_margins_, data.training_labels
    prior = model.prior if model.method_ == "distilled" else model.tilt_.prior
    tilt = fit_tilt(margins, labels.s, labels.weights, prior)
    groups = {"group": data.group, "clusters": data.clusters}
    return check_scar(data.X, data.labels, margins, tilt, **groups, seed=model.seed_)


def summary(model: PULinearClassifier) -> dict[str, Any]:
    """Counts, chosen parameters and estimates of a trained model: the content of ``model.metrics.json``.

    Parameters
    ----------
    model : PULinearClassifier

    Returns
    -------
    dict
        ``encoder``; the counts ``labelled_positives``, ``unlabelled`` (with reviewed rows), ``confirmed_positives`` and
        ``known_negatives``; ``unlabelled_sample``, fields of `pucache.labels.sample.UnlabelledSample` or None;
        ``prior``, `PULinearClassifier.prior_`, and ``prior_estimate``, fields of `prior_estimate_`, both None where the
        labels are too few for them; ``penalty``, ``threshold``, ``threshold_rule``, ``loss``,
        ``target_prior``, ``solver``, ``deploy_prior``; ``estimates``, `PULinearClassifier.estimates_`; ``note``, what
        is not stated because the labels are too few, or ""; where groups were given, ``groups``, their number.
    """
    estimate, sample = model.prior_estimate_, model.unlabelled_sample_
    groups = {} if model.n_groups_ is None else {"groups": model.n_groups_}
    return {
        "encoder": str(model.encoder_),
        "labelled_positives": model.n_labelled_,
        "unlabelled": model.n_unlabelled_,
        "unlabelled_sample": None if sample is None else sample.to_json(),
        "confirmed_positives": model.n_confirmed_,
        "known_negatives": model.n_negatives_,
        "prior": model.prior_,
        "prior_estimate": None if estimate is None else asdict(estimate),
        "penalty": model.penalty_,
        "threshold": model.threshold_,
        "threshold_rule": str(model.threshold),
        "loss": model.loss,
        "target_prior": float(model.target_prior),
        "solver": model.solver,
        "deploy_prior": None if model.deploy_prior is None else float(model.deploy_prior),
        "estimates": model.estimates_,
        "note": label_note(model),
    } | groups


def is_audited(model: PULinearClassifier) -> bool:
    """Whether prior, recall, precision and F1 of a fitted model rest on the audit of a review."""
    return model.prior_estimate_ is not None and model.prior_estimate_.method == AUDIT


def label_note(model: PULinearClassifier) -> str:
    """What a fitted model does not state because its labels are too few; "" where nothing is left out."""
    if is_audited(model):
        return CONTRADICTION if model.estimates_.get("sources") == CONTRADICTED else ""
    count = label_count(model)
    assumed = not count.has_estimates and model.prior is None
    return f"{count.sentence} {assumption(model.tilt_.prior)}" if assumed else count.sentence
