"""Labels and counts of a review, kept up to date entry by entry.

Each picture has a stack of decisions: the top one is in force, and an undo brings back what lies below. The same code
serves decisions as they come and the replay of a log, so that a session that is opened again stands where it was.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import SessionError
from ..estimates.label_requirements import LEAST_LABELS
from ..labels.labels import Labels
from ..storage.rows import evenly_spaced
from .log import AGAIN, DRAWN, NO_LOOKS, Choice, Entry, Stream
from .pile import Groups, inherited

RATE_OF = 100  # decisions that the rate is of
EXAMPLES = 4  # pictures that the page shows beside an image
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
    correction: bool = False  # of a label, and no other answer to the recheck that came last


class StaleDecisionError(SessionError):
    """A decision, that of `request` on a row, would replace one that is no longer `in_force`."""

    def __init__(self, request: str, row: int, in_force: Entry | None):
        self.request, self.row, self.in_force = request, row, in_force
        present = "none" if in_force is None else f"number {in_force.serial}, {in_force.choice}"
        super().__init__(f"row {row} was decided meanwhile: the decision in force is {present}; look at it again")


@dataclass(frozen=True)
class SessionProgress:
    """Progress of a review, counted in pictures: twins count once."""

    decided: int  # positives and negatives together
    positives: int
    negatives: int
    skipped: int  # pictures whose last decision is a skip
    rechecked: int  # decisions on known positives that were shown again
    undecided: int  # rows of the pile without a label
    unknown: int  # those of them that are not drawn for the audit
    pending: int  # draws without a decision
    rate: float  # share of positives among the last `rate_of` decisions, rechecks left out; 0 without one
    rate_of: int  # at most 100


class SessionLock:
    """A lock that a thread may take again; nobody gets it once the session has failed."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.failure = ""  # why the session takes and tells nothing more

    def __enter__(self) -> None:
        self._lock.acquire()
        if self.failure:
            self._lock.release()
            raise SessionError(self.failure)

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class SessionState:
    """What the entries of a log amount to. Methods without an underscore hold `lock`.

    `labels` are from before the session, and never changed by it; `urn_of`, int8 (n,), is the number of the urn of each
    row, -1 outside the pile. Twins are in the same urn.
    """

    def __init__(self, labels: Labels, groups: Groups, urn_of: np.ndarray):
        self.lock = SessionLock()  # hold it around several methods that belong together
        self.file_labels = labels  # without what twins inherit
        self.groups = groups.group  # smallest row of the images that show the same picture, int64 (n,)
        self.is_by_query = False  # whether the review began with words or pictures
        self._groups, self._urn_of = groups, urn_of
        self._reset()

    def _reset(self) -> None:
        """Forget all entries."""
        inheriting = inherited(self.file_labels, self._groups)
        self._s, self._reviewed = inheriting.s.copy(), inheriting.reviewed.copy()
        self._labelled_before = ~inheriting.unlabelled
        # rows of the pile neither decided nor drawn for the audit, what is left in the urns; bool (n,)
        self.unknown = self._urn_of >= 0
        self.skipped = np.zeros(len(self.unknown), bool)  # rows whose last decision is a skip
        # number of the part of the zone that a row is in, 0 outside; see `pucache.reviewing.log.Zone`
        self.zone = np.zeros(len(self.unknown), np.int32)
        labelled = np.flatnonzero(self._s == 1)
        pictures = labelled[np.sort(np.unique(self.groups[labelled], return_index=True)[1])]
        # rows of pictures labelled positive before the session, which the page shows, and no recheck then asks for
        self.examples = pictures[evenly_spaced(len(pictures), EXAMPLES)]
        self.label_serial = 0  # serial number of the last decision; labels are the same as long as it is
        self._pending: dict[int, Entry] = {}  # draws without a decision, by group, in the order of the draws
        self._unknown_rows = rows_of_urns(self._urn_of)  # n_i and f_i of the next entry, by urn
        self._positive_rows = [0] * len(self._unknown_rows)
        self._undecided = sum(self._unknown_rows)
        self._stacks: dict[int, list[tuple[Entry, Entry | None]]] = {}  # decisions and the draws they answer, by group
        self._last: dict[int, int] = {}  # serial number of the last decision, UNDONE too, by group
        self._drawn: set[int] = set()  # groups drawn for the audit
        self._progress: SessionProgress | None = None  # until the next entry

    # --- what stands -------------------------------------------------------------------------------

    def labels(self) -> tuple[np.ndarray, np.ndarray]:
        """Labels as of now, int8 (n,) each.

        s is 1 for what was labelled positive before the session; where nothing was, for the positives decided in it,
        but for fewer than estimates are made from where a query found them.
        reviewed is 1 confirmed positive, -1 known negative, 0 neither. Twins of labelled and of decided images inherit.
        """
        with self.lock:
            return self._s.copy(), self._reviewed.copy()

    def decision_in_force(self, row: int) -> Entry | None:
        """Decision in force on the picture of a row."""
        with self.lock:
            return self._in_force(int(self.groups[row]))

    def decision_to_show(self, row: int) -> Entry | None:
        """As `decision_in_force`, but None where it is to be shown again, and must look like any new image."""
        with self.lock:
            draw = self._pending.get(int(self.groups[row]))
            return None if draw is not None and draw.stream in AGAIN else self.decision_in_force(row)

    def pending_draws(self) -> list[Entry]:
        """Draws that no decision has answered, in order."""
        with self.lock:
            return list(self._pending.values())

    def _in_force(self, group: int) -> Entry | None:
        """Decision in force on a group."""
        stack = self._stacks.get(group)
        return stack[-1][0] if stack else None

    def _labelling(self, group: int) -> Entry | None:
        """Decision that says what a group is: the one in force, or below the label of a recheck the one it checks."""
        top = self._in_force(group)
        if top is None or not top.is_recheck_label:
            return top
        checked = next((one for one, _ in reversed(self._stacks[group]) if one.stream is not Stream.RECHECK), None)
        return checked if checked is not None and checked.choice in _LABELS else top

    def past(self, before: int, count: int) -> list[tuple[int, int, Choice]]:
        """Serial number of the decision in force, row and label of decided pictures, newest first.

        Those that wait for a recheck are left out. `before`: only smaller serial numbers, 0 for all.
        """
        with self.lock:
            decided = [
                (stack[-1][0].serial, label.row, label.choice)
                for group, stack in self._stacks.items()
                if group not in self._pending
                and (label := self._labelling(group)) is not None
                and label.choice is not None
            ]
        return heapq.nlargest(count, (one for one in decided if not before or one[0] < before))

    def given_once(self, rows: np.ndarray, most: int) -> list[int]:
        """Of the first `most` pictures decided in the session among some rows, those whose label was not given again.

        In the order of the rows; those that wait for a recheck are left out.
        """
        with self.lock:
            decided: dict[int, Entry] = {}
            for group in self.groups[rows[~self._labelled_before[rows]]].tolist():
                label = None if group in self._pending else self._labelling(group)
                if len(decided) < most and label is not None and label.choice in _LABELS:
                    decided.setdefault(group, label)
            return [label.row for group, label in decided.items() if not self._given_again(group, label)]

    def _given_again(self, group: int, label: Entry) -> bool:
        """Whether the last of several answers on a group is its label."""
        labels = [entry.choice for entry, _ in self._stacks[group] if entry.choice in _LABELS]
        return len(labels) > 1 and labels[-1] is label.choice

    def _recheck_candidates(self) -> np.ndarray:
        """Known positive rows without a pending draw, int64."""
        positive = (self._s == 1) | (self._reviewed == 1)
        for group in self._pending:
            positive[self._groups.rows(group)] = False
        return np.flatnonzero(positive)

    def counts(self) -> SessionProgress:
        """Progress of the review, counted once after each entry."""
        with self.lock:
            if self._progress is None:
                self._progress = self._count()
            return self._progress

    def _count(self) -> SessionProgress:
        labelling = [one for one in map(self._labelling, self._stacks) if one is not None]
        choices = Counter(one.choice for one in labelling if not self._labelled_before[one.group])
        labels = (one for one in labelling if one.choice in _LABELS and one.stream not in NO_LOOKS)
        last = [one.choice for one in heapq.nlargest(RATE_OF, labels, key=lambda one: one.serial)]
        answered = (draw for stack in self._stacks.values() for _, draw in stack if draw is not None)
        return SessionProgress(
            decided=choices[Choice.POSITIVE] + choices[Choice.NEGATIVE],
            positives=choices[Choice.POSITIVE],
            negatives=choices[Choice.NEGATIVE],
            skipped=choices[Choice.SKIP],
            rechecked=sum(draw.stream is Stream.RECHECK for draw in answered),
            undecided=self._undecided,
            unknown=sum(self._unknown_rows),
            pending=len(self._pending),
            rate=last.count(Choice.POSITIVE) / len(last) if last else 0.0,
            rate_of=len(last),
        )

    # --- an entry before it is written --------------------------------------------------------------

    def _accepts(self, proposal: Proposal, group: int) -> bool:
        """Whether a proposal replaces what is in force on its group.

        What is shown again looks as if it were new, so its answer may replace 0. After an undo both 0 and the number
        of the undo are right.
        """
        current = self._in_force(group)
        if proposal.choice is Choice.UNDONE:
            return current is not None and current.serial == proposal.replaces
        if current is None:
            return proposal.replaces in (0, self._last.get(group, 0))
        blinded = group in self._pending and self._pending[group].stream in AGAIN
        return proposal.replaces == current.serial or (blinded and proposal.replaces == 0)

    def _decision(self, proposal: Proposal, group: int) -> dict[str, Any]:
        """What an accepted proposal amounts to: fields of its entry."""
        stack, draw = self._stacks.get(group, []), self._pending.get(group)
        current = stack[-1][0] if stack else None
        shown = draw or (self._labelling(group) if proposal.correction else current)
        fields = {
            "choice": proposal.choice,
            "stream": shown.stream if shown else Stream.RANKED,
            "replaces": current.serial if current else 0,
            "request": proposal.request,
            "reviewer": proposal.reviewer,
            "model_version": proposal.model_version,
        }
        if proposal.choice is Choice.UNDONE and current is not None:
            below = stack[-2][0] if len(stack) > 1 else None
            fields["stream"] = (below or current).stream
            if below is not None:
                fields |= {"choice": below.choice, "restores": below.serial}
        return fields

    def _counts_of(self, group: int) -> dict[str, Any]:
        """What a group is worth, and n_i and f_i of its urn: fields of its next entry."""
        rows, urn = self._groups.rows(group), self._urn(group)
        return {
            "copies": int((self._urn_of[rows] >= 0).sum()),
            "urn": urn,
            "zone": int(self.zone[rows].max()),
            "unknown": self._unknown_rows[urn],
            "positives": self._positive_rows[urn],
        }

    def _urn(self, group: int) -> int:
        """Urn of a group; the first one for a group outside the pile, which changes no count."""
        return max(0, int(self._urn_of[self._groups.rows(group)].max()))

    def _counts_as_labelled(self) -> bool:
        """Whether a find is labelled rather than confirmed: where nothing was labelled before the session.

        Finds of a query are no fair sample, so only as many are as no estimate is made from.
        """
        if self.file_labels.s.any():
            return False
        return not self.is_by_query or int(np.count_nonzero(self._s)) < LEAST_LABELS - 1

    # --- entries ------------------------------------------------------------------------------------

    def _can_apply(self, entry: Entry) -> bool:
        """Whether the decisions that an undo names are there; they are, unless the log is damaged."""
        if not entry.is_undo:
            return True
        serials = [0, *(decision.serial for decision, _ in self._stacks.get(entry.group, []))]
        return len(serials) > 1 and serials[-2:] == [entry.restores, entry.replaces]

    def _apply(self, entry: Entry) -> None:
        """Take in an entry of the log, in order."""
        stack, before = self._stacks.setdefault(entry.group, []), self._labelling(entry.group)
        if entry.is_draw:
            self._pending[entry.group] = entry
            if entry.stream in DRAWN:
                self._drawn.add(entry.group)
        elif not entry.is_undo:
            stack.append((entry, self._pending.pop(entry.group, None)))
        else:
            _, draw = stack.pop()
            if draw is not None:  # it is to be answered again
                self._pending[entry.group] = draw
            if entry.restores:
                answered, waiting = stack[-1][1], self._pending.get(entry.group)
                if draw is None and waiting and waiting.stream in DRAWN and entry.choice in _LABELS:
                    answered = self._pending.pop(entry.group)  # a label from before the draw is its answer
                stack[-1] = (entry, answered)
        self._follow(entry, before)

    def _carry(self, decision: Entry) -> None:
        """Take over a decision in force from an earlier epoch; its rows are not in the pile."""
        self._stacks[decision.group] = [(decision, None)]
        self._follow(decision, None)

    def _follow(self, entry: Entry, before: Entry | None) -> None:
        """Bring labels and counts to what a group is after an entry, and was before it."""
        group, after = entry.group, self._labelling(entry.group)
        if not entry.is_draw:
            self.label_serial = self._last[group] = entry.serial
        label, rows, urn = _label(after), self._groups.rows(group), self._urn(group)
        in_pile = rows[self._urn_of[rows] >= 0]
        unknown = not label and group not in self._drawn
        self._positive_rows[urn] += len(in_pile) * ((label == 1) - (_label(before) == 1))
        self._undecided += len(in_pile) * (bool(_label(before)) - bool(label))
        self._unknown_rows[urn] += len(in_pile) * unknown - int(self.unknown[in_pile].sum())
        self.unknown[in_pile] = unknown
        self.skipped[rows] = after is not None and after.choice is Choice.SKIP
        free = rows[~self._labelled_before[rows]]
        self._reviewed[free], self._s[free] = label, 0
        if after is not None and label == 1 and len(free) and self._counts_as_labelled():
            self._s[after.row], self._reviewed[after.row] = 1, 0
        self._progress = None


def rows_of_urns(urn_of: np.ndarray) -> list[int]:
    """Rows of each urn, of which there is one at least."""
    return np.bincount(urn_of[urn_of >= 0], minlength=1).tolist()  # type: ignore[no-any-return]


def _label(decision: Entry | None) -> int:
    """1 positive, -1 negative, 0 neither."""
    return 0 if decision is None or decision.choice is None else _LABELS.get(decision.choice, 0)
