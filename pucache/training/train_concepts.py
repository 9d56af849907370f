"""Classifiers of many concepts on one cache: training one after another on shared rows.

Duplicates, moments, leading directions and the graph of neighbours know no labels and are prepared once. The heads of a
concept are those of its training alone, so a concept's model does not depend on the other concepts, unless the cache is
sampled (`pucache.labels.sample`, `pucache.training.distillation`): the sample then holds the rows labelled for others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..cache.embedding_cache import EmbeddingCache, open_cache
from ..labels.concepts import ConceptSource, exclusive, joint_labels, open_concepts
from ..labels.labels import TWIN_COSINE
from ..progress import Progress
from ..seeds import drawn_seed
from .concept_models import ConceptModels
from .labelled_cache import LabelledCache
from .sklearn_classifier import PULinearClassifier
from .train_on_cache import train_on_cache

R = TypeVar("R")


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
