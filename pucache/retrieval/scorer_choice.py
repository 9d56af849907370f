"""Choosing a scorer by names, as `pucache retrieve-positives` takes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .scorer import Scorer
from .similarity import Similarity

if TYPE_CHECKING:
    from ..pu.linear_model import PULinearModel

SCORERS = ("similarity", "classifier", "fused")


@dataclass(frozen=True)
class ScorerOptions:
    """What to rank by; the fields are parameters of `pucache.retrieve_positives`."""

    by: str | None = None
    similarity: str | None = None
    index: str = "exact"
    memory: float | None = None
    device: str = "auto"


def choose_scorer(options: ScorerOptions, model: str | Path | PULinearModel | None, k: int | None) -> Scorer:
    """Scorer of the options; a model given as a path is loaded.

    Raises
    ------
    ValueError
        Unknown names, or options that exclude each other.
    ModelError
        The model cannot be read.
    """
    by = options.by or ("similarity" if model is None else "fused")
    _check(options, by, model is not None, k)
    _check_device(options.device)
    if model is not None:
        return _model_scorer(by, model, options.device)
    similarity = Similarity(options.similarity or "whitened", options.device)
    if options.index == "exact":
        return similarity
    from .indexed_similarity import IndexedSimilarity  # imports faiss

    memory = None if options.memory is None else int(options.memory * 1e9)
    return IndexedSimilarity(similarity, options.index, memory)


def _check(options: ScorerOptions, by: str, has_model: bool, k: int | None) -> None:
    if by not in SCORERS:
        raise ValueError(f"unknown way to rank {by!r}; use {', '.join(SCORERS)}")
    if by != "similarity" and not has_model:
        raise ValueError(f"--by {by} needs --model FILE (train one with pucache train-pu)")
    if by == "similarity" and has_model:
        raise ValueError("--by similarity does not use --model; leave one of the two out")
    if by != "similarity" and (options.similarity is not None or options.index != "exact"):
        raise ValueError("--similarity and --index do nothing where --model ranks; leave them out, or --model")
    if options.memory is not None and (options.index == "exact" or not 0 < options.memory < float("inf")):
        raise ValueError("--memory is for --index ivf or hnsw, and a number of GB above 0")
    if options.index != "exact" and k is None:
        raise ValueError(
            f"-k all scores every image, which --index {options.index} is not for; name a number, or use exact"
        )


def _check_device(device: str) -> None:
    """Raise ValueError for a device that is not there, even where the scorer would not use it."""
    if device not in ("auto", "cpu"):
        from ..devices import choose_device  # imports torch

        choose_device(device)


def _model_scorer(by: str, model: str | Path | PULinearModel, device: str) -> Scorer:
    from .model_scorers import Fused, Margins

    if isinstance(model, str | Path):
        from ..pu.linear_model import PULinearModel

        model = PULinearModel.load(model)
    return Margins(model) if by == "classifier" else Fused(model, device)
