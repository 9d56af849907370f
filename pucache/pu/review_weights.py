"""How rows whose class a review told enter training, and why no figure rests on them.

A review looks at what ranks high. Training takes what it found: confirmed positives join P, and known
negatives weigh more than an unlabelled row does, as each stands for itself. With N of them, the mean over
U in the risk becomes (1 - t) * mean_U + t * mean_N: the PNU risk of Sakai et al. 2017, eq. 8, for the part
of the negatives.

Prior, calibration and every estimated figure need positives drawn at random from all positives. So
they go by `s` as it was before the review, where confirmed positives and known negatives are
unlabelled rows like any other; margins of all are held out, so none has trained the head that judges it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .calibration import LEAST, MOST

_MOST = 0.5  # share of the negatives' weight that known ones take, however many they are


@dataclass(frozen=True)
class TrainingLabels:
    """What heads are trained on, and what figures are estimated on.

    Attributes
    ----------
    s : ndarray of int8, (n,)
        Labels that figures rest on: 1 labelled positive before any review, 0 all others.
    weights : ndarray of float32, (n,), or None
        Row weights as they were given.
    trained : ndarray of int8, (n,)
        Labels to train on: 1 positive, labelled or confirmed, 0 all others.
    training_weights : ndarray of float32, (n,), or None
        Row weights to train with.
    share : float
        Of the weight of `trained` = 0 that known negatives have.
    confirmed, rejected : float
        Weight of the confirmed positives, and of the known negatives.
    """

    s: np.ndarray
    weights: np.ndarray | None
    trained: np.ndarray
    training_weights: np.ndarray | None
    share: float = 0.0
    confirmed: float = 0.0
    rejected: float = 0.0

    @classmethod
    def of(cls, s: np.ndarray, reviewed: np.ndarray | None = None, weights: np.ndarray | None = None) -> TrainingLabels:
        """Put together labels, a review (1 confirmed, -1 known negative, 0 not looked at) and row weights."""
        if reviewed is None or not reviewed.any():
            return cls(s, weights, s, weights)
        each = np.ones(len(s), np.float32) if weights is None else weights
        positive, negative = (s == 1) | (reviewed == 1), reviewed == -1
        unlabelled = ~positive & ~negative
        share, training = 0.0, weights
        if each[negative].any() and each[unlabelled].any():
            share = min(_MOST, each[negative].sum() / (each[negative].sum() + each[positive].sum()))
            training = each.copy()
            training[negative] *= share / (1 - share) * each[unlabelled].sum() / each[negative].sum()
        confirmed = float(each[(reviewed == 1) & (s == 0)].sum())
        rejected = float(each[negative].sum())
        return cls(s, weights, positive.astype(np.int8), training, float(share), confirmed, rejected)

    def take(self, rows: np.ndarray, kept: float) -> TrainingLabels:
        """The same of all rows to be trained on as positives and a share `kept` of the others."""
        s, trained = self.s[rows], self.trained[rows]
        weights, training = (None if w is None else w[rows] for w in (self.weights, self.training_weights))
        if self.confirmed:  # of the rows that count as unlabelled, these alone were not thinned out
            weights = np.ones(len(rows), np.float32) if weights is None else weights
            weights = np.where((s == 0) & (trained == 1), kept * weights, weights).astype(np.float32)
        return TrainingLabels(s, weights, trained, training, self.share, kept * self.confirmed, kept * self.rejected)

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and greatest prior that there can be: so many are confirmed, and so many known negatives."""
        among = self._weight_of_unlabelled
        return max(LEAST, self.confirmed / among), min(MOST, 1 - self.rejected / among)

    def check(self, prior: float) -> None:
        """Raise `ValueError` for a prior that a review has shown to be wrong."""
        low, high = self.bounds
        if (self.confirmed or self.rejected) and not low <= prior <= high:
            raise ValueError(
                f"the prior cannot be {prior:.4g}: by the review, between {low:.4g} and {high:.4g} of the images that "
                "were unlabelled before it are positive"
            )

    @property
    def _weight_of_unlabelled(self) -> float:
        """Of all rows but the labelled positives."""
        unlabelled = self.s == 0
        return float(unlabelled.sum() if self.weights is None else self.weights[unlabelled].sum(dtype=np.float64))

    def training_prior(self, prior: float) -> float:
        """Share of positives in what training takes for unlabelled, given that among all but the labelled."""
        if not self.share and not self.confirmed:
            return prior
        left, weights = self.trained == 0, self.training_weights
        trained = float(left.sum() if weights is None else weights[left].sum(dtype=np.float64))
        return float(np.clip((prior * self._weight_of_unlabelled - self.confirmed) / trained, LEAST, MOST))
