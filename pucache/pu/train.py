"""From a cache and labelled positives to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..progress import Progress
from .classifier import PULinearClassifier
from .data import TWIN_COSINE, PUData
from .labels import Labels
from .scar import ScarCheck, check_scar


def train_pu(
    cache: EmbeddingCache,
    positives: str | Path | np.ndarray | Labels,
    *,
    negatives: str | Path | None = None,
    twins: float | None = TWIN_COSINE,
    progress: Progress | None = None,
    **parameters: Any,
) -> PULinearClassifier:
    """Train a classifier on a cache.

    Parameters
    ----------
    cache : EmbeddingCache
    positives : path, str, ndarray of int8 (n,) or Labels
        A file of keys, a glob on keys, s itself, or all labels.
    negatives : path or str, optional
        A file of keys or a glob on keys of known negatives.
    twins : float or None
        Images with this cosine or more, or with equal bytes, stay in one fold; None: equal bytes
        only.
    progress : Progress, optional
    **parameters
        Of `PULinearClassifier`.

    Returns
    -------
    PULinearClassifier
        Fitted; its `encoder_` is the cache's.

    Raises
    ------
    LabelError, CacheError
        As `PUData.of`.
    ValueError
        A parameter outside its domain.
    """
    return train_on(PUData.of(cache, positives, twins, negatives=negatives), progress=progress, **parameters)


def train_on(data: PUData, *, progress: Progress | None = None, **parameters: Any) -> PULinearClassifier:
    """Train on data already joined; parameters are those of `PULinearClassifier`.

    Parameters
    ----------
    data : PUData
    progress : Progress, optional
    **parameters
        Of `PULinearClassifier`.

    Returns
    -------
    PULinearClassifier
        Fitted; its `encoder_` is the cache's.
    """
    model = PULinearClassifier(**parameters)
    model.fit(data.cache.X, data.s, groups=data.group, reviewed=data.labels.reviewed, progress=progress)
    model.encoder_ = data.cache.encoder
    return model


def scar_of(data: PUData, model: PULinearClassifier) -> ScarCheck:
    """Compare labelled with found positives, by the held-out margins of a model just trained on these data.

    Parameters
    ----------
    data : PUData
    model : PULinearClassifier
        Of `train_on`.

    Returns
    -------
    ScarCheck
    """
    return check_scar(
        data.cache.X, data.labels, model.held_out_margins_, model.tilt_, group=data.group, seed=model.seed
    )


def summary(model: PULinearClassifier) -> dict[str, Any]:
    """What a model is and what is estimated of it, ready for JSON (``metrics.json``).

    Parameters
    ----------
    model : PULinearClassifier
        Fitted by `train_pu` or `train_on`.

    Returns
    -------
    dict
    """
    chosen = ("loss", "target_prior", "solver", "deploy_prior")
    return {
        "encoder": str(model.encoder_),
        "labelled_positives": model.n_labelled_,
        "unlabelled": model.n_unlabelled_,
        "confirmed_positives": model.n_confirmed_,
        "known_negatives": model.n_negatives_,
        "prior": model.prior_,
        "prior_estimate": None if model.prior_estimate_ is None else vars(model.prior_estimate_),
        "penalty": model.penalty_,
        "threshold": model.threshold_,
        "threshold_rule": str(model.threshold),
        **{name: np.asarray(getattr(model, name)).item() for name in chosen},
        "estimates": model.estimates_,
    }
