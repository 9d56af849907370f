"""Labels and counts of a review by the rows of a cache, kept up to date entry by entry, and who may decide what."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from ..estimates.label_requirements import LEAST_LABELS
from ..storage.rows import evenly_spaced
from .history import History, Picture
from .log import AGAIN, Choice, Entry, Stream
from .pile import Pile, inherited

EXAMPLES = 4  # pictures that the page shows beside an image


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


@dataclass(frozen=True)
class Progress:
    """Progress of a review, counted in pictures: twins count once."""

    positives: int
    negatives: int
    skipped: int  # pictures whose last decision is a skip
    rechecked: int  # answers to known positives that were shown again
    undecided: int  # rows of the pile without a label
    untaken: int  # those of them that no draw has taken, and no decision that was undone
    waiting: int  # pictures drawn or taken back, without a decision
    rate: float  # share of positives among the last `rate_of` labels; 0 without one
    rate_of: int  # at most 100

    @property
    def decided(self) -> int:
        """Positives and negatives together."""
        return self.positives + self.negatives


class State:
    """What the entries of a log amount to on the pile of a session. Arrays are to be read alone.

    `zone` int32 (n,) is the part of the zone that each row is in, 0 outside; `is_by_query` says whether the review
    began with words or pictures.
    """

    def __init__(self, pile: Pile, zone: np.ndarray, *, is_by_query: bool = False):
        self.before, self.zone, self.is_by_query = pile.before, zone, is_by_query
        self.groups, self._groups, self._urn_of = pile.groups.group, pile.groups, pile.urn_of
        self.history = History(pile.urns)
        labels = inherited(pile.before, pile.groups)
        self._s, self._reviewed, self._known = labels.s.copy(), labels.reviewed.copy(), ~labels.unlabelled
        self.untaken = pile.urn_of >= 0  # rows that have not left their strata, bool (n,)
        self.undecided = pile.urn_of >= 0  # rows of the pile without a label
        self.skipped = np.zeros(len(zone), bool)  # rows whose last decision is a skip
        self.label_serial = 0  # of the last decision; labels are the same as long as it is
        self._choices: Counter[Choice | None] = Counter()  # of pictures that had no label before the session
        self._waiting: dict[int, Picture] = {}
        for decision in pile.carried:  # in force from earlier epochs
            place = self.place(decision.row)
            self._follow(self.history.carry(replace(decision, **place)), decision.group, None)

    # --- what stands -------------------------------------------------------------------------------

    def labels(self) -> tuple[np.ndarray, np.ndarray]:
        """s and reviewed as of now, int8 (n,) each.

        s is 1 for what was labelled positive before the session; where nothing was, for the positives decided in it,
        but for fewer than estimates are made from where a query found them. reviewed is 1 confirmed positive, -1 known
        negative, 0 neither. Twins of labelled and of decided images inherit.
        """
        return self._s.copy(), self._reviewed.copy()

    @property
    def examples(self) -> np.ndarray:
        """Rows of pictures labelled positive before the session, which the page shows, and no recheck asks for."""
        labelled = np.flatnonzero(self.before.s == 1)
        pictures = labelled[np.sort(np.unique(self.groups[labelled], return_index=True)[1])]
        return pictures[evenly_spaced(len(pictures), EXAMPLES)]

    def picture(self, row: int) -> Picture | None:
        """The picture of a row; None where no entry is about it."""
        return self.history.pictures.get(int(self.groups[row]))

    def in_force(self, row: int) -> Entry | None:
        """Decision in force on the picture of a row."""
        one = self.picture(row)
        return None if one is None else one.in_force

    def to_show(self, row: int) -> Entry | None:
        """As `in_force`, but None where it is to be shown again, and must look like any new image."""
        one = self.picture(row)
        return None if one is None or (one.waiting and one.waiting.stream in AGAIN) else one.in_force

    def waiting(self) -> list[Picture]:
        """Pictures to be shown before any other: drawn, or taken back, without a decision; in order."""
        return sorted(self._waiting.values(), key=lambda one: one.waiting.serial if one.waiting else one.taken)

    def random_undecided(self) -> list[int]:
        """Rows drawn at random that count there without a label: skipped, or passed over; in order."""
        last = self.history.last
        return [one.row for one in self.history.drawn if one.label < 0 and one.taken <= last]

    def past(self, before: int, count: int) -> list[tuple[int, Entry]]:
        """Of the newest decided pictures the number of the decision in force, and the decision that labels; those that
        wait to be shown are left out. `before`: only smaller numbers, 0 for all."""
        decided = (
            (one.in_force.serial, one.labelling)
            for one in self.history.pictures.values()
            if one.waiting is None and one.in_force and one.labelling
        )
        return heapq.nlargest(count, (one for one in decided if not before or one[0] < before), key=lambda one: one[0])

    def given_once(self, rows: np.ndarray, most: int) -> list[int]:
        """Of the first `most` pictures decided in the session among some rows, those whose label was not given again.

        In the order of the rows; those that wait to be shown are left out.
        """
        groups = dict.fromkeys(self.groups[rows[~self._known[rows]]].tolist())
        decided = (one for one in map(self.history.pictures.get, groups) if one and one.label >= 0 and not one.waiting)
        return [one.row for one in islice(decided, most) if one.can_be_doubted]

    def known_positive(self) -> np.ndarray:
        """Rows known as positive without a draw that waits, int64."""
        positive = (self._s == 1) | (self._reviewed == 1)
        for group in self._waiting:
            positive[self._groups.rows(group)] = False
        return np.flatnonzero(positive)

    def progress(self) -> Progress:
        """Counts as of now."""
        rate, rate_of = self.history.rate()
        return Progress(
            positives=self._choices[Choice.POSITIVE],
            negatives=self._choices[Choice.NEGATIVE],
            skipped=self._choices[Choice.SKIP],
            rechecked=self.history.rechecks()[0],
            undecided=int(self.undecided.sum()),
            untaken=sum(self.history.left),
            waiting=len(self._waiting),
            rate=rate,
            rate_of=rate_of,
        )

    # --- an entry before it is written --------------------------------------------------------------

    def accepts(self, proposal: Proposal) -> bool:
        """Whether a proposal replaces what is in force. What is shown again looks as if it were new, so its answer may
        replace 0; after an undo both 0 and the number of the undo are right."""
        one = self.picture(proposal.row)
        current = one.in_force if one else None
        if proposal.choice is Choice.UNDONE:
            return current is not None and current.serial == proposal.replaces
        if current is None or one is None:
            return proposal.replaces in (0, one.last if one else 0)
        blinded = one.waiting is not None and one.waiting.stream in AGAIN
        return proposal.replaces == current.serial or (blinded and proposal.replaces == 0)

    def decision(self, proposal: Proposal) -> dict[str, Any]:
        """What an accepted proposal amounts to: fields of its entry."""
        one = self.picture(proposal.row) or Picture(0, 0)
        current, shown = one.in_force, one.waiting or (one.labelling if proposal.correction else one.in_force)
        fields: dict[str, Any] = {
            "choice": proposal.choice,
            "stream": shown.stream if shown else Stream.RANKED,
            "replaces": current.serial if current else 0,
            "request": proposal.request,
            "reviewer": proposal.reviewer,
            "model_version": proposal.model_version,
        }
        if proposal.choice is Choice.UNDONE and current is not None:
            below = one.stack[-2][0] if len(one.stack) > 1 else None
            fields |= {"stream": (below or current).stream}
            fields |= {"choice": below.choice, "restores": below.serial} if below else {}
        return fields

    def place(self, row: int) -> dict[str, Any]:
        """Where a picture is, and n_i and f_i of its urn: fields of its next entry."""
        group = int(self.groups[row])
        rows = self._groups.rows(group)
        urn, copies = max(0, int(self._urn_of[rows].max())), int((self._urn_of[rows] >= 0).sum())
        counts = {"copies": copies, "unknown": self.history.left[urn], "positives": self.history.found[urn]}
        return {"group": group, "urn": urn, "zone": int(self.zone[rows].max())} | counts

    # --- entries ------------------------------------------------------------------------------------

    def after(self, entry: Entry) -> None:
        """Take in an entry of the log, in order; raises ValueError as `History.after`."""
        before = self.picture(entry.row)
        was = before.labelling if before else None
        self._follow(self.history.after(entry), entry.group, was)
        if not entry.is_draw:
            self.label_serial = entry.serial

    def _follow(self, one: Picture, group: int, was: Entry | None) -> None:
        """Bring rows and counts to what a picture is now; before it was what a decision said."""
        rows = self._groups.rows(group)
        if not self._known[group]:
            for label, change in ((was, -1), (one.labelling, 1)):
                self._choices[None if label is None else label.choice] += change
        if one.waiting or (one.waits and one.copies):
            self._waiting[group] = one
        else:
            self._waiting.pop(group, None)
        in_pile, free = rows[self._urn_of[rows] >= 0], rows[~self._known[rows]]
        self.untaken[in_pile], self.undecided[in_pile] = not one.taken, one.label < 0
        self.skipped[rows] = one.labelling is not None and one.labelling.choice is Choice.SKIP
        self._s[free], self._reviewed[free] = 0, (-1, 1, 0)[one.label]
        if one.label == 1 and len(free) and one.labelling and self._counts_as_labelled():
            self._s[one.labelling.row], self._reviewed[one.labelling.row] = 1, 0

    def _counts_as_labelled(self) -> bool:
        """Whether a find is labelled rather than confirmed: where nothing was labelled before the session. Finds of a
        query are no fair sample, so only as many are as no estimate is made from."""
        if self.before.s.any():
            return False
        return not self.is_by_query or int(np.count_nonzero(self._s)) < LEAST_LABELS - 1
