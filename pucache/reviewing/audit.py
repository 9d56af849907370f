"""How many positives of the pile are still hidden, from the log of a review alone.

The interval rests on rows drawn at random and on nothing else: not on the model, the ranking or the order of decisions.
It holds at every moment of the review at once, so it may be looked at all the time and the review may end at any
point. `pucache.reviewing.hidden_interval` has the mathematics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import SessionError
from .audit_log import ReplayedLog, replay
from .hidden_interval import DrawHistory, greatest_total, least_sensitivity, least_total, likeliest_total
from .log import LOG, DecisionLog, Draw, Entry

if TYPE_CHECKING:
    from .session import Session

MORE = 200  # further random images that `Audit.sentence` speaks of
RECHECKS_NEEDED = 50  # rechecks from which on the limits allow for overlooked positives,
MISSES_NEEDED = 3  # or misses, whichever comes first
UPPER_PART = 0.6  # of the error is for the upper limit, the rest for the lower one
SENSITIVITY_PART = 0.2  # of the error is for the sensitivity, where it is used


@dataclass(frozen=True)
class Audit:
    """Interval of the number of positives in the pile. All numbers but the first four are rows.

    Attributes
    ----------
    draws : int
        Images drawn at random.
    positives : int
        How many of them are labelled positive.
    skipped : int
        How many of them were skipped.
    pending : int
        How many of them are not decided, or no longer.
    found : int
        Rows of the pile labelled positive.
    unknown : int
        Rows of the pile neither decided nor drawn.
    hidden_low, hidden_high : int
        Limits of the number of positives that are not labelled positive. Drawn images without a label count as
        positive in `hidden_high` and as negative in `hidden_low`.
    total_low, total_high : int
        Limits of the number of positives in the pile: `found` and the hidden ones.
    recall_low : float
        found / total_high, the share of positives found is at least this; 1 where the pile has none.
    rechecks : int
        Known positives that were shown again and got a label.
    missed : int
        How many of them were rejected.
    sensitivity_low : float or None
        Lower limit of the share of positives that the reviewer recognises. The upper limits are divided by it.
        None with too few rechecks: then they hold if no positive was overlooked.
    level : float
        Probability that the limits are right at every moment of the review.
    """

    draws: int
    positives: int
    skipped: int
    pending: int
    found: int
    unknown: int
    hidden_low: int
    hidden_high: int
    total_low: int
    total_high: int
    recall_low: float
    rechecks: int
    missed: int
    sensitivity_low: float | None
    level: float
    _pile: int = field(repr=False, compare=False)
    _log: ReplayedLog = field(repr=False, compare=False)

    @property
    def likeliest_share(self) -> float:
        """Share of positives among the unknown rows, of the greatest likelihood; NaN without a draw or a row."""
        if not self.draws or not self.unknown:
            return math.nan
        greatest = self._pile - self._log.rejected - self._log.doubtful
        total = likeliest_total(self._log.all_negative, least=self.found, greatest=greatest)
        return (total - self.found) / self.unknown

    def outlook(self, more: int, share: float | None = None) -> int:
        """Upper limit that is to be expected after further random images.

        Parameters
        ----------
        more : int
            Number of images; all unknown ones where there are fewer.
        share : float, optional
            Share of positives among them, and among the pending ones. By default `likeliest_share`; 0 where that is
            not known.

        Returns
        -------
        int
            `hidden_high` if the images bring that share of positives, and the pending ones are decided.

        Raises
        ------
        ValueError
            `more` is negative, or `share` outside [0, 1].
        """
        share = _or_zero(self.likeliest_share) if share is None else share
        if more < 0 or not 0.0 <= share <= 1.0:
            raise ValueError(f"more must be at least 0 and share within 0 and 1; got {more} and {share}")
        more, log = min(more, self.unknown), self._log
        negatives = log.pending_rows.copy()  # of the draws that are pending now
        negatives[np.flatnonzero(negatives)[: round(share * self.pending)]] = 0
        pending, positives = int(log.pending_rows.sum()), round(share * more)
        found, rejected = self.found + pending - int(negatives.sum()), log.rejected + int(negatives.sum())
        doubtful = log.doubtful - pending
        history = log.all_positive.with_negatives(negatives).extended(
            positives, more, unknown=self.unknown, positives_before=found + doubtful
        )
        found, rejected = found + positives, rejected + more - positives
        least, greatest = found + doubtful, self._pile - rejected
        return _total_high(history, self._pile, least, greatest, self.level, self.sensitivity_low) - found

    def sentence(self, model_estimate: float | None = None) -> str:
        """What is known about hidden positives, in words.

        Parameters
        ----------
        model_estimate : float, optional
            Number of hidden positives by the model: a guess that stands beside the interval.

        Returns
        -------
        str
        """
        if model_estimate is not None and not math.isfinite(model_estimate):
            model_estimate = None
        guess = "" if model_estimate is None else f"about {model_estimate:,.0f} {{}}by the model"
        share = None if model_estimate is None else min(1.0, max(0.0, model_estimate) / max(self.unknown, 1))
        more = min(MORE, self.unknown)
        further = _images(more, "random") if self.draws == 0 else f"{more:,} more random image{'s' * (more != 1)}"
        outlook = f"{further} would make it at most about {self.outlook(more, share):,}" if more else ""
        if self.draws:
            bound = f"at most {self.hidden_high:,} more with {100 * self.level:g} % confidence ({self._basis()})"
            first = ", ".join(filter(None, (bound, guess.format(""))))
            return "; ".join(filter(None, (f"found {self.found:,}", first, outlook)))
        if not self.hidden_high:
            return f"found {self.found:,}; every image is decided"
        known = f"{guess.format('more ')}, and nothing is known beyond it" if guess else "how many more is not known"
        return f"found {self.found:,}; {known}: no image was drawn at random yet; {outlook}"

    def _basis(self) -> str:
        """What the interval rests on."""
        parts = [_images(self.draws, "random")]
        if self.skipped + self.pending:
            parts.append(f"{self.skipped + self.pending:,} without a label counted as positive")
        if self.sensitivity_low is not None:
            parts.append(
                f"{self.missed:,} of {self.rechecks:,} known positives rejected when shown again, so at least "
                f"{100 * self.sensitivity_low:.0f} % are recognised"
            )
        return "; ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """The attributes as plain numbers, for JSON."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}


