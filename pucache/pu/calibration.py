r"""From margins to prior, probabilities and decisions, on positive and unlabelled data alone.

The margins of true negatives and positives are taken to be related by an exponential tilt::

    f_P(m) = f_N(m) * exp(alpha + slope * m),        f_U = prior * f_P + (1 - prior) * f_N,

with f_N left free (Qin 1998, contaminated case-control: Lancaster and Imbens 1996). Whether a row
comes from P or from U is then a matter of three numbers: with e = alpha + slope * m::

    odds(P : U | m) = n_P / n_U * exp(e) / (1 - prior + prior * exp(e)),

whose likelihood over margins of rows that the heads did not see is maximised. It levels off at
1 / prior where only positives are left, which is what tells the prior. The same numbers give the
posterior, prior * exp(e) / (1 - prior + prior * exp(e)), for U or for any other share of positives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize
from scipy.special import expit, logit

from .weighted import binned

LEAST, MOST = 1e-5, 1 - 1e-3  # priors that are told from 0 and 1
_STEEPEST = 60.0  # of the slope, per standard deviation of the margins: perfect separation would have none
_STARTS = (0.01, 0.1, 0.5)


@dataclass(frozen=True)
class Tilt:
    """How much more likely a margin is among positives than among negatives.

    Attributes
    ----------
    alpha, slope : float
        log f_P(m) / f_N(m) = alpha + slope * m; the slope is above 0.
    prior : float
        Share of positives among the unlabelled.
    """

    alpha: float
    slope: float
    prior: float

    def log_ratio(self, margins: ArrayLike) -> np.ndarray:
        """Log density ratio of positives to negatives, float64.

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
        """Probability of being positive where a `share` of all is; among the unlabelled by default. float64.

        Parameters
        ----------
        margins : array, (n,)
        share : float, optional
            Of positives among all that the margins are drawn from; by default that among the unlabelled.

        Returns
        -------
        ndarray of float64, (n,)
        """
        return np.asarray(expit(self.log_ratio(margins) + logit(self.prior if share is None else share)))

    def margin(self, posterior: float, share: float | None = None) -> float:
        """Margin at which the posterior has a value.

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
        """The same of margins that are smaller by `by`.

        Parameters
        ----------
        by : float

        Returns
        -------
        Tilt
        """
        return replace(self, alpha=self.alpha + self.slope * by)


def fit_tilt(margins: np.ndarray, s: np.ndarray, weights: np.ndarray | None = None, prior: float | None = None) -> Tilt:
    """Fit the tilt on held-out margins.

    Parameters
    ----------
    margins : ndarray, (n,)
        Each from a head that did not see the row.
    s : ndarray of 0 and 1, (n,)
    weights : ndarray, (n,), optional
        Of the rows; counts of a bootstrap draw, say.
    prior : float, optional
        Where it is known; estimated otherwise.

    Returns
    -------
    Tilt
    """
    positive, unlabelled = (
        binned(margins[s == value], None if weights is None else weights[s == value]) for value in (1, 0)
    )
    m = np.concatenate([positive[0], unlabelled[0]])
    w = np.concatenate([positive[1], unlabelled[1]])
    middle = float(np.average(m, weights=w))
    width = float(np.sqrt(np.average((m - middle) ** 2, weights=w)))
    width = width if width > 1e-9 * np.abs(m).max() else 1.0  # rounding alone has no slope
    likelihood = _Likelihood((m - middle) / width, w, len(positive[0]), prior)
    a, log_slope, logit_prior = likelihood.maximise()
    slope = float(np.exp(log_slope)) / width
    return Tilt(float(a) - slope * middle, slope, prior if prior is not None else float(expit(logit_prior)))


class _Likelihood:
    """Of P against U, per unit of P weight, as a function of alpha, log slope and logit prior."""

    def __init__(self, m: np.ndarray, weights: np.ndarray, n_positive: int, prior: float | None):
        self._m, self._sign = m, np.where(np.arange(len(m)) < n_positive, 1.0, -1.0)
        total = weights[:n_positive].sum()
        self._weights = weights / total
        self._log_odds = np.log(total / weights[n_positive:].sum())
        self._prior = prior

    def maximise(self) -> np.ndarray:
        starts, (low, high) = (_STARTS, (LEAST, MOST)) if self._prior is None else ((self._prior,), [self._prior] * 2)
        bounds = [(-40.0, 40.0), (np.log(1e-3), np.log(_STEEPEST)), (logit(low), logit(high))]
        found = [
            minimize(self, [-1.5, 0.5, logit(start)], jac=True, method="L-BFGS-B", bounds=bounds) for start in starts
        ]
        return np.asarray(min(found, key=lambda one: one.fun).x)

    def __call__(self, parameters: np.ndarray) -> tuple[float, np.ndarray]:
        """Negative log likelihood and its gradient; a known prior has none."""
        slope = np.exp(parameters[1])
        e, logit_prior = parameters[0] + slope * self._m, parameters[2]
        posterior = expit(e + logit_prior)
        log_mixture = np.logaddexp(np.log(expit(-logit_prior)), np.log(expit(logit_prior)) + e)
        log_odds = self._sign * (self._log_odds + e - log_mixture)
        value = np.sum(self._weights * np.logaddexp(0, -log_odds))
        outer = -self._weights * expit(-log_odds) * self._sign
        by_e = outer * (1 - posterior)
        by_prior = 0.0 if self._prior is not None else np.sum(outer * (expit(logit_prior) - posterior))
        return float(value), np.array([by_e.sum(), slope * np.sum(by_e * self._m), by_prior])


def choose_threshold(tilt: Tilt, margins: np.ndarray, rule: str | float, share: float) -> float:
    """Margin above which a row is called positive.

    Parameters
    ----------
    tilt : Tilt
    margins : ndarray, (u,)
        Held-out margins of unlabelled rows: they stand for all rows, weighted to the `share`.
    rule : str or float
        ``f1``: greatest expected F1; ``precision=P`` or ``recall=R``: the lowest, or highest,
        threshold whose expected precision, or recall, is at least that; a number is a margin.
    share : float
        Of positives where the decisions are made.

    Returns
    -------
    float
        Where no row is sure enough, a margin above all of them.

    Raises
    ------
    ValueError
        Unknown rule or a target outside (0, 1].
    """
    kind, target = parse_rule(rule)
    if kind == "margin":
        return target
    m = np.sort(margins)[::-1].astype(np.float64)
    last = np.append(np.flatnonzero(np.diff(m)), len(m) - 1)  # rows with equal margins are called together
    recall, precision = (values[last] for values in expected(tilt, m, share))
    if kind == "f1" and tilt.prior * len(m) < 1:  # less than one positive expected: nothing to balance
        return tilt.margin(0.5, share)
    m = m[last]
    if kind == "f1":
        at = int(np.argmax(2 * precision * recall / np.maximum(precision + recall, 1e-300)))
    elif kind == "recall":
        at = int(np.searchsorted(recall, target * (1 - 1e-12)))
    else:
        good = np.flatnonzero(np.maximum.accumulate(precision[::-1])[::-1] >= target)
        if not len(good):
            return float(np.nextafter(np.float32(m[0]), np.float32(np.inf)))  # none is sure enough
        at = int(good[-1])
    at = min(at, len(m) - 1)
    just_below = np.nextafter(np.float32(m[at]), np.float32(-np.inf))  # margins are float32
    return float(just_below if at == len(m) - 1 else min(just_below, np.float32((m[at] + m[at + 1]) / 2)))


def parse_rule(rule: str | float) -> tuple[str, float]:
    """Take ``f1``, ``precision=P``, ``recall=R`` or a margin apart; ValueError for anything else.

    Parameters
    ----------
    rule : str or float
        As `choose_threshold` takes it.

    Returns
    -------
    kind : {"f1", "precision", "recall", "margin"}
    target : float
        0 for ``f1``.
    """
    kind, equals, target = str(rule).partition("=")
    try:
        if kind == "f1" and not equals:
            return "f1", 0.0
        if kind in ("precision", "recall") and 0 < float(target) <= 1:
            return kind, float(target)
        if not equals and np.isfinite(float(kind)):
            return "margin", float(kind)
    except ValueError:
        pass
    raise ValueError(f"threshold must be f1, precision=P or recall=R with P, R in (0, 1], or a margin; got {rule!r}")


def expected(tilt: Tilt, margins: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Recall and precision, (u,) each, when all rows down to each are called positive; margins (u,) fall.

    Parameters
    ----------
    tilt : Tilt
    margins : ndarray, (u,)
        Of unlabelled rows, falling.
    share : float
        Of positives where the decisions are made.

    Returns
    -------
    recall : ndarray of float64, (u,)
    precision : ndarray of float64, (u,)
    """
    here = tilt.posterior(margins)
    weights = here * (share / tilt.prior) + (1 - here) * ((1 - share) / (1 - tilt.prior))
    found = np.cumsum(weights * tilt.posterior(margins, share))
    return found / max(found[-1], 1e-300), found / np.maximum(np.cumsum(weights), 1e-300)
