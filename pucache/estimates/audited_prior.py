"""Prior and figures that rest on an audit: images of a review that were drawn at random.

The audit limits the number of hidden positives, whatever the ranking has shown. With C positives known among the
unlabelled rows and H hidden ones, the prior is (C + H) / u. Of the rows above the threshold C_a are known
positives, and between 0 and the smaller of H and their undecided number are hidden ones. So recall, precision
and F1 have limits that assume nothing about where hidden positives lie::

    recall = (C_a + H_a) / (C + H),   precision = (C_a + H_a) / called,   0 <= H_a <= min(H, undecided above)

Their single figures place the hidden positives by the tilt, with posteriors that sum to their likeliest number. Where
too few random images were positive for that number, there are limits alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from .calibration import LEAST, MOST, Tilt, shift_to_mean
from .priors import PriorEstimate

METHOD = "audit"  # name of an estimate of the prior that rests on an audit


@dataclass(frozen=True)
class AuditedHidden:
    """What an audit says about positives that are not labelled."""

    low: int  # limits of the number of hidden positives, with `high`
    high: int
    likeliest: float | None  # None where too few random images were positive for a single figure
    draws: int  # images drawn at random
    level: float  # probability that the limits are right
    overlooked: bool = False  # whether `high` allows for positives among the rejected images
    statements: tuple[str, ...] = ()  # what the audit says, in words; first the strongest without an assumption


@dataclass(frozen=True)
class AuditedPrior:
    """The prior by an audit."""

    hidden: AuditedHidden
    confirmed: int  # known positives among the rows with s = 0
    unlabelled: int  # rows with s = 0

    @property
    def low(self) -> float:
        """Least prior."""
        return self._prior(self.hidden.low)

    @property
    def high(self) -> float:
        """Greatest prior."""
        return self._prior(self.hidden.high)

    @property
    def likeliest(self) -> float | None:
        """Likeliest prior; None where the audit gives no single figure."""
        return None if self.hidden.likeliest is None else self._prior(self.hidden.likeliest)

    def estimate(self, prior: float) -> PriorEstimate:
        """The interval, with `prior` moved into it where it lies outside."""
        within = float(np.clip(prior, self.low, self.high))
        hidden = self.hidden
        return PriorEstimate(
            method=METHOD, prior=within, low=self.low, high=self.high, level=hidden.level, draws=hidden.draws
        )

    def _prior(self, hidden: float) -> float:
        return float(np.clip((self.confirmed + hidden) / self.unlabelled, LEAST, MOST))


def audited_figures(
    margins: np.ndarray,
    labels: np.ndarray,
    audited: AuditedPrior,
    *,
    called: np.ndarray,
    prior: float,
    tilt: Tilt,
) -> dict[str, float | None]:
    """Recall, precision, f1, false_positive_rate and accuracy of decisions, with limits NAME_low and NAME_high.

    They are those of the rows with s = 0, of which `margins` (u,) are held out, `called` (u,) are called positive, and
    `labels` (u,) are 1 for a known positive, -1 for a known negative and 0 for an undecided row. The single figures
    take the `prior`, and are None where the audit has no likeliest one.
    """
    where_hidden = labels < 1 if audited.hidden.overlooked else labels == 0
    known_above = int((called & (labels == 1)).sum())
    room = int((called & where_hidden).sum())  # rows above the threshold that may be hidden positives
    total = int((labels == 1).sum())
    hidden = max(0.0, prior * len(margins) - total)
    hidden_above = float(_posteriors(margins[labels == 0], hidden, tilt)[called[labels == 0]].sum())
    most_above = min(audited.hidden.high, room)
    rows = (len(margins), int(called.sum()))
    point = _figures(known_above + hidden_above, total + hidden, *rows)
    low = _figures(known_above, total + audited.hidden.high, *rows)
    high = _figures(known_above + most_above, total + max(most_above, audited.hidden.low), *rows)
    low["false_positive_rate"], high["false_positive_rate"] = high["false_positive_rate"], low["false_positive_rate"]
    limits = {f"{name}_low": min(low[name], point[name]) for name in point}
    limits |= {f"{name}_high": max(high[name], point[name]) for name in point}
    stated: dict[str, float | None] = {name: None if audited.likeliest is None else point[name] for name in point}
    return stated | limits


def _figures(above: float, positives: float, rows: int, called: int) -> dict[str, float]:
    """Figures for `above` of the positives above the threshold, with `called` rows there."""
    negatives = max(rows - positives, 1.0)
    return {
        "recall": above / positives if positives else 0.0,
        "precision": above / called if called else 0.0,
        "f1": 2 * above / (positives + called) if positives + called else 0.0,
        "false_positive_rate": min(1.0, max(0.0, called - above) / negatives),
        "accuracy": (2 * above + rows - positives - called) / rows,
    }


def _posteriors(margins: np.ndarray, hidden: float, tilt: Tilt) -> np.ndarray:
    """Probabilities of undecided rows, (m,), that sum to a number of hidden positives."""
    if not len(margins) or hidden <= 0:
        return np.zeros(len(margins))
    if hidden >= len(margins):
        return np.ones(len(margins))
    log_ratio = tilt.log_ratio(margins)
    return np.asarray(expit(log_ratio + shift_to_mean(log_ratio, hidden / len(margins))))
