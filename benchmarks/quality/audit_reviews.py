"""Simulated reviews for the audit: a ranking that learns from every label, random images among it, skips and undo.

A positive of the pile belongs to one of ten kinds. Its score is logistic noise plus a signal that grows with the number
of labelled positives of its kind, whether the ranking or the audit has brought them. The score of a negative is noise;
only as many of the best negatives are kept as can be shown. Rows 0, ..., K - 1 are the positives.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from pucache.reviewing.audit import UPPER_PART, Audit, audit_entries
from pucache.reviewing.hidden_interval import DrawHistory, evidence_above, evidence_below
from pucache.reviewing.log import Choice, Entry, Stream
from pucache.reviewing.queue import AUDIT_SHARE, MIN_POSITIVES, RECHECK_SHARE

CASES = ("random images alone", "ranking", "ranking, skips", "ranking, undo")
KINDS, SIGNAL = 10, 7.0  # signal of a kind with many labels; the noise has a standard deviation of 1.8
ROUNDS, SHOWN = 30, 19  # rounds of one random image and so many ranked ones
CLOSING = 300  # random images at last
SKIPPED = {True: 0.1, False: 0.03}  # share that is skipped, by truth
WRONG, TAKEN_BACK = 0.03, 0.03  # share of decisions that are wrong at first, and of right ones that are taken back


@dataclass
class SimulatedReview:
    """A simulated review.

    Attributes
    ----------
    pile, positives : int
        Rows, and K.
    unknown, before, truth : list of int
        Of each draw: n_i, the positives out of the urn before it, y_i.
    skipped : list of bool
        Whether a draw has no label.
    returned : dict of int to list of int
        Draws that a ranked row was out at before its label was taken back.
    unlabelled : set of int
        Those of these rows that have no label again.
    closing_from : int
        First draw of the closing audit.
    excluded : set of {"above", "below"}
        Limits that were on the wrong side of K after some random image.
    misled : bool
        Whether a limit was on the wrong side of K while a wrong label stood.
    events : list of (str, int, Choice or None)
        Of which the log consists.
    """

    pile: int
    positives: int
    level: float = 0.95
    unknown: list = field(default_factory=list)
    before: list = field(default_factory=list)
    truth: list = field(default_factory=list)
    skipped: list = field(default_factory=list)
    returned: dict = field(default_factory=dict)
    unlabelled: set = field(default_factory=set)
    closing_from: int = 0
    excluded: set = field(default_factory=set)
    misled: bool = False
    events: list = field(default_factory=list)

    def history(self, *, doubtful_are: bool, to: int | None = None) -> DrawHistory:
        """The first draws, with rows without a label as positives or as negatives."""
        truth, skipped = np.array(self.truth[:to], bool), np.array(self.skipped[:to], bool)
        positive = np.where(skipped, doubtful_are, truth)
        added = np.concatenate([[0], np.cumsum(positive.astype(int) - truth)])[: truth.size]
        for row in self.unlabelled:
            added[[draw for draw in self.returned[row] if draw < truth.size]] += int(doubtful_are) - (
                row < self.positives
            )
        return DrawHistory(
            positive,
            np.array(self.unknown[:to], float),
            np.array(self.before[:to]) + added.astype(float),
            np.zeros(truth.size, np.int64),
        )

    def excluded_ends(self, *, to: int | None = None, wrong_draw: bool = False, wrong_before: int = 0) -> set[str]:
        """Limits on the wrong side of K after one of the first draws, with what is wrong at the last of them.

        Rows that are without a label for a while count with their truth, which can only exclude more.
        """
        ends = set()
        for end, evidence, part, doubtful_are in (
            ("above", evidence_above, UPPER_PART, True),
            ("below", evidence_below, 1.0 - UPPER_PART, False),
        ):
            history = self.history(doubtful_are=doubtful_are, to=to)
            positive, before = history.positive, history.positives_before
            if positive.size:
                positive[-1] ^= wrong_draw
                before[-1] += wrong_before
            hidden = self.positives - before
            possible = (hidden >= positive) & (history.unknown - hidden >= ~positive)
            stop = positive.size if possible.all() else int(np.argmin(possible))  # then K is within the limits anyway
            history = DrawHistory(positive[:stop], history.unknown[:stop], before[:stop], history.urn[:stop])
            if evidence(history, self.positives, self.pile).max(initial=0.0) >= -math.log(part * (1.0 - self.level)):
                ends.add(end)
        return ends

    def entries(self) -> list[Entry]:
        """The log."""
        written: list[Entry] = []
        unknown, drawn = iter(self.unknown), set()
        for row, choice in self.events:
            common = {"serial": len(written) + 1, "row": row, "group": row, "copies": 1, "positives": 0}
            common |= {"time": 0.0}
            if choice is None:
                written.append(Entry(stream=Stream.AUDIT, unknown=next(unknown), **common))
                drawn.add(row)
            else:
                stream = Stream.AUDIT if row in drawn else Stream.RANKED
                request = str(len(written))
                written.append(Entry(choice=choice, stream=stream, request=request, unknown=0, **common))
        return written


class _Pile:
    """Rows that are unknown, and a ranking of them."""

    def __init__(self, rows: int, positives: int, rng: np.random.Generator):
        self.rows, self.positives, self.rng = rows, positives, rng
        self.left, self.unknown_positives = np.ones(positives, bool), positives
        self.noise, self.kind = rng.logistic(size=positives), rng.integers(KINDS, size=positives)
        self.labelled = np.zeros(KINDS)
        listed = min(ROUNDS * SHOWN + 100, rows - positives)
        tail = np.cumsum(rng.exponential(size=listed))  # order statistics of all negatives, from the best on
        tail /= tail[-1] + rng.gamma(rows - positives + 1 - listed)
        self.scores = np.log1p(-tail) - np.log(tail)  # of the best negatives, descending
        self.listed, self.unknown_listed = np.ones(listed, bool), listed
        self.others, self.next_other = rows - positives - listed, positives + listed
        self.shelved: set[int] = set()  # skipped in the ranking: unknown, and not shown again

    @property
    def unknown(self) -> int:
        return self.unknown_positives + self.unknown_listed + self.others

    def best(self) -> list[int]:
        """The next rows of the ranking."""
        signal = SIGNAL * self.labelled / (self.labelled + 3.0)
        scores = np.where(self.left, self.noise + signal[self.kind], -np.inf)
        candidates = min(SHOWN + len(self.shelved), self.positives)  # shelved rows are unknown, and may be the best
        positives = np.argpartition(-scores, candidates - 1)[:candidates]
        negatives = np.flatnonzero(self.listed)[: SHOWN + len(self.shelved)]
        scores = np.concatenate([scores[positives], self.scores[negatives]])
        rows = np.concatenate([positives, self.positives + negatives])[np.argsort(-scores)]
        labelled = ~self.left[rows[rows < self.positives]]
        rows = rows[: len(rows) - int(labelled.sum())]  # labelled positives come last, with -inf
        return [row for row in rows.tolist() if row not in self.shelved][:SHOWN]

    def draw(self, count: int) -> list[int]:
        """Any unknown rows, one after another, which are unknown no longer."""
        if count == 1:
            numbers = self.rng.integers(self.unknown, size=1)
        else:
            numbers = self.rng.choice(self.unknown, count, replace=False)
        candidates = np.concatenate([np.flatnonzero(self.left), self.positives + np.flatnonzero(self.listed)])
        others = numbers >= len(candidates)
        rows = np.empty(count, np.int64)
        rows[~others] = candidates[numbers[~others]]
        rows[others] = self.next_other + np.arange(others.sum())
        self.others, self.next_other = self.others - int(others.sum()), self.next_other + int(others.sum())
        for row in rows[~others].tolist():
            self._mark(row, False)
        return rows.tolist()

    def _mark(self, row: int, unknown: bool) -> None:
        if row < self.positives:
            self.left[row] = unknown
            self.unknown_positives += 1 if unknown else -1
        else:
            self.listed[row - self.positives] = unknown
            self.unknown_listed += 1 if unknown else -1

    def take(self, row: int, *, back: bool = False) -> None:
        """Give a ranked row a label, or take it back."""
        self._mark(row, back)
        if row < self.positives:
            self.labelled[self.kind[row]] += -1 if back else 1


def simulate(
    rows: int,
    positives: int,
    case: str,
    rng: np.random.Generator,
    *,
    level: float = 0.95,
    closing: int | None = None,
) -> SimulatedReview:
    """One review: rounds with a ranking, unless random images come alone, then `closing` random images."""
    review, pile = SimulatedReview(rows, positives, level), _Pile(rows, positives, rng)
    taken_back: dict[int, bool] = {}  # rows to be taken back after the next random image: whether they are wrong
    for _ in range(ROUNDS if case != CASES[0] else 0):
        before = positives - pile.unknown_positives
        review.unknown.append(pile.unknown)
        review.before.append(before)
        (drawn,) = pile.draw(1)
        review.events.append((drawn, None))
        now = _review_ranked(review, pile, case)
        _decide_drawn(review, drawn, case, rng, wrong_before=_surplus(taken_back, positives))
        _take_back(review, pile, taken_back, out_at_last=True)
        if drawn < positives and not review.skipped[-1]:
            pile.labelled[pile.kind[drawn]] += 1
        taken_back = now
    _take_back(review, pile, taken_back, out_at_last=False)
    _closing_audit(review, pile, case, closing or CLOSING + ROUNDS * (case == CASES[0]))
    review.excluded = review.excluded_ends()
    return review


def _surplus(taken_back: dict[int, bool], positives: int) -> int:
    """What wrong labels add to the positives that are out."""
    return sum(-1 if row < positives else 1 for row, wrong in taken_back.items() if wrong)


def _review_ranked(review: SimulatedReview, pile: _Pile, case: str) -> dict[int, bool]:
    chances = pile.rng.random((SHOWN, 2)).tolist()
    taken_back = {}
    for row, (skip, slip) in zip(pile.best(), chances, strict=False):
        truth = row < pile.positives
        if case == "ranking, skips" and skip < SKIPPED[truth]:
            review.events.append((row, Choice.SKIP))
            pile.shelved.add(row)
            continue
        wrong = case == "ranking, undo" and slip < WRONG
        if case == "ranking, undo" and slip < WRONG + TAKEN_BACK:
            taken_back[row] = wrong
        review.events.append((row, _choice(truth != wrong)))
        review.unlabelled.discard(row)
        pile.take(row)
    return taken_back


def _take_back(review: SimulatedReview, pile: _Pile, rows: dict[int, bool], *, out_at_last: bool) -> None:
    for row in rows:
        review.events.append((row, Choice.UNDONE))
        if out_at_last:
            review.returned.setdefault(row, []).append(len(review.unknown) - 1)
        if row in review.returned:
            review.unlabelled.add(row)
        pile.take(row, back=True)


def _decide_drawn(
    review: SimulatedReview, row: int, case: str, rng: np.random.Generator, *, wrong_before: int = 0
) -> None:
    truth = row < review.positives
    review.unlabelled.discard(row)
    review.truth.append(int(truth))
    review.skipped.append(case == "ranking, skips" and rng.random() < SKIPPED[truth])
    if review.skipped[-1]:
        review.events.append((row, Choice.SKIP))
        return
    wrong = case == "ranking, undo" and rng.random() < WRONG
    if wrong:
        review.events += [(row, _choice(not truth)), (row, Choice.UNDONE)]
    review.events.append((row, _choice(truth)))
    if wrong or wrong_before:
        ends = review.excluded_ends(to=len(review.truth), wrong_draw=wrong, wrong_before=wrong_before)
        review.misled |= bool(ends)


def _closing_audit(review: SimulatedReview, pile: _Pile, case: str, count: int) -> None:
    review.closing_from, unknown = len(review.unknown), pile.unknown
    before = pile.positives - pile.unknown_positives
    for drawn, row in enumerate(pile.draw(count)):
        review.unknown.append(unknown - drawn)
        review.before.append(before)
        review.events.append((row, None))
        _decide_drawn(review, row, case, pile.rng)
        before += row < pile.positives


def _choice(positive: bool) -> Choice:
    return Choice.POSITIVE if positive else Choice.NEGATIVE


def simulate_lapses(
    rows: int, positives: int, missed: float, rng: np.random.Generator, *, every: int = 100
) -> list[Audit]:
    """Audits of a review to the end, whose reviewer misses a share of the positives whenever they are shown.

    Slots are given as the queue gives them; scores are normal, those of positives higher by 2. Rows 0, ..., K - 1 are
    the positives.
    """
    order = np.argsort(-rng.normal(size=rows) - 2.0 * (np.arange(rows) < positives)).tolist()
    unknown, found, recent = dict.fromkeys(order), [], []
    entries: list[Entry] = []
    audits = []

    def show(row: int, stream: Stream) -> None:
        choice = _choice(row < positives and rng.random() >= missed)
        common = {"row": row, "group": row, "copies": 1, "positives": len(found), "time": 0.0, "stream": stream}
        if stream is not Stream.RANKED:
            entries.append(Entry(serial=len(entries) + 1, unknown=len(unknown), **common))
        unknown.pop(row, None)
        request = str(len(entries))
        entries.append(Entry(serial=len(entries) + 1, unknown=len(unknown), choice=choice, request=request, **common))
        if stream is not Stream.RECHECK:
            recent.append(choice is Choice.POSITIVE)
            if recent[-1]:
                found.append(row)

    while unknown:
        little = 1.0 - float(np.mean(recent[-100:])) if recent else 1.0
        chance = rng.random()
        if chance < little * AUDIT_SHARE:
            show(int(rng.choice(list(unknown))), Stream.AUDIT)
        elif chance < little * (AUDIT_SHARE + RECHECK_SHARE) and len(found) >= MIN_POSITIVES:
            show(int(rng.choice(found)), Stream.RECHECK)
        else:
            show(next(iter(unknown)), Stream.RANKED)
        if len(recent) % every == 0 or not unknown:
            audits.append(audit_entries(entries, [rows]))
    return audits
