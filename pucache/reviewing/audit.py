"""How many positives of the pile are still hidden, from the log of a review alone.

The interval rests on rows drawn at random and on their decisions: not on the model, the ranking or the order of
decisions. It assumes that the reviewer decides rightly; rechecks measure how many positives are overlooked. It holds at
every moment of the review at once, so it may be looked at all the time and the review may end at any point.
`pucache.reviewing.hidden_interval` has the mathematics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import SessionError
from . import statements
from .agreement import BOTH, Agreement, audited_by_both
from .audit_log import ReplayedLog, looks_of
from .hidden_interval import (
    Looks,
    greatest_total,
    least_sensitivity,
    least_total,
    likeliest_total,
    share_found,
)
from .log import AuditedEntries, Entry
from .session_folder import open_log, over_sessions
from .statements import RECHECKS_NEEDED

if TYPE_CHECKING:
    from .session import Session

_TOTALS = 500  # at most, at which the likelihood is computed
PROBABLE_ERROR = 0.2  # of the limit that is called probable
MISSES_NEEDED = 1  # so many rejections are enough for the limits to allow for overlooked positives
UPPER_PART = 0.6  # of the error is for the upper limit, the rest for the lower one
SENSITIVITY_PART = 0.2  # of the error is for the sensitivity, where it is used


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Interval of the number of positives in the pile. All numbers but the first four are rows.

    Attributes
    ----------
    draws : int
        Images drawn at random, up to the last one that was decided or skipped.
    positives : int
        How many of them are labelled positive.
    skipped : int
        How many of them were skipped.
    pending : int
        How many of them are not decided, or no longer.
    found : int
        Rows of the pile labelled positive.
    unknown : int
        Rows of the pile neither decided nor among these draws.
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
    recognised_high : int
        As `hidden_high`, without the division: of the positives that the reviewer recognises.
    level : float
        Probability that the limits are right at every moment of the review.
    rows : int
        Of the pile.
    chance_high : int
        Upper limit of the positives that are not labelled positive, from all looks. It assumes that the ranking finds
        positives at least as often as random images do.
    zone : Audit or None
        The zone of the likeliest images as a pile of its own, from the random images in it. None before it is fixed.
        Its upper limit and `rest_high` hold together with probability `level`.
    rest_high : int
        Upper limit of the hidden positives outside the zone; `hidden_high` without a zone.
    came_since : int
        Rows that came to the pile after the last part of the zone was fixed; they are outside of it.
    agreement : Agreement or None
        How a second reader agrees with the first. None where there is none, or it is not known from one log.
    """

    draws: int
    positives: int
    skipped: int
    pending: int
    found: int
    unknown: int
    hidden_low: int = 0
    hidden_high: int
    total_low: int
    total_high: int
    recall_low: float
    rechecks: int
    missed: int
    sensitivity_low: float | None
    recognised_high: int
    level: float
    rows: int
    chance_high: int
    zone: Audit | None = None
    rest_high: int
    came_since: int = 0
    _log: ReplayedLog = field(repr=False, compare=False)
    _looks: Looks = field(repr=False, compare=False)
    _upper_error: float = field(repr=False, compare=False)
    agreement: Agreement | None = None

    @property
    def urns(self) -> int:
        """Urns that the pile is of."""
        return len(self._log.rows)

    @property
    def open_rows(self) -> int:
        """Rows without a label."""
        return self.rows - int(self._log.found.sum() + self._log.rejected.sum())

    @property
    def probable_high(self) -> int:
        """Upper limit of the hidden positives from all looks, with an error of 20 %: what is called probable."""
        return max(0, self._looks.greatest_total(PROBABLE_ERROR) - self.found)

    @property
    def likeliest_share(self) -> float:
        """Share of positives among the unknown rows, of the greatest likelihood; NaN without a draw or a row."""
        if not self.draws or not self.unknown:
            return math.nan
        log = self._log
        urns = zip(log.found.tolist(), (log.rows - log.rejected - log.unresolved).tolist(), strict=True)
        totals = [
            likeliest_total(log.all_negative, least=least, greatest=greatest, urn=urn)
            for urn, (least, greatest) in enumerate(urns)
        ]
        return (sum(totals) - self.found) / self.unknown

    def profile(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of hidden positives, ascending, and the deviance of each: twice the log likelihood that is lost.

        The likelihood is that of the random images, whatever the ranking showed between them. Those without a label
        count as negative; several urns have hidden positives in proportion to what is left of them.
        """
        log = self._log
        room = log.rows - log.rejected - log.unresolved - log.found
        hidden = np.unique(np.round(np.geomspace(1, room.sum() + 1, _TOTALS) - 1))
        likelihood = np.zeros(len(hidden))
        for urn, (found, left) in enumerate(zip(log.found.tolist(), room.tolist(), strict=True)):
            if (log.all_negative.urn == urn).any():
                totals = found + hidden * left / max(1, room.sum())
                best = likeliest_total(log.all_negative, least=found, greatest=found + left, urn=urn)
                likelihood += log.all_negative.log_ratios(best, totals, urn)[:, -1]
        return hidden, 2.0 * (likelihood.max() - likelihood)

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
        return self.further(more, share)[0]

    def further(self, more: int, share: float | None = None) -> tuple[int, int]:
        """Upper limit of the hidden positives, and positives found, after further random images; see `outlook`."""
        if share is None:
            share = self.likeliest_share if self.draws and self.unknown else 0.0
        if more < 0 or not 0.0 <= share <= 1.0:
            raise ValueError(f"more must be at least 0 and share within 0 and 1; got {more} and {share}")
        log = self._log
        negatives = log.pending_rows.copy()  # of the draws that are pending now
        negatives[np.flatnonzero(negatives)[: round(share * self.pending)]] = 0
        history, urns = log.all_positive.with_negatives(negatives), len(log.rows)
        pending, rejected = (
            np.bincount(log.all_positive.urn, weights=rows, minlength=urns).astype(np.int64)
            for rows in (log.pending_rows, negatives)
        )
        found, rejected, unresolved = log.found + pending - rejected, log.rejected + rejected, log.unresolved - pending
        ends = min(more, self.unknown) * np.append(0, np.cumsum(log.unknown)) / max(self.unknown, 1)
        for urn, draws in enumerate(np.diff(np.round(ends).astype(int)).tolist()):  # each urn by its share
            positives = round(share * draws)
            unknown, before = int(log.unknown[urn]), int(found[urn] + unresolved[urn])
            history = history.extended(positives, draws, unknown=unknown, positives_before=before, urn=urn)
            found[urn] += positives
            rejected[urn] += draws - positives
        limits = {"least": found + unresolved, "greatest": log.rows - rejected}
        high = greatest_total(history, log.rows, **limits, error=self._upper_error)
        return _with_overlooked(high, self.rows, self.sensitivity_low) - int(found.sum()), int(found.sum())

    def further_by_ranking(self, more: int) -> tuple[int, int]:
        """As `further` for `chance_high`, after further looks without a positive."""
        high = _chance_high(self._looks.without_positives(more), self.rows, self.level, self.sensitivity_low)
        return max(0, high - self.found), self.found

    def expected_positives(self, more: int) -> int:
        """Positives that are expected of further random images: fewer than all up to now brought.

        So a first positive among few images does not make the forecast that of a pile full of them.
        """
        return min(self.positives - 1, round(self.likeliest_share * more)) if self.positives and self.unknown else 0

    def sentence(self) -> str:
        """How many positives are found and hidden, as one sentence that needs no explanation."""
        return statements.sentence(self)

    def statements(self) -> list[str]:
        """What can be said, in words: first `sentence`, then each limit with what it assumes."""
        return statements.statements(self)

    def forecast(self) -> str:
        """What further random images may bring; "" where none is left."""
        return statements.forecast(self)

    def as_dict(self) -> dict[str, Any]:
        """The attributes as plain numbers, for JSON; `zone` is one of these."""
        numbers = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        if self.zone is not None:
            of_pile = ("zone", "rest_high", "came_since", "chance_high", "agreement")
            numbers["zone"] = {n: v for n, v in self.zone.as_dict().items() if n not in of_pile}
        if self.agreement is not None:
            numbers["agreement"] = self.agreement.as_dict()
        return numbers


def audit(session: str | Path | Session, *, level: float = 0.95, readers: str = BOTH) -> Audit:
    """How many positives are still hidden in the pile of a review session.

    Parameters
    ----------
    session : path or Session
        Folder of a session, also while `pucache review` runs it; or a session that is open.
    level : float
        Probability that the limits are right at every moment of the review at once.
    readers : str
        Where a folder has a second reader, whose answers are the labels. both: what both say, or the one who alone has
        decided; where they differ there is none. first: those of the first reader.

    Returns
    -------
    Audit

    Raises
    ------
    SessionError
        There is no session, or its log is damaged.
    ValueError
        The level is not within (0, 1), or `readers` is neither both nor first.
    """
    present, agreement = _read(session, readers)
    _check_level(level)
    try:
        audited = audit_entries(present.entries, present.urns, level=level, zone=present.zone, since=present.since)
        return replace(audited, agreement=agreement, came_since=present.came)
    except ValueError as error:
        name = session if isinstance(session, (str, Path)) else session.folder
        raise SessionError(f"the log of {name} is damaged: {error}; restore it from a copy") from error


def audit_concepts(
    folder: str | Path, *, level: float = 0.95, readers: str = BOTH
) -> tuple[dict[str, Audit], dict[str, str]]:
    """`pucache.audit` of the session of each concept.

    Parameters
    ----------
    folder : path
        Of the sessions, also while `pucache review` runs them.
    level : float
        As for `pucache.audit`; it holds for each concept, not for all at once.
    readers : str
        As for `pucache.audit`.

    Returns
    -------
    audits : dict of str to Audit
    failures : dict of str to str
        Concepts whose session cannot be read, and why, in one line.

    Raises
    ------
    SessionError
        The folder holds no session that can be read, or sessions of different caches.
    """
    return over_sessions(folder, lambda path: audit(path, level=level, readers=readers))


def _read(session: str | Path | Session, readers: str) -> tuple[AuditedEntries, Agreement | None]:
    if not isinstance(session, (str, Path)):
        return session.audited_entries(), None
    folder = Path(session)
    if folder.is_file():
        raise SessionError(f"{folder} is a file; expected the folder of a review session, such as cache.h5.review")
    with open_log(folder, read_only=True) as log:
        return audited_by_both(log, readers)


def audit_entries(
    entries: Sequence[Entry], urns: Sequence[int], *, level: float = 0.95, zone: Sequence[int] = (), since: int = 0
) -> Audit:
    """Limits of the number of hidden positives, from all entries of the log since urns of so many rows were fixed.

    `zone` has the number of rows of each part of the zone; `since` the serial number of the last entry before the
    pile grew, from which on looks of the ranking count.

    Raises
    ------
    ValueError
        The level is not within (0, 1), or the entries contradict each other or the urns.

    Notes
    -----
    With fewer than 30 rechecks and no miss the whole error 1 - level is that of the interval, which
    then holds if no positive was overlooked. Afterwards four fifths are, and one fifth is that of
    `sensitivity_low`.
    """
    _check_level(level)
    if min(urns) < 0:
        raise ValueError(f"a pile has at least 0 rows; got {min(urns)}")
    log = ReplayedLog(entries, urns)
    sensitivity = None
    if log.rechecks >= RECHECKS_NEEDED or log.missed >= MISSES_NEEDED:
        sensitivity = least_sensitivity(log.rechecks, log.missed, SENSITIVITY_PART * (1.0 - level))
    error, looks = _interval_error(level, sensitivity), looks_of(entries, int(log.rows.sum()), log.labels, since)
    audited = _audited(log, looks, level, sensitivity, UPPER_PART * error)
    limits = {"least": log.found, "greatest": log.rows - log.rejected - log.unresolved}
    low = least_total(log.all_negative, log.rows, **limits, error=(1.0 - UPPER_PART) * error)
    low = min(low, audited.total_high)
    audited = replace(audited, total_low=low, hidden_low=low - audited.found)
    if not zone:
        return audited
    likeliest = _audited(ReplayedLog.of_zone(entries, zone), looks, level, sensitivity, error / 2)
    rest = _audited(log, looks, level, sensitivity, error / 2).hidden_high  # as many at most are outside of the zone
    if sensitivity is None:
        rest = min(rest, audited.unknown - likeliest.unknown + int(log.unresolved.sum()))
    return replace(audited, zone=likeliest, rest_high=rest)


def _audited(log: ReplayedLog, looks: Looks, level: float, sensitivity: float | None, upper_error: float) -> Audit:
    """The audit of a pile, without its lower limit and its zone."""
    found, rows = int(log.found.sum()), int(log.rows.sum())
    limits = {"least": log.found + log.unresolved, "greatest": log.rows - log.rejected}
    recognised = greatest_total(log.all_positive, log.rows, **limits, error=upper_error)
    high = _with_overlooked(recognised, rows, sensitivity)
    return Audit(
        draws=log.all_positive.positive.size,
        positives=log.positives,
        skipped=log.skipped,
        pending=log.pending,
        found=found,
        unknown=int(log.unknown.sum()),
        hidden_high=high - found,
        total_low=found,
        total_high=high,
        recall_low=share_found(found, high - found),
        rechecks=log.rechecks,
        missed=log.missed,
        sensitivity_low=sensitivity,
        recognised_high=recognised - found,
        level=level,
        rows=rows,
        chance_high=max(0, _chance_high(looks, rows, level, sensitivity) - found),
        rest_high=high - found,
        _log=log,
        _looks=looks,
        _upper_error=upper_error,
    )


def _check_level(level: float) -> None:
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be between 0 and 1; got {level}")


def _interval_error(level: float, sensitivity: float | None) -> float:
    return (1.0 - level) * (1.0 if sensitivity is None else 1.0 - SENSITIVITY_PART)


def _chance_high(looks: Looks, rows: int, level: float, sensitivity: float | None) -> int:
    """Upper limit of the positives in the pile where the ranking is no worse than chance."""
    return _with_overlooked(looks.greatest_total(_interval_error(level, sensitivity)), rows, sensitivity)


def _with_overlooked(total: int, rows: int, sensitivity: float | None) -> int:
    """Upper limit of the positives in the pile, those included that were overlooked."""
    if sensitivity is None:
        return total
    return min(rows, math.ceil(total / sensitivity)) if sensitivity else rows
