r"""Share of positives among new images, by the heads of a model's folds and the held-out margins of its pile.

The new images T are taken for a mixture of the pile's positives and negatives at another share rho (prior shift, or
label shift). With the log density ratio r = alpha + slope * m of `pucache.estimates.calibration`, the densities of the
margins of the labelled P, the unlabelled U and the new T are those of the negatives times::

    w_P = e^r,    w_U = 1 - prior + prior * e^r,    w_T = 1 - rho + rho * e^r

so that a margin is one of sample k with the probability::

    P(k | m) = n_k * w_k / (n_P * w_P + n_U * w_U + n_T * w_T)

(Qin 1998; for three samples and more, Fokianos et al. 2001). alpha, slope, prior and rho maximise the product of these
together. Where much of the pile is positive, new images with few positives show the tail of the negatives that the pile
hides; a tilt of P and U alone, kept fixed, counts that tail as positives.

Margins of the pile are held out, by heads that were not trained on the row and know four fifths of the labels. A new
image has a margin by each of these K heads, of weight 1 / K: by the final head, which knows all labels, positives lie
higher.

Margins of the pile's own rows by the final head differ: for figures of the pile, held-out margins take
the quantiles that these have (`on_one_scale`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit, log_expit, logit

from .calibration import (
    Tilt,
    binned,
    effective_number,
    fit_tilt,
    minimum,
)
from .label_requirements import LabelCount
from .priors import ERROR_BELOW, PriorEstimate, deviance_limit, profile_interval
from .thresholds import choose_threshold

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

LEAST_IMAGES = 30  # fewer new images say too little about a share
METHOD = "joint likelihood"
BINS = 300  # of the highest margins of a sample, and as many of the others
_MOST_ROWS = 1_000_000  # that thresholds are chosen on
_TILTS, _PLAUSIBLE = 5, (0.003, 0.9)  # tilts across an interval of the prior, and the priors tried
_BOUNDS = ((-30.0, 10.0), (-4.0, 4.0), (float(logit(1e-4)), float(logit(0.95))), (-11.5, 6.9))  # of the parameters
_STARTS = (0.003, 0.01, 0.3)  # shares that maximisation starts from, and the prior
_FAR = (-2.0, 0.5, float(logit(0.05)), float(logit(0.05)))  # a start that does not follow the pile's tilt
_STEPS = (0.2, 0.5, 1.0, 1.6, 2.4, 4.0, 7.0, 12.0)  # of log odds from the estimate, between which an end is searched


@dataclass(frozen=True, eq=False)
class PileMargins:
    """Held-out margins of a pile, merged into bins."""

    # mean margin and weight of each bin, float32 (k, 2); the weights of the positives sum to their effective number
    positive: np.ndarray
    unlabelled: np.ndarray
    prior: float | None = None  # share of positives among the unlabelled, where it was not estimated from these

    @classmethod
    def of(
        cls,
        margins: np.ndarray,
        s: np.ndarray,
        weights: np.ndarray | None,
        prior: float | None,
        design_effect: float = 1.0,
    ) -> PileMargins:
        """Merge held-out margins (n,) of rows with the labels s (n,); only ratios of weights (n,) matter."""
        sides = [binned(margins[s == k], None if weights is None else weights[s == k], BINS) for k in (1, 0)]
        scale = effective_number(s == 1, weights) / design_effect / sides[0][1].sum()
        positive, unlabelled = (np.stack([m, w * scale], 1).astype(np.float32) for m, w in sides)
        return cls(positive, unlabelled, prior)

    def tilt(self, prior: float) -> Tilt:
        """The tilt that fits the margins best, as in training."""
        return fit_tilt(*self.rows, prior)

    def plausible_tilts(self, prior: float) -> list[Tilt]:
        """The tilts that fit best at priors across the prior's interval; none where the prior was given."""
        if self.prior is not None:
            return []
        m, s, weights = self.rows
        interval = profile_interval(m, s, weights=weights)
        ends = np.clip((interval.low, interval.high, prior), *_PLAUSIBLE)
        log_odds = np.linspace(logit(ends.min()), logit(ends.max()), _TILTS)
        return [self.tilt(one) for one in expit(log_odds).tolist()]

    @property
    def rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Margins, labels s and weights of all bins, (k,) each."""
        m, weights = np.concatenate([self.positive, self.unlabelled]).astype(np.float64).T
        return m, np.repeat(np.array([1, 0], np.int8), [len(self.positive), len(self.unlabelled)]), weights

    def threshold(self, rule: str | float, prior: float, share: float, labels: LabelCount) -> float:
        """Threshold by a rule for a share of positives, as training chooses it."""
        m, weights = self.unlabelled.astype(np.float64).T
        unlabelled = np.repeat(m, np.maximum(1, np.round(weights * min(1, _MOST_ROWS / weights.sum()))).astype(int))
        near = None if labels.has_estimates else share
        return choose_threshold(self.tilt(prior), unlabelled, rule, share, near=near)

    def check(self) -> None:
        """Raise `ValueError` unless the arrays are as described; they may come from an untrusted file."""
        for side in (self.positive, self.unlabelled):
            is_table = side.dtype == np.float32 and side.ndim == 2 and side.shape[1] == 2 and 0 < len(side) <= 2 * BINS
            if not (is_table and np.isfinite(side).all() and (side[:, 1] > 0).all()):
                raise ValueError("the margins of its unlabelled images are no weighted bins")
        if self.prior is not None and not 0 < self.prior < 1:
            raise ValueError(f"the prior of its unlabelled images is {self.prior}")


def on_one_scale(held_out: np.ndarray, final: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Held-out margins (n,) at the quantiles that unlabelled rows have by the final head, float32 (n,)."""
    ends = np.sort(held_out[s == 0]), np.sort(final[s == 0])
    beyond = held_out - np.clip(held_out, ends[0][0], ends[0][-1])
    return np.asarray(np.interp(held_out, *ends) + beyond, np.float32)


