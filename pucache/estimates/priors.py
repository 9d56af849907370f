"""The prior, the share of positives among the unlabelled, from held-out margins, and its interval.

It is that of the exponential tilt (`pucache.estimates.calibration`), with the interval of the profile likelihood.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import expit, logit, stdtrit

from .calibration import LEAST, MOST, deviance_within_pile, effective_number, fit_tilt, profile_ends, profile_prior
from .label_requirements import LabelCount

MODEL_ERROR = 0.05  # relative error of the tilt itself; measured on the one-vs-rest suite with many rows
ERROR_BELOW = 0.3  # of the same below an estimate: negatives that look like positives count as hidden positives
_FITTED = 2 + 5  # parameters that labels are spent on: alpha and slope, and the level of the head of each fold


@dataclass(frozen=True)
class PriorEstimate:
    """An estimated prior, with its interval where there is one.

    Attributes
    ----------
    method : str
        ``tilt``, or ``audit`` of a review.
    prior : float or None
        None where the labels are too few for a number (`pucache.estimates.label_requirements`).
    low, high : float
        Ends of the interval; 0 and 1 where there is none.
    level : float
        Nominal coverage of the interval.
    draws : int
        Number of images drawn at random that the interval of an audit rests on; 0 for the profile likelihood.
    """

    method: str
    prior: float | None
    low: float = 0.0
    high: float = 1.0
    level: float = 0.9
    draws: int = 0

    def __repr__(self) -> str:
        prior, number = "not stated" if self.prior is None else f"{self.prior:.3g}", "{:.3g}".format
        return f"PriorEstimate({self.method}: {prior}, {self.level_text} interval {self.interval_text(number)})"

    def stated(self, count: LabelCount) -> PriorEstimate:
        """The estimate as far as the labels allow it to be stated.

        It has no number where the labels are too few for one, and no interval where they are fewer.
        """
        if count.has_points:
            return self
        low, high = (self.low, self.high) if count.has_estimates else (0.0, 1.0)
        return replace(self, prior=None, low=low, high=high)

    @property
    def level_text(self) -> str:
        """The level in per cent."""
        return f"{100 * self.level:g}%"

    @property
    def has_interval(self) -> bool:
        """Whether `low` and `high` are the ends of an interval."""
        return (self.low, self.high) != (0.0, 1.0)

    def interval_text(self, number: Callable[[float], str]) -> str:
        """The interval in words, "A to B", "at most B", "at least A" or "none"; `number` formats an end."""
        return interval_text(self.low, self.high, number) if self.has_interval else "none"


def interval_text(low: float, high: float, number: Callable[[float], str]) -> str:
    """The interval of a prior in words, see `PriorEstimate.interval_text`."""
    if low <= LEAST and high < MOST:
        return f"at most {number(high)}"
    if low > LEAST and high >= MOST:
        return f"at least {number(low)}"
    return f"{number(low)} to {number(high)}"


def estimate(
    margins: np.ndarray,
    s: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    bounds: tuple[float, float] = (LEAST, MOST),
) -> float:
    """Estimate the prior by the exponential tilt, within bounds, by held-out margins (n,), s (n,) and row weights."""
    weights = np.ones(len(s)) if weights is None else np.asarray(weights, np.float64)
    rows = weights > 0
    return float(np.clip(fit_tilt(margins[rows], s[rows], weights[rows]).prior, *bounds))


def profile_interval(
    margins: np.ndarray,
    s: np.ndarray,
    level: float = 0.9,
    weights: np.ndarray | None = None,
    *,
    bounds: tuple[float, float] = (LEAST, MOST),
    design_effect: float = 1.0,
    most_labels: float = np.inf,
) -> PriorEstimate:
    """Estimate by the tilt, with the interval of its profile likelihood.

    The interval is that of the share in the pile itself: it holds the priors with a deviance D up to::

        D / (1 - D / B) <= t**2

    B is the deviance of sampling alone, 2 * n_U * KL(estimate, prior), see `deviance_within_pile`, and t**2 the
    `deviance_limit`. The ends are then moved outwards on log odds: an error of the model is added to the distance
    from the estimate in quadrature, in the same multiple of a standard error. It is `ERROR_BELOW` at the low end and
    `MODEL_ERROR` at the high end, as the prior that a mixture identifies is the greatest possible one: the truth may
    be less, but not more (Blanchard, Lee and Scott 2010). An end that the likelihood does not limit lies at the
    bound. All misses are then beyond the other end, which is that of an interval of level (1 + `level`) / 2.

    Parameters
    ----------
    margins, s
        As for `estimate`.
    level : float
        Nominal coverage, in (0, 1).
    weights : ndarray, (n,), optional
        As for `estimate`.
    bounds : (float, float)
        Least and greatest possible prior.
    design_effect : float
        As for `profile_prior`.
    most_labels : float
        Number of groups that are labelled, which limits the degrees of freedom.

    Returns
    -------
    PriorEstimate
        Of method ``tilt``, with 0 draws.
    """
    labels = min(effective_number(s == 1, weights) / design_effect, most_labels)
    limit, of_one_end = (deviance_limit(labels, one) for one in (level, (1 + level) / 2))
    options: dict[str, Any] = {"bounds": bounds, "depth": of_one_end, "design_effect": design_effect}
    prior, priors, profile = profile_prior(margins, s, weights, **options)
    profile = deviance_within_pile(prior, priors, profile, effective_number(s == 0, weights))
    limit = of_one_end if None in profile_ends(priors, profile, limit) else limit
    low, high = widened_ends(profile_ends(priors, profile, limit), prior, bounds, limit)
    return PriorEstimate("tilt", prior, max(low, bounds[0]), min(high, bounds[1]), level)


def deviance_limit(labels: float, level: float = 0.9) -> float:
    """Deviance at the ends of an interval: the squared quantile of Student's t at `level`.

    With many labels it is that of the chi-squared distribution, 2.71 at 0.9 (Wilks 1938). n labels leave n - 7
    degrees of freedom: alpha, slope and the levels of the heads of five folds are fitted to them.
    """
    return float(stdtrit(max(labels - _FITTED, 1), (1 + level) / 2)) ** 2


def widened_ends(
    ends: tuple[float | None, float | None], prior: float, bounds: tuple[float, float], limit: float
) -> tuple[float, float]:
    """Ends of an interval at a deviance `limit`, moved away from the estimate by the errors of the model.

    The distance from the estimate and the error, on log odds, add in quadrature. An end that is None is the bound.
    """

    def widened(end: float, error: float) -> float:
        distance = logit(end) - logit(prior)
        return float(expit(logit(prior) + np.copysign(np.hypot(distance, np.sqrt(limit) * error), distance)))

    low, high = ends
    return (
        bounds[0] if low is None else widened(low, ERROR_BELOW),
        bounds[1] if high is None else widened(high, MODEL_ERROR),
    )
