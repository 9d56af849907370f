"""Labels and counts of a review, kept up to date entry by entry.

Each picture has a stack of decisions: the top one is in force, and an undo brings back what lies below. The same code
serves decisions as they come and the replay of a log, so that a session that is opened again stands where it was.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..labels.labels import Labels
from .log import Choice, Decision, Draw, Entry, Stream
from .twins import Groups, inherited

RATE_OF = 100  # decisions that the rate is of
_LABELS = {Choice.POSITIVE: 1, Choice.NEGATIVE: -1}


@dataclass(frozen=True)
class Proposal:
    """A decision as a client sends it."""

    request: str  # identifier that the client chose; sent again, it gets the same answer
    row: int
    choice: Choice  # UNDONE takes back the decision named by `replaces`, and what that one replaced is in force again
    replaces: int = 0  # serial number of the decision that the client knows to be in force; 0: none
    reviewer: str = ""
    model_version: int = 0  # of the ranking that showed the image


@dataclass(frozen=True)
class SessionProgress:
    """Progress of a review, counted in pictures: twins count once."""

    decided: int  # positives and negatives together
    positives: int
    negatives: int
    skipped: int  # pictures whose last decision is a skip
    rechecked: int  # decisions on known positives that were shown again
    unknown: int  # rows of the pile that are neither decided nor drawn for the audit
    pending: int  # draws without a decision
    rate: float  # share of positives among the last `rate_of` decisions, rechecks left out; 0 without one
    rate_of: int  # at most 100


@dataclass(frozen=True)
class _Answer:
    """A decision, and the draw that it has answered."""

    decision: Decision
    draw: Draw | None


class SessionState:
    """What the entries of a log amount to.

    Parameters
    ----------
    labels : Labels
        From before the session; never changed by it.
    groups : Groups
    in_pile : ndarray of bool, (n,)

    Attributes
    ----------
    unknown : ndarray of bool, (n,)
        Rows of the pile neither decided nor drawn for the audit: the urn of the next audit draw.
    skipped : ndarray of bool, (n,)
        Rows whose last decision is a skip.
    pending : dict of int to Draw
        Draws without a decision, by group, in the order of the draws.
    last_decision : int
        Serial number of the last decision.
    """

    def __init__(self, labels: Labels, groups: Groups, in_pile: np.ndarray):
        inheriting = inherited(labels, groups)
        self._groups, self._in_pile = groups, in_pile
        self._s, self._reviewed = inheriting.s.copy(), inheriting.reviewed.copy()
        self._labelled_before = ~inheriting.unlabelled
        self._without_labelled = not labels.s.any()
        self.unknown, self.skipped = in_pile.copy(), np.zeros(len(in_pile), bool)
        self.pending: dict[int, Draw] = {}
        self.last_decision = 0
        self._unknown_rows, self._positive_rows = int(in_pile.sum()), 0  # n_i and f_i of the next entry
        self._stacks: dict[int, list[_Answer]] = {}  # by group
        self._last: dict[int, int] = {}  # serial number of the last decision, UNDONE too, by group
        self._drawn: set[int] = set()  # groups drawn for the audit
        self._progress: SessionProgress | None = None  # until the next entry

    # --- what stands -------------------------------------------------------------------------------

    def labels(self) -> tuple[np.ndarray, np.ndarray]:
        """Copies of s and reviewed, int8 (n,), with this session's decisions."""
        return self._s.copy(), self._reviewed.copy()

    def in_force(self, row: int) -> Decision | None:
        """Decision in force on the picture of a row."""
        return self._top(int(self._groups.group[row]))

    def recheck_candidates(self) -> np.ndarray:
        """Known positive rows without a pending draw, int64."""
        positive = (self._s == 1) | (self._reviewed == 1)
        for group in self.pending:
            positive[self._groups.rows(group)] = False
        return np.flatnonzero(positive)

    def progress(self) -> SessionProgress:
        """Progress so far, counted over the stacks once after each entry."""
        if self._progress is None:
            self._progress = self._count()
        return self._progress

    def _count(self) -> SessionProgress:
        choices = Counter(decision.choice for decision in self._all_in_force() if self._is_new(decision))
        last = self._last_choices()
        return SessionProgress(
            decided=choices[Choice.POSITIVE] + choices[Choice.NEGATIVE],
            positives=choices[Choice.POSITIVE],
            negatives=choices[Choice.NEGATIVE],
            skipped=choices[Choice.SKIP],
            rechecked=sum(
                answer.draw is not None and answer.draw.stream is Stream.RECHECK
                for stack in self._stacks.values()
                for answer in stack
            ),
            unknown=self._unknown_rows,
            pending=len(self.pending),
            rate=last.count(Choice.POSITIVE) / len(last) if last else 0.0,
            rate_of=len(last),
        )

    def _last_choices(self) -> list[Choice]:
        """The last labels that were decided and are in force, rechecks left out."""
        labels = (one for one in self._all_in_force() if one.choice.is_label and one.stream is not Stream.RECHECK)
        return [one.choice for one in heapq.nlargest(RATE_OF, labels, key=lambda one: one.serial)]

    def _all_in_force(self) -> Iterator[Decision]:
        return (stack[-1].decision for stack in self._stacks.values() if stack)

    def _is_new(self, decision: Decision) -> bool:
        """Whether a decision is of this review: pictures that were labelled before it are not counted."""
        return not self._labelled_before[decision.group]

    def _top(self, group: int) -> Decision | None:
        stack = self._stacks.get(group)
        return stack[-1].decision if stack else None

    def _copies(self, group: int) -> int:
        """Rows of the pile in a group."""
        return int(self._in_pile[self._groups.rows(group)].sum())

    # --- an entry before it is written --------------------------------------------------------------

    def accepts(self, proposal: Proposal) -> bool:
        """Whether a proposal replaces what is in force.

        A recheck shows a decided image as if it were new, so its answer may replace 0. After an undo both 0 and
        the number of the undo are right.
        """
        group = int(self._groups.group[proposal.row])
        current = self._top(group)
        if proposal.choice is Choice.UNDONE:
            return current is not None and current.serial == proposal.replaces
        if current is None:
            return proposal.replaces in (0, self._last.get(group, 0))
        blinded = group in self.pending and self.pending[group].stream is Stream.RECHECK
        return proposal.replaces == current.serial or (blinded and proposal.replaces == 0)

    def decision(self, proposal: Proposal, *, serial: int, time: float) -> Decision:
        """Entry for an accepted proposal, without key and digest."""
        group = int(self._groups.group[proposal.row])
        stack, draw = self._stacks.get(group, []), self.pending.get(group)
        current = stack[-1].decision if stack else None
        choice, restored = proposal.choice, None
        stream = draw.stream if draw else current.stream if current else Stream.RANKED
        if choice is Choice.UNDONE and current is not None:
            stream = current.stream
            if len(stack) > 1:
                restored = stack[-2].decision
                choice, stream = restored.choice, restored.stream
        return Decision(
            serial=serial,
            request=proposal.request,
            row=proposal.row,
            group=group,
            copies=self._copies(group),
            choice=choice,
            stream=stream,
            replaces=current.serial if current else 0,
            unknown=self._unknown_rows,
            positives=self._positive_rows,
            model_version=proposal.model_version,
            reviewer=proposal.reviewer,
            time=time,
            restores=restored.serial if restored else 0,
        )

    def draw(self, row: int, stream: Stream, *, serial: int, time: float) -> Draw:
        """Entry for a drawn row, without key and digest, and without what the model says."""
        group = int(self._groups.group[row])
        return Draw(
            serial=serial,
            row=row,
            group=group,
            copies=self._copies(group),
            stream=stream,
            unknown=self._unknown_rows,
            positives=self._positive_rows,
            expected=float("nan"),
            model_version=0,
            time=time,
        )

    # --- entries ------------------------------------------------------------------------------------

    def can_apply(self, entry: Entry) -> bool:
        """Whether the decisions that an undo names are there; they are, unless the log is damaged."""
        if isinstance(entry, Draw) or not entry.is_undo:
            return True
        stack = self._stacks.get(entry.group, [])
        serials = [0, *(answer.decision.serial for answer in stack)]
        return len(serials) > 1 and serials[-2:] == [entry.restores, entry.replaces]

    def apply(self, entry: Entry) -> None:
        """Take in an entry of the log, in order."""
        self._progress = None
        if isinstance(entry, Draw):
            self.pending[entry.group] = entry
            if entry.stream is Stream.AUDIT:
                self._drawn.add(entry.group)
                self._set_label(entry.group, self._top(entry.group))
            return
        stack, before = self._stacks.setdefault(entry.group, []), self._top(entry.group)
        if not entry.is_undo:
            stack.append(_Answer(entry, self.pending.pop(entry.group, None)))
        else:
            undone = stack.pop()
            if undone.draw is not None:  # it is to be answered again
                self.pending[entry.group] = undone.draw
            if entry.restores:
                stack[-1] = _Answer(entry, stack[-1].draw)
        self._follow(entry, before)

    def carry(self, decision: Decision) -> None:
        """Take over a decision in force from an earlier epoch; its rows are not in the pile."""
        self._stacks[decision.group] = [_Answer(decision, None)]
        self._follow(decision, None)

    def _follow(self, decision: Decision, before: Decision | None) -> None:
        """Bring labels and rows to what is in force after a decision."""
        after = self._top(decision.group)
        self.last_decision = self._last[decision.group] = decision.serial
        self._positive_rows += decision.copies * (_is_positive(after) - _is_positive(before))
        self._set_label(decision.group, after)

    def _set_label(self, group: int, decision: Decision | None) -> None:
        """Give the rows of a group the label of the decision in force."""
        label = 0 if decision is None else _LABELS.get(decision.choice, 0)
        rows = self._groups.rows(group)
        self.skipped[rows] = decision is not None and decision.choice is Choice.SKIP
        in_pile = rows[self._in_pile[rows]]
        unknown = not label and group not in self._drawn
        self._unknown_rows += len(in_pile) * unknown - int(self.unknown[in_pile].sum())
        self.unknown[in_pile] = unknown
        free = rows[~self._labelled_before[rows]]
        self._reviewed[free], self._s[free] = label, 0
        if decision is not None and label == 1 and self._without_labelled and len(free):
            self._s[decision.row], self._reviewed[decision.row] = 1, 0


def _is_positive(decision: Decision | None) -> int:
    return int(decision is not None and decision.choice is Choice.POSITIVE)
