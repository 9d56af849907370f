"""Models of concepts: a folder of them, scoring with all in one pass, and kinds that exclude each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit, logit, softmax

from ..cache.embedding_cache import EmbeddingCache
from ..encoders.spec import ROUNDING
from ..errors import LabelError, ModelError
from ..labels.concepts import check_names
from .sklearn_classifier import PULinearClassifier, cache_margins

SUFFIX = ".safetensors"
METRICS = "metrics.json"
_WIDTH = 3.29  # standard errors between the ends of a 90 % interval
_LEAST = 1e-4  # distance of the ends of an interval from 0 and 1


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
        """Write ``CONCEPT.safetensors`` for each concept; raises `OutputError`.

        `force` replaces files of another kind too.
        """
        for name, model in self.items():
            model.save(model_path(folder, name), force=force)

    @classmethod
    def load(cls, folder: str | Path) -> ConceptModels:
        """Read the files ``CONCEPT.safetensors`` of a folder; others are left aside.

        Raises `ModelError` where there are none, or one is damaged or of another encoder than the first.
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


# --- kinds of which an image has one at most -------------------------------------------------------


class ExclusiveKinds:
    """Posteriors of kinds that exclude each other.

    Bayes' rule, with the density ratio of each head (`pucache.estimates.calibration`) as that of its kind to no kind::

        p(k | x) = share_k ratio_k / (none + sum_j share_j ratio_j),    none = max(0, 1 - sum_j share_j)

    It is the softmax with an outcome for none, which binary heads give under mutual exclusion (Deng et al., ECCV 2014).
    The shares are those of the models, drawn towards each other as far as their intervals do not tell them apart
    (`shrunk`), and the ratios fit the margins of the pile at these. Shares of 20 labels each, as they are estimated,
    cost two to four points of accuracy on ten classes.

    Parameters
    ----------
    models : iterable of PULinearClassifier
        Of the kinds, K.

    Attributes
    ----------
    shares : ndarray of float64, (K,)
    """

    def __init__(self, models: Iterable[PULinearClassifier]):
        models = list(models)
        self.shares = _shares(models)
        # those that fit the margins of the pile best at these shares; of a model that keeps no margins its own
        tilts = [
            model.tilt_ if model.pile_margins_ is None else model.pile_margins_.tilt(share)
            for model, share in zip(models, self.shares.tolist(), strict=True)
        ]
        none = max(0.0, 1.0 - float(self.shares.sum()))
        self._offsets = np.log(self.shares) + [tilt.alpha for tilt in tilts]
        self._slopes = np.array([tilt.slope for tilt in tilts])
        self._none = np.log(none) if none else -np.inf

    def of(self, margins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Posteriors of images by their margins, both (b, K), and the number of the likeliest kind, (b,); K for none.

        The sum of the posteriors of an image is at most one.
        """
        log_odds = np.column_stack([self._offsets + self._slopes * margins, np.full(len(margins), self._none)])
        posteriors = softmax(log_odds, axis=1)
        return posteriors[:, :-1], posteriors.argmax(1)


def shrunk(shares: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Shares (k,) on the scale of log odds, each drawn to their mean by its standard error (k,) there.

    Means of a random-effects model: tau^2, the variance of the shares beyond that of their errors, is that of
    DerSimonian and Laird (1986), and share k keeps tau^2 / (tau^2 + error_k^2) of its distance from the mean.
    """
    at, precision = logit(shares), errors**-2.0
    excess = precision @ (at - np.average(at, weights=precision)) ** 2 - (len(at) - 1)
    tau2 = max(0.0, excess / (precision.sum() - precision @ precision / precision.sum()))
    mean = np.average(at, weights=1 / (errors**2 + tau2))
    return np.asarray(expit(mean + tau2 / (tau2 + errors**2) * (at - mean)))


def _shares(models: list[PULinearClassifier]) -> np.ndarray:
    """Shares of the kinds, (K,); those that were given stay."""
    shares = np.array([model.share_ for model in models])
    is_given = [model.prior is not None or model.deploy_prior is not None for model in models]
    estimated = np.flatnonzero(~np.array(is_given))
    if len(estimated) > 1:
        intervals = [models[k].prior_estimate_ for k in estimated]
        ends = [(0.0, 1.0) if interval is None else (interval.low, interval.high) for interval in intervals]
        low, high = logit(np.clip(np.array(ends), _LEAST, 1 - _LEAST)).T
        shares[estimated] = shrunk(shares[estimated], np.maximum(high - low, _LEAST) / _WIDTH)
    return shares
