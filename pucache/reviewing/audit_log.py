"""The decision log as random draws see it: what was in the urns at each draw, with the labels in force at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from .hidden_interval import DrawHistory, Looks
from .log import AGAIN, DRAWN, LABELS, NO_LOOKS, Choice, Entry, Stream, labelling_decisions

PENDING = (None, Choice.UNDONE)  # last decisions of a draw without an answer
_ANSWERS = (Choice.POSITIVE, Choice.NEGATIVE, Choice.SKIP)
ANY = -1  # number of unknown rows at a draw that is not checked


class ReplayedLog:
    """Audit draws and counts of all entries of a log since urns of so many rows were fixed.

    Groups without copies are outside the urns. A draw from the zone takes its row out of the urn, as a look of the
    ranking does. Draws after the last one that is decided or skipped are left out, as if not made: the limits of all
    first draws hold at once, whatever one of them is looked at. A group is *unresolved* where it was out of its urn at
    a draw and has no label now: skipped, undone or pending. Arrays are int64, by urn, and count rows.

    Raises
    ------
    ValueError
        The entries contradict each other, or the urns.
    """

    def __init__(self, entries: Sequence[Entry], urns: Sequence[int]):
        self.rows = np.array(urns, np.int64)  # of the urn
        self.labels = _last_choices(entries)  # last decision of each group
        self._copies: dict[int, int] = {}
        self._urn_of: dict[int, int] = {}
        self._check(entries)
        self._out, self._positive, self._unresolved = (np.zeros_like(self.rows) for _ in range(3))  # as the log goes on
        self._labelled: dict[int, int] = {}  # number of draws before the label, by group; not the drawn ones
        self._drawn: dict[int, None] = {}  # groups, in the order of their draws
        self._zone_draws: set[int] = set()  # groups drawn from the zone
        self._was_out: set[int] = set()  # groups that were out at a draw and came back
        self._draws: list[tuple[Choice | None, int, int, int, int]] = []  # last choice, n_i, positive, unresolved, urn
        self._go_through(entries)

        last, outcomes = self.labels, [self.labels.get(group) for group in self._drawn]
        without_label = self._drawn.keys() | self._zone_draws | self._was_out
        self.found = self._sum(group for group, choice in last.items() if choice is Choice.POSITIVE)
        self.rejected = self._sum(group for group, choice in last.items() if choice is Choice.NEGATIVE)
        self.unresolved = self._sum(group for group in without_label if last.get(group) not in LABELS)
        self.unknown = self.rows - self._out  # neither decided nor among these draws
        self.positives = outcomes.count(Choice.POSITIVE)  # audit draws with that outcome
        self.skipped = outcomes.count(Choice.SKIP)  # audit draws whose last decision is a skip
        pending = [self._copies[group] * (last.get(group) in PENDING) for group in self._drawn]
        self.pending_rows = np.array(pending, np.int64)  # of each draw that is pending, 0 for all others; (m,)
        # without a decision, or with an undone one, before one that has a decision
        self.pending = sum(outcome in PENDING for outcome in outcomes)
        self.all_positive = self._history(unresolved_are=1)  # with the unresolved groups as positives
        self.all_negative = self._history(unresolved_are=0)
        answers = _recheck_answers(entries)
        self.rechecks = len(answers)  # answered ones
        self.missed = answers.count(Choice.NEGATIVE)  # rechecks whose answer was a rejection

    @classmethod
    def of_zone(cls, entries: Sequence[Entry], parts: Sequence[int]) -> ReplayedLog:
        """Of the zone, whose parts of so many rows are urns; random images of the pile may be of a part.

        Rechecks count as in the pile.
        """
        inside = []
        for entry in entries:
            if entry.stream is Stream.ZONE:
                entry = replace(entry, stream=Stream.AUDIT, urn=entry.zone - 1)
            elif entry.zone:  # where a draw from the pile is of a part, it is uniform over the rows that are left of it
                entry = replace(entry, urn=entry.zone - 1, unknown=ANY)
            elif entry.stream in AGAIN:
                entry = replace(entry, urn=0, copies=0)
            else:
                continue
            inside.append(entry)
        return cls(inside, parts)

    def _check(self, entries: Sequence[Entry]) -> None:
        serial = 0
        for entry in entries:
            if entry.serial <= serial:
                raise ValueError(
                    f"entry {entry.serial} follows entry {serial}; entries must come in the order of the log"
                )
            serial = entry.serial
            if not 0 <= entry.urn < len(self.rows):
                raise ValueError(f"entry {serial} is of urn {entry.urn}; there are {len(self.rows)}")
            before = self._copies.setdefault(entry.group, entry.copies)
            if before != entry.copies or self._urn_of.setdefault(entry.group, entry.urn) != entry.urn:
                raise ValueError(
                    f"entry {serial}: group {entry.group} has {entry.copies} rows in urn {entry.urn}, and had {before} "
                    f"in urn {self._urn_of[entry.group]}"
                )
        known = self._sum(self._copies)
        if (known > self.rows).any():
            raise ValueError(f"the entries are about {known.sum():,} rows; the pile has {self.rows.sum():,}")

    def _sum(self, groups: Iterable[int]) -> np.ndarray:
        """Rows of some groups, by urn."""
        rows = np.zeros_like(self.rows)
        for group in groups:
            rows[self._urn_of[group]] += self._copies[group]
        return rows

    def _go_through(self, entries: Sequence[Entry]) -> None:
        draws = [entry for entry in entries if entry.is_draw and entry.stream in DRAWN]
        last = max((draw.serial for draw in draws if self.labels.get(draw.group) not in PENDING), default=0)
        for entry in entries:
            if not entry.is_draw:
                self._decide(entry)
            elif entry.serial <= last and entry.stream is Stream.AUDIT:
                self._draw(entry)
            elif entry.serial <= last and entry.stream is Stream.ZONE:
                self._zone_draws.add(entry.group)
                self._move(entry.group, 1)

    def _draw(self, draw: Entry) -> None:
        group, urn = draw.group, draw.urn
        left = int(self.rows[urn] - self._out[urn])
        if group in self._drawn or group in self._zone_draws or group in self._labelled:
            raise ValueError(f"draw {draw.serial} is of row {draw.row}, which had been decided or drawn before")
        if draw.copies < 1:
            raise ValueError(f"draw {draw.serial} is of row {draw.row}, which is not in the pile")
        if draw.unknown not in (left, ANY):
            raise ValueError(
                f"draw {draw.serial} was among {draw.unknown:,} unknown rows; {left:,} of {self.rows[urn]:,} were "
                "left, so entries are missing or the pile is another one"
            )
        out = int(self._positive[urn]), int(self._unresolved[urn])
        self._draws.append((self.labels.get(group), left, *out, urn))
        self._drawn[group] = None
        self._move(group, 1)

    def _decide(self, decision: Entry) -> None:
        group, was_out = decision.group, decision.group in self._labelled
        if group in self._drawn or group in self._zone_draws or was_out == (decision.choice in LABELS):
            return
        if was_out:
            if self._labelled.pop(group) < len(self._draws):
                self._was_out.add(group)
        else:
            self._labelled[group] = len(self._draws)
        self._move(group, -1 if was_out else 1)

    def _move(self, group: int, sign: int) -> None:
        rows, last, urn = sign * self._copies[group], self.labels.get(group), self._urn_of[group]
        self._out[urn] += rows
        self._positive[urn] += rows * (last is Choice.POSITIVE)
        self._unresolved[urn] += rows * (last not in LABELS)

    def _history(self, *, unresolved_are: int) -> DrawHistory:
        """The draws, with every unresolved group positive (1) or negative (0)."""
        labels: dict[Choice | None, int] = {Choice.POSITIVE: 1, Choice.NEGATIVE: 0}
        draws = self._draws
        return DrawHistory(
            np.array([labels.get(choice, unresolved_are) for choice, *_ in draws], bool),
            np.array([unknown for _, unknown, *_ in draws], float),
            np.array([positive + unresolved * unresolved_are for _, _, positive, unresolved, _ in draws], float),
            np.array([urn for *_, urn in draws], np.int64),
        )


def _last_choices(entries: Sequence[Entry]) -> dict[int, Choice | None]:
    """Last choice of each group; None for a skip from before the group's draw, which does not answer the draw."""
    drawn = {entry.group: entry.serial for entry in entries if entry.is_draw and entry.stream in DRAWN}
    made: dict[int, int] = {}  # serial number of the decision that each decision is, or brings back
    for entry in entries:
        made[entry.serial] = made.get(entry.restores, entry.restores) or entry.serial
    return {
        group: None
        if decision.choice is Choice.SKIP and made[decision.serial] < drawn.get(group, 0)
        else decision.choice
        for group, decision in labelling_decisions(entries).items()
    }


