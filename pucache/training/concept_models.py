"""A folder of models, one for each concept, and scoring with all of them in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..encoders.spec import ROUNDING
from ..errors import LabelError, ModelError
from ..labels.concepts import check_names
from .sklearn_classifier import PULinearClassifier, cache_margins

SUFFIX = ".safetensors"
METRICS = "metrics.json"


class ConceptModels(dict[str, PULinearClassifier]):
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

    failures: dict[str, str]

    def __init__(self, models: Mapping[str, PULinearClassifier], failures: Mapping[str, str] | None = None):
        super().__init__(models)
        self.failures = dict(failures or {})

    def save(self, folder: str | Path, *, force: bool = False) -> None:
        """Write ``CONCEPT.safetensors`` for each concept.

        Parameters
        ----------
        folder : path or str
        force : bool
            Replace files of another kind too.

        Raises
        ------
        OutputError
            It cannot be written.
        """
        for name, model in self.items():
            model.save(model_path(folder, name), force=force)

    @classmethod
    def load(cls, folder: str | Path) -> ConceptModels:
        """Read a folder of models.

        Parameters
        ----------
        folder : path or str
            Files ``CONCEPT.safetensors``; others are left aside.

        Returns
        -------
        ConceptModels

        Raises
        ------
        ModelError
            The folder has no models, or one that is damaged or of another encoder than the first.
        """
        paths = sorted(path for path in Path(folder).glob(f"*{SUFFIX}") if path.name[0] != ".")
        if not paths:
            raise ModelError(f"{folder} holds no models; expected CONCEPT{SUFFIX} files, as train-pu --concepts writes")
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
        """The model of a concept; raises `ModelError` where there is none."""
        if name not in self:
            raise ModelError("the folder of models holds no model of it; train one with train-pu --concepts")
        return self[name]

    # --- as one model, for scoring -----------------------------------------------------------------

    @property
    def encoder_(self) -> Any:
        """Encoder of the rows; None for models of bare arrays."""
        return next(iter(self.values())).encoder_

    def check_fits(self, cache: EmbeddingCache) -> None:
        """Raise `ModelError` unless the models were trained on embeddings of the cache's encoder.

        Parameters
        ----------
        cache : EmbeddingCache
        """
        for model in self.values():
            model.check_fits(cache)

    def margins_of(self, cache: EmbeddingCache) -> Iterator[tuple[slice, np.ndarray]]:
        """Margins of every row of a cache by every model, in blocks, in one pass; the bytes read are verified.

        Parameters
        ----------
        cache : EmbeddingCache

        Yields
        ------
        rows : slice
        margins : ndarray of float32, (b, K)

        Raises
        ------
        ModelError, CacheError
            As `PULinearClassifier.margins_of`.
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
