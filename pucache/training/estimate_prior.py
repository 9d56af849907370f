"""Estimates of the prior, the share of positives among the unlabelled, by several methods; the tilt has an interval."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..cache.embedding_cache import EmbeddingCache, open_cache
from ..estimates.priors import METHODS, PriorEstimate, bootstrap_interval, estimate, profile_interval
from ..heads.risks import PURisk
from ..labels.folds import assign_folds
from ..labels.labels import TWIN_COSINE, Labels
from ..progress import Progress, Silent
from .cross_fitting import CrossFit, CrossFitter
from .labelled_cache import PUData


def estimate_prior(
    cache: str | Path | Sequence[str | Path] | EmbeddingCache,
    positives: str | Path | np.ndarray | Labels,
    *,
    negatives: str | Path | None = None,
    twins: float | None = TWIN_COSINE,
    all_rows: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> list[PriorEstimate]:
    """Estimate the share of positives among the unlabelled images of a cache.

    Parameters
    ----------
    cache, positives, negatives, twins, all_rows, progress
        As for `pucache.train_pu`.
    **options
        Options of `estimate_prior_on`: methods, draws, level, n_folds, seed, device.

    Returns
    -------
    list of PriorEstimate
        One per method, in the order given.

    Raises
    ------
    LabelError, CacheError
        As `PUData.of`.
    ValueError
        Unknown method, or a number outside its domain.
    """
    seed = options.get("seed", 0)
    data = PUData.of(open_cache(cache), positives, twins, negatives=negatives, all_rows=all_rows, seed=seed)
    return estimate_prior_on(data, progress=progress, **options)


def estimate_prior_on(
    data: PUData,
    *,
    methods: Sequence[str] = tuple(METHODS),
    draws: int = 0,
    level: float = 0.9,
    n_folds: int = 5,
    seed: int = 0,
    device: str = "auto",
    progress: Progress | None = None,
) -> list[PriorEstimate]:
    """Estimate the prior from cross-fitted margins of the default risk, which needs no prior itself.

    Parameters
    ----------
    data : PUData
    methods : sequence of str
        Names in `pucache.estimates.priors.METHODS`.
    draws : int
        0: the interval of the tilt is that of its profile likelihood. Otherwise the number of bootstrap draws of
        the rows that it comes from; heads are refitted on each. The other methods have no interval.
    level : float
        Nominal coverage of the interval, in (0, 1).
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
    check_request(methods, draws=draws, level=level, n_folds=n_folds)
    labels = data.training_labels
    fold = assign_folds(labels.training_s, n_folds, seed, data.group)
    fitter = CrossFitter(data.design_matrix(device), labels, fold, risk=PURisk(), prior=0.5, seed=seed)
    with progress or Silent() as stages:
        stages.start(draws + 1, "estimating")
        cross_fit = fitter.choose_penalty()
        stages.advance(1)
        return estimate_from_cross_fit(
            data, fitter, cross_fit, methods=methods, draws=draws, level=level, seed=seed, progress=stages
        )


def estimate_from_cross_fit(
    data: PUData,
    fitter: CrossFitter,
    cross_fit: CrossFit,
    *,
    methods: Sequence[str] = tuple(METHODS),
    draws: int = 0,
    level: float = 0.9,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[PriorEstimate]:
    """Estimate the prior from a cross-fit of the default risk that was made already.

    Parameters
    ----------
    data : PUData
    fitter : CrossFitter
        Refits the heads on bootstrap draws.
    cross_fit : CrossFit
        Of `fitter`, such as training made it.
    methods, draws, level, seed
        As for `estimate_prior_on`.
    progress : Progress, optional
        Started by the caller; it advances by one for each draw.

    Returns
    -------
    list of PriorEstimate
        One per method, in the order given.
    """
    check_request(methods, draws=draws, level=level)
    bounds = data.training_labels.bounds
    estimates = []
    for method in methods:
        if method == "tilt" and not draws:
            estimates.append(profile_interval(cross_fit.margins, data.s, level, bounds=bounds))
            continue
        prior = estimate(cross_fit.margins, data.s, method, bounds=bounds)
        if method == "tilt":
            drawn = _estimate_draws(fitter, cross_fit, draws, seed=seed, progress=progress or Silent())
            estimates.append(bootstrap_interval(method, prior, np.clip(drawn, *bounds), level, bounds=bounds))
        else:
            estimates.append(PriorEstimate.without_interval(method, prior, level))
    return estimates


def check_request(methods: Sequence[str], *, draws: int = 0, level: float = 0.9, n_folds: int = 2) -> None:
    """Raise `ValueError` for arguments of `estimate_prior_on` that are outside their domain."""
    unknown = [method for method in methods if method not in METHODS]
    if unknown or not methods:
        raise ValueError(f"unknown method {', '.join(map(repr, unknown)) or 'none'}; use {', '.join(METHODS)}")
    if draws and "tilt" not in methods:
        raise ValueError(f"draws are for the interval of tilt, got {', '.join(methods)}; add tilt or leave draws out")
    if draws < 0 or not 0 < level < 1 or n_folds < 2:
        raise ValueError(
            f"draws must be at least 0, level in (0, 1), n_folds at least 2; got {draws}, {level}, {n_folds}"
        )


def _estimate_draws(
    fitter: CrossFitter, cross_fit: CrossFit, draws: int, *, seed: int, progress: Progress
) -> np.ndarray:
    """Estimates of the tilt on each bootstrap draw, (draws,)."""
    estimates = []
    for draw in fitter.bootstrap(cross_fit, draws, seed):
        estimates.append(estimate(draw.margins, draw.s, weights=draw.weights))
        progress.advance(1)
    return np.array(estimates)
