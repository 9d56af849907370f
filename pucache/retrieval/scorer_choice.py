"""Choosing a scorer by names, as `pucache retrieve-positives` takes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .scorer import Scorer
from .similarity import Similarity

if TYPE_CHECKING:
    from ..training.sklearn_classifier import PULinearClassifier

SCORERS = ("similarity", "classifier", "fused")


@dataclass(frozen=True)
class ScorerOptions:
    """What to rank by; the fields are parameters of `pucache.retrieve_positives`."""

    by: str | None = None
    similarity: str | None = None
    index: str = "exact"
    device: str = "auto"


def choose_scorer(options: ScorerOptions, model: str | Path | PULinearClassifier | None, k: int | None) -> Scorer:
    """Scorer of the options; a model given as a path is loaded.

    Raises
    ------
    ValueError
        Unknown names, or options that exclude each other.
    ModelError
        The model cannot be read.
    """
    _check(options, model is not None, k)
    _check_device(options.device)
    if model is not None:
        return _model_scorer(options.by, model, options.device)
    similarity = Similarity(options.similarity or "whitened", options.device)
    if options.index == "exact":
        return similarity
    from .indexed_similarity import IndexedSimilarity  # imports faiss

    return IndexedSimilarity(similarity, options.index)


def _check(options: ScorerOptions, has_model: bool, k: int | None) -> None:
    by = options.by
    if by is not None and by not in SCORERS:
        raise ValueError(f"unknown way to rank {by!r}; use {', '.join(SCORERS)}")
    if by in ("classifier", "fused") and not has_model:
        raise ValueError(f"ranking by {by} needs a model; train one with train-pu")
    if by == "similarity" and has_model:
        raise ValueError("ranking by similarity uses no model; leave one of the two out")
    if has_model and (options.similarity is not None or options.index != "exact"):
        raise ValueError("similarity and index do nothing where a model ranks; leave them out, or the model")
    if options.index != "exact" and k is None:
        raise ValueError(f"all images are wanted, which index {options.index} is not for; name a number, or use exact")


def _check_device(device: str) -> None:
    """Raise ValueError for a device that is not there, even where the scorer would not use it."""
    if device not in ("auto", "cpu"):
        from ..devices import choose_device  # imports torch

        choose_device(device)


def _model_scorer(by: str | None, model: str | Path | PULinearClassifier, device: str) -> Scorer:
    from ..scoring.neighbour_scores import chosen_weight, reason
    from .model_scorers import Fused, Margins

    if isinstance(model, str | Path):
        from ..training.sklearn_classifier import PULinearClassifier

        model = PULinearClassifier.load(model)
    if by == "fused" or (by is None and chosen_weight(model)):
        return Fused(model, device)
    return Margins(model, note="" if by else f"the classifier ranks alone; {reason(model)}")