def _recheck_answers(entries: Sequence[Entry]) -> list[Choice]:
    """The last label that each recheck got; none for a recheck that was skipped, undone or not answered."""
    answers: list[Choice | None] = []
    latest: dict[int, int] = {}  # recheck of a group
    for entry in entries:
        if entry.is_draw:
            if entry.stream is Stream.RECHECK:
                latest[entry.group] = len(answers)
                answers.append(None)
        elif entry.group in latest:  # an undo restores a decision of another stream
            answers[latest[entry.group]] = entry.choice if entry.stream is Stream.RECHECK else None
    return [answer for answer in answers if answer in LABELS]


def looks_of(entries: Sequence[Entry], rows: int, labels: Mapping[int, Choice | None], since: int = 0) -> Looks:
    """Looks of a log of a pile of so many rows; `labels` is what each group is in the end.

    Looks count after the entry numbered `since`; what was looked at before is out of the pile.
    """
    answered = [e.serial for e in entries if e.is_draw and e.stream in DRAWN and labels.get(e.group) in _ANSWERS]
    last = max(answered, default=0)
    looks: list[tuple[bool, int, int, float]] = []
    seen: set[int] = set()
    unknown, positives, run = rows, 0, 0
    for entry in entries:
        if entry.stream in NO_LOOKS or (entry.is_draw and entry.serial > last):
            continue
        if entry.group not in seen and entry.copies:
            seen.add(entry.group)
            is_positive = labels.get(entry.group) is not Choice.NEGATIVE
            if entry.serial > since:
                is_random = entry.is_draw and entry.stream is Stream.AUDIT
                looks.append((is_positive, unknown, positives, np.inf if is_random else run))
            unknown -= entry.copies
            positives += entry.copies * is_positive
        if not entry.is_draw and not entry.is_undo and entry.choice is not Choice.SKIP:
            run = 0 if entry.choice is Choice.POSITIVE else run + 1
    columns = zip(*looks, strict=True) if looks else ((), (), (), ())
    y, n, f, runs = (np.array(column, float) for column in columns)
    return Looks(y.astype(bool), n, f, runs, unknown, positives)
