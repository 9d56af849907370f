"""Training a classifier on a cache and labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cache.embedding_cache import EmbeddingCache, open_cache
from ..estimates.audited_prior import METHOD as AUDIT
from ..estimates.calibration import fit_tilt
from ..estimates.label_requirements import LabelCount, assumption
from ..estimates.scar import ScarCheck, check_scar
from ..labels.labels import TWIN_COSINE, Labels
from ..progress import Progress
from .labelled_cache import PUData
from .linear_model import PULinearModel

if TYPE_CHECKING:
    from ..neighbours.graph import NeighbourGraph
    from .distillation import GraphSource
    from .sklearn_classifier import PULinearClassifier
    from .train_head import Fit


def train_pu(
    cache: str | Path | Sequence[str | Path] | EmbeddingCache,
    positives: str | Path | np.ndarray | Labels,
    *,
    negatives: str | Path | None = None,
    twins: float | None = TWIN_COSINE,
    all_rows: bool = False,
    progress: Progress | None = None,
    **parameters: Any,
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
    **parameters
        Parameters of `PULinearClassifier`.

    Returns
    -------
    PULinearClassifier
        Fitted; its `encoder_` is the encoder of the cache.

    Raises
    ------
    LabelError, CacheError
        As `PUData.of`.
    ValueError
        A parameter outside its domain.
    """
    seed = parameters.get("seed", 0)
    data = PUData.of(open_cache(cache), positives, twins, negatives=negatives, all_rows=all_rows, seed=seed)
    return train_on(data, progress=progress, **parameters)


def fit_model(model: PULinearModel, data: PUData, *, progress: Progress | None = None) -> Fit:
    """Train a model, or a classifier, on a cache that is joined with its labels.

    Unlike `train_on`, this imports no scikit-learn where the model needs none.

    Parameters
    ----------
    model : PULinearModel
        Receives the fitted attributes; its `encoder_` is the encoder of the cache.
    data : PUData
    progress : Progress, optional

    Returns
    -------
    Fit
        With the cross-fit, from which further estimates can be made.
    """
    design = data.design_matrix(model.device)
    fit = model.train(
        design,
        data.training_labels,
        groups=data.group,
        graph_source=_graph_source(data, model.device),
        sample=data.sample,
        progress=progress,
    )
    model.n_negatives_ = int(data.labels.negative.sum())
    model.encoder_ = data.cache.encoder
    return fit


def _graph_source(data: PUData, device: str) -> GraphSource:
    """Graphs of rows of the data; that of all rows of a cache is kept beside it."""

    def graph(rows: np.ndarray | None) -> NeighbourGraph:
        from ..neighbours.graph import cached_graph, neighbour_graph

        if data.sampled is not None:
            return neighbour_graph(data.X, rows=rows, device=device)
        if rows is None:
            return cached_graph(data.cache, device=device)
        return neighbour_graph(data.cache, rows=rows, device=device)

    return graph


def train_on(data: PUData, *, progress: Progress | None = None, **parameters: Any) -> PULinearClassifier:
    """Train a classifier on a cache that is joined with its labels.

    Parameters
    ----------
    data : PUData
    progress : Progress, optional
    **parameters
        Parameters of `PULinearClassifier`.

    Returns
    -------
    PULinearClassifier
        Fitted; its `encoder_` is the encoder of the cache.
    """
    from .sklearn_classifier import PULinearClassifier

    model = PULinearClassifier(**parameters)
    fit_model(model, data, progress=progress)
    return model


def scar_of(data: PUData, model: PULinearModel) -> ScarCheck:
    """Compare labelled positives with likely positives, by the held-out margins of a model's classifier.

    A distilled head is not asked: it calls more rows like the labelled ones, and fewer of other kinds.

    Parameters
    ----------
    data : PUData
    model : PULinearClassifier
        Result of `train_on` on these data; a model that was loaded has no held-out margins.

    Returns
    -------
    ScarCheck
    """
    margins, tilt = model.classifier_margins_, model.tilt_
    if model.method_ == "distilled":
        labels = data.training_labels
        tilt = fit_tilt(margins, labels.s, labels.weights, model.prior)
    return check_scar(data.X, data.labels, margins, tilt, group=data.group, seed=model.seed)


