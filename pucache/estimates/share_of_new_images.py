r"""Share of positives among new images, by the margins of a model and those of the pile that it was trained on.

The new images T are taken for a mixture of the pile's positives and negatives at another share rho (prior shift, or
label shift). With the log density ratio r of `pucache.estimates.calibration`, f_T = f_N * (1 - rho + rho * e^r), and
the likelihood of rho is concave (Saerens, Latinne and Decaestecker 2002)::

    sum over the new images of log(rho * e^r(m) + 1 - rho)

The tilt itself is estimated: its error adds to the variance of the share, by the Hessian of its likelihood, which has
three parameters, and by the change of the share with them (`estimate_share`).

Margins of the pile are held out, by heads that were not trained on the row, as the final head was not trained on the
new images. Margins of the pile's own rows by the final head differ: for figures of the pile, held-out margins take
the quantiles that these have (`on_one_scale`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit

from .calibration import Likelihood, Tilt, binned, deviance_within_pile, effective_number, fit_tilt, profile_ends
from .label_requirements import LabelCount
from .priors import PriorEstimate, deviance_limit, profile_interval, widened_ends
from .thresholds import choose_threshold

LEAST_IMAGES = 30  # fewer new images say too little about a share
METHOD = "prior shift"
_BINS = 300  # of the highest margins of a sample, and as many of the others
_MOST_ROWS = 1_000_000  # that thresholds are chosen on
_LOGITS = np.linspace(-11.5, 11.5, 601)  # of the shares at which the likelihood is computed
_TILTS, _PLAUSIBLE = 5, (0.003, 0.9)  # tilts across an interval of the prior, and the priors tried
_DIFFERENCE = 1e-2  # of a parameter, for derivatives


@dataclass(frozen=True, eq=False)
class PileMargins:
    """Held-out margins of a pile, merged into bins.

    Attributes
    ----------
    positive, unlabelled : ndarray of float32, (k, 2)
        Mean margin and weight of each bin; the weights of the positives sum to their effective number.
    prior : float or None
        Share of positives among the unlabelled, where it was not estimated from these margins.
    """

    positive: np.ndarray
    unlabelled: np.ndarray
    prior: float | None = None

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
        sides = [binned(margins[s == k], None if weights is None else weights[s == k], _BINS) for k in (1, 0)]
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
            is_table = side.dtype == np.float32 and side.ndim == 2 and side.shape[1] == 2 and 0 < len(side) <= 2 * _BINS
            if not (is_table and np.isfinite(side).all() and (side[:, 1] > 0).all()):
                raise ValueError("the margins of its pile are no weighted bins")
        if self.prior is not None and not 0 < self.prior < 1:
            raise ValueError(f"the prior of its pile is {self.prior}")


def on_one_scale(held_out: np.ndarray, final: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Held-out margins (n,) at the quantiles that unlabelled rows have by the final head, float32 (n,)."""
    ends = np.sort(held_out[s == 0]), np.sort(final[s == 0])
    beyond = held_out - np.clip(held_out, ends[0][0], ends[0][-1])
    return np.asarray(np.interp(held_out, *ends) + beyond, np.float32)


def estimate_share(
    pile: PileMargins,
    prior: float,
    margins: np.ndarray,
    *,
    labels: LabelCount,
    rows: int | None = None,
) -> PriorEstimate | None:
    """Estimate the share of positives among new images.

    With z the log odds of the share, at a distance of dz from the estimate the deviance of the likelihood alone is D,
    less the error of sampling (`pucache.estimates.calibration.deviance_within_pile`); that of the interval is
    1 / (1 / D + V / dz**2), V the variance of z that comes from the tilt. Its ends are moved as those of
    `pucache.estimates.priors.profile_interval`, as the tilt errs in the same way on new images. At last they are moved
    apart by half an image each, as the share is that of whole images.

    Parameters
    ----------
    pile : PileMargins
    prior : float
        Share of positives among the unlabelled that the model rests on.
    margins : ndarray, (m,)
        Of the new images, or of a sample of them.
    labels : LabelCount
        Of the model.
    rows : int, optional
        Number of new images that the margins are a sample of.

    Returns
    -------
    PriorEstimate or None
        Of method ``prior shift``, as far as the labels allow it to be stated; None for fewer than `LEAST_IMAGES`
        images or 10 labels. The interval is that of the share in these images, not of where they come from.
    """
    if len(margins) < LEAST_IMAGES or not labels.has_estimates:
        return None
    bins = binned(margins, None, _BINS)
    likelihood, at = Likelihood(*pile.rows), []
    centre = likelihood.parameters(pile.tilt(prior))
    z, profile = _profile(likelihood, centre, bins)
    free = 2 if pile.prior is not None else 3
    hessian = np.empty((3, 3))
    for number in range(free):
        step = _DIFFERENCE * np.eye(3)[number]
        hessian[number] = (likelihood(centre + step)[1] - likelihood(centre - step)[1]) / (2 * _DIFFERENCE)
        moved_to = [_profile(likelihood, centre + sign * step, bins)[0] for sign in (1, -1)]
        at.append((moved_to[0] - moved_to[1]) / (2 * _DIFFERENCE))
    scale = float(pile.positive[:, 1].sum())
    information = scale * (hessian[:free, :free] + hessian[:free, :free].T) / 2
    variance = max(0.0, float(np.array(at) @ np.linalg.pinv(information, hermitian=True) @ np.array(at)))
    share, shares = float(expit(z)), np.asarray(expit(_LOGITS))
    deviance = deviance_within_pile(share, shares, profile, rows or len(margins))
    distance = np.maximum(np.square(_LOGITS - z), 1e-12)
    deviance = distance * deviance / (distance + variance * deviance)  # 1 / (1 / deviance + variance / distance)
    limit = deviance_limit(scale)
    ends = profile_ends(shares, deviance, limit) if (deviance <= limit).any() else (share, share)
    low, high = widened_ends(ends, share, (0.0, 1.0), limit)
    half = 0.5 / (rows or len(margins))
    low, high = max(0.0, min(low, share) - half), min(1.0, max(high, share) + half)
    return PriorEstimate(METHOD, share, low, high).stated(labels)


def _profile(
    likelihood: Likelihood, parameters: np.ndarray, bins: tuple[np.ndarray, np.ndarray]
) -> tuple[float, np.ndarray]:
    """Log odds of the share of greatest likelihood, and the deviance at each of `_LOGITS`."""
    m, weights = bins
    r = parameters[0] + np.exp(parameters[1]) * (m - likelihood.centre) / likelihood.scale
    values = weights @ (np.logaddexp(r[:, None] + _LOGITS, 0) - np.logaddexp(_LOGITS, 0))
    best = int(np.clip(np.argmax(values), 1, len(values) - 2))
    before, top, after = values[best - 1 : best + 2].tolist()
    bend = before - 2 * top + after  # of the parabola through the three
    shift = 0.5 * (before - after) / bend if bend < 0 else 0.0
    step = _LOGITS[1] - _LOGITS[0]
    return float(_LOGITS[best] + np.clip(shift, -1, 1) * step), 2 * (values.max() - values)