class JointLikelihood:
    """Likelihood of which sample each margin is of, a function of alpha, log slope, logit prior and logit rho, (4,).

    Alpha and slope are those of standardised margins. P, U and T are tables of margins and weights, (k, 2) each, and
    `prior` is that among U where it is known.
    """

    def __init__(self, positive: np.ndarray, unlabelled: np.ndarray, new: np.ndarray, prior: float | None = None):
        samples = [side.astype(np.float64) for side in (positive, unlabelled, new)]
        m, self._weights = np.concatenate(samples).T
        centre = np.average(samples[1][:, 0], weights=samples[1][:, 1])
        spread = np.sqrt(np.average(np.square(samples[1][:, 0] - centre), weights=samples[1][:, 1]))
        self.centre, self.scale = float(centre), float(spread) or 1.0
        self._m, self._rows = (m - self.centre) / self.scale, np.arange(len(m))
        self._sample = np.repeat(np.arange(3), [len(side) for side in samples])
        self._log_n = np.log([side[:, 1].sum() for side in samples])[:, None]
        known = None if prior is None else float(np.clip(logit(prior), *_BOUNDS[2]))
        self._bounds = [*_BOUNDS[:2], _BOUNDS[2] if known is None else (known, known)]

    def __call__(self, parameters: np.ndarray) -> tuple[float, np.ndarray]:
        """Negative log likelihood and its gradient, (4,)."""
        alpha, log_slope, *shares = parameters
        r = alpha + np.exp(log_slope) * self._m
        mixtures = [np.logaddexp(log_expit(-z), log_expit(z) + r) for z in shares]
        log_weights = np.stack([r, *mixtures]) + self._log_n
        total = np.logaddexp.reduce(log_weights)
        excess = (self._sample == np.arange(3)[:, None]) - np.exp(log_weights - total)  # 1 in the own sample, less P(k)
        of_positives = np.stack([np.ones_like(r), *(expit(r + z) for z in shares)])  # d log w_k / dr
        by_r = self._weights * (excess * of_positives).sum(0)
        by_share = [
            (self._weights * excess[k] * (of_positives[k] - expit(z))).sum() for k, z in enumerate(shares, start=1)
        ]
        value = (self._weights * (log_weights[self._sample, self._rows] - total)).sum()
        return -float(value), -np.array([by_r.sum(), np.exp(log_slope) * (by_r * self._m).sum(), *by_share])

    def maximum(self, tilt: Tilt) -> OptimizeResult:
        """The best maximum, of searches that start from the tilt of P and U."""
        alpha, slope = tilt.alpha + tilt.slope * self.centre, tilt.slope * self.scale
        own = (np.clip(alpha, -20, 5), np.log(max(slope, 0.05)), logit(np.clip(tilt.prior, 1e-3, 0.9)))
        starts = [(*own, logit(share)) for share in (*_STARTS, np.clip(tilt.prior, 1e-3, 0.9))]
        maxima = [minimum(self, start, [*self._bounds, _BOUNDS[3]]) for start in (*starts, _FAR)]
        return min(maxima, key=lambda one: float(one.fun))

    def end(self, best: OptimizeResult, side: int, limit: float) -> float:
        """Share at which the profile likelihood has lost the deviance `limit`, below (-1) or above (1) the best one."""
        from scipy.optimize import brentq  # heavy to import

        start, last = best.x, float(best.x[3])

        def at(logit_share: float) -> OptimizeResult:
            return minimum(self, [*start[:3], logit_share], [*self._bounds, (logit_share, logit_share)])

        def excess(found: OptimizeResult) -> float:
            return 2 * (float(found.fun) - float(best.fun)) - limit

        for step in _STEPS:
            logit_share = float(np.clip(best.x[3] + side * step, *_BOUNDS[3]))
            if excess(found := at(logit_share)) > 0:
                ends = sorted((last, logit_share))
                return float(expit(brentq(lambda z: excess(at(z)), *ends, xtol=0.02)))
            if logit_share in _BOUNDS[3]:
                break
            start, last = found.x, logit_share
        return 0.0 if side < 0 else 1.0


