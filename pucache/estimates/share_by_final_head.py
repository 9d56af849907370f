r"""Share of positives among new images by the final head alone, for models of 0.4 and older.

They keep no heads of their folds, which `pucache.estimates.share_of_new_images` takes. With the tilt of the pile fixed,
the likelihood of the share rho is concave (Saerens, Latinne and Decaestecker 2002)::

    sum over the new images of log(rho * e^r(m) + 1 - rho)

The tilt's error adds to the variance of the share, by the Hessian of its likelihood, which has three parameters, and by
the change of the share with them.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from .calibration import Likelihood, binned, deviance_within_pile, profile_ends
from .priors import PriorEstimate, deviance_limit, widened_ends
from .share_of_new_images import BINS, PileMargins

METHOD = "prior shift"
_LOGITS = np.linspace(-11.5, 11.5, 601)  # of the shares at which the likelihood is computed
_DIFFERENCE = 1e-2  # of a parameter, for derivatives


def estimate_by_final_head(
    pile: PileMargins, prior: float, margins: np.ndarray, *, rows: int | None = None
) -> PriorEstimate:
    """Estimate the share of positives among new images, of which `margins` (m,) are those of some.

    With z the log odds of the share, at a distance of dz from the estimate the deviance of the likelihood alone is D,
    less the error of sampling (`pucache.estimates.calibration.deviance_within_pile`); that of the interval is
    1 / (1 / D + V / dz**2), V the variance of z that comes from the tilt. Its ends are moved as those of
    `pucache.estimates.priors.profile_interval`, and apart by half an image each. The margins are of a sample of
    `rows` new images; `prior` is that of `pucache.estimates.share_of_new_images.estimate_share`.
    """
    bins = binned(margins, None, BINS)
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
    return PriorEstimate(METHOD, share, low, high)


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
