r"""Propagation of probabilities over the graph of nearest neighbours.

With lambda a row's log density ratio of positives to negatives by a linear head, p its probability of
being positive and W the weighted mean over its neighbours (`pucache.neighbours.graph`), each round is::

    f  =  lambda + lg(W p)                       lg(z) = logit(z), z clipped to [0.001, 0.999]
    q  =  posterior of the tilt fitted to f and the labels (`pucache.estimates.calibration`)
    p <- (p + q) / 2

Rows known to be positive keep p = 1, and known negatives p = 0. So a row rises where its neighbours are
likely positives, and the labels keep the probabilities calibrated in every round.

Several chains run side by side, one a column. The chain of a fold does not see the labels of
that fold: it treats its positives as all other unlabelled rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit, logit

from ..estimates.calibration import Tilt, fit_tilt
from ..estimates.review_weights import TrainingLabels
from ..threads import limited_threads, worker_threads

if TYPE_CHECKING:
    from ..neighbours.graph import NeighbourGraph

LEAST_SHARE = 0.003  # least share of positives among the unlabelled that probabilities are computed with
_CLIP = 1e-3  # shares of positives among neighbours are clipped to [_CLIP, 1 - _CLIP]


def neighbour_log_odds(shares: np.ndarray) -> np.ndarray:
    """Log odds of shares of positives among neighbours, which are clipped to [0.001, 0.999]."""
    clipped = np.clip(shares, _CLIP, 1 - _CLIP)
    return np.asarray(np.log(clipped) - np.log1p(-clipped))


def probabilities(log_ratios: np.ndarray, share: float | np.ndarray) -> np.ndarray:
    """Probability where positives have the `share`, at least `LEAST_SHARE`; (n,), or (n, C) with a share (C,)."""
    offset = logit(np.maximum(share, LEAST_SHARE)).astype(log_ratios.dtype)
    return np.asarray(expit(log_ratios + offset))


@dataclass(frozen=True)
class ChainLabels:
    """Labels of several chains that run side by side."""

    s: np.ndarray  # (n,): labels for estimates, as `weights` (n,); see `TrainingLabels`
    weights: np.ndarray | None
    positive: np.ndarray  # (n, C): rows whose labels each chain sees, as `negative`
    negative: np.ndarray

    @classmethod
    def of(cls, labels: TrainingLabels, fold: np.ndarray, folds: int) -> ChainLabels:
        """Labels of a chain for each fold, which does not see the labels of that fold, and of one that sees all."""
        visible = fold[:, None] != np.arange(folds + 1)
        return cls(
            s=labels.s,
            weights=labels.weights,
            positive=visible & (labels.training_s == 1)[:, None],
            negative=visible & labels.known_negative[:, None],
        )

    def labelled(self, chain: int) -> np.ndarray:
        """Labels for estimates that a chain sees, int8 (n,)."""
        return (self.positive[:, chain] & (self.s == 1)).astype(np.int8)

    def set_known(self, values: np.ndarray) -> None:
        """Set the values of known rows, (n, C), to 1 and 0 in place."""
        values[self.positive], values[self.negative] = 1, 0

    def unlabelled_means(self, values: np.ndarray) -> np.ndarray:
        """Weighted mean of values, (n, C), over the rows that a chain does not see as positives; (C,)."""
        return self._means(values, ~self.positive)

    def estimation_means(self, values: np.ndarray) -> np.ndarray:
        """Weighted mean of values, (n, C), over the rows that are unlabelled for the estimates of a chain; (C,).

        Positives that a review confirmed are among them, as in the priors of `fit_tilt`.
        """
        return self._means(values, ~(self.positive & (self.s == 1)[:, None]))

    def _means(self, values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        weights = np.ones(len(values), np.float32) if self.weights is None else self.weights
        counted = np.where(rows, weights[:, None], 0)
        return np.asarray((values * counted).sum(0, dtype=np.float64) / counted.sum(0, dtype=np.float64))


def propagate(
    log_ratios: np.ndarray, labels: ChainLabels, shares: np.ndarray, graph: NeighbourGraph, *, rounds: int
) -> np.ndarray:
    """Probabilities after some rounds of propagation, float32 (n, C); 1 for the positives, 0 for a chain's negatives.

    `log_ratios` (n, C) are log density ratios by the heads of C chains; `shares` (C,) those of positives among the
    unlabelled that each chain starts with.
    """
    p = probabilities(log_ratios, shares)
    labels.set_known(p)
    q = p
    # where the fits of a round start: at the tilt of the round before, first at that of log density ratios
    priors = labels.estimation_means(p).clip(LEAST_SHARE, 1 - LEAST_SHARE)
    tilts = [Tilt(alpha=0.0, slope=1.0, prior=prior) for prior in priors.tolist()]
    for _ in range(rounds):
        q = log_ratios + neighbour_log_odds(graph.weighted_means(p))
        fits = [
            partial(fit_tilt, q[:, chain], labels.labelled(chain), labels.weights, start=previous)
            for chain, previous in enumerate(tilts)
        ]
        with limited_threads(0) as threads, worker_threads(min(threads, len(fits))) as run_all:
            tilts = list(run_all(fits))
        for chain, tilt in enumerate(tilts):
            q[:, chain] = probabilities(tilt.log_ratio(q[:, chain]).astype(np.float32), tilt.prior)
        labels.set_known(q)
        p = (p + q) / 2
    return q