@dataclass(frozen=True)
class TrainingSummary:
    """Counts, chosen parameters and estimates of a trained model; the content of ``metrics.json``.

    Attributes
    ----------
    encoder : str
    labelled_positives, unlabelled : int
        Reviewed rows are among the unlabelled.
    unlabelled_sample : dict or None
        Fields of `pucache.labels.sample.UnlabelledSample`; None where all unlabelled rows were trained on.
    confirmed_positives, known_negatives : int
        Reviewed rows.
    prior : float or None
        Share of positives among the unlabelled, as given or as estimated; None where the labels are too few for a
        single figure.
    prior_estimate : dict or None
        Fields of `pucache.estimates.priors.PriorEstimate`, with None for its `prior` where `prior` is None. None if the
        prior was given, or the labels are too few for an interval.
    penalty, threshold : float
    threshold_rule : str
    loss : str
    target_prior : float
    solver : str
    deploy_prior : float or None
    estimates : dict
        `PULinearClassifier.estimates_`.
    note : str
        What is not stated because the labels are too few (`pucache.estimates.label_requirements`), and what
        posterior and threshold assume then; "" where nothing is left out.
    """

    encoder: str
    labelled_positives: int
    unlabelled: int
    unlabelled_sample: dict[str, Any] | None
    confirmed_positives: int
    known_negatives: int
    prior: float | None
    prior_estimate: dict[str, Any] | None
    penalty: float
    threshold: float
    threshold_rule: str
    loss: str
    target_prior: float
    solver: str
    deploy_prior: float | None
    estimates: dict[str, Any]
    note: str


def summary(model: PULinearModel) -> TrainingSummary:
    """Summarise a fitted model; `dataclasses.asdict` of the result is ready for JSON.

    Parameters
    ----------
    model : PULinearModel

    Returns
    -------
    TrainingSummary
    """
    count = label_count(model)
    prior, prior_estimate = stated_prior(model, count)
    sample = model.unlabelled_sample_
    return TrainingSummary(
        encoder=str(model.encoder_),
        labelled_positives=model.n_labelled_,
        unlabelled=model.n_unlabelled_,
        unlabelled_sample=None if sample is None else sample.to_json(),
        confirmed_positives=model.n_confirmed_,
        known_negatives=model.n_negatives_,
        prior=prior,
        prior_estimate=prior_estimate,
        penalty=model.penalty_,
        threshold=model.threshold_,
        threshold_rule=str(model.threshold),
        loss=model.loss,
        target_prior=float(model.target_prior),
        solver=model.solver,
        deploy_prior=None if model.deploy_prior is None else float(model.deploy_prior),
        estimates=model.estimates_,
        note=label_note(model, count),
    )


def label_count(model: PULinearModel) -> LabelCount:
    """Number of labels that the estimates of a fitted model rest on."""
    labels = model.estimates_.get("labels")
    return LabelCount(labels if isinstance(labels, int) else model.n_labelled_)


def stated_prior(model: PULinearModel, count: LabelCount) -> tuple[float | None, dict[str, Any] | None]:
    """Prior and fields of its estimate, as far as the labels allow; a given prior is stated as it is.

    Parameters
    ----------
    model : PULinearModel
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


def is_audited(model: PULinearModel) -> bool:
    """Whether prior, recall, precision and F1 of a fitted model rest on the audit of a review."""
    return model.prior_estimate_ is not None and model.prior_estimate_.method == AUDIT


def label_note(model: PULinearModel, count: LabelCount) -> str:
    """What a fitted model does not state because its labels are too few; "" where nothing is left out."""
    if is_audited(model):
        return ""
    note = count.sentence
    return f"{note} {assumption(model.prior_)}" if not count.has_estimates and model.prior is None else note
