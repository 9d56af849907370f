"""Advice whether to go on: one sentence with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .audit import MORE
from .log import LABELS, Choice, Entry, Stream
from .session_state import RATE_OF

if TYPE_CHECKING:
    from .audit import Audit
    from .session_state import SessionProgress

_MIN_DECISIONS = 50  # before anything is said about the rate
_LOW_RATE = 0.1  # of positives among the last decisions
_FALLEN = 0.5  # of the best rate, at which the yield has fallen
_MIN_DRAWS = 20  # of the audit, before its share of positives counts
_ENOUGH = 0.95  # recall from which on nothing more is asked for


def best_rate(entries: Sequence[Entry]) -> float:
    """Highest share of positives among `RATE_OF` decisions in a row; 0 with fewer decisions."""
    choices = [entry.choice for entry in entries if entry.stream is not Stream.RECHECK and not entry.is_undo]
    labels = [choice is Choice.POSITIVE for choice in choices if choice in LABELS]
    before = np.append(0, np.cumsum(labels))
    return float((before[RATE_OF:] - before[:-RATE_OF]).max(initial=0)) / RATE_OF


def advice(counts: SessionProgress, audit: Audit | None, *, best: float = 0.0, closing_audit: bool = False) -> str:
    """Say whether to go on, to check by random images, or to stop.

    Parameters
    ----------
    counts : SessionProgress
    audit : Audit or None
    best : float
        `best_rate` of the review: the closing audit is offered once the rate is half of it.
    closing_audit : bool
        Whether all images are drawn at random already.

    Returns
    -------
    str
        Empty while there is nothing to say.
    """
    if not counts.unknown and not counts.pending:
        skipped = f" or skipped ({counts.skipped:,})" if counts.skipped else ""
        return f"All images of the pile are decided{skipped}."
    if audit is not None and audit.draws and audit.recall_low >= _ENOUGH:
        return (
            f"You may stop: with {audit.level:.0%} confidence at least {audit.recall_low:.0%} of all positives are "
            f"found, and at most {audit.hidden_high:,} are hidden."
        )
    zone = None if audit is None else audit.zone
    if audit is not None and zone is not None and zone.draws:
        share = audit.found / max(1, audit.found + zone.hidden_high)
        if share >= _ENOUGH:
            return (
                f"You may stop if {audit.rows - zone.rows:,} images that are less likely may be left aside: of the "
                f"other positives at least {share:.0%} are found, with {audit.level:.0%} confidence."
            )
    if closing_audit:
        bound = _bound(counts, audit)
        return f"The closing audit lowers the limit slowly{bound}. Stop where it is low enough." if bound else ""
    fallen = counts.rate_of == RATE_OF and counts.rate <= _FALLEN * best
    if counts.rate_of < _MIN_DECISIONS or not (fallen or counts.rate <= _low_rate(counts, audit)):
        return ""
    before = f", up to {round(best * RATE_OF)} of {RATE_OF} before" if fallen else ""
    return (
        f"Only {round(counts.rate * counts.rate_of)} of the last {counts.rate_of} images were positive{before}. "
        f"A closing audit (random images alone) would say how many are hidden{_bound(counts, audit)}."
    )


def _low_rate(counts: SessionProgress, audit: Audit | None) -> float:
    """Rate at which the ranking yields little, or no more than random images do."""
    if audit is None or audit.draws < _MIN_DRAWS:
        return _LOW_RATE
    return max(_LOW_RATE, audit.likeliest_share if counts.unknown else 0.0)


def _bound(counts: SessionProgress, audit: Audit | None) -> str:
    """What the audit says, as the end of a sentence."""
    if audit is None or not audit.draws:
        return ""
    more = min(MORE, counts.unknown)
    return f": at most {audit.hidden_high:,} by now, about {audit.outlook(more):,} after {more} more"
