"""Kinds of which an image has one at most: the likeliest, or none, by one head for each."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from scipy.special import expit, logit, softmax

from ..estimates.calibration import Tilt
from .sklearn_classifier import PULinearClassifier

_WIDTH = 3.29  # standard errors between the ends of a 90 % interval
_LEAST = 1e-4  # distance of the ends of an interval from 0 and 1


class ExclusiveKinds:
    """Posteriors of kinds that exclude each other.

    Bayes' rule, with the density ratio of each head (`pucache.estimates.calibration`) as that of its kind to no kind::

        p(k | x) = share_k ratio_k / (none + sum_j share_j ratio_j),    none = max(0, 1 - sum_j share_j)

    It is the softmax with an outcome for none, which binary heads give under mutual exclusion (Deng et al., ECCV 2014).
    The shares are those of the models, drawn towards each other as far as their intervals do not tell them apart
    (`shrunk`), and the ratios fit the margins of the pile at these. Shares of 20 labels each, as they are estimated,
    cost two to four points of accuracy on ten classes.

    Parameters
    ----------
    models : iterable of PULinearClassifier
        Of the kinds, K.

    Attributes
    ----------
    shares : ndarray of float64, (K,)
    """

    def __init__(self, models: Iterable[PULinearClassifier]):
        models = list(models)
        self.shares = _shares(models)
        tilts = [_tilt(model, share) for model, share in zip(models, self.shares.tolist(), strict=True)]
        none = max(0.0, 1.0 - float(self.shares.sum()))
        self._offsets = np.log(self.shares) + [tilt.alpha for tilt in tilts]
        self._slopes = np.array([tilt.slope for tilt in tilts])
        self._none = np.log(none) if none else -np.inf

    def of(self, margins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Posteriors and kind of some images.

        Parameters
        ----------
        margins : ndarray of float32, (b, K)

        Returns
        -------
        posteriors : ndarray of float64, (b, K)
            Their sum is at most one.
        kinds : ndarray of int, (b,)
            Number of the likeliest kind; K for none.
        """
        log_odds = np.column_stack([self._offsets + self._slopes * margins, np.full(len(margins), self._none)])
        posteriors = softmax(log_odds, axis=1)
        return posteriors[:, :-1], posteriors.argmax(1)


def shrunk(shares: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Shares (k,) on the scale of log odds, each drawn to their mean by its standard error (k,) there.

    Means of a random-effects model: tau^2, the variance of the shares beyond that of their errors, is that of
    DerSimonian and Laird (1986), and share k keeps tau^2 / (tau^2 + error_k^2) of its distance from the mean.
    """
    at, precision = logit(shares), errors**-2.0
    excess = precision @ (at - np.average(at, weights=precision)) ** 2 - (len(at) - 1)
    tau2 = max(0.0, excess / (precision.sum() - precision @ precision / precision.sum()))
    mean = np.average(at, weights=1 / (errors**2 + tau2))
    return np.asarray(expit(mean + tau2 / (tau2 + errors**2) * (at - mean)))


def _shares(models: list[PULinearClassifier]) -> np.ndarray:
    """Shares of the kinds, (K,); those that were given stay."""
    shares = np.array([model.share_ for model in models])
    is_given = [model.prior is not None or model.deploy_prior is not None for model in models]
    estimated = np.flatnonzero(~np.array(is_given))
    if len(estimated) > 1:
        intervals = [models[k].prior_estimate_ for k in estimated]
        ends = [(0.0, 1.0) if interval is None else (interval.low, interval.high) for interval in intervals]
        low, high = logit(np.clip(np.array(ends), _LEAST, 1 - _LEAST)).T
        shares[estimated] = shrunk(shares[estimated], np.maximum(high - low, _LEAST) / _WIDTH)
    return shares


def _tilt(model: PULinearClassifier, share: float) -> Tilt:
    """The tilt that fits the margins of the pile best at a share; that of the model where it keeps none."""
    return model.tilt_ if model.pile_margins_ is None else model.pile_margins_.tilt(share)
