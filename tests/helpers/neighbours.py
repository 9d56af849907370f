"""Models with a chosen weight of neighbours, and their scores written down plainly."""

import copy

import numpy as np
from scipy.special import expit, logit

from pucache.estimates.calibration import Tilt
from pucache.training.neighbour_evidence import NeighbourEvidence, NeighbourSettings

from . import plain

SHARE, TILT, THRESHOLD = 0.2, Tilt(alpha=-1.0, slope=0.7, prior=0.25), 1.5


def with_neighbours(model, weight, method="distilled"):
    """A copy of a model that has chosen a weight for its neighbours."""
    changed = copy.copy(model)
    evidence = NeighbourEvidence(agreement=2.0 if weight else -0.5, held_out=0.0, labels=100)
    changed.neighbours_ = NeighbourSettings(
        evidence=evidence, search="exact search", share=SHARE, tilt=TILT, threshold=THRESHOLD, weight=weight
    )
    changed.method_ = method
    return changed


def log_ratio(model, X):
    margins = model.margins(X).astype(float)
    return margins if model.method_ == "distilled" else model.tilt_.log_ratio(margins)


def probabilities(model, X):
    """Probability of each row of a pile, by the model alone."""
    return expit(log_ratio(model, X) + logit(max(SHARE if model.method_ == "distilled" else model.tilt_.prior, 0.003)))


def share_among(cosines, p, without=None, k=30):
    """Weighted mean of p over the k rows of greatest cosine."""
    near = [row for row in np.argsort(-cosines, kind="stable") if row != without][:k]
    weights = np.exp(cosines[near] / 0.1)
    return float(weights @ p[near] / weights.sum())


def fused(model, X, labels, weight, searched=None):
    """Scores of all rows of a pile; rows that are not searched have the least share of positives near them."""
    p = probabilities(model, X)
    p[labels.positive], p[labels.negative] = 1, 0
    W, scores = plain.whitened(X), log_ratio(model, X)
    for row in range(len(X)):
        found = searched is None or searched[row]
        share = share_among(W @ W[row], p, row) if found else 0.0
        scores[row] += weight * logit(np.clip(share, 1e-3, 1 - 1e-3))
    return scores
