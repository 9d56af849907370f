r"""Calibration of margins from positive and unlabelled data: prior and posterior probabilities.

The densities of the margins of positives and negatives are related by an exponential tilt::

    f_P(m) = f_N(m) * exp(alpha + slope * m),        f_U = prior * f_P + (1 - prior) * f_N,

with f_N unspecified (Qin 1998; contaminated case-control sampling: Lancaster and Imbens 1996). Whether a
row belongs to P or to U then depends on three numbers. With e = alpha + slope * m::

    odds(P : U | m) = n_P / n_U * exp(e) / (1 - prior + prior * exp(e)).

`fit_tilt` maximises the likelihood of these odds on held-out margins. The odds level off at 1 / prior
where all rows are positive, which identifies the prior. `profile_prior` shows how well: the likelihood at
fixed priors, from which `pucache.estimates.priors` takes the interval. The posterior of an unlabelled row is
prior * exp(e) / (1 - prior + prior * exp(e)); another share of positives replaces the prior in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, logit, xlogy

LEAST, MOST = 1e-5, 1 - 1e-3  # range of estimated priors
_MAX_SLOPE = 60.0  # per standard deviation of the margins; under perfect separation the likelihood has no maximum
_BOUNDS = ((-40.0, 40.0), (float(np.log(1e-3)), float(np.log(_MAX_SLOPE))))  # of alpha and log slope
_FLAT, _NEAR_END = float(np.log(2e-3)), 0.01  # log slope, and distance in log odds from the ends of the priors
_START, _PRIORS = (-1.5, 0.5), (0.01, 0.1, 0.5)  # where maximisation starts: alpha and log slope, and the priors
_STEP = 0.15  # between the priors of a profile, in log odds
_LEAST_ERROR = 0.01  # share of the variance that is not sampling error; keeps deviances finite
_TOP_ROWS = 4000  # highest margins, which are binned more finely because the positives are among them
_BINS = 1500  # for the highest margins, and as many for the others


@dataclass(frozen=True)
class Tilt:
    """Log density ratio of positives to negatives as a linear function of the margin.

    Attributes
    ----------
    alpha, slope : float
        log f_P(m) / f_N(m) = alpha + slope * m, with slope > 0.
    prior : float
        Share of positives among the unlabelled.
    """

    alpha: float
    slope: float
    prior: float

    def log_ratio(self, margins: ArrayLike) -> np.ndarray:
        """Log density ratio of positives to negatives.

        Parameters
        ----------
        margins : array, (n,)

        Returns
        -------
        ndarray of float64, (n,)
            alpha + slope * m.
        """
        return self.alpha + self.slope * np.asarray(margins, np.float64)

    def posterior(self, margins: ArrayLike, share: float | None = None) -> np.ndarray:
        """Probability of being positive.

        Parameters
        ----------
        margins : array, (n,)
        share : float, optional
            Share of positives in the population that the rows come from; by default the prior, the
            share among the unlabelled.

        Returns
        -------
        ndarray of float64, (n,)
        """
        return np.asarray(expit(self.log_ratio(margins) + logit(self.prior if share is None else share)))

    def margin(self, posterior: float, share: float | None = None) -> float:
        """Margin at which the posterior has a given value.

        Parameters
        ----------
        posterior : float
            In (0, 1).
        share : float, optional
            As for `posterior`.

        Returns
        -------
        float
        """
        return float((logit(posterior) - logit(self.prior if share is None else share) - self.alpha) / self.slope)

    def shifted(self, by: float) -> Tilt:
        """Tilt of margins that are smaller by a constant.

        Parameters
        ----------
        by : float
            The constant that was subtracted from the margins.

        Returns
        -------
        Tilt
        """
        return replace(self, alpha=self.alpha + self.slope * by)


def fit_tilt(
    margins: np.ndarray,
    s: np.ndarray,
    weights: np.ndarray | None = None,
    prior: float | None = None,
    *,
    start: Tilt | None = None,
) -> Tilt:
    """Fit the tilt by maximum likelihood.

    Parameters
    ----------
    margins : ndarray, (n,)
        Held out: each from a head that was not trained on the row.
    s : ndarray of 0 and 1, (n,)
    weights : ndarray, (n,), optional
        Row weights.
    prior : float, optional
        Share of positives among the unlabelled; estimated by default.
    start : Tilt, optional
        Where maximisation starts, such as the tilt of similar margins; by default at several priors.

    Returns
    -------
    Tilt
    """
    likelihood = _likelihood(margins, s, weights)
    starts = None if start is None else [likelihood.parameters(start)]
    if prior is None:
        alpha, log_slope, logit_prior = likelihood.maximise(starts)
    else:
        alpha, log_slope, logit_prior = likelihood.maximise_at(logit(prior), starts[0][:2] if starts else _START)[0]
    slope = float(np.exp(log_slope)) / likelihood.scale
    return Tilt(
        float(alpha) - slope * likelihood.centre, slope, prior if prior is not None else float(expit(logit_prior))
    )


@dataclass(frozen=True)
class PriorProfile:
    """Profile likelihood of the prior: the greatest likelihood of the tilt at each of several fixed priors.

    Attributes
    ----------
    estimate : float
        Prior of greatest likelihood; one of `priors`.
    priors : ndarray of float64, (k,)
        Ascending, even on the scale of log odds.
    deviance : ndarray of float64, (k,)
        Twice the log likelihood that is lost against the best of `priors`.
    """

    estimate: float
    priors: np.ndarray
    deviance: np.ndarray

    def ends(self, threshold: float) -> tuple[float | None, float | None]:
        """Least and greatest prior with a deviance up to a threshold.

        Parameters
        ----------
        threshold : float
            At most the `depth` of the profile.

        Returns
        -------
        low : float or None
        high : float or None
            Interpolated between `priors`. None where the likelihood sets no limit on this side.
        """
        inside = np.flatnonzero(self.deviance <= threshold)
        return self._end(inside[0], inside[0] - 1, threshold), self._end(inside[-1], inside[-1] + 1, threshold)

    def within_pile(self, unlabelled: float) -> PriorProfile:
        """Profile of the share of positives in the pile itself.

        The likelihood takes the unlabelled rows for a sample, and allows for the sampling error of their share of
        positives. For the share in the pile at hand there is no such error. Variances subtract, and at a given
        distance from the estimate a deviance is the reciprocal of a variance::

            1 / pile deviance = 1 / deviance - 1 / B,    B = 2 * unlabelled * KL(estimate, prior),

        where B is the deviance of sampling alone, as if all classes were visible, and KL the divergence of two
        Bernoulli distributions (finite population correction: Cochran 1977, section 2.6).

        Parameters
        ----------
        unlabelled : float
            Number of unlabelled rows.

        Returns
        -------
        PriorProfile
            With the same estimate, and no smaller a deviance.
        """
        p, q = self.estimate, self.priors
        visible = 2 * unlabelled * (xlogy(p, p / q) + xlogy(1 - p, (1 - p) / (1 - q)))
        share = np.divide(self.deviance, visible, out=np.zeros_like(visible), where=visible > 0)
        return replace(self, deviance=self.deviance / np.maximum(1 - share, _LEAST_ERROR))

    def _end(self, inside: int, outside: int, threshold: float) -> float | None:
        if not 0 <= outside < len(self.priors):
            return None
        near, far = np.sqrt(self.deviance[[inside, outside]])  # nearly linear in the log odds, as deviance is squared
        low, high = logit(self.priors[[inside, outside]])
        return float(expit(low + (high - low) * (np.sqrt(threshold) - near) / (far - near)))


def profile_prior(
    margins: np.ndarray,
    s: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    bounds: tuple[float, float] = (LEAST, MOST),
    depth: float = 4.0,
) -> PriorProfile:
    """Profile the likelihood of the tilt over the prior, on both sides of the estimate.

    The likelihood is that of the rows' numbers; rows of unequal weight count as `effective_number` says.

    Parameters
    ----------
    margins : ndarray, (n,)
        Held out, as for `fit_tilt`.
    s : ndarray of 0 and 1, (n,)
    weights : ndarray, (n,), optional
        Row weights; only their ratios matter.
    bounds : (float, float)
        Least and greatest possible prior.
    depth : float
        Each side ends at the first prior with a deviance above `depth`, or at the bound.

    Returns
    -------
    PriorProfile
    """
    likelihood = _likelihood(margins, s, weights)
    scale = 2 * effective_number(s == 1, weights)
    least, greatest = logit(np.array(bounds)).tolist()
    best = likelihood.maximise()
    centre = float(np.clip(best[2], least, greatest))
    parameters, value = likelihood.maximise_at(centre, best[:2])
    values = {centre: value}
    for bound in (least, greatest):
        at, nearest = centre, parameters
        while at != bound and scale * (values[at] - min(values.values())) <= depth:
            at = bound if abs(bound - at) <= _STEP else at + float(np.copysign(_STEP, bound - at))
            nearest, values[at] = likelihood.maximise_at(at, nearest[:2])
    logits = np.array(sorted(values))
    lost = np.array([values[at] for at in logits.tolist()])
    return PriorProfile(
        estimate=float(expit(centre)), priors=np.asarray(expit(logits)), deviance=scale * (lost - lost.min())
    )


def effective_number(rows: np.ndarray, weights: np.ndarray | None) -> float:
    """Number of rows of equal weight that hold as much information (Kish 1965).

    Parameters
    ----------
    rows : ndarray of bool, (n,)
        Rows to count.
    weights : ndarray, (n,), or None

    Returns
    -------
    float
        (sum of weights)**2 / (sum of squared weights).
    """
    if weights is None:
        return float(rows.sum())
    w = weights[rows].astype(np.float64)
    return float(w.sum() ** 2 / np.square(w).sum())


def _likelihood(margins: np.ndarray, s: np.ndarray, weights: np.ndarray | None) -> _Likelihood:
    positive, unlabelled = (
        _binned(margins[s == value], None if weights is None else weights[s == value]) for value in (1, 0)
    )
    m = np.concatenate([positive[0], unlabelled[0]])
    return _Likelihood(m, np.concatenate([positive[1], unlabelled[1]]), len(positive[0]))


class _Likelihood:
    """Likelihood of P against U, per unit of P weight, as a function of alpha, log slope and logit prior.

    Alpha and slope are those of standardised margins, (m - centre) / scale.
    """

    def __init__(self, m: np.ndarray, weights: np.ndarray, n_positive: int):
        self.centre = float(np.average(m, weights=weights))
        scale = float(np.sqrt(np.average((m - self.centre) ** 2, weights=weights)))
        self.scale = scale if scale > 1e-9 * np.abs(m).max() else 1.0  # differences of rounding carry no slope
        self._m, self._sign = (m - self.centre) / self.scale, np.where(np.arange(len(m)) < n_positive, 1.0, -1.0)
        total = weights[:n_positive].sum()
        self._weights = weights / total
        self._log_odds = np.log(total / weights[n_positive:].sum())

    def parameters(self, tilt: Tilt) -> np.ndarray:
        """Parameters of a tilt of the margins as given, (3,)."""
        alpha, slope = tilt.alpha + tilt.slope * self.centre, tilt.slope * self.scale
        return np.array([alpha, np.log(max(slope, 1e-3)), logit(np.clip(tilt.prior, LEAST, MOST))])

    def maximise(self, starts: list[np.ndarray] | None = None) -> np.ndarray:
        """Parameters of greatest likelihood, (3,), of those found from each start.

        From a start far from the maximum it may end where the likelihood is flat: at slopes near 0, or at an end of
        the priors. Then, and by default, maximisation starts at `_PRIORS`.
        """
        from scipy.optimize import minimize  # heavy to import

        ends = logit(LEAST), logit(MOST)
        bounds = [*_BOUNDS, ends]

        def best_of(starts: list[np.ndarray]) -> np.ndarray:
            optima = [minimize(self, start, jac=True, method="L-BFGS-B", bounds=bounds) for start in starts]
            return np.asarray(min(optima, key=lambda optimum: optimum.fun).x)

        best = best_of(starts) if starts else None
        if best is None or best[1] <= _FLAT or not ends[0] + _NEAR_END < best[2] < ends[1] - _NEAR_END:
            best = best_of([np.array([*_START, logit(prior)]) for prior in _PRIORS])
        return best

    def maximise_at(self, logit_prior: float, start: ArrayLike = _START) -> tuple[np.ndarray, float]:
        """Parameters of greatest likelihood at a fixed prior, (3,), and the negative log likelihood there."""
        from scipy.optimize import minimize  # heavy to import

        def objective(parameters: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self(np.append(parameters, logit_prior))
            return value, gradient[:2]

        optimum = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=_BOUNDS)
        return np.append(optimum.x, logit_prior), float(optimum.fun)

    def __call__(self, parameters: np.ndarray) -> tuple[float, np.ndarray]:
        """Negative log likelihood and its gradient, (3,)."""
        slope = np.exp(parameters[1])
        e, logit_prior = parameters[0] + slope * self._m, parameters[2]
        posterior = expit(e + logit_prior)
        log_mixture = np.logaddexp(np.log(expit(-logit_prior)), np.log(expit(logit_prior)) + e)
        log_odds = self._sign * (self._log_odds + e - log_mixture)
        value = np.sum(self._weights * np.logaddexp(0, -log_odds))
        outer = -self._weights * expit(-log_odds) * self._sign
        by_e = outer * (1 - posterior)
        by_prior = np.sum(outer * (expit(logit_prior) - posterior))
        return float(value), np.array([by_e.sum(), slope * np.sum(by_e * self._m), by_prior])


def _binned(margins: np.ndarray, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Merge neighbouring margins into bins, finely at the top and coarsely below.

    Sums over the rows of smooth functions of the margin hardly change.

    Parameters
    ----------
    margins, weights : ndarray, (n,)

    Returns
    -------
    margins : ndarray of float64, (b,)
        Weighted mean of each bin, ascending.
    weights : ndarray of float64, (b,)
        Total weight of each bin, above 0.
    """
    order = np.argsort(margins, kind="stable")
    m, w = margins[order].astype(np.float64), np.ones(len(order)) if weights is None else weights[order].astype(float)
    m, w = m[w > 0], w[w > 0]
    top = max(0, len(m) - _TOP_ROWS)
    low, high = (np.linspace(*ends, _BINS + 1).astype(int)[:-1] for ends in ((0, top), (top, len(m))))
    starts = np.unique(np.concatenate([low, high]))
    total = np.add.reduceat(w, starts)
    return np.add.reduceat(m * w, starts) / total, total
