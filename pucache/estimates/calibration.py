r"""Calibration of margins from positive and unlabelled data: prior and posterior probabilities.

The densities of the margins of positives and negatives are related by an exponential tilt::

    f_P(m) = f_N(m) * exp(alpha + slope * m),        f_U = prior * f_P + (1 - prior) * f_N,

with f_N unspecified (Qin 1998; contaminated case-control sampling: Lancaster and Imbens 1996). Whether a
row belongs to P or to U then depends on three numbers. With e = alpha + slope * m::

    odds(P : U | m) = n_P / n_U * exp(e) / (1 - prior + prior * exp(e)).

`fit_tilt` maximises the likelihood of these odds on held-out margins. The odds level off at 1 / prior
where all rows are positive, which identifies the prior. `profile_prior` shows how well: the likelihood at
fixed priors, from which `pucache.estimates.priors` takes the interval. The posterior of an unlabelled row is
prior * exp(e) / (1 - prior + prior * exp(e)); another share of positives replaces the prior in it. Posteriors that
are stated as probabilities are those of `stated_tilt`, which is never steeper than the labels show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, logit, xlogy

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

LEAST, MOST = 1e-5, 1 - 1e-3  # range of estimated priors
_MAX_SLOPE = 60.0  # per standard deviation of the margins; under perfect separation the likelihood has no maximum
_BOUNDS = ((-40.0, 40.0), (float(np.log(1e-3)), float(np.log(_MAX_SLOPE))))  # of alpha and log slope
_FLAT, _NEAR_END = float(np.log(2e-3)), 0.01  # log slope, and distance of a parameter from its ends
_START, _PRIORS = (-1.5, 0.5), (0.01, 0.1, 0.5)  # where maximisation starts: alpha and log slope, and the priors
_SHIFT = 60.0  # of log odds; posteriors are 0 or 1 then
_STEP = 0.15  # between the priors of a profile, in log odds
_SLOPE_DEVIANCE = 2.71  # at the ends of a 90 % interval of the slope
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
        """Log density ratio of positives to negatives at margins (n,), float64 (n,)."""
        return self.alpha + self.slope * np.asarray(margins, np.float64)

    def posterior(self, margins: ArrayLike, share: float | None = None) -> np.ndarray:
        """Probability of being positive at margins (n,), float64 (n,).

        `share` is that of positives in the population that the rows come from; by default the prior, the share among
        the unlabelled.
        """
        return np.asarray(expit(self.log_ratio(margins) + logit(self.prior if share is None else share)))

    def offset(self, share: float | None = None) -> float:
        """Logit of the posterior at a margin of 0, for a share of positives as in `posterior`."""
        return float(self.alpha + logit(self.prior if share is None else share))

    def margin(self, posterior: float, share: float | None = None) -> float:
        """Margin at which the posterior has a given value in (0, 1), for a share of positives as in `posterior`."""
        return float((logit(posterior) - logit(self.prior if share is None else share) - self.alpha) / self.slope)


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
        Where the search for the prior starts, such as the tilt of similar margins; by default at several priors.

    Returns
    -------
    Tilt
    """
    likelihood = Likelihood(margins, s, weights)
    if prior is None:
        alpha, log_slope, logit_prior = likelihood.maximise(None if start is None else likelihood.parameters(start))
        prior = float(expit(logit_prior))
    else:
        alpha, log_slope, _ = likelihood.maximise_at(logit(prior))[0]
    slope = float(np.exp(log_slope)) / likelihood.scale
    return Tilt(float(alpha) - slope * likelihood.centre, slope, prior)


