r"""Estimates of the prior, the share of positives among the unlabelled, from held-out margins.

No bare number: `pucache.pu.cross_fitting` refits the heads on bootstrap draws of the rows, and an estimate
comes with the interval that they span. The methods::

    tilt      the exponential tilt of `pucache.pu.calibration`; what ``auto`` stands for
    bbe       best-bin estimate (Garg et al. 2021, algorithm 1)
    dedpul    EM on the monotone ratio of the kernel densities of P and U (Ivanov 2020)
    elkanoto  mean score of held-out P (Elkan and Noto 2008, estimator e1), the score being the
              monotone P(s = 1 | m)
    histogram least squares fit of U's histogram by those of P and of U's lower half's negatives
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.ndimage import gaussian_filter1d
from scipy.optimize import nnls
from scipy.special import expit, logit
from scipy.stats import t as student
from sklearn.isotonic import IsotonicRegression

from .calibration import LEAST, MOST, fit_tilt

MODEL_ERROR = 0.05  # relative; of about this size on the one-vs-rest suite where rows are many
_DELTA, _GAMMA = 0.1, 0.01  # Garg's confidence and slack
_GRID, _TOP = 512, 0.97  # points at which densities are compared, up to this quantile of P


@dataclass(frozen=True)
class PriorEstimate:
    """An estimated prior with its interval.

    Attributes
    ----------
    method : str
    prior : float
    low, high : float
        Of the interval.
    level : float
        Share of intervals meant to hold the truth.
    draws : int
        Bootstrap draws that it rests on; 0: no interval, `low` is 0 and `high` 1.
    """

    method: str
    prior: float
    low: float
    high: float
    level: float
    draws: int


def tilt(margins: np.ndarray, s: np.ndarray, weights: np.ndarray) -> float:
    """Prior of the fitted tilt."""
    return fit_tilt(margins, s, weights).prior


def best_bin(margins: np.ndarray, s: np.ndarray, weights: np.ndarray) -> float:
    """Share of U above a margin over that of P, where its upper confidence bound is lowest."""
    _, above_p, above_u, n_p, n_u = _above(margins, s, weights)
    slack = np.sqrt(np.log(4 / _DELTA) / 2) * (n_p**-0.5 + n_u**-0.5)
    bound = (above_u + (1 + _GAMMA) * slack) / np.maximum(above_p, 1e-12)
    at = int(np.argmin(bound))
    return float(above_u[at] / max(above_p[at], 1e-12))


def density_ratio(margins: np.ndarray, s: np.ndarray, weights: np.ndarray) -> float:
    """Fixed point of prior = mean over U of min(1, prior * f_P / f_U), the densities smoothed by kernels."""
    low = _quantile(margins, 0.0005, weights)
    high = _quantile(margins[s == 1], _TOP, weights[s == 1])  # beyond, a ratio of noises
    if not high > low:
        return 1.0
    grid = np.linspace(low, high, _GRID)
    f_p, f_u = (_density(np.clip(margins[s == value], low, high), weights[s == value], grid) for value in (1, 0))
    ratio = np.maximum.accumulate(f_p / np.maximum(f_u, 1e-300))
    prior = 1.0
    for _ in range(2000):
        before, prior = prior, float(f_u @ np.minimum(1, prior * ratio))
        if before - prior < 1e-6:
            break
    return prior


def label_frequency(margins: np.ndarray, s: np.ndarray, weights: np.ndarray) -> float:
    """From c, the mean P(s = 1 | m) over P: share labelled / c is the share of positives among all."""
    w = np.where(s == 1, weights / weights[s == 1].sum(), 1)
    labelled = weights[s == 1].sum() / weights.sum()
    q = _monotone(margins, s, weights)  # with P and U of equal weight
    odds = q / np.maximum(1 - q, 1e-12) * labelled / (1 - labelled)
    c = float((w * odds / (1 + odds))[s == 1].sum())
    return (labelled / max(c, 1e-12) - labelled) / (1 - labelled)


def histogram_match(margins: np.ndarray, s: np.ndarray, weights: np.ndarray) -> float:
    """Least squares fit of U's cumulative histogram, at P's deciles, by a line in P's.

    Above the highest margins of negatives, the share of U is prior times that of P; below, the
    negatives' share is taken to fall geometrically from bin to bin.
    """
    m, above_p, above_u, _, _ = _above(margins, s, weights)
    at = np.minimum(np.searchsorted(above_p, np.arange(0.1, 1.0, 0.1)), len(m) - 1)
    p, u = above_p[at], above_u[at]
    best = min(
        (_fit_two(p, u, np.exp(-rate * np.arange(len(p))[::-1])) for rate in np.linspace(0.2, 4, 39)),
        key=lambda fit: fit[1],
    )
    return best[0]


METHODS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], float]] = {
    "tilt": tilt,
    "bbe": best_bin,
    "dedpul": density_ratio,
    "elkanoto": label_frequency,
    "histogram": histogram_match,
}


def estimate(
    margins: np.ndarray,
    s: np.ndarray,
    method: str = "tilt",
    weights: np.ndarray | None = None,
    *,
    bounds: tuple[float, float] = (LEAST, MOST),
) -> float:
    """Estimate the prior.

    Parameters
    ----------
    margins : ndarray, (n,)
        Each from a head that did not see the row.
    s : ndarray of 0 and 1, (n,)
    method : str
        One of `METHODS`.
    weights : ndarray, (n,), optional
        Counts of a bootstrap draw.
    bounds : (float, float)
        Least and greatest prior that there can be; 1e-5 and 0.999 where nothing is known.

    Returns
    -------
    float
        Within the bounds.

    Raises
    ------
    ValueError
        Unknown method.
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; use {', '.join(METHODS)}")
    weights = np.ones(len(s)) if weights is None else np.asarray(weights, np.float64)
    held = weights > 0
    return float(np.clip(METHODS[method](margins[held], s[held], weights[held]), *bounds))


