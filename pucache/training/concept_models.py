"""Models of concepts, or one: a folder of them, and margins of all in one pass."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..encoders.spec import ROUNDING
from ..errors import LabelError, ModelError
from ..labels.labels import PerConcept, check_names
from .sklearn_classifier import PULinearClassifier, cache_margins

SUFFIX = ".safetensors"
METRICS = "metrics.json"


class ConceptModels(PerConcept[PULinearClassifier]):
    """Classifiers of one encoder by concept.

    Parameters
    ----------
    models : dict of str to PULinearClassifier
    failures : dict of str to str, optional

    Attributes
    ----------
    failures : dict of str to str
        Concepts that were not trained, and why.
    """

    @classmethod
    def open(cls, model: str | Path | PULinearClassifier | ConceptModels) -> ConceptModels:
        """Models as they are, or read from a folder; one model, or that of a file, under the name ""."""
        if isinstance(model, ConceptModels):
            return model
        if isinstance(model, PULinearClassifier):
            return cls({"": model})
        if not isinstance(model, str | os.PathLike):
            raise ModelError(f"expected a model, or the path of one as train-pu writes it; got {type(model).__name__}")
        return cls.load(model) if os.path.isdir(model) else cls({"": PULinearClassifier.load(model)})

    def save(self, folder: str | Path) -> None:
        """Write ``CONCEPT.safetensors`` for each concept; raises `OutputError`."""
        for name, model in self.items():
            model.save(model_path(folder, name))

    @classmethod
    def load(cls, folder: str | Path) -> ConceptModels:
        """Read the files ``CONCEPT.safetensors`` of a folder; others are left aside.

        Raises `ModelError` where there are none, or one is damaged or of another encoder than the first.
        """
        paths = sorted(path for path in Path(folder).glob(f"*{SUFFIX}") if path.name[0] != ".")
        if not paths:
            remedy = "as train-pu --labels writes; score takes the model before the images"
            raise ModelError(f"{folder} holds no CONCEPT{SUFFIX}, {remedy}")
        try:
            check_names([path.stem for path in paths], str(folder))
        except LabelError as error:
            raise ModelError(str(error)) from error
        models = {path.stem: PULinearClassifier.load(path) for path in paths}
        first, *others = models.items()
        for name, model in others:
            if not _same_rows(first[1], model):
                raise ModelError(
                    f"{folder} holds models of two encoders: {first[0]} is of {first[1].encoder_}, {name} of "
                    f"{model.encoder_}; move one of them to another folder"
                )
        return cls(models)

    def of(self, name: str) -> PULinearClassifier:
        """The model of a concept, or of one list of positives (""); raises `ModelError` where there is none."""
        if name not in self:
            got = ", ".join(self) or "one list"
            raise ModelError(f"expected a model of {name or 'one list'}, got that of {got}; train it with train-pu")
        return self[name]

    # --- as one model, for scoring -----------------------------------------------------------------

    @property
    def encoder_(self) -> Any:
        """Encoder of the rows; None for models of bare arrays."""
        return next(iter(self.values())).encoder_

    def check_fits(self, cache: EmbeddingCache) -> None:
        """Raise `ModelError` unless the models were trained on embeddings of the cache's encoder."""
        for model in self.values():
            model.check_fits(cache)

    def margins_of(self, cache: EmbeddingCache) -> Iterator[tuple[slice, np.ndarray]]:
        """Margins of every row of a cache by every model, float32 (b, K), in blocks, in one pass; bytes are verified.

        Raises `ModelError` and `CacheError` as `PULinearClassifier.margins_of`.
        """
        self.check_fits(cache)
        coef = np.concatenate([model.coef_ for model in self.values()])
        intercept = np.concatenate([model.intercept_ for model in self.values()])
        yield from cache_margins(cache, coef, intercept)


def _same_rows(one: PULinearClassifier, other: PULinearClassifier) -> bool:
    if one.encoder_ is None or other.encoder_ is None:
        return one.encoder_ is other.encoder_ and one.n_features_in_ == other.n_features_in_
    return not one.encoder_.differences(other.encoder_, ignoring=ROUNDING)


def model_path(folder: str | Path, concept: str) -> Path:
    """File of a concept's model."""
    return Path(folder, concept + SUFFIX)
