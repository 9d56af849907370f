"""Whether to go on with a review, to check by random images, or to stop."""

from __future__ import annotations

from ..estimates.limit_sentences import lower_percent
from ..estimates.limits import RECHECKS_NEEDED, Limits, share_found
from .history import RATE_OF
from .state import Progress

_MIN_DECISIONS = 50  # before anything is said about the rate
_LOW_RATE = 0.1  # of positives among the last decisions
_FALLEN = 0.5  # of the best rate, at which the yield has fallen
_MIN_DRAWS = 20  # of the audit, before its share of positives counts
_ENOUGH = 0.95  # recall from which on nothing more is asked for


def advice(
    counts: Progress,
    audit: Limits | None,
    *,
    best: float = 0.0,
    closing_audit: bool = False,
    in_zone: bool = False,
) -> str:
    """Say whether to go on, to check by random images, or to stop; "" while there is nothing to say.

    The closing audit is offered once the rate is half of `best`, the `History.best_rate`; `closing_audit` says whether
    all images are drawn at random already, `in_zone` whether among the likeliest.
    """
    if not counts.untaken and not counts.waiting:
        skipped = f" or skipped ({counts.skipped:,})" if counts.skipped else ""
        return f"All images are decided{skipped}."
    again = f" {audit.second_look.capitalize()} first." if audit is not None and audit.doubted else ""
    if audit is not None and (enough := _enough(audit)):
        return enough + again
    if closing_audit:
        zone = audit.zone if in_zone and audit is not None else None
        more = f"Among the likeliest, {zone.forecast}." if zone is not None and zone.draws and zone.forecast else ""
        return f"{again} Wrong decisions widen the limit. {more}".strip() if again else more
    fallen = counts.rate_of == RATE_OF and counts.rate <= _FALLEN * best
    if counts.rate_of < _MIN_DECISIONS or not (fallen or counts.rate <= _low_rate(counts, audit)):
        return ""
    positive = round(counts.rate * counts.rate_of)
    before = f", up to {round(best * RATE_OF)} of {RATE_OF} before" if fallen else ""
    return (
        f"Only {positive} of the last {counts.rate_of} images {'was' if positive == 1 else 'were'} positive{before}. "
        f"A closing audit (random images alone) would say how many are hidden.{again}"
    )


def _enough(audit: Limits) -> str:
    """What is said once enough is found: that one may stop, if enough known positives were shown again."""
    if not audit.draws:
        return ""
    zone, sure = audit.zone, f"with {100 * audit.level:g} % confidence at least"
    share, others, most = share_found(audit.found, audit.recognised_high), "", audit.recognised_high
    if share < _ENOUGH and zone is not None and zone.draws:
        share, most = share_found(audit.found, zone.recognised_high), zone.recognised_high
        others = f" if {audit.rows - zone.rows:,} images that are less likely may be left aside"
    if share < _ENOUGH or (audit.missed and audit.recall_low < _ENOUGH):
        return ""
    found = (
        f"{sure} {lower_percent(share)} of {'the other' if others else 'all'} positives are found, at most {most:,} not"
    )
    if audit.sensitivity_low is None:
        more = RECHECKS_NEEDED - audit.rechecks
        return (
            f"If no positive was overlooked{',' * bool(others)}{others}, {found}. Go on with a closing audit, which "
            f"shows known positives again: after {more} more of them one may stop."
        )
    return (
        f"You may stop{others}: {found}, of those that you recognise, which are at least "
        f"{100 * audit.sensitivity_low:.0f} % by {audit.rechecks:,} that were shown again."
    )


def _low_rate(counts: Progress, audit: Limits | None) -> float:
    """Rate at which the ranking yields little, or no more than random images do."""
    if audit is None or audit.draws < _MIN_DRAWS:
        return _LOW_RATE
    return max(_LOW_RATE, audit.likeliest_share if counts.untaken else 0.0)
