r"""Intervals of the figures that are estimated without negatives (`pucache.estimates.metrics.from_pu`).

The unlabelled rows U are all there are, so counts of them have no error. Two things are unknown:

- **Where the positives' margins lie.** The labelled positives P are a sample of it. A draw of the distribution
  weights the margins of P by a Dirichlet distribution (the Bayesian bootstrap, Rubin 1981), with two further margins
  of weight 1: one drawn from the rows of U above the threshold, and one from those below. So recall has the posterior
  Beta(wk + 1, w(n - k) + 1) of a uniform prior for k of n positives above the threshold, which keeps its coverage next
  to 0 and 1. Each row of P has a weight w = 0.8 rather than 1, because threshold and penalty were chosen on the same
  margins: with few labels the threshold often lies just below the lowest of them.
- **The prior.** Each draw has a prior from its interval, normal in log odds to either side of the estimate.

A draw has a prior q, and as many positives as U then hides are drawn from its distribution: these give recall r and
AUC, and q * r of U are positives above the threshold. At most all rows of U above it can be. The quantiles of the
figures over the draws are the ends of their intervals. Where rows come in groups, numbers of P and of positives in U
are divided by the design effect (`pucache.estimates.label_requirements`). No head is refitted.

A figure of decisions that depends on an estimated prior is stated as the median of the draws. Counts at the likeliest
prior (`pucache.estimates.metrics.from_pu`) lean high, as the threshold was chosen where they look best, and means lean
low for classes that are easy to tell: the interval of the prior reaches further down than up, and hits are limited
above. On 295 piles with 40 to 300 labels (benchmarks/quality/prior.py) precision leaned by 0.074, 0.043 and 0.019 as
count, median and mean; on those of classes of CIFAR-10 by 0.046, 0.016 and -0.018.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, logit, ndtri

from .calibration import LEAST, MOST
from .label_requirements import figure

LEVEL = 0.9  # nominal coverage, as of the prior's interval
WITH_INTERVAL = ("pauc", "auc", "recall", "precision", "f1", "false_positive_rate", "accuracy")
WITHOUT_PRIOR = ("pauc", "recall")
_DRAWS = 2000
_ROUNDING = 1e-6
_ROW_WEIGHT = 0.8  # of a labelled row; with 1, 90 % intervals of recall held the truth in 84 % of 106 sets
_MAX_BINS = 256  # of the margins of P; many labelled positives are drawn in bins


@dataclass(frozen=True)
class Estimate:
    """A figure as far as it may be stated: a number with its interval, an interval alone, or neither."""

    value: float | None = None
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, value: float, interval: tuple[float, float] | None) -> Estimate:
        """A number with its interval, which is widened to hold it."""
        return cls(value) if interval is None else cls(value, min(interval[0], value), max(interval[1], value))

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends; None where there is no interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def within(self, other: Estimate) -> Estimate:
        """This estimate, cut to the interval of another where they agree; with its number where this one has none."""
        if self.interval is None or other.interval is None:
            return self
        low, high = max(self.interval[0], other.interval[0]), min(self.interval[1], other.interval[1])
        if low > high:
            return self
        value = other.value if self.value is None else self.value
        return Estimate(None if value is None else min(max(value, low), high), low, high)

    def __str__(self) -> str:
        return figure(self.value, self.interval)

    def to_json(self) -> dict[str, float | None]:
        """Number and ends, by the endings of their names."""
        return {"": self.value, "_low": self.low, "_high": self.high}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], name: str) -> Estimate:
        """Read the figure of a name; ValueError where it is no number, or its ends are the wrong way round."""
        value, low, high = (read_number(content, f"{name}{end}") for end in ("", "_low", "_high"))
        if low is not None and high is not None and low > high:
            raise ValueError(f"{name} has the ends {low} and {high}")
        if not all(end is None or -_ROUNDING <= end <= 1 + _ROUNDING for end in (value, low, high)):
            raise ValueError(f"{name} is no share: {value}, {low} to {high}")
        return cls(value, low, high)


def read_number(content: Mapping[str, Any], name: str) -> float | None:
    """A number out of a file of others; None where it is missing, ValueError where it is none or not finite."""
    value = content.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise ValueError(f"{name} is {value!r:.40}")
    return float(value)


def intervals_from_pu(
    margins: np.ndarray,
    s: np.ndarray,
    prior: float,
    prior_range: tuple[float, float],
    threshold: float,
    *,
    design_effect: float = 1.0,
    seed: int = 0,
) -> dict[str, Estimate]:
    """Median and interval of coverage `LEVEL`, for each name in `WITH_INTERVAL`, of figures among the unlabelled rows.

    The margins (n,) are held out; rows above `threshold` are called positive. `prior_range` is the interval of the
    prior, of the same coverage; both ends equal `prior` where that is given. `design_effect` rows are worth an
    independent one.
    """
    margins = np.asarray(margins, np.float64)
    generator = np.random.default_rng(seed)
    unlabelled = np.sort(margins[s == 0])
    called_share = float(np.mean(unlabelled > threshold))
    priors = _draw_priors(prior, *prior_range, generator)
    hidden = np.maximum(1, np.round(priors * (len(unlabelled) / design_effect))).astype(np.int64)
    row_weight = _ROW_WEIGHT / design_effect
    drawn = _draw_positives(margins[s == 1], unlabelled, threshold, generator, row_weight, hidden)
    figures = _figures(*drawn, priors, called_share)
    levels = (0.5, (1 - LEVEL) / 2, (1 + LEVEL) / 2)
    return {name: Estimate(*np.quantile(drawn, levels).tolist()) for name, drawn in figures.items()}


def _draw_priors(prior: float, low: float, high: float, generator: np.random.Generator) -> np.ndarray:
    """Priors (B,), normal in log odds to either side of `prior`; (1 - `LEVEL`) / 2 of them lie beyond either end."""
    low, high = max(low, LEAST), min(high, MOST)
    low, centre, high = logit([low, min(max(prior, low), high), high])
    steps = generator.standard_normal(_DRAWS) / ndtri((1 + LEVEL) / 2)
    drawn = centre + np.where(steps > 0, high - centre, centre - low) * steps
    return np.asarray(np.clip(expit(drawn), LEAST, MOST))


def _draw_positives(
    positive: np.ndarray,
    unlabelled: np.ndarray,
    threshold: float,
    generator: np.random.Generator,
    row_weight: float,
    hidden: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """PAUC of draws of the positives' distribution, then recall and PAUC of so many `hidden` (B,) drawn from each.

    `unlabelled` ascends.
    """
    positive = np.sort(positive)
    placement = (np.searchsorted(unlabelled, positive, "left") + np.searchsorted(unlabelled, positive, "right")) / 2
    cut = int(np.searchsorted(positive, threshold, "right"))
    starts = np.unique(np.concatenate([_bin_starts(0, cut), _bin_starts(cut, len(positive))]))
    rows = np.diff(starts, append=len(positive))
    weights = generator.standard_gamma(row_weight * rows, (_DRAWS, len(rows)))  # (B, bins)
    shares = np.column_stack([weights, generator.standard_gamma(1.0, (_DRAWS, 2))])  # and of a row below, and above
    shares /= shares.sum(1, keepdims=True)
    at = np.searchsorted(unlabelled, threshold, "right") / len(unlabelled)
    further = np.array([0, at]) + np.array([at, 1 - at]) * generator.random((_DRAWS, 2))
    placements = np.add.reduceat(placement, starts) / rows / len(unlabelled)

    def pauc(shares: np.ndarray) -> np.ndarray:
        return np.asarray(shares[:, :-2] @ placements + (shares[:, -2:] * further).sum(1))

    drawn = generator.multinomial(hidden, shares) / hidden[:, None]
    return pauc(shares), drawn @ np.append(starts >= cut, [False, True]), pauc(drawn)


def _bin_starts(first: int, last: int) -> np.ndarray:
    count = min(last - first, _MAX_BINS // 2)
    return np.linspace(first, last, count + 1)[:-1].astype(np.int64)


def _figures(
    pauc: np.ndarray, recall: np.ndarray, pauc_of_hidden: np.ndarray, prior: np.ndarray, called_share: float
) -> dict[str, np.ndarray]:
    """Figures of each draw, (B,); `called_share` of the unlabelled rows lie above the threshold."""
    hits = np.minimum(prior * recall, called_share)  # as a share of U
    false_positive_rate = np.clip((called_share - hits) / (1 - prior), 0, 1)
    return {
        "pauc": pauc,
        "auc": np.clip((pauc_of_hidden - prior / 2) / (1 - prior), 0, 1),
        "recall": recall,
        "precision": hits / called_share if called_share else np.zeros_like(hits),
        "f1": 2 * hits / (prior + called_share),
        "false_positive_rate": false_positive_rate,
        "accuracy": hits + (1 - prior) * (1 - false_positive_rate),
    }
