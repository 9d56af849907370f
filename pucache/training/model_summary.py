"""What is said of a model that was trained on a cache: its summary, and the check of SCAR."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..estimates.calibration import fit_tilt
from ..estimates.scar import ScarCheck, check_scar
from .sklearn_classifier import PULinearClassifier

if TYPE_CHECKING:
    from .training_set import TrainingSet


def scar_of(data: TrainingSet, model: PULinearClassifier) -> ScarCheck:
    """Compare labelled positives with likely positives, by the held-out margins of a model trained on these data.

    A distilled head is not asked: it calls more rows like the labelled ones, and fewer of other kinds. A model that was
    loaded has no held-out margins.
    """
    margins, labels, rows = model.classifier_margins_, data.training, data.rows
    prior = model.prior if model.method_ == "distilled" else model.tilt_.prior
    tilt = fit_tilt(margins, labels.s, labels.weights, prior)
    return check_scar(rows.X, data.labels, margins, tilt, group=rows.twin, clusters=rows.group, seed=model.seed_)


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
        "note": model.figures_.note,
    } | groups
