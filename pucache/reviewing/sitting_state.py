"""Labels and counts of a sitting, kept up to date entry by entry.

The same code serves decisions as they come and the replay of a log, so that a session that is opened again
stands where it was.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from ..labels.labels import Labels
from .log_entries import Choice, Decision, Draw, Entry, Proposal, Stream
from .twins import Groups, inherited

RATE_OF = 100  # decisions that the rate is of
_LABELS = {Choice.POSITIVE: 1, Choice.NEGATIVE: -1}


@dataclass(frozen=True)
class SittingCounts:
    """Progress of a sitting, counted in pictures: twins count once.

    Attributes
    ----------
    decided : int
        Pictures decided positive or negative, `positives` and `negatives` together.
    positives, negatives : int
    skipped : int
        Pictures whose last decision is a skip.
    rechecked : int
        Decisions on known positives that were shown again.
    unknown : int
        Rows of the pile that are neither decided nor drawn for the audit.
    pending : int
        Draws without a decision.
    rate : float
        Share of positives among the last `rate_of` decisions, rechecks left out; 0 without one.
    rate_of : int
        At most 100.
    """

    decided: int
    positives: int
    negatives: int
    skipped: int
    rechecked: int
    unknown: int
    pending: int
    rate: float
    rate_of: int


class SittingState:
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
        self._unknown_rows, self._positive_rows = int(in_pile.sum()), 0
        self._in_force: dict[int, Decision] = {}  # by group
        self._last: dict[int, int] = {}  # serial number of the last decision, UNDONE too, by group
        self._by_serial: dict[int, Decision] = {}
        self._before: dict[int, int] = {}  # serial number of the decision that comes back when one is undone
        self._answered: dict[int, Draw] = {}  # draw that a decision answered, by serial number of the decision
        self._drawn: set[int] = set()  # groups drawn for the audit
        self._counts = dict.fromkeys(Choice, 0)
        self._rechecked = 0
        self._recent: deque[int] = deque(maxlen=4 * RATE_OF)  # serial numbers of label decisions

    # --- what stands -------------------------------------------------------------------------------

    def labels(self) -> tuple[np.ndarray, np.ndarray]:
        """Copies of s and reviewed, int8 (n,), with this session's decisions."""
        return self._s.copy(), self._reviewed.copy()

    def in_force(self, row: int) -> Decision | None:
        """Decision in force on the picture of a row."""
        return self._in_force.get(int(self._groups.group[row]))

    def recheck_candidates(self) -> np.ndarray:
        """Known positive rows without a pending draw, int64."""
        positive = (self._s == 1) | (self._reviewed == 1)
        for group in self.pending:
            positive[self._groups.rows(group)] = False
        return np.flatnonzero(positive)

    def copies(self, group: int) -> int:
        """Rows of the pile in a group."""
        return int(self._in_pile[self._groups.rows(group)].sum())

    @property
    def unknown_rows(self) -> int:
        """Rows of the urn: n_i of the next draw."""
        return self._unknown_rows

    @property
    def positive_rows(self) -> int:
        """Rows of the pile that are known as positive: f_i of the next draw."""
        return self._positive_rows

    def counts(self) -> SittingCounts:
        """Progress so far."""
        positives, negatives = self._counts[Choice.POSITIVE], self._counts[Choice.NEGATIVE]
        rate, rate_of = self._rate()
        return SittingCounts(
            decided=positives + negatives,
            positives=positives,
            negatives=negatives,
            skipped=self._counts[Choice.SKIP],
            rechecked=self._rechecked,
            unknown=self._unknown_rows,
            pending=len(self.pending),
            rate=rate,
            rate_of=rate_of,
        )

    def _rate(self) -> tuple[float, int]:
        choices: list[Choice] = []
        for serial in reversed(self._recent):
            decision = self._by_serial[serial]
            current = self._in_force.get(decision.group)
            if current is not None and current.serial == serial:
                choices.append(decision.choice)
            if len(choices) == RATE_OF:
                break
        return (choices.count(Choice.POSITIVE) / len(choices) if choices else 0.0), len(choices)

    # --- a decision before it is written ------------------------------------------------------------

    def accepts(self, proposal: Proposal) -> bool:
        """Whether a proposal replaces what is in force.

        A recheck shows a decided image as if it were new, so its answer may replace 0. After an undo both 0 and
        the number of the undo are right.
        """
        group = int(self._groups.group[proposal.row])
        current = self._in_force.get(group)
        if proposal.choice is Choice.UNDONE:
            return current is not None and current.serial == proposal.replaces
        if current is None:
            return proposal.replaces in (0, self._last.get(group, 0))
        blinded = group in self.pending and self.pending[group].stream is Stream.RECHECK
        return proposal.replaces == current.serial or (blinded and proposal.replaces == 0)

    def decision(self, proposal: Proposal, *, serial: int, time: float) -> tuple[Decision, int]:
        """Entry for an accepted proposal, and the serial number of the decision that it restores (0: none)."""
        group = int(self._groups.group[proposal.row])
        current, draw = self._in_force.get(group), self.pending.get(group)
        choice, restored = proposal.choice, 0
        stream = draw.stream if draw else current.stream if current else Stream.RANKED
        if choice is Choice.UNDONE and current is not None:
            restored = self._before[current.serial]
            if restored:
                choice, stream = self._by_serial[restored].choice, self._by_serial[restored].stream
            else:
                stream = current.stream
        decision = Decision(
            serial=serial,
            request=proposal.request,
            row=proposal.row,
            group=group,
            copies=self.copies(group),
            choice=choice,
            stream=stream,
            replaces=current.serial if current else 0,
            unknown=self._unknown_rows,
            positives=self._positive_rows,
            model_version=proposal.model_version,
            reviewer=proposal.reviewer,
            time=time,
        )
        return decision, restored

    def draw(self, row: int, stream: Stream, *, serial: int, time: float) -> Draw:
        """Entry for a drawn row, without what the model says."""
        group = int(self._groups.group[row])
        return Draw(
            serial=serial,
            row=row,
            group=group,
            copies=self.copies(group),
            stream=stream,
            unknown=self._unknown_rows,
            positives=self._positive_rows,
            expected=float("nan"),
            model_version=0,
            time=time,
        )

    # --- entries ------------------------------------------------------------------------------------

    def can_apply(self, entry: Entry, restores: int = 0) -> bool:
        """Whether the decisions that an entry names are there; they are, unless the log is damaged."""
        if isinstance(entry, Draw):
            return True
        needed = [entry.replaces] if restores or entry.choice is Choice.UNDONE else []
        return all(serial in self._by_serial for serial in [*needed, *filter(None, [restores])])

    def apply(self, entry: Entry, restores: int = 0) -> None:
        """Take in an entry of the log, in order.

        Parameters
        ----------
        entry : Draw or Decision
        restores : int
            As for `pucache.reviewing.decision_log.Record`.
        """
        if isinstance(entry, Draw):
            self.pending[entry.group] = entry
            if entry.stream is Stream.AUDIT:
                self._drawn.add(entry.group)
                self._set_label(entry.group, self._in_force.get(entry.group))
            return
        undone = self._by_serial[entry.replaces] if restores or entry.choice is Choice.UNDONE else None
        if undone is None:
            self._before[entry.serial] = entry.replaces
            self._answer(entry)
        else:
            self._before[entry.serial] = self._before.get(restores, 0)
            self._reopen(undone)
            if restores in self._answered:
                self._answered[entry.serial] = self._answered[restores]
        self._by_serial[entry.serial] = entry
        self._put_in_force(entry)

    def carry(self, decision: Decision) -> None:
        """Take over a decision in force from an earlier epoch; its rows are not in the pile."""
        self._by_serial[decision.serial], self._before[decision.serial] = decision, 0
        self._put_in_force(decision)

    def _answer(self, decision: Decision) -> None:
        draw = self.pending.pop(decision.group, None)
        if draw is not None:
            self._answered[decision.serial] = draw
            self._rechecked += draw.stream is Stream.RECHECK

    def _reopen(self, undone: Decision) -> None:
        """Make the draw that an undone decision had answered pending again."""
        draw = self._answered.pop(undone.serial, None)
        if draw is not None:
            self.pending[undone.group] = draw
            self._rechecked -= draw.stream is Stream.RECHECK

    def _put_in_force(self, decision: Decision) -> None:
        self.last_decision = decision.serial
        group, before = decision.group, self._in_force.pop(decision.group, None)
        counted = not self._labelled_before[group]
        if before is not None:
            self._counts[before.choice] -= counted
        self._last[group] = decision.serial
        after = None if decision.choice is Choice.UNDONE else decision
        if after is not None:
            self._in_force[group] = after
            self._counts[after.choice] += counted
            if after.choice.is_label and after.stream is not Stream.RECHECK:
                self._recent.append(after.serial)
        self._positive_rows += decision.copies * (_is_positive(after) - _is_positive(before))
        self._set_label(group, after)

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