def stated_tilt(
    margins: np.ndarray,
    s: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    prior: float,
    design_effect: float = 1.0,
) -> Tilt:
    """Tilt of the posteriors that are stated as probabilities.

    Its slope is the low end of the 90 % interval of the slope by the profile likelihood, because a tilt that is too
    steep states near certainty for rows that are not. Its alpha makes the mean posterior of the unlabelled rows the
    prior. See `fit_tilt` and `profile_prior` for the arguments.
    """
    from scipy.optimize import brentq  # heavy to import

    likelihood = Likelihood(margins, s, weights)
    (alpha, steepest, at), best = likelihood.maximise_at(logit(prior))
    scale = 2 * effective_number(s == 1, weights) / design_effect

    def excess(log_slope: float) -> float:
        fixed = (_BOUNDS[0], (log_slope, log_slope))
        return scale * (likelihood.maximise_at(at, (alpha, log_slope), fixed)[1] - best) - _SLOPE_DEVIANCE

    flattest = _BOUNDS[1][0]
    log_slope = flattest if excess(flattest) <= 0 else brentq(excess, flattest, steepest, xtol=1e-4)
    slope = float(np.exp(log_slope)) / likelihood.scale
    log_odds = slope * margins[s == 0].astype(np.float64) + logit(prior)
    return Tilt(shift_to_mean(log_odds, prior, None if weights is None else weights[s == 0]), slope, prior)


def shift_to_mean(log_odds: np.ndarray, mean: float, weights: np.ndarray | None = None) -> float:
    """Number to add to log odds (m,) so that the probabilities have a weighted mean in (0, 1)."""
    from scipy.optimize import brentq  # heavy to import

    ends = (-_SHIFT - log_odds.max(), _SHIFT - log_odds.min())
    return float(brentq(lambda by: float(np.average(expit(log_odds + by), weights=weights)) - mean, *ends))


