"""What limits say in words: page, `audit`, the closing lines of a review, report and JSON take these sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from ..errors import counted
from ..labels.listing import name_first
from .agreement import Agreement
from .limits import Limits, share_found

RECALLS = (0.9, 0.95)  # shares of the positives that people want to state
FURTHER = (100, 200, 500, 1000, 2000, 5000, 10_000)  # looks, as the cost of stating them


def sentences(limits: Limits) -> list[str]:
    """What can be said: the sentence first, then each other limit with what it assumes."""
    said = (share_of_all, at_least, among_the_likeliest, came_since, by_chance)
    lines = [limits.sentence, *filter(None, (say(limits) for say in said))]
    return lines if limits.agreement is None else [*lines, *agreement(limits.agreement)]


def share_of_all(limits: Limits) -> str:
    """The share of the positives that is found, by the limit of the pile."""
    if not limits.draws:
        return ""
    cost = _cost(limits, limits.recall_low, limits.further, "random images")
    return f"If {limits.assumption}: {_recall(limits.recall_low)} ({_basis(limits)}){cost}."


def at_least(limits: Limits) -> str:
    """The lower limit."""
    if not limits.hidden_low:
        return ""
    return f"As you label them, at least {limits.hidden_low:,} more; positives accepted wrongly raise this."


def among_the_likeliest(limits: Limits) -> str:
    """The limits of the zone and of the rest."""
    zone = limits.zone
    if zone is None or not zone.draws:
        return ""
    others, recall = counted(limits.rows - zone.rows, "other image"), share_found(limits.found, zone.hidden_high)
    cost = _cost(zone, recall, zone.further, "random images among the likeliest", limits.found - zone.found)
    return (
        f"If {limits.assumption}: among the {zone.rows:,} likeliest images at most {zone.hidden_high:,} more, "
        f"among {others} at most {limits.rest_high:,}, with {100 * limits.level:g} % confidence for both "
        f"({_basis(zone, ' among the likeliest')}). Leaving aside {others}: "
        f"{_recall(recall, 'the other positives')}{cost}."
    )


def came_since(limits: Limits) -> str:
    """Whether images came after the likeliest were chosen."""
    if limits.zone is None or not limits.zone.draws or not limits.came_since:
        return ""
    return (
        f"The likeliest images were chosen before {limits.came_since:,} of the images came: their limit "
        "speaks of the images of then. Random images among all are from the new ones too."
    )


def by_chance(limits: Limits) -> str:
    """The limit from all looks, where it says more than that of the random images."""
    high = limits.chance_high
    if high >= limits.unknown or (limits.draws and high >= limits.hidden_high):
        return ""
    recall = share_found(limits.found, high)
    cost = _cost(limits, recall, limits.further_by_ranking, "images, if none is positive")
    return (
        f"If the ranking shows positives at least as often as chance would: at most {high:,} more, and "
        f"{_recall(recall)}{cost}. A ranking that shows negatives first makes this wrong."
    )


def agreement(of: Agreement) -> Iterator[str]:
    """How far two readers agree."""
    said = f"Before any image was shown again, {of.first} and {of.second} {of.decided}"
    yield said + (f"; of those that both were given at random, they {of.drawn}." if of.drawn.images else ".")
    if of.conflicts:
        rule = "have no label" if of.joined else f"are labelled as {of.first} says"
        keys = name_first([key for key, *_ in of.conflicts])
        yield f"They differ on {len(of.conflicts):,} now, which {rule}: {keys}"


# --- parts of sentences --------------------------------------------------------------------------


def _cost(
    limits: Limits, recall: float, further: Callable[[int], tuple[int, int]], kind: str, elsewhere: int = 0
) -> str:
    """What stating greater shares found would take, as the end of a sentence; `elsewhere` are found besides."""
    most, parts, wanted = limits.unknown, list[str](), [share for share in RECALLS if share > recall]
    if len(limits.strata) > 2:  # looking ahead takes too long
        return ""
    for looks in [*(number for number in FURTHER if number < most), *([most] if most <= FURTHER[-1] else [])]:
        hidden, found = further(looks) if wanted else (0, 0)
        while wanted and share_found(found + elsewhere, hidden) >= wanted[0]:
            parts.append(f"{100 * wanted.pop(0):g} % would take about {looks:,}")
    if most > FURTHER[-1]:
        parts += [f"{100 * share:g} % would take more than {FURTHER[-1]:,}" for share in wanted]
    return f"; {', '.join(parts)} more {kind}" if parts else ""


def _basis(limits: Limits, where: str = "") -> str:
    """What the limits rest on."""
    parts = [counted(limits.draws, "random image") + where]
    open_ = limits.skipped + limits.pending
    if open_:
        parts.append(f"{open_:,} of them skipped or left out, which count as positive until they are decided")
    if limits.sensitivity_low is not None:
        parts.append(
            f"{limits.missed:,} of {limits.rechecks:,} known positives rejected when shown again, so at least "
            f"{100 * limits.sensitivity_low:.0f} % are recognised"
        )
    return "; ".join(parts)


def lower_percent(share: float) -> str:
    """A lower limit in per cent, rounded down."""
    return f"{math.floor(1000 * share) / 10:g} %"


def _recall(share: float, of: str = "all positives") -> str:
    return f"at least {lower_percent(share)} of {of} are found"
