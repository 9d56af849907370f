"""What an audit says in words, and whether to go on with the review."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .hidden_interval import share_found
from .log import LABELS, NO_LOOKS, Choice, Entry
from .session_state import RATE_OF, SessionProgress

if TYPE_CHECKING:
    from .audit import Audit

MORE = 200  # further random images that `forecast` speaks of
FEW = 10  # hidden positives that are called a few
LEAST_POSITIVES = 3  # random images that are positive, from which on the likeliest number is a figure
RECALLS = (0.9, 0.95)  # shares of the positives that people want to state
FURTHER = (100, 200, 500, 1000, 2000, 5000, 10_000)  # looks, as the cost of stating them
RECHECKS_NEEDED = 30  # from which on the limits allow for overlooked positives, and one may stop
_MIN_DECISIONS = 50  # before anything is said about the rate
_LOW_RATE = 0.1  # of positives among the last decisions
_FALLEN = 0.5  # of the best rate, at which the yield has fallen
_MIN_DRAWS = 20  # of the audit, before its share of positives counts
_ENOUGH = 0.95  # recall from which on nothing more is asked for


def sentence(audit: Audit) -> str:
    """See `Audit.sentence`."""
    if not audit.open_rows and audit.sensitivity_low is None:
        return f"{audit.found:,} found. Every image is decided."
    if not audit.draws:
        return f"{audit.found:,} found. How many more is not known before the first random image."
    overlooked = ", overlooked ones included" if audit.sensitivity_low is not None else ""
    return (
        f"{audit.found:,} found. With {100 * audit.level:g} % confidence at most {audit.hidden_high:,} more among "
        f"{audit.open_rows:,}{overlooked}.{_guess(audit)}"
    )


def _guess(audit: Audit) -> str:
    """The likeliest number of hidden positives where it says more than the limit."""
    if audit.hidden_high <= FEW or not audit.unknown:
        return ""
    if audit.positives >= LEAST_POSITIVES:
        number, about = round(audit.likeliest_share * audit.unknown), "about"
    else:
        number, about = audit.probable_high, "at most about"
    if number <= FEW:
        return " Probably none or a few."
    return f" Probably {about} {number:,}." if number < audit.hidden_high else ""


def statements(audit: Audit) -> list[str]:
    """See `Audit.statements`."""
    zone, said = audit.zone, [sentence(audit)]
    if audit.draws:
        cost = _cost(audit, audit.recall_low, audit.further, "random images")
        said.append(f"{_assumption(audit)}: {_recall(audit.recall_low)} ({_basis(audit)}){cost}.")
    if audit.hidden_low:
        said.append(f"As you label them, at least {audit.hidden_low:,} more; positives accepted wrongly raise this.")
    if zone is not None and zone.draws:
        others = _images(audit.rows - zone.rows, "other")
        recall = share_found(audit.found, zone.hidden_high)
        cost = _cost(zone, recall, zone.further, "random images among the likeliest", audit.found - zone.found)
        said.append(
            f"{_assumption(audit)}: among the {zone.rows:,} likeliest images at most {zone.hidden_high:,} more, "
            f"among {others} at most {audit.rest_high:,}, with {100 * audit.level:g} % confidence for both "
            f"({_basis(zone)} among the likeliest). Leaving aside {others}: "
            f"{_recall(recall, 'positives elsewhere')}{cost}."
        )
        if audit.came_since:
            said.append(
                f"The likeliest images were chosen before {audit.came_since:,} of the images came: their limit "
                "speaks of the images of then. Random images among all are from the new ones too."
            )
    if audit.chance_high < audit.unknown and (audit.chance_high < audit.hidden_high or not audit.draws):
        recall = share_found(audit.found, audit.chance_high)
        cost = _cost(audit, recall, audit.further_by_ranking, "images, if none is positive")
        said.append(
            f"If the ranking shows positives at least as often as chance would: at most {audit.chance_high:,} "
            f"more, and {_recall(recall)}{cost}. A ranking that shows negatives first makes this wrong."
        )
    said += filter(None, [forecast(audit)])
    return said if audit.agreement is None else [*said, *audit.agreement.statements()]


def forecast(audit: Audit) -> str:
    """See `Audit.forecast`."""
    more = min(MORE, audit.unknown)
    if not more:
        return ""
    positives, kind = audit.expected_positives(more), "more random" if audit.draws else "random"
    among = f"{positives or 'none'} of them {'are' if positives > 1 else 'is'} positive"
    return f"After {_images(more, kind)}, if {among}: at most about {audit.outlook(more, positives / more):,}."


def _assumption(audit: Audit) -> str:
    """What the upper limits assume, as the beginning of a sentence."""
    if audit.sensitivity_low is None:
        return "If no positive was overlooked"
    return "If positives are overlooked no more often than those that are shown again"


def _cost(audit: Audit, recall: float, further: Callable[[int], tuple[int, int]], kind: str, elsewhere: int = 0) -> str:
    """What stating greater shares found would take, as the end of a sentence; `elsewhere` are found besides."""
    most, parts, wanted = audit.unknown, list[str](), [share for share in RECALLS if share > recall]
    if audit.urns > 2:  # looking ahead takes too long
        return ""
    for looks in [*(number for number in FURTHER if number < most), *([most] if most <= FURTHER[-1] else [])]:
        hidden, found = further(looks) if wanted else (0, 0)
        while wanted and share_found(found + elsewhere, hidden) >= wanted[0]:
            parts.append(f"{100 * wanted.pop(0):g} % would take about {looks:,}")
    if most > FURTHER[-1]:
        parts += [f"{100 * share:g} % would take more than {FURTHER[-1]:,}" for share in wanted]
    return f"; {', '.join(parts)} more {kind}" if parts else ""


def _basis(audit: Audit) -> str:
    """What the interval rests on."""
    parts = [_images(audit.draws, "random")]
    open_ = audit.skipped + audit.pending
    if open_:
        parts.append(f"{open_:,} of them skipped or left out, which count as positive until they are decided")
    if audit.sensitivity_low is not None:
        parts.append(
            f"{audit.missed:,} of {audit.rechecks:,} known positives rejected when shown again, so at least "
            f"{100 * audit.sensitivity_low:.0f} % are recognised"
        )
    return "; ".join(parts)


def lower_percent(share: float) -> str:
    """A lower limit in per cent, rounded down."""
    return f"{math.floor(1000 * share) / 10:g} %"


def _recall(share: float, of: str = "all positives") -> str:
    return f"at least {lower_percent(share)} of {of} are found"


def _images(number: int, kind: str) -> str:
    return f"{number:,} {kind} image{'s' * (number != 1)}"


# --- whether to go on --------------------------------------------------------------------------


def best_rate(entries: Sequence[Entry]) -> float:
    """Highest share of positives among `RATE_OF` decisions in a row; 0 with fewer decisions."""
    choices = [entry.choice for entry in entries if entry.stream not in NO_LOOKS and not entry.is_undo]
    labels = [choice is Choice.POSITIVE for choice in choices if choice in LABELS]
    before = np.append(0, np.cumsum(labels))
    return float((before[RATE_OF:] - before[:-RATE_OF]).max(initial=0)) / RATE_OF


def advice(
    counts: SessionProgress,
    audit: Audit | None,
    *,
    best: float = 0.0,
    closing_audit: bool = False,
    in_zone: bool = False,
) -> str:
    """Say whether to go on, to check by random images, or to stop; "" while there is nothing to say.

    The closing audit is offered once the rate is half of `best`, the `best_rate` of the review; `closing_audit` says
    whether all images are drawn at random already, `in_zone` whether among the likeliest.
    """
    if not counts.unknown and not counts.pending:
        skipped = f" or skipped ({counts.skipped:,})" if counts.skipped else ""
        return f"All images of the pile are decided{skipped}."
    if audit is not None and (enough := _enough(audit)):
        return enough
    if closing_audit:
        bound = _bound(audit, in_zone)
        return f"The closing audit lowers the limit slowly{bound}" if bound else ""
    fallen = counts.rate_of == RATE_OF and counts.rate <= _FALLEN * best
    if counts.rate_of < _MIN_DECISIONS or not (fallen or counts.rate <= _low_rate(counts, audit)):
        return ""
    before = f", up to {round(best * RATE_OF)} of {RATE_OF} before" if fallen else ""
    return (
        f"Only {round(counts.rate * counts.rate_of)} of the last {counts.rate_of} images were positive{before}. "
        f"A closing audit (random images alone) would say how many are hidden{_bound(audit) or '.'}"
    )


def _enough(audit: Audit) -> str:
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


def _low_rate(counts: SessionProgress, audit: Audit | None) -> float:
    """Rate at which the ranking yields little, or no more than random images do."""
    if audit is None or audit.draws < _MIN_DRAWS:
        return _LOW_RATE
    return max(_LOW_RATE, audit.likeliest_share if counts.unknown else 0.0)


def _bound(audit: Audit | None, in_zone: bool = False) -> str:
    """What the audit that is on says and would say, as the end of a sentence."""
    if audit is None or not audit.draws:
        return ""
    zone = audit.zone if in_zone else None
    if zone is None or not zone.draws:
        return f": at most {audit.hidden_high:,} by now. {audit.forecast()}".rstrip()
    return f": among the likeliest at most {zone.hidden_high:,} by now. {zone.forecast()}".rstrip()