def interval(
    method: str,
    prior: float,
    draws: np.ndarray,
    level: float = 0.9,
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> PriorEstimate:
    """Interval around an estimate, on the scale of log odds.

    Student's t over the bootstrap draws; their shift from the estimate counts as error as their
    spread does, and so does `MODEL_ERROR`, which no draw shows.

    Parameters
    ----------
    method : str
    prior : float
    draws : ndarray, (B,)
        Estimates of bootstrap draws.
    level : float
    bounds : (float, float)
        Least and greatest prior that there can be.

    Returns
    -------
    PriorEstimate
        With fewer than two draws its interval is 0 to 1.
    """
    if len(draws) < 2:
        return PriorEstimate(method, prior, 0.0, 1.0, level, len(draws))
    middle, drawn = logit(prior), logit(draws)
    error = np.sqrt(drawn.var(ddof=1) + (drawn.mean() - middle) ** 2 + MODEL_ERROR**2)
    half = float(student.ppf((1 + level) / 2, len(draws) - 1)) * error
    low, high = np.clip(expit([middle - half, middle + half]), *bounds).tolist()
    return PriorEstimate(method, prior, low, high, level, len(draws))


def _above(
    margins: np.ndarray, s: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float, float]:
    """Falling margins of P, the shares of P and of U at or above each, and the two weights."""
    order = np.argsort(-margins, kind="stable")
    m, positive, w = margins[order], s[order] == 1, weights[order]
    n_p, n_u = w[positive].sum(), w[~positive].sum()
    last = np.append(np.flatnonzero(np.diff(m)), len(m) - 1)  # of rows with equal margins
    above_p, above_u = np.cumsum(w * positive)[last] / n_p, np.cumsum(w * ~positive)[last] / n_u
    own = np.diff(above_p, prepend=0) > 0
    return m[last][own], above_p[own], above_u[own], float(n_p), float(n_u)


def _monotone(margins: np.ndarray, s: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Isotonic P(s = 1 | m) with P and U of equal total weight, (n,)."""
    w = np.where(s == 1, weights / weights[s == 1].sum(), weights / weights[s == 0].sum())
    isotonic = IsotonicRegression(y_min=0, y_max=1).fit(margins, (s == 1).astype(float), sample_weight=w)
    return np.asarray(isotonic.predict(margins))


def _quantile(margins: np.ndarray, share: float, weights: np.ndarray) -> float:
    return float(np.quantile(margins, share, weights=weights, method="inverted_cdf"))


def _density(margins: np.ndarray, weights: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Kernel density estimate, Gaussian with Silverman's bandwidth, as masses at the grid's points."""
    step = grid[1] - grid[0]
    mass = np.histogram(margins, np.append(grid, grid[-1] + step) - step / 2, weights=weights)[0] / weights.sum()
    middle = np.average(margins, weights=weights)
    width = np.sqrt(np.average((margins - middle) ** 2, weights=weights)) * 1.06 * weights.sum() ** -0.2
    return np.asarray(gaussian_filter1d(mass, max(float(width / step), 1e-3), mode="reflect"))


def _fit_two(p: np.ndarray, u: np.ndarray, negative: np.ndarray) -> tuple[float, float]:
    """Non-negative least squares u = prior * p + c * negative; returns prior and squared error."""
    coefficients, error = nnls(np.column_stack([p, negative]), u)
    return float(coefficients[0]), float(error)
