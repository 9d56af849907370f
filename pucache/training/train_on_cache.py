"""Training a classifier on a cache that is joined with its labels, or one for each of several concepts.

Concepts are trained one after another on shared rows. Duplicates, moments, leading directions and the graph of
neighbours know no labels and are prepared once. The heads of a concept are those of its training alone, so a concept's
model does not depend on the other concepts, unless the cache is sampled (`pucache.labels.sample`,
`pucache.training.distillation`): the sample then holds the rows labelled for others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..cache.embedding_cache import EmbeddingCache, open_cache
from ..estimates.audited_prior import CONTRADICTED, CONTRADICTION
from ..estimates.audited_prior import METHOD as AUDIT
from ..estimates.calibration import fit_tilt
from ..estimates.label_requirements import assumption
from ..estimates.scar import ScarCheck, check_scar
from ..labels.concepts import ConceptSource, exclusive, joint_labels, open_concepts
from ..labels.labels import TWIN_COSINE
from ..progress import Progress
from ..seeds import drawn_seed
from .concept_models import ConceptModels
from .labelled_cache import LabelledCache
from .model_file import label_count
from .sklearn_classifier import PULinearClassifier
from .train_head import TrainingRows, TrainingSettings, train_head

R = TypeVar("R")


def train_on_cache(
    classifier: PULinearClassifier, data: LabelledCache, *, progress: Progress | None = None
) -> PULinearClassifier:
    """Train a classifier on a cache that is joined with its labels, and return it; its `encoder_` is the cache's."""
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
    """Compare labelled positives with likely positives, by the held-out margins of a model trained on these data.

    A distilled head is not asked: it calls more rows like the labelled ones, and fewer of other kinds. A model that was
    loaded has no held-out margins.
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


# --- several concepts ------------------------------------------------------------------------------


def each_concept(
    cache: EmbeddingCache,
    concepts: ConceptSource,
    work: Callable[[str, LabelledCache], R],
    *,
    twins: float | None = TWIN_COSINE,
    all_rows: bool = False,
    clusters: np.ndarray | None = None,
    excluding: bool = False,
    seed: int = 0,
    device: str = "auto",
) -> tuple[dict[str, R], dict[str, str]]:
    """Do some work with the labels of each concept, on rows that are prepared once; one that fails stops no other.

    `concepts` are as for `pucache.labels.concepts.open_concepts`, `excluding` as `exclusive` of `pucache.train_pu`,
    other settings as of `LabelledCache.of`. Returns results and failures, as `ConceptLabels.over_concepts`.
    """
    opened = open_concepts(cache, concepts)
    opened = exclusive(opened) if excluding else opened
    joint = joint_labels(opened.labels.values())
    rows: dict[str, Any] = {"all_rows": all_rows, "clusters": clusters, "seed": seed, "device": device}
    shared = LabelledCache.prepare(cache, joint, twins, **rows)
    return opened.over_concepts(shared.of_concepts(opened.labels), work)


def train_concepts(
    cache: EmbeddingCache | str | Path | Sequence[str | Path],
    concepts: ConceptSource,
    classifier: PULinearClassifier | None = None,
    *,
    twins: float | None = TWIN_COSINE,
    all_rows: bool = False,
    clusters: np.ndarray | None = None,
    excluding: bool = False,
    progress: Progress | None = None,
) -> ConceptModels:
    """Train a classifier for each concept: `pucache.train_pu` with `concepts`.

    Parameters
    ----------
    cache : EmbeddingCache
    concepts
        As for `pucache.labels.concepts.open_concepts`.
    classifier : PULinearClassifier, optional
        With the parameters of all. A `random_state` that is no number draws one seed for all.
    twins, all_rows, excluding, progress
        As for `pucache.train_pu`, where `excluding` is `exclusive`.
    clusters : ndarray of int64, (n,), optional
        As for `LabelledCache.of`.

    Returns
    -------
    ConceptModels
        Without `held_out_margins_` and `classifier_margins_`, which would grow with the concepts.
    """
    parameters = (classifier or PULinearClassifier()).get_params()
    parameters["random_state"] = drawn_seed(parameters["random_state"])

    def train(_: str, data: LabelledCache) -> PULinearClassifier:
        model = train_on_cache(PULinearClassifier(**parameters), data, progress=progress)
        del model.held_out_margins_, model.classifier_margins_
        return model

    rows: dict[str, Any] = {"seed": parameters["random_state"], "device": parameters["device"]}
    rows |= {"clusters": clusters, "excluding": excluding}
    return ConceptModels(*each_concept(open_cache(cache), concepts, train, twins=twins, all_rows=all_rows, **rows))
