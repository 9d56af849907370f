"""From margins to probabilities, on positive and unlabelled data alone.

The posterior among the unlabelled is prior * f_P(m) / f_U(m) (Ivanov 2020, DEDPUL). The ratio is
taken as a monotone function of held-out margins: isotonic regression of the P margins (total
weight prior, target 1) against the U margins (total weight 1, target 0) gives q = prior f_P /
(prior f_P + f_U), so the posterior is q / (1 - q).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.isotonic import IsotonicRegression


@dataclass(frozen=True)
class Posterior:
    """A monotone map from margin to p(y=1 | margin) among the unlabelled.

    Attributes
    ----------
    margin : ndarray of float64, (k,)
        Rising.
    value : ndarray of float64, (k,)
        Posterior at each margin, in [0, 1]; linear between, constant beyond.
    """

    margin: np.ndarray
    value: np.ndarray

    def __call__(self, margins: np.ndarray) -> np.ndarray:
        """Posterior of each margin, float64."""
        return np.interp(margins, self.margin, self.value)


def fit_posterior(margins: np.ndarray, s: np.ndarray, prior: float) -> Posterior:
    """Fit the posterior on held-out margins.

    Parameters
    ----------
    margins : ndarray, (n,)
        Each from a head that did not see the row.
    s : ndarray, (n,)
    prior : float
        Share of positives among the unlabelled.
    """
    positive = s == 1
    weights = np.where(positive, prior / positive.sum(), 1 / (~positive).sum())
    isotonic = IsotonicRegression(y_min=0.0, y_max=1.0).fit(margins, positive.astype(float), sample_weight=weights)
    q = isotonic.y_thresholds_
    value = np.clip(q / np.maximum(1 - q, 1e-12), 0.0, 1.0)
    return Posterior(isotonic.X_thresholds_.astype(float), value)
