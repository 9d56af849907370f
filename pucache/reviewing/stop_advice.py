"""Advice whether to go on: one sentence with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .audit import MORE

if TYPE_CHECKING:
    from .audit import Audit
    from .session_state import SessionProgress

_MIN_DECISIONS = 50  # before anything is said about the rate
_LOW_RATE = 0.1  # of positives among the last decisions
_MIN_DRAWS = 20  # of the audit, before its share of positives counts
_ENOUGH = 0.95  # recall from which on nothing more is asked for


def advice(
    counts: SessionProgress, audit: Audit | None, *, estimate: float | None = None, closing_audit: bool = False
) -> str:
    """Say whether to go on, to check by random images, or to stop.

    Parameters
    ----------
    counts : SessionProgress
    audit : Audit or None
    estimate : float, optional
        Number of hidden positives by the model.
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
    if closing_audit:
        return _closing(counts, audit, estimate)
    if counts.rate_of < _MIN_DECISIONS or counts.rate > _low_rate(counts, audit):
        return ""
    bound = _bound(counts, audit, estimate)
    return (
        f"Only {round(counts.rate * counts.rate_of)} of the last {counts.rate_of} images were positive. "
        f"A closing audit (random images alone) would say how many are hidden{bound}."
    )


def _closing(counts: SessionProgress, audit: Audit | None, estimate: float | None) -> str:
    if audit is None or not audit.draws:
        return ""
    return f"The closing audit lowers the bound slowly{_bound(counts, audit, estimate)}. Stop where it is low enough."


def _low_rate(counts: SessionProgress, audit: Audit | None) -> float:
    """Rate at which the ranking yields little, or no more than random images do."""
    if audit is None or audit.draws < _MIN_DRAWS:
        return _LOW_RATE
    return max(_LOW_RATE, audit.likeliest_share if counts.unknown else 0.0)


def _bound(counts: SessionProgress, audit: Audit | None, estimate: float | None) -> str:
    """What audit and model say, as the end of a sentence."""
    parts = []
    if audit is not None and audit.draws:
        share = None if estimate is None else min(1.0, estimate / max(counts.unknown, 1))
        more = min(MORE, counts.unknown)
        parts.append(f"at most {audit.hidden_high:,} by now, about {audit.outlook(more, share):,} after {more} more")
    if estimate is not None:
        parts.append(f"about {estimate:,.0f} by the model")
    return ": " + "; ".join(parts) if parts else ""
