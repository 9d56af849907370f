"""What the entries of a log amount to, picture by picture: a fold that needs neither cache nor file.

The same fold serves decisions as they come, a session that is opened again, the audit of a folder, and two readers. A
picture has a stack of decisions: the top one is in force, and an undo brings back what lies below. It leaves its strata
for good with its first label or random draw, whatever is decided about it later; one that is taken back waits for a
decision, as an unanswered draw does.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..estimates.agreement import Agreement, Concordance
from ..estimates.limits import Limits
from ..estimates.strata import Looks, Stratum
from .log import DRAWN, LABELS, NO_LOOKS, NO_ZONE, Choice, Entry, Stream, Zone

RATE_OF = 100  # decisions that the rate is of
_LABEL = {Choice.POSITIVE: 1, Choice.NEGATIVE: 0}


@dataclass(eq=False)
class Picture:
    """Images that show the same, and what was decided about them. Numbers of entries are 0 for none."""

    copies: int  # rows of the pile
    urn: int
    row: int = 0  # of the last entry
    zone: int = 0  # part of the zone
    stack: list[tuple[Entry, Entry | None]] = field(default_factory=list)  # decisions, and the draws they answer
    waiting: Entry | None = None  # draw that no decision has answered
    last: int = 0  # the last decision, also one that takes another back
    seen: tuple[int, float] = (0, 0.0)  # entry of the first look, and decisions before it since the last positive
    taken: int = 0  # entry by which it left its strata: its first label, or
    drawn: Stream | None = None  # a random draw
    checks: list[Choice | None] = field(default_factory=list)  # last answer to each recheck

    @property
    def in_force(self) -> Entry | None:
        """Decision in force."""
        return self.stack[-1][0] if self.stack else None

    @property
    def labelling(self) -> Entry | None:
        """Decision that says what it is: an answer to a recheck measures the reviewer, and leaves the label."""
        top = self.in_force
        if top is None or not top.is_recheck_label:
            return top
        checked = next((one for one, _ in reversed(self.stack) if one.stream is not Stream.RECHECK), None)
        return checked if checked is not None and checked.choice in LABELS else top

    @property
    def label(self) -> int:
        """1 positive, 0 negative, -1 neither."""
        says = self.labelling
        return -1 if says is None or says.choice is None else _LABEL.get(says.choice, -1)

    @property
    def number(self) -> int:
        """Number of the decision that labels; 0 without one."""
        return 0 if self.labelling is None else self.labelling.serial

    @property
    def can_be_doubted(self) -> bool:
        """Whether it has a label that was given once, and is not about to be shown."""
        given = [entry.choice for entry, _ in self.stack if entry.choice in LABELS]
        is_given_again = len(given) > 1 and self.labelling is not None and given[-1] is self.labelling.choice
        return self.label >= 0 and not self.waiting and not is_given_again

    @property
    def waits(self) -> bool:
        """Whether it left its strata, and is yet to be decided or skipped."""
        return bool(self.taken) and (not self.stack or (self.waiting is not None and self.waiting.stream in DRAWN))

    def can_undo(self, entry: Entry) -> bool:
        """Whether the decisions that an undo names are there; they are, unless the log is damaged."""
        serials = [0, *(decision.serial for decision, _ in self.stack)]
        return len(serials) > 1 and serials[-2:] == [entry.restores, entry.replaces]

    def decide(self, entry: Entry) -> None:
        """Take in a decision."""
        self.last = entry.serial
        if self.checks:
            self.checks[-1] = entry.choice if entry.stream is Stream.RECHECK else None
        if not entry.is_undo:
            self.stack.append((entry, self.waiting))
            self.waiting = None
            return
        _, draw = self.stack.pop()
        self.waiting = draw or self.waiting  # to be answered again
        if entry.restores:
            answered = self.stack[-1][1]
            if draw is None and self.waiting and self.waiting.stream in DRAWN and entry.choice in LABELS:
                answered, self.waiting = self.waiting, None  # a label from before the draw is its answer
            self.stack[-1] = entry, answered


class History:
    """Entries of a log since `urns` of so many rows were fixed, the strata of the pile; `after` takes the next one."""

    def __init__(self, urns: Sequence[int], entries: Iterable[Entry] = (), carried: Iterable[Entry] = ()):
        self.rows, self.left = tuple(urns), list(urns)  # of each urn, and those of them that have not left it
        self.found = [0] * len(urns)  # rows of each urn that are labelled positive
        self.pictures: dict[int, Picture] = {}
        self.drawn: list[Picture] = []  # at random, in order
        self.labels: dict[int, bool] = {}  # whether positive, by number of the entry; without those replaced
        self.serial = 0  # of the last entry
        self._rechecked: dict[int, Picture] = {}
        self._run, self._undone = 0.0, False
        for decision in carried:
            self.carry(decision)
        for entry in entries:
            self.after(entry)

    def after(self, entry: Entry) -> Picture:
        """Take in the next entry; raises ValueError where it contradicts those before it, or the urns."""
        if entry.serial <= self.serial:
            raise ValueError(f"entry {entry.serial} follows entry {self.serial}; entries come in the order of the log")
        if not 0 <= entry.urn < len(self.rows):
            raise ValueError(f"entry {entry.serial} is of urn {entry.urn}; there are {len(self.rows)}")
        picture = self.pictures.setdefault(entry.group, Picture(entry.copies, entry.urn))
        if (picture.copies, picture.urn) != (entry.copies, entry.urn):
            raise ValueError(
                f"entry {entry.serial}: group {entry.group} has {entry.copies} rows in urn {entry.urn}, and had "
                f"{picture.copies} in urn {picture.urn}"
            )
        self.serial, picture.row, picture.zone = entry.serial, entry.row, max(picture.zone, entry.zone)
        was_positive = picture.label == 1
        if not picture.seen[0] and entry.stream not in NO_LOOKS:
            is_random = entry.is_draw and entry.stream is Stream.AUDIT
            picture.seen = entry.serial, np.inf if is_random else self._run
        if entry.is_draw:
            self._draw(picture, entry)
        else:
            self._decide(picture, entry)
        self.found[picture.urn] += picture.copies * ((picture.label == 1) - was_positive)
        return picture

    def carry(self, decision: Entry) -> Picture:
        """Take over a decision from before the strata were fixed: it says what a picture is, and is no look at it."""
        picture = self.pictures.setdefault(decision.group, Picture(decision.copies, decision.urn, decision.row))
        picture.decide(replace(decision, restores=0, replaces=0))
        if picture.label >= 0:
            self.labels[decision.serial] = picture.label == 1
        return picture

    def _draw(self, picture: Picture, draw: Entry) -> None:
        picture.waiting = draw
        if draw.stream is Stream.RECHECK:
            picture.checks.append(None)
            self._rechecked[draw.group] = picture
        elif draw.stream in DRAWN and not (picture.taken and self._undone):
            left = self.left[draw.urn]
            if picture.taken:
                raise ValueError(f"draw {draw.serial} is of row {draw.row}, which had been decided or drawn before")
            if not picture.copies:
                raise ValueError(f"draw {draw.serial} is of row {draw.row}, which is none of its images")
            if draw.stream is Stream.AUDIT and (draw.unknown < left or (draw.unknown > left and not self._undone)):
                raise ValueError(
                    f"draw {draw.serial} was among {draw.unknown:,} unknown rows; {left:,} of {self.rows[draw.urn]:,} "
                    "were left, so entries are missing or the images under review are others"
                )
            self._take(picture, draw.serial)
            picture.drawn = draw.stream
            self.drawn.append(picture)

    def _decide(self, picture: Picture, decision: Entry) -> None:
        if decision.is_undo and not picture.can_undo(decision):
            raise ValueError(f"entry {decision.serial} takes back what is not in force")
        picture.decide(decision)
        self._undone |= picture.taken > 0 and picture.label < 0  # before 0.5 it came back to its urn
        if decision.stream not in NO_LOOKS:
            self.labels.pop(decision.replaces, None)
            if decision.choice in LABELS:
                self.labels[decision.serial] = positive = decision.choice is Choice.POSITIVE
                self._run = self._run if decision.is_undo else 0.0 if positive else self._run + 1
        if not picture.taken and picture.label >= 0:
            self._take(picture, decision.serial)

    def _take(self, picture: Picture, serial: int) -> None:
        picture.taken = serial
        self.left[picture.urn] -= picture.copies
        if self.left[picture.urn] < 0:
            raise ValueError(
                f"the entries are about more rows of urn {picture.urn} than its {self.rows[picture.urn]:,}"
            )

    # --- what stands -------------------------------------------------------------------------------

    @property
    def last(self) -> int:
        """The last random draw that is decided or skipped. Those after it are left out, as if not made: the limits of
        all first draws hold at once, whatever one of them is looked at."""
        return max((one.taken for one in self.drawn if not one.waits), default=0)

    def counted(self) -> list[Picture]:
        """Pictures that left their strata, in order, without the draws after `last`."""
        last = self.last
        taken = (one for one in self.pictures.values() if one.taken and one.copies)
        return sorted((one for one in taken if not one.drawn or one.taken <= last), key=lambda one: one.taken)

    def strata(self, zone: Sequence[int] = ()) -> list[Stratum]:
        """The urns, or the parts of the zone of so many rows; a draw from the others is a look like any other."""
        taken, stream = self.counted(), Stream.ZONE if zone else Stream.AUDIT
        return [
            _stratum(rows, [one for one in taken if (one.zone if zone else one.urn) == number], stream)
            for number, rows in enumerate(zone or self.rows, bool(zone))
        ]

    def looks(self, since: int = 0) -> Looks:
        """First looks at pictures, of which those after entry `since` count; what was seen before has left."""
        last = self.last
        seen = sorted((one for one in self.pictures.values() if one.seen[0] and one.copies), key=lambda one: one.seen)
        seen = [one for one in seen if not (one.drawn and one.taken > last and one.seen[0] == one.taken)]
        columns = [(one.label, one.copies, *one.seen, one.drawn is None) for one in seen]
        label, copies, serial, run, ranked = np.array(columns, float).reshape(-1, 5).T
        positive, counts = label != 0, serial > since
        before, gone = np.cumsum(copies * positive) - copies * positive, np.cumsum(copies) - copies
        unknown = sum(self.rows) - gone
        left, found = sum(self.rows) - int(copies.sum()), int((copies * positive).sum())
        shown = label[counts & (ranked > 0) & (label >= 0)] > 0
        return Looks(positive[counts], unknown[counts], before[counts], run[counts], shown, left, found)

    def rate(self) -> tuple[float, int]:
        """Share of positives among the last labels, and how many these are."""
        last = list(self.labels.values())[-RATE_OF:]
        return (sum(last) / len(last) if last else 0.0), len(last)

    def best_rate(self) -> float:
        """Highest share of positives among `RATE_OF` labels in a row; 0 with fewer."""
        before = np.append(0, np.cumsum(list(self.labels.values())))
        return float((before[RATE_OF:] - before[:-RATE_OF]).max(initial=0)) / RATE_OF

    def rechecks(self) -> tuple[int, int]:
        """Rechecks that were answered, and those of them whose answer was a rejection."""
        answers = [answer for one in self._rechecked.values() for answer in one.checks if answer in LABELS]
        return len(answers), answers.count(Choice.NEGATIVE)

    def doubted(self, numbers: Iterable[int]) -> dict[int, int]:
        """Those of some decisions, by number, that are labels now and were not given again; with their groups."""
        groups = {one.number: group for group, one in self.pictures.items() if one.can_be_doubted}
        return {number: groups[number] for number in numbers if number in groups}

    def limits(
        self,
        *,
        level: float = 0.95,
        zone: Zone = NO_ZONE,
        since: int = 0,
        doubted: int = 0,
    ) -> Limits:
        """What can be said of the pile; looks after entry `since` count. Raises ValueError for no level in (0, 1)."""
        rechecks, missed = self.rechecks()
        inside, came = self.strata(zone.rows) if zone.rows else (), zone.came_since(self.rows)
        known: dict[str, Any] = {"rechecks": rechecks, "missed": missed, "came_since": came, "doubted": doubted}
        return Limits.of(self.strata(), self.looks(since), zone=inside, level=level, **known)


def _stratum(rows: int, taken: Sequence[Picture], stream: Stream) -> Stratum:
    """A stratum that pictures left in order, some of them as random draws from it."""
    columns = [(one.label, one.copies, one.taken * (one.drawn is stream), one.waits) for one in taken]
    label, copies, draw, waits = np.array(columns, np.int64).reshape(-1, 4).T
    return Stratum(rows, label, copies, draw, waits > 0)


# --- two readers, whose random images are the same: their numbers belong to the images -----------


def joined(mine: History, theirs: History) -> list[Entry]:
    """Decisions by which the labels of one reader become those that both say.

    Where the other one alone has decided, his; where they differ, a skip: it counts as positive in an upper limit and
    as negative in a lower one.
    """
    said = []
    for group, label in _labelled(theirs).items():
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
    first, second = _labelled(mine), _labelled(theirs)
    both = [(label, second[group]) for group, label in first.items() if group in second]
    return [(one, other) for one, other in both if one.choice is not other.choice]


def agreement(mine: History, theirs: History) -> Agreement:
    """How two readers agree, whose histories number pictures alike.

    What counts is the first label that each gave a picture, as later ones may come after a look at both.
    """
    first, second = (_first_labels(history) for history in (mine, theirs))
    both = first.keys() & second.keys()
    at_random = both & _drawn_at_random(mine) & _drawn_at_random(theirs)
    differ = sorted((one.key, str(one.choice), str(other.choice)) for one, other in conflicts(mine, theirs))
    decided, drawn = (_concordance(first, second, groups) for groups in (both, at_random))
    names = _last_reader(mine) or "the first reader", _last_reader(theirs) or "the second reader"
    return Agreement(*names, decided, drawn, tuple(differ))


def _labelled(history: History) -> dict[int, Entry]:
    """The decision that gives each picture its label."""
    labelled = ((group, one.labelling) for group, one in history.pictures.items() if one.label >= 0)
    return {group: label for group, label in labelled if label is not None}


def _first_labels(history: History) -> dict[int, Choice]:
    """The first label of each picture that has one, unless it was taken back."""
    found = ((group, _first_label(one)) for group, one in history.pictures.items() if one.label >= 0)
    return {group: choice for group, choice in found if choice is not None}


def _first_label(one: Picture) -> Choice | None:
    return next((entry.choice for entry, _ in one.stack if entry.choice in LABELS), None)


def _drawn_at_random(history: History) -> set[int]:
    return {group for group, one in history.pictures.items() if one.drawn is Stream.AUDIT}


def _concordance(first: dict[int, Choice], second: dict[int, Choice], groups: Iterable[int]) -> Concordance:
    pairs = Counter((first[group], second[group]) for group in groups)
    return Concordance(*(pairs[pair] for pair in itertools.product(LABELS, LABELS)))


def _last_reader(history: History) -> str:
    """Who decided last; "" where that is not known."""
    decisions = [entry for one in history.pictures.values() for entry, _ in one.stack]
    return max(decisions, key=lambda entry: entry.serial).reviewer if decisions else ""
