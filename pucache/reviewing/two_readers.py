"""Two readers: two sessions on the same images, each beside the other, and what both say together.

The second begins with the labels, the pile and the query of the first, and sees no answer of it. Their random images
are the same, as the numbers that choose them belong to the images.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ..errors import SessionError
from ..estimates.agreement import Agreement, Concordance
from .history import History, Picture
from .log import LABELS, AuditedEntries, Choice, DecisionLog, Entry, Stream
from .session_folder import open_log


def joined(mine: History, theirs: History) -> list[Entry]:
    """Decisions by which the labels of one reader become those that both say.

    Where the other one alone has decided, his; where they differ, a skip: it counts as positive in an upper limit and
    as negative in a lower one.
    """
    said = []
    for group, label in _labels(theirs).items():
        own = mine.pictures.get(group)
        if own is None or own.label < 0:
            said.append(label)
        elif own.labelling is not None and own.labelling.choice is not label.choice:
            said.append(replace(label, choice=Choice.SKIP))
    return [
        replace(one, serial=mine.serial + number, stream=Stream.OTHER_READER, replaces=0, restores=0, zone=0)
        for number, one in enumerate(said, 1)
    ]


def conflicts(mine: History, theirs: History) -> list[tuple[Entry, Entry]]:
    """Labels of pictures that two readers label otherwise."""
    first, second = _labels(mine), _labels(theirs)
    both = [(label, second[group]) for group, label in first.items() if group in second]
    return [(one, other) for one, other in both if one.choice is not other.choice]


def agreement(mine: History, theirs: History) -> Agreement:
    """How two readers agree, whose histories number pictures alike.

    What counts is the first label that each gave a picture, as later ones may come after a look at both.
    """
    first, second = (_first_labels(history) for history in (mine, theirs))
    both = first.keys() & second.keys()
    at_random = both & _drawn(mine) & _drawn(theirs)
    differ = sorted((one.key, str(one.choice), str(other.choice)) for one, other in conflicts(mine, theirs))
    decided, drawn = (_concordance(first, second, groups) for groups in (both, at_random))
    names = _reader(mine) or "the first reader", _reader(theirs) or "the second reader"
    return Agreement(*names, decided, drawn, tuple(differ))


def audited_beside(log: DecisionLog, beside: Path) -> tuple[AuditedEntries, Agreement]:
    """What the audit of both readers is computed from, and how they agree.

    Raises `SessionError` where the logs are not of the same images in the same state.
    """
    present, facts = log.audited_entries(), log.facts()
    with open_log(beside, read_only=True) as other:
        theirs, same = other.audited_entries(), other.facts().pile == facts.pile
    if not same:
        raise SessionError(
            f"{log.path.parent} and {beside} are no reviews of the same images in the same state: begin the second "
            "with --beside, and go on with each once after the cache has changed"
        )
    mine, others = History(present.urns, present.entries), History(theirs.urns, theirs.entries)
    parts = log.zone(facts.continued[0] if facts.continued else log.epoch).parts
    said = [replace(one, zone=parts.get(one.key, 0)) for one in joined(mine, others)]
    return present._replace(entries=[*present.entries, *said]), agreement(mine, others)


def _labels(history: History) -> dict[int, Entry]:
    """The decision that gives each picture its label."""
    labelled = ((group, one.labelling) for group, one in history.pictures.items() if one.label >= 0)
    return {group: label for group, label in labelled if label is not None}


def _first_labels(history: History) -> dict[int, Choice]:
    """The first label of each picture that has one, unless it was taken back."""
    found = ((group, _first_label(one)) for group, one in history.pictures.items() if one.label >= 0)
    return {group: choice for group, choice in found if choice is not None}


def _first_label(one: Picture) -> Choice | None:
    return next((entry.choice for entry, _ in one.stack if entry.choice in LABELS), None)


def _drawn(history: History) -> set[int]:
    return {group for group, one in history.pictures.items() if one.drawn is Stream.AUDIT}


def _concordance(first: dict[int, Choice], second: dict[int, Choice], groups: Iterable[int]) -> Concordance:
    pairs = Counter((first[group], second[group]) for group in groups)
    return Concordance(*(pairs[pair] for pair in itertools.product(LABELS, LABELS)))


def _reader(history: History) -> str:
    """Who decided last; "" where that is not known."""
    decisions = [entry for one in history.pictures.values() for entry, _ in one.stack]
    return max(decisions, key=lambda entry: entry.serial).reviewer if decisions else ""
