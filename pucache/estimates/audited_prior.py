"""The prior by an audit, which rests on images of a review that were drawn at random.

The audit limits the number of hidden positives, whatever the ranking has shown. With C positives known among the
unlabelled rows and H hidden ones, the prior is (C + H) / u. Where too few random images were positive for a likeliest
number, there are limits alone. Figures of decisions then are those of a `ReviewedPile`.

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
from scipy.special import betaincinv, expit, logit

from .calibration import LEAST, MOST, Tilt, shift_to_mean
from .intervals import LEVEL, Estimate
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
_TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
_DRAWS = 4000
_BETTER = 0.03  # precision of the final head less that of the heads of the folds, at most
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


# --- figures of decisions -------------------------------------------------------------------------


@dataclass(frozen=True)
class ReviewedPile:
    """The rows with s = 0 as a review left them, and the figures of decisions after it.

    **Of the pile**: of the rows with s = 0 that the final head calls positive, k are known positives, n known negatives
    and the others undecided; C known positives are in the pile. With 0.95 at most a share e of the answers is wrong
    (`share_right`), so r = min(n, k * e / (1 - e)) of the rejected rows may be positive, and of the hidden positives,
    which the audit limits to h_low, ..., h_high, at most a = min(h_high, undecided) are called::

        precision   from k * (1 - e) / called                   to (k + a + r) / called
        recall      from k * (1 - e) / (C - k * e + h_high)     to (k + a + r) / (C - w + max(a, h_low) + r)

    At most w of the C are wrong, as for the prior: random images that are accepted wrongly are hardly ever called. The
    rows are all there are, so no binomial error is added.

    **Of new images**: the rows that are called by held-out margins stand for them. Precision is drawn: the wrong shares
    of accepted and of rejected images from Beta(1 + missed, 19 + accepted again), the number of hidden positives
    uniformly in its logarithm within the limits, their share that is called uniformly, and precision from Beta(hits +
    1/2, called - hits + 1/2). The final head is better than those of the folds, which `_BETTER` allows for. Recall has
    limits as those of the pile, with the binomial error of held-out decisions, cut to the labels' own interval.
    """

    margins: np.ndarray  # held out, (u,)
    decided: np.ndarray  # int8 (u,): 1 known positive, -1 known negative, 0 undecided
    audited: AuditedPrior
    prior: float  # of single figures, which are None where the audit has no likeliest one
    tilt: Tilt  # of the margins; hidden positives lie where it has them

    def figures(self, called: np.ndarray) -> dict[str, Estimate]:
        """Recall, precision, f1, false_positive_rate and accuracy of the rows that are called, bool (u,)."""
        hidden, total = self.audited.hidden, self.audited.confirmed
        known, rejected, undecided = self._counts(called)
        wrong = 1 - share_right(hidden.rechecks, hidden.missed)
        overlooked = min(rejected, known * wrong / (1 - wrong))
        above = min(hidden.high, undecided)
        most, least_hidden = known + above + overlooked, max(above, hidden.low) + overlooked
        right = total - max(wrong * total, self.audited.wrong)
        corners = [
            self._at(called, (1 - wrong) * known, total - wrong * known + hidden.high),
            self._at(called, most, total + least_hidden),
            self._at(called, min(most, right + above + overlooked), right + least_hidden),
        ]
        low, high = ({name: pick(one[name] for one in corners) for name in corners[0]} for pick in (min, max))
        return {name: self._estimate(at, low[name], high[name]) for name, at in self._likeliest(called).items()}

    def of_new_images(self, called: np.ndarray, by_labels: Estimate, design_effect: float) -> dict[str, Estimate]:
        """Recall, precision and f1 on new images; `called`, bool (u,), are the rows with margins above the threshold.

        `by_labels` is the recall by the labels alone, to which it is cut where that has an interval.
        """
        recall = self._estimate(self._likeliest(called)["recall"], *self._recall(called, design_effect))
        recall = recall.within(by_labels)
        precision = self._drawn_precision(called, design_effect)
        ends = [_f1(*pair) for pair in zip(recall.to_json().values(), precision.to_json().values(), strict=True)]
        return {"recall": recall, "precision": precision, "f1": Estimate(*ends)}

    def _recall(self, called: np.ndarray, design_effect: float) -> tuple[float, float]:
        hidden, total, wrong = self.audited.hidden, self.audited.confirmed, self.audited.wrong
        known, rejected, undecided = self._counts(called)
        above = min(hidden.high, undecided + rejected * hidden.overlooked)
        least_hidden = max(above, hidden.low)
        corners = [
            self._at(called, max(0.0, known - wrong), total - wrong + hidden.high)["recall"],
            self._at(called, known + above, total + least_hidden)["recall"],
            self._at(called, min(known, total - wrong) + above, total - wrong + least_hidden)["recall"],
        ]
        rows, low, high = total / design_effect, min(corners), min(1.0, max(corners))
        if rows:  # the binomial error of so many held-out decisions (Jeffreys)
            low = min(low, float(betaincinv(low * rows + 0.5, (1 - low) * rows + 0.5, _TAILS[0])))
            high = max(high, float(betaincinv(high * rows + 0.5, (1 - high) * rows + 0.5, _TAILS[1])))
        return low, high

    def _drawn_precision(self, called: np.ndarray, design_effect: float) -> Estimate:
        """Median and quantiles of draws, by a seed that never changes."""
        hidden, generator, rows = self.audited.hidden, np.random.default_rng(0), int(called.sum())
        known, rejected, undecided = self._counts(called)
        errors = (WRONG + hidden.missed, RIGHT + hidden.rechecks - hidden.missed)
        accepted_wrongly, rejected_wrongly = generator.beta(*errors, (2, _DRAWS))
        right = known * (1 - accepted_wrongly)
        least, most = np.log(np.maximum([hidden.low, hidden.high], 0) + 0.5).tolist()
        number = np.maximum(np.exp(generator.uniform(least, most, _DRAWS)) - 0.5, 0)
        hits = right + np.minimum(rejected, right * rejected_wrongly / (1 - rejected_wrongly))
        hits = np.minimum(hits + np.minimum(undecided, number * generator.random(_DRAWS)), rows) / design_effect
        drawn = generator.beta(hits + 0.5, rows / design_effect - hits + 0.5)
        low, middle, high = np.quantile(drawn, (_TAILS[0], 0.5, _TAILS[1])).tolist()
        return self._estimate(middle, low, min(1.0, high + _BETTER))

    # --- counts ------------------------------------------------------------------------------------

    def _counts(self, called: np.ndarray) -> tuple[int, int, int]:
        """Known positives, known negatives and undecided ones among the rows that are called."""
        known, rejected, undecided = (int((self.decided[called] == value).sum()) for value in (1, -1, 0))
        return known, rejected, undecided

    def _likeliest(self, called: np.ndarray) -> dict[str, float]:
        """Figures where hidden positives, as many as the prior has, lie by their posteriors."""
        hidden = max(0.0, self.prior * len(self.margins) - self.audited.confirmed)
        undecided = self.decided == 0
        above = float(_posteriors(self.margins[undecided], hidden, self.tilt)[called[undecided]].sum())
        return self._at(called, self._counts(called)[0] + above, self.audited.confirmed + hidden)

    def _at(self, called: np.ndarray, above: float, positives: float) -> dict[str, float]:
        """Figures where so many of the positives are called."""
        return _figures(above, positives, len(called), int(called.sum()))

    def _estimate(self, value: float, low: float, high: float) -> Estimate:
        """Ends that are widened to the value, which is stated where the audit has a likeliest number."""
        stated = None if self.audited.likeliest is None else value
        return Estimate(stated, min(low, value), max(high, value))


def _f1(recall: float | None, precision: float | None) -> float | None:
    if recall is None or precision is None:
        return None
    return 2 * recall * precision / (recall + precision) if recall + precision else 0.0


def _figures(above: float, positives: float, rows: int, called: int) -> dict[str, float]:
    """Figures for `above` of the positives above the threshold, with `called` rows there."""
    negatives = max(rows - positives, 1.0)
    return {
        "recall": min(1.0, above / positives) if positives > 0 else 0.0,
        "precision": min(1.0, above / called) if called else 0.0,
        "f1": min(1.0, 2 * above / (positives + called)) if positives + called else 0.0,
        "false_positive_rate": min(1.0, max(0.0, called - above) / negatives),
        "accuracy": min(1.0, (2 * above + rows - positives - called) / rows),
    }


def _posteriors(margins: np.ndarray, hidden: float, tilt: Tilt) -> np.ndarray:
    """Probabilities of undecided rows, (m,), that sum to a number of hidden positives."""
    if not len(margins) or hidden <= 0:
        return np.zeros(len(margins))
    if hidden >= len(margins):
        return np.ones(len(margins))
    log_ratio = tilt.log_ratio(margins)
    return np.asarray(expit(log_ratio + shift_to_mean(log_ratio, hidden / len(margins))))
