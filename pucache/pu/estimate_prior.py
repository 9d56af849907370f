"""The share of positives among the unlabelled, by each method, with intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..heads.design_matrix import Moments
from ..heads.risks import PURisk
from ..progress import Progress, Silent
from .cross_fitting import CrossFit, CrossFitter
from .data import PUData
from .folds import deal
from .priors import METHODS, PriorEstimate, estimate, interval


def estimate_prior(
    data: PUData,
    *,
    methods: Sequence[str] = tuple(METHODS),
    draws: int = 40,
    level: float = 0.9,
    n_folds: int = 5,
    seed: int = 0,
    device: str = "auto",
    progress: Progress | None = None,
) -> list[PriorEstimate]:
    """Estimate the prior on cross-fitted margins of the default risk, which needs no prior itself.

    Parameters
    ----------
    data : PUData
    methods : sequence of str
        Of `pucache.pu.priors.METHODS`.
    draws : int
        Bootstrap draws of the rows; the heads are trained anew on each. 0: no intervals.
    level : float
        Share of intervals meant to hold the truth, in (0, 1).
    n_folds, seed : int
    device : str
    progress : Progress, optional

    Returns
    -------
    list of PriorEstimate
        One a method, in the order given.

    Raises
    ------
    ValueError
        Unknown method, or a number outside its domain.
    """
    unknown = [method for method in methods if method not in METHODS]
    if unknown or not methods:
        raise ValueError(f"unknown method {', '.join(map(repr, unknown)) or 'none'}; use {', '.join(METHODS)}")
    if draws < 0 or not 0 < level < 1 or n_folds < 2:
        raise ValueError(
            f"draws must be at least 0, level in (0, 1), n_folds at least 2; got {draws}, {level}, {n_folds}"
        )
    X, s, known = data.cache.X, data.s, data.known
    fold = deal(known.trained, n_folds, seed, data.group)
    fitter = CrossFitter(X, known, fold, risk=PURisk(), prior=0.5, moments=Moments.of(X), seed=seed, device=device)
    with progress or Silent() as shown:
        shown.start(draws + 1, "estimating")
        fitted = fitter.choose()
        shown.advance(1)
        drawn = _resampled(fitter, fitted, methods, draws, seed, shown)
    drawn = np.clip(drawn, *known.bounds)
    return [
        interval(
            method,
            estimate(fitted.margins, s, method, bounds=known.bounds),
            drawn[:, column],
            level,
            bounds=known.bounds,
        )
        for column, method in enumerate(methods)
    ]


def _resampled(
    fitter: CrossFitter, fitted: CrossFit, methods: Sequence[str], draws: int, seed: int, shown: Progress
) -> np.ndarray:
    """Estimates of each draw, (draws, methods)."""
    rows = []
    for draw in fitter.resampled(fitted, draws, seed):
        rows.append([estimate(draw.margins, draw.s, method, draw.weights) for method in methods])
        shown.advance(1)
    return np.array(rows).reshape(draws, len(methods))