def estimate_share(pile: PileMargins, prior: float, margins: np.ndarray) -> PriorEstimate:
    """Share of positives among new images, or those of a sample of them, with margins (m, K) by the heads of K folds.

    `prior` is the share among the unlabelled that the model rests on. The ends of the interval, which allows for the
    sampling of the m images, are those of the profile likelihood of rho at `pucache.estimates.priors.deviance_limit`,
    moved apart by half an image each, as the share is that of whole images. Negatives that look like positives are as
    many as a part of the prior, the one that its own interval allows for, whatever the share: with t**2 the deviance
    limit, the low end is::

        rho - sqrt((rho - low)**2 + (t / 1.645 * 0.3 * prior * (1 - rho) / (1 - prior))**2)

    and 0 where that is negative: the share is then "at most" the other end.
    """
    m, weights = binned(np.ravel(margins), None, BINS)
    new = np.column_stack([m, weights * (len(margins) / weights.sum())])
    likelihood = JointLikelihood(pile.positive, pile.unlabelled, new, pile.prior)
    limit = deviance_limit(float(pile.positive[:, 1].sum()))
    best = likelihood.maximum(pile.tilt(prior))
    share, half = float(expit(best.x[3])), 0.5 / len(margins)
    low, high = (likelihood.end(best, side, limit) + side * half for side in (-1, 1))
    look_alikes = ERROR_BELOW * prior * (1 - share) / (1 - prior) * np.sqrt(limit / deviance_limit(np.inf))
    low = share - float(np.hypot(share - low, look_alikes))
    return PriorEstimate(METHOD, share, max(0.0, low), min(1.0, high))
