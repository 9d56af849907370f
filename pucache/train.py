"""From a cache and labelled positives to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .cache import EmbeddingCache
from .classifier import PULinearClassifier
from .errors import CacheError
from .labels import label_vector
from .progress import Progress


def train_pu(
    cache: EmbeddingCache,
    positives: str | Path | np.ndarray,
    *,
    progress: Progress | None = None,
    **parameters: Any,
) -> PULinearClassifier:
    """Train a classifier on a cache.

    Parameters
    ----------
    cache : EmbeddingCache
    positives : path, str or ndarray of int8 (n,)
        A file of keys, a glob on keys, or s itself.
    progress : Progress, optional
    **parameters
        Of `PULinearClassifier`; ``prior`` is required.

    Raises
    ------
    LabelError
        Unknown keys; no labelled or no unlabelled row.
    CacheError
        The cache holds embeddings that are not finite (it was not written by pucache).
    ValueError
        A parameter outside its domain.
    """
    s = positives if isinstance(positives, np.ndarray) else label_vector(cache.keys, positives)
    require_finite(cache)
    model = PULinearClassifier(**parameters).fit(cache.X, s, progress=progress)
    model.encoder_ = cache.encoder
    return model


def require_finite(cache: EmbeddingCache) -> None:
    """Raise `CacheError` naming the first rows whose embedding is NaN or infinite."""
    for rows, X in cache.blocks():
        bad = np.flatnonzero(~np.isfinite(X).all(1)) + rows.start
        if len(bad):
            named = ", ".join(repr(cache.keys[int(row)]) for row in bad[:3])
            raise CacheError(f"{cache.name} holds NaN or infinite embeddings ({named}); import or embed these anew")


def summary(model: PULinearClassifier) -> dict[str, Any]:
    """What a model is and what is estimated of it, ready for JSON (``metrics.json``)."""
    return {
        "encoder": str(model.encoder_),
        "labelled_positives": model.n_labelled_,
        "unlabelled": model.n_unlabelled_,
        **{name: np.asarray(getattr(model, name)).item() for name in ("prior", "target_prior", "loss", "threshold")},
        "estimates": model.estimates_,
    }
