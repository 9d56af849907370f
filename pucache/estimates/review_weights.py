"""How reviewed rows enter training, and why no estimated figure rests on them.

A review looks at rows that rank high. Training uses its result: confirmed positives join P, and known
negatives weigh more than unlabelled rows. With t the share of the weight that known negatives get, the mean
over U in the risk becomes (1 - t) * mean_U + t * mean_N: the part for negatives of the PNU risk of
Sakai et al. 2017, eq. 8.

Prior, calibration and all estimated figures need positives drawn at random from all positives. They use the
labels `s` from before the review, in which confirmed positives and known negatives count as unlabelled.
Margins of all rows are held out, so no head is judged by a row that it was trained on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .audited_prior import AuditedHidden, AuditedPrior, share_right
from .calibration import LEAST, MOST
from .priors import PriorEstimate

_MAX_NEGATIVE_SHARE = 0.5  # of the weight of rows with training_s = 0, however many negatives are known


@dataclass(frozen=True)
class TrainingLabels:
    """Labels and weights (n,) that heads are trained on, and those that figures are estimated on."""

    s: np.ndarray  # for estimates: 1 labelled positive before any review, 0 all others
    weights: np.ndarray | None  # for estimates
    training_s: np.ndarray  # 1 labelled or confirmed positive, 0 all others
    training_weights: np.ndarray | None
    known_negative: np.ndarray
    confirmed_weight: float  # total weight of the confirmed positives
    rejected_weight: float  # total weight of the known negatives
    audited: AuditedPrior | None = None  # by the audit of the review

    @classmethod
    def of(
        cls,
        s: np.ndarray,
        reviewed: np.ndarray | None = None,
        weights: np.ndarray | None = None,
        *,
        hidden: AuditedHidden | None = None,
    ) -> TrainingLabels:
        """Combine labels s (n,), decisions of a review (n,) as in `PULabels`, row weights (n,), and its audit."""
        reviewed = np.zeros(len(s), np.int8) if reviewed is None else reviewed
        row_weights = np.ones(len(s), np.float32) if weights is None else weights
        positive, negative = (s == 1) | (reviewed == 1), reviewed == -1
        unlabelled = ~positive & ~negative
        of_positive, of_negative, of_unlabelled = (row_weights[rows].sum() for rows in (positive, negative, unlabelled))
        training_weights = weights
        if of_negative > 0 and of_unlabelled > 0:
            share = min(_MAX_NEGATIVE_SHARE, of_negative / (of_negative + of_positive))
            training_weights = row_weights.copy()
            training_weights[negative] *= share / (1 - share) * of_unlabelled / of_negative
        return cls(
            s=s,
            weights=weights,
            training_s=positive.astype(np.int8),
            training_weights=training_weights,
            known_negative=negative,
            confirmed_weight=float(row_weights[(reviewed == 1) & (s == 0)].sum()),
            rejected_weight=float(of_negative),
            audited=None if hidden is None else AuditedPrior(hidden, int((reviewed == 1).sum()), int((s == 0).sum())),
        )

    def take(self, rows: np.ndarray, sampled_share: float) -> TrainingLabels:
        """Labels of all rows with `training_s` = 1 and of a sample of the others, which is this share of them."""
        s, training_s = self.s[rows], self.training_s[rows]
        weights, training_weights = (None if w is None else w[rows] for w in (self.weights, self.training_weights))
        if self.confirmed_weight:  # the only rows with s = 0 that were all kept
            weights = np.ones(len(rows), np.float32) if weights is None else weights
            weights = np.where((s == 0) & (training_s == 1), sampled_share * weights, weights).astype(np.float32)
        return TrainingLabels(
            s=s,
            weights=weights,
            training_s=training_s,
            training_weights=training_weights,
            known_negative=self.known_negative[rows],
            confirmed_weight=sampled_share * self.confirmed_weight,
            rejected_weight=sampled_share * self.rejected_weight,
        )

    @property
    def row_weights(self) -> np.ndarray:
        """Weight of each row in training, float32 (n,)."""
        return np.ones(len(self.s), np.float32) if self.training_weights is None else self.training_weights

    @property
    def decided(self) -> np.ndarray:
        """What is known of the rows with s = 0, int8 (u,): 1 positive, -1 negative, 0 undecided."""
        return (self.training_s - self.known_negative.astype(np.int8))[self.s == 0]

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and greatest prior that the review leaves possible."""
        total = self._weight_without_labelled
        return max(LEAST, self.confirmed_weight / total), min(MOST, 1 - self.rejected_weight / total)

    def stated(self, estimate: PriorEstimate) -> PriorEstimate:
        """An estimate by the labels without its number where that, or the high end, lies at an end of what is possible.

        It has no interval where both ends do.
        """
        low, high = self.bounds
        if estimate.low <= LEAST and estimate.high >= MOST:
            return PriorEstimate(estimate.method, None, level=estimate.level)
        is_inside = estimate.prior is None or 1.02 * low < estimate.prior < 1 - 1.02 * (1 - high)
        return estimate if is_inside and estimate.high < MOST else replace(estimate, prior=None)

    @property
    def interval_bounds(self) -> tuple[float, float]:
        """As `bounds`, of an interval: some of the confirmed images may be no positives."""
        low, high = self.bounds
        right = share_right() if self.audited is None else self.audited.hidden.accepted_right
        return max(LEAST, right * low), high

    def within_review(self, estimate: PriorEstimate) -> PriorEstimate:
        """An estimate whose single figure is one that the review leaves possible, and lies in its interval."""
        prior = float(np.clip(estimate.prior or LEAST, *self.bounds))
        return replace(estimate, prior=prior, high=max(estimate.high, prior))

    @property
    def known_positive_weight(self) -> float:
        """Total weight of the labelled and the confirmed positives."""
        labelled = self.s == 1
        weight = labelled.sum() if self.weights is None else self.weights[labelled].sum(dtype=np.float64)
        return float(weight) + self.confirmed_weight

    def hidden(self, prior: float) -> float:
        """Weight of the positives that are neither labelled nor confirmed: by the audit, else at a prior.

        Where the audit found too few for a likeliest number, at most the middle of its limits.
        """
        at_prior = prior * self._weight_without_labelled - self.confirmed_weight
        if self.audited is None:
            return at_prior
        hidden = self.audited.hidden
        return min(at_prior, (hidden.low + hidden.high) / 2) if hidden.likeliest is None else hidden.likeliest

    def with_confirmed(
        self, margins: np.ndarray, prior: float, audited: AuditedPrior | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None] | None:
        """Held-out margins, s and weights of labelled and confirmed positives, and of the rows with s = 0.

        Once most positives are found these are the positives, and calibration may rest on them. None before.
        """
        if audited is None or not self.confirmed_weight:
            return None
        likeliest, known = prior * self._weight_without_labelled - self.confirmed_weight, self.known_positive_weight
        if max(likeliest, (audited.hidden.low + audited.hidden.high) / 2) > known:
            return None
        rows = np.concatenate([np.flatnonzero(self.training_s == 1), np.flatnonzero(self.s == 0)])
        s = np.repeat(np.array([1, 0], np.int8), [int(self.training_s.sum()), int((self.s == 0).sum())])
        return margins[rows], s, None if self.weights is None else self.weights[rows]

    def check(self, prior: float) -> None:
        """Raise `ValueError` for a prior that the review rules out."""
        low, high = self.bounds
        if (self.confirmed_weight or self.rejected_weight) and not low <= prior <= high:
            raise ValueError(
                f"the prior cannot be {prior:.4g}: by the review, between {low:.4g} and {high:.4g} of the images that "
                "were unlabelled before it are positive"
            )

    @property
    def _weight_without_labelled(self) -> float:
        """Total weight of the rows with s = 0."""
        rest = self.s == 0
        return float(rest.sum() if self.weights is None else self.weights[rest].sum(dtype=np.float64))

    def training_prior(self, prior: float) -> float:
        """Convert a prior among rows with s = 0 to the share of positives, by training weight, with training_s = 0."""
        if not self.rejected_weight and not self.confirmed_weight:
            return prior
        rest, weights = self.training_s == 0, self.training_weights
        total = float(rest.sum() if weights is None else weights[rest].sum(dtype=np.float64))
        return float(np.clip((prior * self._weight_without_labelled - self.confirmed_weight) / total, LEAST, MOST))
