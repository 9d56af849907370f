"""How many positives of a pile are hidden: everything that is stated of a review rests on `Limits`.

The limits rest on images drawn at random and on their labels: not on the model, the ranking or the order of decisions
(`pucache.estimates.strata`). They assume that the reviewer labels rightly; rechecks measure how many positives are
overlooked. They hold at every moment of the review at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import counted
from .agreement import Agreement
from .strata import Looks, Stratum, greatest_total, least_total

REMAINING_MISSES = np.array([0.0, 0.25, 0.5, 0.75])  # (1 - s') / (1 - s) of the alternatives s' of a sensitivity s
MISS_WEIGHTS = np.array([0.5, 0.2, 0.2, 0.1])
RECHECKS_NEEDED = 30  # from which on the limits allow for overlooked positives, and one may stop
MISSES_NEEDED = 1  # so many rejections are enough for the limits to allow for overlooked positives
UPPER_PART = 0.6  # of the error is for the upper limit, the rest for the lower one
SENSITIVITY_PART = 0.2  # of the error is for the sensitivity, where it is used
MORE = 200  # further random images that a forecast speaks of
_LOG_ERROR = 2.0  # standard deviation of the logarithm of what a ranking would still bring
_TOTALS = 500  # at most, at which the likelihood is computed
_SHARES = 20  # of the hidden positives that may be in the zone
_OF_ZONE = (
    "draws positives skipped pending found unknown hidden_low hidden_high total_low total_high recall_low rechecks "
    "missed sensitivity_low recognised_high level rows"
).split()


def least_sensitivity(rechecks: int, missed: int, error: float) -> float:
    """Lower limit of the share of positives that a reviewer recognises, in [0, 1], valid at every moment.

    `missed` of the `rechecks`, positives that were shown again, were rejected; the limit is ever too high with a
    probability of at most `error`. As for K: the alternatives s' of s have 1 - s' = r * (1 - s).
    """
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        better = (1.0 - REMAINING_MISSES * (1.0 - middle)) / middle
        log_weights = np.log(MISS_WEIGHTS) + (rechecks - missed) * np.log(better)
        if missed:
            log_weights = np.append(-np.inf, log_weights[1:] + missed * np.log(REMAINING_MISSES[1:]))
        excluded = np.logaddexp.reduce(log_weights) >= -np.log(error)
        low, high = (middle, high) if excluded else (low, middle)
    return low


def share_found(found: int, hidden: int) -> float:
    """Share of the positives that are found; 1 where there is none."""
    return found / (found + hidden) if found + hidden else 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Limits:
    """What can be said of the positives in a pile. All counts but those of draws and rechecks are rows.

    Attributes
    ----------
    strata : tuple of Stratum
        The pile: one stratum, and another one for each time that images came.
    looks : Looks
    level : float
        Probability that the limits are right at every moment of the review.
    upper_error, lower_error : float
        Errors of the upper and of the lower limit of these strata; 0: there is no lower limit.
    rechecks, missed : int
        Known positives that were shown again and got a label, and how many of them were rejected.
    sensitivity_low : float or None
        Lower limit of the share of positives that the reviewer recognises. The upper limits are divided by it.
        None with too few rechecks: then they hold if no positive was overlooked.
    zone : Limits or None
        The likeliest images as a pile of their own, from the random images in it. None before it is fixed. Its upper
        limit and `rest_high` hold together with probability `level`.
    came_since : int
        Rows that came to the pile after the last part of the zone was fixed; they are outside of it.
    agreement : Agreement or None
        How a second reader agrees with the first; None where there is none.
    doubted : int
        Decisions that the model doubts and that were not given again.
    restarted : bool
        Whether a change of the cache began the pile anew: what was found before is outside of it.
    """

    strata: tuple[Stratum, ...]
    looks: Looks
    level: float
    upper_error: float
    lower_error: float = 0.0
    rechecks: int
    missed: int
    sensitivity_low: float | None
    zone: Limits | None = None
    came_since: int = 0
    agreement: Agreement | None = None
    doubted: int = 0
    restarted: bool = False

    @classmethod
    def of(
        cls,
        strata: Sequence[Stratum],
        looks: Looks,
        *,
        zone: Sequence[Stratum] = (),
        rechecks: int = 0,
        missed: int = 0,
        level: float = 0.95,
        **known: Any,
    ) -> Limits:
        """Of the strata of a pile, and of those of its likeliest images; raises ValueError for a level outside (0, 1).

        With fewer than 30 rechecks and no miss the whole error 1 - level is that of the interval, which then holds if
        no positive was overlooked. Afterwards four fifths are, and one fifth is that of `sensitivity_low`.
        """
        if not 0.0 < level < 1.0:
            raise ValueError(f"level must be between 0 and 1; got {level}")
        sensitivity = None
        if rechecks >= RECHECKS_NEEDED or missed >= MISSES_NEEDED:
            sensitivity = least_sensitivity(rechecks, missed, SENSITIVITY_PART * (1.0 - level))
        shared: dict[str, Any] = {"looks": looks, "level": level, "sensitivity_low": sensitivity}
        shared |= {"rechecks": rechecks, "missed": missed}
        error = _interval_error(level, sensitivity)
        inside = cls(strata=tuple(zone), upper_error=error / 2, **shared) if zone else None
        shared |= {"upper_error": UPPER_PART * error, "lower_error": (1.0 - UPPER_PART) * error}
        return cls(strata=tuple(strata), zone=inside, **shared, **known)

    def __repr__(self) -> str:
        return f"Limits({self.sentence})"

    # --- counts ------------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Rows of the pile."""
        return sum(one.rows for one in self.strata)

    @property
    def found(self) -> int:
        """Rows labelled positive."""
        return self._sum(1)

    @property
    def open_rows(self) -> int:
        """Rows without a label."""
        return self.rows - self._sum(1) - self._sum(0)

    @property
    def unknown(self) -> int:
        """Rows that were neither decided nor drawn."""
        return sum(one.left for one in self.strata)

    @property
    def draws(self) -> int:
        """Images drawn at random, up to the last one that was decided or skipped."""
        return sum(int(one.drawn.sum()) for one in self.strata)

    @property
    def positives(self) -> int:
        """How many of them are labelled positive."""
        return sum(int((one.label[one.drawn] == 1).sum()) for one in self.strata)

    @property
    def skipped(self) -> int:
        """How many of them were skipped."""
        return sum(int(((one.label < 0) & ~one.waits & one.drawn).sum()) for one in self.strata)

    @property
    def pending(self) -> int:
        """How many of them are not decided, or no longer."""
        return sum(int((one.waits & one.drawn).sum()) for one in self.strata)

    def _sum(self, label: int) -> int:
        return sum(one.sum(label) for one in self.strata)

    # --- limits ------------------------------------------------------------------------------------

    @cached_property
    def recognised_high(self) -> int:
        """As `hidden_high`, of the positives that the reviewer recognises."""
        return greatest_total(self.strata, self.upper_error) - self.found

    @property
    def hidden_high(self) -> int:
        """Upper limit of the positives that are not labelled positive; images without a label count as positive."""
        return self._with_overlooked(self.recognised_high + self.found) - self.found

    @cached_property
    def hidden_low(self) -> int:
        """Lower limit of the positives that are not labelled positive; images without a label count as negative."""
        if not self.lower_error:
            return 0
        return min(least_total(self.strata, self.lower_error) - self.found, self.hidden_high)

    @property
    def total_low(self) -> int:
        """Lower limit of the number of positives in the pile."""
        return self.found + self.hidden_low

    @property
    def total_high(self) -> int:
        """Upper limit of the number of positives in the pile."""
        return self.found + self.hidden_high

    @property
    def recall_low(self) -> float:
        """The share of positives found is at least this; 1 where the pile has none."""
        return share_found(self.found, self.hidden_high)

    @cached_property
    def chance_high(self) -> int:
        """Upper limit of the positives that are not labelled positive, from all looks. It assumes that the ranking
        finds positives at least as often as random images do."""
        return self._chance_high(self.looks)

    @cached_property
    def rest_high(self) -> int:
        """Upper limit of the hidden positives outside the zone; `hidden_high` without a zone."""
        if self.zone is None:
            return self.hidden_high
        rest = replace(self, upper_error=self.zone.upper_error).hidden_high  # as many at most are outside of the zone
        if self.sensitivity_low is not None:
            return rest
        return min(rest, self.unknown - self.zone.unknown + self._sum(-1))

    @cached_property
    def perhaps(self) -> int:
        """Estimate of the number of hidden positives, to two digits and within the limits.

        It is the median of a posterior: before random images their logarithm is normal about that of what the ranking
        would still bring (`Looks.expected`), with a standard deviation of 2. The share of them in the zone is uniform.
        """
        hidden, deviance = self.profile()
        if self.zone is not None and self.zone.draws:
            inside, inside_deviance = self.zone.profile()
            in_zone = np.outer(np.linspace(0, 1, _SHARES), hidden)
            deviance = deviance - 2 * np.logaddexp.reduce(-np.interp(in_zone, inside, inside_deviance) / 2)
        widths = np.diff(np.log(np.append(hidden, hidden[-1] + 1) + 0.5))
        distance = np.log((hidden + 0.5) / (self.looks.expected() + 0.5)) / _LOG_ERROR
        loss = (deviance + distance**2) / 2
        below = np.cumsum(widths * np.exp(loss.min() - loss))
        median = float(hidden[np.searchsorted(below, below[-1] / 2)])
        return min(max(int(float(f"{median:.2g}")), self.hidden_low), self.hidden_high)

    @cached_property
    def likeliest_share(self) -> float:
        """Share of positives among the unknown rows, of the greatest likelihood; NaN without a draw or a row."""
        if not self.draws or not self.unknown:
            return math.nan
        return (sum(one.likeliest() for one in self.strata) - self.found) / self.unknown

    def _chance_high(self, looks: Looks) -> int:
        total = looks.greatest_total(_interval_error(self.level, self.sensitivity_low))
        return max(0, self._with_overlooked(total) - self.found)

    def _with_overlooked(self, total: int) -> int:
        """An upper limit of the positives in the pile, those included that were overlooked."""
        if self.sensitivity_low is None:
            return total
        return min(self.rows, math.ceil(total / self.sensitivity_low)) if self.sensitivity_low else self.rows

    def profile(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of hidden positives, ascending, and the deviance of each: twice the log likelihood that is lost.

        The likelihood is that of the random images, whatever the ranking showed between them. Those without a label
        count as negative; several strata have hidden positives in proportion to what is left of them.
        """
        ends = [one.range(0) for one in self.strata]
        room = sum(greatest - least for least, greatest in ends)
        hidden = np.unique(np.round(np.geomspace(1, room + 1, _TOTALS) - 1))
        likelihood = np.zeros(len(hidden))
        for one, (least, greatest) in zip(self.strata, ends, strict=True):
            if one.drawn.any():
                totals = least + hidden * (greatest - least) / max(1, room)
                likelihood += one.log_ratios(one.likeliest(), totals, 0)[:, -1]
        return hidden, 2.0 * (likelihood.max() - likelihood)

    # --- what further images may bring ----------------------------------------------------------------

    def further(self, more: int, share: float | None = None) -> tuple[int, int]:
        """Upper limit of the hidden positives, and positives found, after further random images.

        `share` of them, and of the images that wait, are positive: by default the `likeliest_share`, 0 where that is
        not known. Raises ValueError for `more` below 0 or a share outside [0, 1].
        """
        if share is None:
            share = self.likeliest_share if self.draws and self.unknown else 0.0
        if more < 0 or not 0.0 <= share <= 1.0:
            raise ValueError(f"more must be at least 0 and share within 0 and 1; got {more} and {share}")
        ends = min(more, self.unknown) * np.cumsum([0, *(one.left for one in self.strata)]) / max(self.unknown, 1)
        counts = np.diff(np.round(ends).astype(int)).tolist()  # each stratum by its share
        last = max(int(one.draw.max(initial=0)) for one in self.strata)
        strata = tuple(
            one.answered(round(share * int(one.waits.sum()))).extended(round(share * draws), draws, last)
            for one, draws in zip(self.strata, counts, strict=True)
        )
        after = replace(self, strata=strata)
        return after.hidden_high, after.found

    def further_by_ranking(self, more: int) -> tuple[int, int]:
        """As `further` for `chance_high`, after further looks without a positive."""
        return self._chance_high(self.looks.without_positives(more)), self.found

    def expected_positives(self, more: int) -> int:
        """Positives that are expected of further random images: fewer than all up to now brought.

        So a first positive among few images does not make the forecast that of a pile full of them.
        """
        return min(self.positives - 1, round(self.likeliest_share * more)) if self.positives and self.unknown else 0

    # --- in words -----------------------------------------------------------------------------------

    @property
    def sentence(self) -> str:
        """What is found, perhaps hidden, and hidden at most, what that assumes, and what would narrow it most."""
        found = f"{self.found:,} found{' since the cache changed' * self.restarted}."
        if not self.open_rows and self.sensitivity_low is None:
            again = f" {self.second_look[0].upper()}{self.second_look[1:]}." if self.doubted else ""
            return f"{found} Every image is decided.{again}"
        if not self.draws:
            unknown = "How many more is not known before the first random image among all."
            return f"{found} {unknown}{self._narrowing}"
        perhaps = "none is" if not self.perhaps else "1 more is" if self.perhaps == 1 else f"{self.perhaps:,} more are"
        return (
            f"{found} Perhaps {perhaps} hidden; at most {self.hidden_high:,}, with "
            f"{100 * self.level:g} % confidence, if {self.assumption}.{self._narrowing}"
        )

    @property
    def assumption(self) -> str:
        """What the upper limits assume."""
        if self.sensitivity_low is None:
            return "no positive was overlooked"
        return "positives are overlooked no more often than those that are shown again"

    @property
    def second_look(self) -> str:
        """What the doubted decisions ask for; "" without any."""
        return f"look again at {counted(self.doubted, 'doubted decision')}" if self.doubted else ""

    @property
    def forecast(self) -> str:
        """What further random images may bring; "" where none is left."""
        more = min(MORE, self.unknown)
        if not more:
            return ""
        positives, kind = self.expected_positives(more), "more random image" if self.draws else "random image"
        among = f"{positives or 'none'} of them {'are' if positives > 1 else 'is'} positive"
        return f"{counted(more, kind)}: at most about {self.further(more, positives / more)[0]:,} if {among}"

    @property
    def _narrowing(self) -> str:
        left_out = self.skipped + self.pending
        steps = [
            self.second_look,
            f"decide {counted(left_out, 'random image')} without a label" if left_out else "",
            self.forecast and f"decide {self.forecast}",
        ]
        said = ", then ".join(filter(None, steps))
        return f" To narrow this, {said}." if said else ""

    def as_dict(self) -> dict[str, Any]:
        """Counts and limits as plain numbers, and the sentence, for JSON."""
        more = ("perhaps", "doubted", "chance_high", "rest_high", "came_since", "sentence")
        numbers = {name: getattr(self, name) for name in (*_OF_ZONE, *more)}
        zone = None if self.zone is None else {name: getattr(self.zone, name) for name in _OF_ZONE}
        return numbers | {"zone": zone, "agreement": self.agreement and self.agreement.as_dict()}


def _interval_error(level: float, sensitivity: float | None) -> float:
    return (1.0 - level) * (1.0 if sensitivity is None else 1.0 - SENSITIVITY_PART)
