"""Estimates of the prior, the share of positives among the unlabelled, by several methods; the tilt has an interval."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..cache.embedding_cache import EmbeddingCache, open_cache
from ..estimates.priors import METHODS, PriorEstimate, estimate, profile_interval
from ..labels.folds import assign_folds
from ..labels.labels import TWIN_COSINE, Labels
from ..progress import Progress, Silent
from .cross_fitting import CrossFitter, HeadSettings
from .labelled_cache import LabelledCache


def estimate_prior(
    cache: str | Path | Sequence[str | Path] | EmbeddingCache,
    positives: str | Path | np.ndarray | Labels,
    *,
    negatives: str | Path | None = None,
    twins: float | None = TWIN_COSINE,
    all_rows: bool = False,
    methods: Sequence[str] = tuple(METHODS),
    level: float = 0.9,
    n_folds: int = 5,
    seed: int = 0,
    device: str = "auto",
    progress: Progress | None = None,
) -> list[PriorEstimate]:
    """Estimate the share of positives among the unlabelled images of a cache.

    Parameters
    ----------
    cache, positives, negatives, twins, all_rows
        As for `pucache.train_pu`.
    methods, level, n_folds, seed, device, progress
        As for `estimate_prior_on`.

    Returns
    -------
    list of PriorEstimate
        One per method, in the order given.

    Raises
    ------
    LabelError, CacheError
        As `LabelledCache.of`.
    ValueError
        Unknown method, or a number outside its domain.
    """
    data = LabelledCache.of(open_cache(cache), positives, twins, negatives=negatives, all_rows=all_rows, seed=seed)
    return estimate_prior_on(
        data, methods=methods, level=level, n_folds=n_folds, seed=seed, device=device, progress=progress
    )


def estimate_prior_on(
    data: LabelledCache,
    *,
    methods: Sequence[str] = tuple(METHODS),
    level: float = 0.9,
    n_folds: int = 5,
    seed: int = 0,
    device: str = "auto",
    progress: Progress | None = None,
) -> list[PriorEstimate]:
    """Estimate the prior from cross-fitted margins of the default risk, which needs no prior itself.

    Parameters
    ----------
    data : LabelledCache
    methods : sequence of str
        Names in `pucache.estimates.priors.METHODS`.
    level : float
        Nominal coverage of the interval of the tilt, in (0, 1). The other methods have none.
    n_folds, seed : int
    device : str
    progress : Progress, optional

    Returns
    -------
    list of PriorEstimate
        One per method, in the order given.

    Raises
    ------
    ValueError
        Unknown method, or a number outside its domain.
    """
    check_request(methods, level=level, n_folds=n_folds)
    labels = data.training_labels
    fold = assign_folds(labels.training_s, n_folds, seed, data.group)
    fitter = CrossFitter(data.design_matrix(device), labels, fold, settings=HeadSettings(seed=seed))
    with progress or Silent() as stages:
        stages.start(1, "estimating")
        margins = fitter.choose_penalty().margins
        stages.advance(1)
    return estimates_from_margins(data, margins, methods, level)


def estimates_from_margins(
    data: LabelledCache, margins: np.ndarray, methods: Sequence[str] = tuple(METHODS), level: float = 0.9
) -> list[PriorEstimate]:
    """Estimate the prior from held-out margins of the default risk, (n,), such as training made them."""
    bounds = data.training_labels.bounds
    return [
        profile_interval(margins, data.s, level, bounds=bounds)
        if method == "tilt"
        else PriorEstimate.without_interval(method, estimate(margins, data.s, method, bounds=bounds), level)
        for method in methods
    ]


def check_request(methods: Sequence[str], *, level: float, n_folds: int) -> None:
    """Raise `ValueError` for arguments of `estimate_prior_on` that are outside their domain."""
    unknown = [method for method in methods if method not in METHODS]
    if unknown or not methods:
        raise ValueError(f"unknown method {', '.join(map(repr, unknown)) or 'none'}; use {', '.join(METHODS)}")
    if not 0 < level < 1 or n_folds < 2:
        raise ValueError(f"level must be in (0, 1), n_folds at least 2; got {level}, {n_folds}")