def audit(session: str | Path | Session, *, level: float = 0.95) -> Audit:
    """How many positives are still hidden in the pile of a review session.

    Parameters
    ----------
    session : path or Session
        Folder of a session, also while `pucache review` runs it; or a session that is open.
    level : float
        Probability that the limits are right at every moment of the review at once.

    Returns
    -------
    Audit

    Raises
    ------
    SessionError
        There is no session, or its log is damaged.
    ValueError
        The level is not within (0, 1).
    """
    entries, pile = _read(session)
    _check_level(level)
    try:
        return audit_entries(entries, pile, level=level)
    except ValueError as error:
        name = session if isinstance(session, (str, Path)) else session.folder
        raise SessionError(f"the log of {name} is damaged: {error}; restore it from a copy") from error


def model_estimate(session: str | Path | Session, audited: Audit) -> float | None:
    """Number of hidden positives by the model that ranked when the last random image was drawn; None without one."""
    draws = [entry for entry in _read(session)[0] if isinstance(entry, Draw) and not math.isnan(entry.expected)]
    return draws[-1].expected * audited.unknown if draws else None


def _read(session: str | Path | Session) -> tuple[list[Entry], int]:
    """Entries of the present epoch, and rows of its pile."""
    if not isinstance(session, (str, Path)):
        return session.entries(), session.pile_size
    folder = Path(session)
    if folder.is_file():
        raise SessionError(f"{folder} is a file; expected the folder of a review session, such as cache.h5.review")
    log = DecisionLog.open(folder / LOG, read_only=True)
    try:
        return [entry for entry in log.entries() if entry.epoch == log.epoch], log.facts().pile
    finally:
        log.close()


def audit_entries(entries: Sequence[Entry], pile: int, *, level: float = 0.95) -> Audit:
    """Limits of the number of hidden positives, from all entries of the log since a pile of so many rows was fixed.

    Raises
    ------
    ValueError
        The level is not within (0, 1), or the entries contradict each other or the pile.

    Notes
    -----
    With fewer than 50 rechecks and fewer than 3 misses the whole error 1 - level is that of the interval, which
    then holds if no positive was overlooked. Afterwards four fifths are, and one fifth is that of
    `sensitivity_low`.
    """
    _check_level(level)
    if pile < 0:
        raise ValueError(f"a pile has at least 0 rows; got {pile}")
    log = replay(entries, pile)
    sensitivity = None
    if log.rechecks >= RECHECKS_NEEDED or log.missed >= MISSES_NEEDED:
        sensitivity = least_sensitivity(log.rechecks, log.missed, SENSITIVITY_PART * (1.0 - level))
    high = _total_high(log.all_positive, pile, log.found + log.doubtful, pile - log.rejected, level, sensitivity)
    low = least_total(
        log.all_negative,
        pile,
        least=log.found,
        greatest=pile - log.rejected - log.doubtful,
        error=(1.0 - UPPER_PART) * _interval_error(level, sensitivity),
    )
    low = min(low, high)
    return Audit(
        draws=log.all_positive.positive.size,
        positives=log.positives,
        skipped=log.skipped,
        pending=log.pending,
        found=log.found,
        unknown=log.unknown,
        hidden_low=low - log.found,
        hidden_high=high - log.found,
        total_low=low,
        total_high=high,
        recall_low=log.found / high if high else 1.0,
        rechecks=log.rechecks,
        missed=log.missed,
        sensitivity_low=sensitivity,
        level=level,
        _pile=pile,
        _log=log,
    )


def _check_level(level: float) -> None:
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be between 0 and 1; got {level}")


def _interval_error(level: float, sensitivity: float | None) -> float:
    return (1.0 - level) * (1.0 if sensitivity is None else 1.0 - SENSITIVITY_PART)


def _total_high(
    history: DrawHistory, pile: int, least: int, greatest: int, level: float, sensitivity: float | None
) -> int:
    """Upper limit of the positives in the pile, those included that were overlooked."""
    error = UPPER_PART * _interval_error(level, sensitivity)
    total = greatest_total(history, pile, least=least, greatest=greatest, error=error)
    if sensitivity is None:
        return total
    return min(pile, math.ceil(total / sensitivity)) if sensitivity else pile


def _images(number: int, kind: str) -> str:
    return f"{number:,} {kind} image{'s' * (number != 1)}"


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value