def log_likelihoods(
    margins: np.ndarray, s: np.ndarray, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Log likelihood of P against U at the tilt that fits held-out margins best, for each of several divisions.

    `margins` are (n, S), those of heads that differ in their folds alone; so the search for the second tilt starts at
    the first one, and so on, but at none that is at an end of its parameters, from where a lower maximum may be found.
    See `fit_tilt` for the other arguments. Returns the log likelihoods and the priors of the tilts, (S,) each. A log
    likelihood counts the effective number of labelled positives and, in proportion, of the unlabelled rows.
    """
    number, start = effective_number(s == 1, weights), None
    values, priors = np.empty(margins.shape[1]), np.empty(margins.shape[1])
    low, high = np.array([*_BOUNDS, logit([LEAST, MOST])]).T
    for division, column in enumerate(margins.T):
        likelihood = Likelihood(column, s, weights)
        best = likelihood.maximise(start)
        values[division], priors[division] = -number * likelihood(best)[0], expit(best[2])
        start = best if (np.minimum(best - low, high - best) > _NEAR_END).all() else None
    return values, priors


def profile_prior(
    margins: np.ndarray,
    s: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    bounds: tuple[float, float] = (LEAST, MOST),
    depth: float = 4.0,
    design_effect: float = 1.0,
) -> tuple[float, np.ndarray, np.ndarray]:
    """Greatest likelihood of the tilt at each of several fixed priors, on both sides of the estimate.

    The likelihood is that of the rows' numbers; rows of unequal weight count as `effective_number` says.

    Parameters
    ----------
    margins, s, weights
        As for `fit_tilt`; only the ratios of weights matter.
    bounds : (float, float)
        Least and greatest possible prior.
    depth : float
        Each side ends at the first prior with a deviance above `depth`, or at the bound.
    design_effect : float
        Rows that are worth one independent row, see `design_effect`.

    Returns
    -------
    estimate : float
        Prior of greatest likelihood; one of `priors`.
    priors : ndarray of float64, (k,)
        Ascending, even on the scale of log odds.
    deviance : ndarray of float64, (k,)
        Twice the log likelihood that is lost against the best of `priors`.
    """
    likelihood = Likelihood(margins, s, weights)
    scale = 2 * effective_number(s == 1, weights) / design_effect
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
    return float(expit(centre)), np.asarray(expit(logits)), scale * (lost - lost.min())


def deviance_within_pile(estimate: float, priors: np.ndarray, deviance: np.ndarray, unlabelled: float) -> np.ndarray:
    """Deviance (k,) of a profile for the share of positives in the pile itself, of so many unlabelled rows.

    The likelihood takes the unlabelled rows for a sample, and allows for the sampling error of their share of
    positives. For the share in the pile at hand there is no such error. Variances subtract, and at a given
    distance from the estimate a deviance is the reciprocal of a variance::

        1 / pile deviance = 1 / deviance - 1 / B,    B = 2 * unlabelled * KL(estimate, prior),

    where B is the deviance of sampling alone, as if all classes were visible, and KL the divergence of two
    Bernoulli distributions (finite population correction: Cochran 1977, section 2.6).
    """
    visible = 2 * unlabelled * (xlogy(estimate, estimate / priors) + xlogy(1 - estimate, (1 - estimate) / (1 - priors)))
    share = np.divide(deviance, visible, out=np.zeros_like(visible), where=visible > 0)
    return np.asarray(deviance / np.maximum(1 - share, _LEAST_ERROR))


def profile_ends(priors: np.ndarray, deviance: np.ndarray, threshold: float) -> tuple[float | None, float | None]:
    """Least and greatest prior with a deviance up to a threshold, which is at most the `depth` of the profile.

    They are interpolated between `priors`; None where the likelihood sets no limit on this side.
    """
    inside = np.flatnonzero(deviance <= threshold)

    def end(inside: int, outside: int) -> float | None:
        if not 0 <= outside < len(priors):
            return None
        near, far = np.sqrt(deviance[[inside, outside]])  # nearly linear in the log odds, as deviance is squared
        low, high = logit(priors[[inside, outside]])
        return float(expit(low + (high - low) * (np.sqrt(threshold) - near) / (far - near)))

    return end(inside[0], inside[0] - 1), end(inside[-1], inside[-1] + 1)


def effective_number(rows: np.ndarray, weights: np.ndarray | None) -> float:
    """Number of equal weights that hold as much information as those of some rows, bool (n,) (Kish 1965).

    It is (sum of weights)**2 / (sum of squared weights).
    """
    if weights is None:
        return float(rows.sum())
    w = weights[rows].astype(np.float64)
    return float(w.sum() ** 2 / np.square(w).sum())


def design_effect(
    margins: np.ndarray, s: np.ndarray, weights: np.ndarray | None, groups: np.ndarray, fold: np.ndarray
) -> float:
    """How many times as great groups make the variances of what labelled positives say; at least 1.

    It is the mean design effect of Rao and Scott (1984), the trace of naive**-1 @ robust over the number of parameters:
    of the scores of the positives for alpha and slope, at the tilt of greatest likelihood, `naive` sums the products of
    each row with itself, and `robust` those of the sums of each group (Liang and Zeger 1986). Numbers of rows divided
    by it are worth as much as independent rows. It is about m for groups of m copies, and 1 where rows of a group are
    independent. The unlabelled rows take no part: they are all there are. Heads of folds have levels of their own,
    which groups of a fold share, so scores are centred within folds, and G groups in F folds count G / (G - F) times.

    Parameters
    ----------
    margins : ndarray, (n,)
        Held out: from heads that did not see any row of the group.
    s : ndarray of 0 and 1, (n,)
    weights : ndarray, (n,), or None
    groups : ndarray of int, (n,)
    fold : ndarray of int, (n,)
        That a row is held out in.

    Returns
    -------
    float
    """
    tilt, positive = fit_tilt(margins, s, weights), s == 1
    w = np.ones(len(s)) if weights is None else weights.astype(np.float64)
    odds = w[positive].sum() / w[~positive].sum()
    log_ratio, w, fold = tilt.log_ratio(margins[positive]), w[positive], fold[positive]
    log_mixture = np.logaddexp(np.log1p(-tilt.prior), np.log(tilt.prior) + log_ratio)
    score = w * expit(log_mixture - log_ratio - np.log(odds)) * expit(-log_ratio - logit(tilt.prior))
    scores = score[:, None] * np.stack([np.ones(len(w)), log_ratio], axis=1)
    means = _sums(scores, fold) / np.maximum(_sums(w[:, None], fold), 1e-12)
    scores -= w[:, None] * means[fold]
    sums, folds = _sums(scores, np.unique(groups[positive], return_inverse=True)[1]), len(np.unique(fold))
    naive, robust = scores.T @ scores, len(sums) / max(len(sums) - folds, 1) * sums.T @ sums
    return max(1.0, float(np.trace(np.linalg.pinv(naive, hermitian=True) @ robust)) / 2)


def _sums(values: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Sums of the rows (n, k) of each number (n,)."""
    return np.stack([np.bincount(number, column) for column in values.T], axis=1)


class Likelihood:
    """Likelihood of P against U, per unit of P weight, as a function of alpha, log slope and logit prior.

    Alpha and slope are those of standardised margins, (m - centre) / scale.
    """

    def __init__(self, margins: np.ndarray, s: np.ndarray, weights: np.ndarray | None):
        (m_p, w_p), (m_u, w_u) = (
            binned(margins[s == value], None if weights is None else weights[s == value]) for value in (1, 0)
        )
        m, weights, n_positive = np.concatenate([m_p, m_u]), np.concatenate([w_p, w_u]), len(m_p)
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

    def maximise(self, start: np.ndarray | None = None) -> np.ndarray:
        """Parameters of greatest likelihood, (3,).

        From a start far from the maximum the search may end where the likelihood is flat: at slopes near 0, or at an
        end of the priors. Then, and without a start, the best maximum from the priors `_PRIORS` is taken.
        """
        ends = logit(LEAST), logit(MOST)

        def maximum(start: np.ndarray) -> OptimizeResult:
            return minimum(self, start, [*_BOUNDS, ends])

        best = None if start is None else maximum(start).x
        if best is None or best[1] <= _FLAT or not ends[0] + _NEAR_END < best[2] < ends[1] - _NEAR_END:
            maxima = [maximum(np.array([*_START, logit(prior)])) for prior in _PRIORS]
            best = min(maxima, key=lambda one: one.fun).x
        return np.asarray(best)

    def maximise_at(
        self, logit_prior: float, start: ArrayLike = _START, bounds: Sequence[tuple[float, float]] = _BOUNDS
    ) -> tuple[np.ndarray, float]:
        """Parameters of greatest likelihood at a fixed prior, (3,), and the negative log likelihood there.

        `bounds` are those of alpha and log slope.
        """

        def objective(parameters: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self(np.append(parameters, logit_prior))
            return value, gradient[:2]

        optimum = minimum(objective, start, bounds)
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


def minimum(objective: Callable[..., Any], start: ArrayLike, bounds: Sequence[tuple[float, float]]) -> OptimizeResult:
    """Minimum of a function that returns its value and its gradient, within bounds."""
    from scipy.optimize import minimize  # heavy to import

    return minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds)


def binned(margins: np.ndarray, weights: np.ndarray | None, bins: int = _BINS) -> tuple[np.ndarray, np.ndarray]:
    """Merge neighbouring margins into bins, finely at the top: their weighted means, ascending, and total weights.

    The highest margins fall into `bins` bins, and the others into as many. Sums over the rows of smooth functions of
    the margin hardly change.
    """
    if weights is None:
        m, w = np.sort(margins).astype(np.float64), np.ones(len(margins))
    else:
        order = np.argsort(margins, kind="stable")
        m, w = margins[order].astype(np.float64), weights[order].astype(np.float64)
        m, w = m[w > 0], w[w > 0]
    top = max(0, len(m) - _TOP_ROWS)
    low, high = (np.linspace(*ends, bins + 1).astype(int)[:-1] for ends in ((0, top), (top, len(m))))
    starts = np.unique(np.concatenate([low, high]))
    total = np.add.reduceat(w, starts)
    return np.add.reduceat(m * w, starts) / total, total
