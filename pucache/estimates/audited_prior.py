"""The prior by an audit, which rests on images of a review that were drawn at random.

The audit limits the number of hidden positives, whatever the ranking has shown. With C positives known among the
unlabelled rows and H hidden ones, the prior is (C + H) / u. Where too few random images were positive for a likeliest
number, there are limits alone. Figures of decisions then are those of `pucache.estimates.audited_figures`.

The labels' own estimate is a second source. With D_labels the deviance that is quadratic in log odds to either side of
it, and D_audit the exact one of the random images, `AuditedPrior.combined` takes the priors whose sum of both is within
that of an interval of the least sum. So two random images replace nothing. Where even the least sum is too great, the
sources contradict each other, as with examples of one kind alone: then the random images stand. Once a known positive
was rejected again, random images may be accepted wrongly too and have no likelihood: priors in both intervals stay.

Of the C accepted images w <= (1 - `share_right`) C may be no positives; they lower the least prior.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import betaincinv, logit

from .calibration import LEAST, MOST
from .intervals import LEVEL
from .priors import PriorEstimate

METHOD = "audit"  # name of an estimate of the prior that rests on an audit
NO_IMAGES = "no random images"  # sources of figures after a review
ALONE, COMBINED, CONTRADICTED = "random images", "random images and labels", "random images, not labels"
CONTRADICTION = (
    "The labels' own estimate contradicts the images drawn at random: the labelled positives are no fair sample, and "
    "the figures rest on the random images alone."
)
_LEAST_SCALE = 0.01  # of log odds: an estimate at the least prior that a review leaves possible has no room below
RIGHT, WRONG = 19, 1  # answers that count before any image is shown again: one in twenty is wrong
_WITHIN, _CONTRADICTS = 2.71, 6.63  # deviance: at the ends of an interval of `LEVEL`; of contradicting sources (0.99)


def share_right(rechecks: int = 0, missed: int = 0) -> float:
    """Lower limit (0.95) of the share of right answers, if of so many rechecks some missed a known positive."""
    return float(betaincinv(RIGHT + rechecks - missed, WRONG + missed, 0.05))


@dataclass(frozen=True)
class AuditedHidden:
    """What an audit says about positives that are not labelled."""

    low: int  # limits of the number of hidden positives, with `high`
    high: int
    likeliest: float | None  # None where too few random images were positive for a single figure
    draws: int  # images drawn at random
    level: float  # probability that the limits are right
    overlooked: bool = False  # whether `high` allows for positives among the rejected images
    statements: tuple[str, ...] = ()  # what the audit says, in words; first what is found and hidden
    perhaps: int | None = None  # the estimate that the first of them states
    profile: tuple[np.ndarray, np.ndarray] | None = None  # numbers of hidden positives, and their deviances
    without_label: int = 0  # random images that count as positive in `high`, and as negative in `profile`
    accepted_right: float = 1.0  # lower limit of the share of accepted images that are positive
    rechecks: int = 0  # known positives that were shown again, of which so many were `missed`: rejected
    missed: int = 0


@dataclass(frozen=True)
class AuditedPrior:
    """The prior by an audit."""

    hidden: AuditedHidden
    confirmed: int  # known positives among the rows with s = 0
    unlabelled: int  # rows with s = 0

    @property
    def low(self) -> float:
        """Least prior; some of the confirmed images may be no positives."""
        return self._prior(self.hidden.low - self.wrong)

    @property
    def wrong(self) -> float:
        """Confirmed images that are no positives, at most."""
        return (1 - self.hidden.accepted_right) * self.confirmed

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

    def combined(self, labels: PriorEstimate | None, *, has_points: bool) -> tuple[AuditedPrior, str]:
        """The prior by the audit and by the labels' estimate, and which sources it rests on.

        `has_points` says whether the labels are enough for a likeliest number where the audit has none.
        """
        if labels is None or labels.prior is None or not labels.has_interval:
            return self, ALONE
        ends = self._ends_by_both(labels)
        if ends is None or (low := max(self.hidden.low, ends[1])) > (high := min(self.hidden.high, ends[2])):
            return self, CONTRADICTED
        likeliest = ends[0] if self.hidden.likeliest is None and has_points else self.hidden.likeliest
        likeliest = None if likeliest is None else min(max(likeliest, low), high)
        hidden_by_both = replace(self.hidden, low=low, high=high, likeliest=likeliest, level=LEVEL)
        return replace(self, hidden=hidden_by_both), COMBINED

    def _ends_by_both(self, labels: PriorEstimate) -> tuple[float, int, int] | None:
        """The likeliest number of hidden positives and its limits; None where the sources contradict each other."""
        assert labels.prior is not None
        if self.hidden.profile is None:
            best, low, high = (
                share * self.unlabelled - self.confirmed for share in (labels.prior, labels.low, labels.high)
            )
            agree = self.low <= labels.prior <= self.high
            return (best, int(np.floor(low + self.wrong)), int(np.ceil(high))) if agree else None
        hidden, deviance = self.hidden.profile
        fewer = np.arange(-int(self.wrong), 0)  # hidden positives, less the confirmed images that are none
        hidden, deviance = np.append(fewer, hidden), np.append(np.full(len(fewer), deviance[0]), deviance)
        priors = np.clip((self.confirmed + hidden) / self.unlabelled, LEAST, MOST)
        total = deviance + _deviance_of(labels, priors)
        if total.min() > _CONTRADICTS:
            return None
        within = np.flatnonzero(total <= total.min() + _WITHIN)
        best, low, high = hidden[[np.argmin(total), within[0], within[-1]]].tolist()
        return best, int(low + self.wrong), max(0, int(np.ceil(high))) + self.hidden.without_label

    def _prior(self, hidden: float) -> float:
        return float(np.clip((self.confirmed + hidden) / self.unlabelled, LEAST, MOST))


def _deviance_of(estimate: PriorEstimate, priors: np.ndarray) -> np.ndarray:
    """Deviance of priors (k,) by the interval of an estimate: quadratic in log odds to either side of it."""
    assert estimate.prior is not None
    centre, low, high = logit(np.clip([estimate.prior, estimate.low, estimate.high], LEAST, MOST))
    distance = logit(priors) - centre
    scale = np.where(distance < 0, centre - low, high - centre)
    is_open = np.where(distance < 0, estimate.low <= LEAST, estimate.high >= MOST)  # nothing is known on that side
    return np.where(is_open, 0.0, _WITHIN * np.square(distance / np.maximum(scale, _LEAST_SCALE)))
