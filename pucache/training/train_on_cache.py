"""Training a classifier on a cache and labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..cache.embedding_cache import EmbeddingCache, open_cache
from ..estimates.audited_prior import METHOD as AUDIT
from ..estimates.calibration import fit_tilt
from ..estimates.label_requirements import LabelCount, assumption
from ..estimates.scar import ScarCheck, check_scar
from ..heads.minibatch import SGDSettings
from ..labels.labels import TWIN_COSINE, Labels
from ..progress import Progress
from .labelled_cache import LabelledCache
from .sklearn_classifier import PULinearClassifier
from .train_head import TrainingRows


def train_pu(
    cache: str | Path | Sequence[str | Path] | EmbeddingCache,
    positives: str | Path | np.ndarray | Labels,
    *,
    negatives: str | Path | None = None,
    twins: float | None = TWIN_COSINE,
    all_rows: bool = False,
    progress: Progress | None = None,
    prior: float | None = None,
    loss: str = "imbupu",
    surrogate: str | None = None,
    target_prior: float = 0.5,
    penalty: float | str = "auto",
    solver: str = "batch",
    sgd_settings: SGDSettings | None = None,
    threshold: float | str = "f1",
    deploy_prior: float | None = None,
    n_folds: int = 5,
    seed: int = 0,
    device: str = "auto",
    method: str | None = None,
) -> PULinearClassifier:
    """Train a classifier on a cache.

    Of more than a million unlabelled rows, or of more than 1 GiB of them, a reproducible sample is taken, by the
    classifier's `seed` (`pucache.labels.sample`); all labelled positives are.

    Parameters
    ----------
    cache : EmbeddingCache, path, or sequence of paths
    positives : path, str, ndarray of int8 (n,) or Labels
        A file of keys, a glob on keys, the label vector s, or labels with a review.
    negatives : path or str, optional
        Known negatives: a file of keys or a glob on keys.
    twins : float or None
        Cosine from which on two images count as the same picture; they stay in one fold. None: only
        images with equal bytes.
    all_rows : bool
        Take all unlabelled rows, however many there are.
    progress : Progress, optional
    prior, loss, surrogate, target_prior, penalty, solver, sgd_settings
        As for `pucache.PULinearClassifier`.
    threshold, deploy_prior, n_folds, seed, device, method
        As for `pucache.PULinearClassifier`.

    Returns
    -------
    PULinearClassifier
        Fitted; its `encoder_` is the encoder of the cache.

    Raises
    ------
    LabelError, CacheError
        As `LabelledCache.of`.
    ValueError
        A parameter outside its domain.
    """
    classifier = PULinearClassifier(
        prior,
        loss=loss,
        surrogate=surrogate,
        target_prior=target_prior,
        penalty=penalty,
        solver=solver,
        sgd_settings=sgd_settings,
        threshold=threshold,
        deploy_prior=deploy_prior,
        n_folds=n_folds,
        seed=seed,
        device=device,
        method=method,
    )
    data = LabelledCache.of(open_cache(cache), positives, twins, negatives=negatives, all_rows=all_rows, seed=seed)
    return train_on_cache(classifier, data, progress=progress)


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
    return classifier.train(
        TrainingRows(
            design=data.design_matrix(classifier.device),
            labels=data.training_labels,
            graph=lambda rows: data.neighbour_graph(rows, classifier.device),
            groups=data.group,
            sample=data.sample,
            encoder=data.cache.encoder,
        ),
        progress,
    )


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
    margins, tilt = model.classifier_margins_, model.tilt_
    if model.method_ == "distilled":
        labels = data.training_labels
        tilt = fit_tilt(margins, labels.s, labels.weights, model.prior)
    return check_scar(data.X, data.labels, margins, tilt, group=data.group, seed=model.seed)


def summary(model: PULinearClassifier) -> dict[str, Any]:
    """Counts, chosen parameters and estimates of a trained model: the content of ``metrics.json``.

    Parameters
    ----------
    model : PULinearClassifier

    Returns
    -------
    dict
        ``encoder``; the counts ``labelled_positives``, ``unlabelled`` (with reviewed rows), ``confirmed_positives`` and
        ``known_negatives``; ``unlabelled_sample``, fields of `pucache.labels.sample.UnlabelledSample` or None;
        ``prior``, as given or as estimated, and ``prior_estimate``, fields of `pucache.estimates.priors.PriorEstimate`,
        both None where the labels are too few for them; ``penalty``, ``threshold``, ``threshold_rule``, ``loss``,
        ``target_prior``, ``solver``, ``deploy_prior``; ``estimates``, `PULinearClassifier.estimates_`; ``note``, what
        is not stated because the labels are too few, or "".
    """
    count = label_count(model)
    prior, prior_estimate = stated_prior(model, count)
    sample = model.unlabelled_sample_
    return {
        "encoder": str(model.encoder_),
        "labelled_positives": model.n_labelled_,
        "unlabelled": model.n_unlabelled_,
        "unlabelled_sample": None if sample is None else sample.to_json(),
        "confirmed_positives": model.n_confirmed_,
        "known_negatives": model.n_negatives_,
        "prior": prior,
        "prior_estimate": prior_estimate,
        "penalty": model.penalty_,
        "threshold": model.threshold_,
        "threshold_rule": str(model.threshold),
        "loss": model.loss,
        "target_prior": float(model.target_prior),
        "solver": model.solver,
        "deploy_prior": None if model.deploy_prior is None else float(model.deploy_prior),
        "estimates": model.estimates_,
        "note": label_note(model, count),
    }


def label_count(model: PULinearClassifier) -> LabelCount:
    """Number of labels that the estimates of a fitted model rest on."""
    labels = model.estimates_.get("labels")
    return LabelCount(labels if isinstance(labels, int) else model.n_labelled_)


def stated_prior(model: PULinearClassifier, count: LabelCount) -> tuple[float | None, dict[str, Any] | None]:
    """Prior and fields of its estimate, as far as the labels allow; a given prior is stated as it is.

    Parameters
    ----------
    model : PULinearClassifier
        Fitted.
    count : LabelCount

    Returns
    -------
    prior : float or None
    prior_estimate : dict or None
    """
    if model.prior is not None:
        return float(model.prior), None
    if model.prior_estimate_ is not None and is_audited(model):
        has_figure = model.estimates_["recall"] is not None  # else the audit gives an interval alone
        prior = model.prior_ if has_figure else None
        return prior, asdict(model.prior_estimate_) | {"prior": prior}
    if not count.has_estimates or model.prior_estimate_ is None:
        return None, None
    estimate = asdict(model.prior_estimate_)
    return (model.prior_, estimate) if count.has_points else (None, estimate | {"prior": None})


def is_audited(model: PULinearClassifier) -> bool:
    """Whether prior, recall, precision and F1 of a fitted model rest on the audit of a review."""
    return model.prior_estimate_ is not None and model.prior_estimate_.method == AUDIT


def label_note(model: PULinearClassifier, count: LabelCount) -> str:
    """What a fitted model does not state because its labels are too few; "" where nothing is left out."""
    if is_audited(model):
        return ""
    note = count.sentence
    return f"{note} {assumption(model.prior_)}" if not count.has_estimates and model.prior is None else note
