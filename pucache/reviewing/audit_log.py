"""The decision log as random draws see it: what was in the urn at each draw, with the labels in force at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .hidden_interval import DrawHistory
from .log import Choice, Decision, Draw, Entry, Stream

PENDING = (None, Choice.UNDONE)  # last decisions of a draw without an answer


@dataclass(frozen=True)
class ReplayedLog:
    """Audit draws and counts of a log.

    A group is *doubtful* where it was out of the urn at a draw and has no label now: skipped, undone or pending.
    """

    all_positive: DrawHistory  # with the doubtful groups as positives
    all_negative: DrawHistory  # with the doubtful groups as negatives
    found: int  # rows of the pile labelled positive
    rejected: int  # rows of the pile labelled negative
    doubtful: int  # rows of the doubtful groups
    unknown: int  # rows of the pile neither decided nor drawn for the audit
    positives: int  # audit draws with that outcome
    skipped: int  # audit draws whose last decision is a skip
    pending: int  # audit draws without a decision, or with an undone one
    pending_rows: np.ndarray  # rows of each draw that is pending, 0 for all others; int64 (m,)
    rechecks: int  # answered ones
    missed: int  # rechecks whose answer was a rejection


def replay(entries: Sequence[Entry], pile: int) -> ReplayedLog:
    """Go through all entries of a log since a pile of so many rows was fixed; groups without copies are outside it.

    Raises
    ------
    ValueError
        The entries contradict each other, or the pile.
    """
    last = {entry.group: entry.choice for entry in entries if isinstance(entry, Decision)}
    copies = _copies(entries, pile)
    urn = _Urn(last, copies, pile)
    serial = 0
    for entry in entries:
        if entry.serial <= serial:
            raise ValueError(f"entry {entry.serial} follows entry {serial}; entries must come in the order of the log")
        serial = entry.serial
        if isinstance(entry, Decision):
            urn.decide(entry)
        elif entry.stream is Stream.AUDIT:
            urn.draw(entry)
    doubtful = sum(copies[group] for group in (urn.drawn.keys() | urn.was_out) if not _is_label(last.get(group)))
    outcomes = [last.get(group) for group in urn.drawn]
    pending_rows = [copies[group] * (last.get(group) in PENDING) for group in urn.drawn]
    answers = _recheck_answers(entries)
    return ReplayedLog(
        all_positive=urn.history(doubtful_are=1),
        all_negative=urn.history(doubtful_are=0),
        found=sum(copies[group] for group, choice in last.items() if choice is Choice.POSITIVE),
        rejected=sum(copies[group] for group, choice in last.items() if choice is Choice.NEGATIVE),
        doubtful=doubtful,
        unknown=pile - urn.out,
        positives=outcomes.count(Choice.POSITIVE),
        skipped=outcomes.count(Choice.SKIP),
        pending=sum(outcome in PENDING for outcome in outcomes),
        pending_rows=np.array(pending_rows, np.int64),
        rechecks=len(answers),
        missed=answers.count(Choice.NEGATIVE),
    )


class _Urn:
    """Rows that are out of the urn as the log goes on, and how many of them are positive by their last label."""

    def __init__(self, last: dict[int, Choice], copies: dict[int, int], pile: int):
        self._last, self._copies, self._pile = last, copies, pile
        self.out = 0  # rows
        self._positive, self._doubtful = 0, 0  # rows that are out
        self._labelled: dict[int, int] = {}  # number of draws before the label, by group; not the drawn ones
        self.drawn: dict[int, None] = {}  # groups, in the order of their draws
        self.was_out: set[int] = set()  # groups that were out at a draw and came back
        self._draws: list[tuple[int, int, int, Choice | None]] = []  # n_i, positive, doubtful, last choice

    def draw(self, draw: Draw) -> None:
        group, left = draw.group, self._pile - self.out
        if group in self.drawn or group in self._labelled:
            raise ValueError(f"draw {draw.serial} is of row {draw.row}, which had been decided or drawn before")
        if draw.copies < 1:
            raise ValueError(f"draw {draw.serial} is of row {draw.row}, which is not in the pile")
        if draw.unknown != left:
            raise ValueError(
                f"draw {draw.serial} was among {draw.unknown:,} unknown rows; {left:,} of {self._pile:,} were left, so "
                "entries are missing or the pile is another one"
            )
        self._draws.append((left, self._positive, self._doubtful, self._last.get(group)))
        self.drawn[group] = None
        self._move(group, 1)

    def decide(self, decision: Decision) -> None:
        group, was_out = decision.group, decision.group in self._labelled
        if group in self.drawn or was_out == decision.choice.is_label:
            return
        if was_out:
            if self._labelled.pop(group) < len(self._draws):
                self.was_out.add(group)
        else:
            self._labelled[group] = len(self._draws)
        self._move(group, -1 if was_out else 1)

    def _move(self, group: int, sign: int) -> None:
        rows, last = sign * self._copies[group], self._last.get(group)
        self.out += rows
        self._positive += rows * (last is Choice.POSITIVE)
        self._doubtful += rows * (not _is_label(last))

    def history(self, *, doubtful_are: int) -> DrawHistory:
        """The draws, with every doubtful group positive (1) or negative (0)."""
        return DrawHistory(
            np.array([_label(choice, doubtful_are) for *_, choice in self._draws], bool),
            np.array([unknown for unknown, *_ in self._draws], float),
            np.array([positive + doubtful * doubtful_are for _, positive, doubtful, _ in self._draws], float),
        )


def _is_label(choice: Choice | None) -> bool:
    return choice is not None and choice.is_label


def _label(choice: Choice | None, otherwise: int) -> bool:
    return choice is Choice.POSITIVE if _is_label(choice) else bool(otherwise)


def _copies(entries: Sequence[Entry], pile: int) -> dict[int, int]:
    copies: dict[int, int] = {}
    for entry in entries:
        before = copies.setdefault(entry.group, entry.copies)
        if before != entry.copies:
            raise ValueError(f"entry {entry.serial}: group {entry.group} has {entry.copies} rows, and had {before}")
    if sum(copies.values()) > pile:
        raise ValueError(f"the entries are about {sum(copies.values()):,} rows; the pile has {pile:,}")
    return copies


def _recheck_answers(entries: Sequence[Entry]) -> list[Choice]:
    """The last label that each recheck got; none for a recheck that was skipped, undone or not answered."""
    answers: list[Choice | None] = []
    latest: dict[int, int] = {}  # recheck of a group
    for entry in entries:
        if isinstance(entry, Draw):
            if entry.stream is Stream.RECHECK:
                latest[entry.group] = len(answers)
                answers.append(None)
        elif entry.group in latest:  # an undo restores a decision of another stream
            answers[latest[entry.group]] = entry.choice if entry.stream is Stream.RECHECK else None
    return [answer for answer in answers if answer is not None and answer.is_label]
