"""Simulated reviews for the page of the audit: a ranking, random images, a zone of the likeliest, lapses.

    python -m benchmarks.quality.audit_reviews

prints what two of them say, one without lapses and one with slips and a second look, which docs/count.md shows.
"""

from dataclasses import dataclass, replace

import numpy as np

from pucache.estimates.limits import Limits
from pucache.reviewing.history import History
from pucache.reviewing.log import Choice, Entry, Stream, Zone
from pucache.reviewing.queue import AUDIT_SHARE, RECHECK_SHARE

KINDS, SIGNAL = 10, 7.0  # signal of a kind with many labels; the noise has a standard deviation of 1.8
TWINS, SKIPPED, WRONG = 0.03, 0.05, 0.03  # shares of groups of two, of skips, and of decisions corrected later


@dataclass
class Review:
    """A simulated review whose log is taken by `History`; groups of rows are numbered from 0.

    Attributes
    ----------
    rows, share
        Of the pile, and the chance of each group to be positive.
    ranking : {"learns", "chance", "negatives first"}
        Scores are noise, plus a signal of positives that grows with the labelled positives of their kind, one of
        ten; plus nothing; or less the signal.
    retrain : int
        Looks between two rankings.
    lapses : bool
        Whether rows have twins, and some are skipped, or decided wrongly and corrected later.
    missed : float
        Share of the positives that the reviewer rejects whenever they are shown.
    """

    rows: int
    share: float
    ranking: str
    rng: np.random.Generator
    retrain: int = 20
    lapses: bool = True
    missed: float = 0.0

    def __post_init__(self) -> None:
        twins = round(TWINS * self.rows) if self.lapses else 0
        self.copies = np.ones(self.rows - twins, np.int64)
        self.copies[self.rng.choice(len(self.copies), twins, replace=False)] = 2
        self.group = np.repeat(np.arange(len(self.copies)), self.copies)
        self.truth = self.rng.random(len(self.copies)) < self.share
        self.noise, self.kind = (
            self.rng.logistic(size=len(self.copies)),
            self.rng.integers(KINDS, size=len(self.copies)),
        )
        self.left, self.skipped = np.ones(len(self.copies), bool), np.zeros(len(self.copies), bool)
        self.zone = np.zeros(len(self.copies), bool)
        self.decisions: dict[int, list[tuple[Choice, int]]] = {}
        self.labelled, self.entries, self.recent, self.wrong, self.waiting = (
            np.zeros(KINDS),
            *([], [], [], []),
        )
        self.history = History([self.rows])
        self.found: list[int] = []
        self.order: list[int] = []

    def scores(self) -> np.ndarray:
        signal = {"learns": SIGNAL * (self.labelled + 1) / (self.labelled + 4.0), "chance": np.zeros(KINDS)}
        return self.noise + np.where(self.truth, signal.get(self.ranking, np.full(KINDS, -SIGNAL))[self.kind], 0.0)

    def best(self, count: int) -> list[int]:
        scores = np.where(self.left & ~self.skipped, self.scores(), -np.inf)
        best = np.argpartition(-scores, min(count, len(scores) - 1))[:count]
        best = best[np.argsort(-scores[best])]
        return best[np.isfinite(scores[best])].tolist()

    def write(self, group: int, stream: Stream, choice: Choice | None, unknown: int = 0) -> None:
        stack, serial, taken_back = self.decisions.setdefault(group, []), len(self.entries) + 1, {}
        if choice is Choice.UNDONE:
            taken_back = {"replaces": stack.pop()[1]}
            if stack:  # what lay below is in force again
                choice, taken_back["restores"] = stack.pop()
        if choice is not None and choice is not Choice.UNDONE:
            stack.append((choice, serial))
        self.entries.append(
            Entry(
                serial=serial,
                **taken_back,
                row=group,
                group=group,
                copies=int(self.copies[group]),
                stream=stream,
                unknown=unknown,
                time=0.0,
                choice=choice,
                zone=bool(self.zone[group]),
                request=None if choice is None else str(len(self.entries)),
            )
        )

    def decide(self, group: int, stream: Stream) -> None:
        truth, chance = bool(self.truth[group]), self.rng.random() if self.lapses else 1.0
        right, other = (Choice.POSITIVE, Choice.NEGATIVE) if truth else (Choice.NEGATIVE, Choice.POSITIVE)
        if chance < SKIPPED:
            self.write(group, stream, Choice.SKIP)
            self.skipped[group] = True
            return
        if chance < SKIPPED + WRONG:
            self.write(group, stream, other)
            if stream is Stream.RANKED:
                self.left[group] = False
                self.wrong.append(group)  # it is taken back at the next training, and then shown again
                return
            self.write(group, stream, Choice.UNDONE)
        if self.rng.random() < self.missed:
            truth, right = False, Choice.NEGATIVE
        self.write(group, stream, right)
        self.left[group], self.skipped[group] = False, False
        self.recent.append(truth)
        if truth:
            self.labelled[self.kind[group]] += 1
            self.found.append(group)

    def draw(self, stream: Stream) -> bool:
        urn = self.left & self.zone if stream is Stream.ZONE else self.left
        unknown = int(self.copies[urn].sum())
        if not unknown:
            return False
        if unknown > self.rows / 50:
            group = next(g for g in iter(lambda: int(self.group[self.rng.integers(self.rows)]), -1) if urn[g])
        else:
            group = int(self.rng.choice(self.group[urn[self.group]]))
        self.write(group, stream, None, unknown)
        self.left[group] = False
        self.decide(group, stream)
        return True

    def rank(self, looks: int) -> None:
        for look in range(looks):
            if look % self.retrain == 0:
                self.take_back()
                self.order = self.best(2 * self.retrain)
            little = 1.0 - sum(self.recent[-100:]) / len(self.recent[-100:]) if self.recent else 1.0
            chance = self.rng.random()
            if chance < little * AUDIT_SHARE:
                self.draw(Stream.AUDIT)
            elif chance < little * (AUDIT_SHARE + RECHECK_SHARE) and len(self.found) > 10:
                known = int(self.rng.choice(self.found))
                self.write(known, Stream.RECHECK, None)
                missed = self.rng.random() < self.missed
                self.write(known, Stream.RECHECK, Choice.NEGATIVE if missed else Choice.POSITIVE)
            else:
                ranked = (one for one in self.order if self.left[one] and not self.skipped[one])
                group = self.waiting.pop() if self.waiting else next(ranked, None)
                if group is not None:
                    self.decide(group, Stream.RANKED)

    def take_back(self) -> None:
        """Take wrong decisions back; their images are shown again."""
        for group in self.wrong:
            self.write(group, Stream.RANKED, Choice.UNDONE)
        self.waiting, self.wrong = self.waiting + self.wrong, []

    def fix_zone(self, rows: int) -> None:
        self.zone[self.best(rows)] = True

    def close(self, stream: Stream, draws: int) -> None:
        for _ in range(draws):
            if not self.draw(stream):
                return

    @property
    def zone_rows(self) -> list[int]:
        """Rows of the zone, in one part."""
        return [int(self.copies[self.zone].sum())] if self.zone.any() else []

    def limits(self) -> Limits:
        for entry in self.entries[self.history.serial :]:
            self.history.after(entry)
        parts = {str(number): 1 for number in range(sum(self.zone_rows))}
        return self.history.limits(zone=Zone(parts, len(self.history.rows)))

    def hidden(self, groups: np.ndarray | None = None) -> int:
        """Rows that are positive and not labelled so."""
        last = {entry.group: entry.choice for entry in self.entries if entry.choice is not None}
        found = np.zeros(len(self.copies), bool)
        found[[group for group, choice in last.items() if choice is Choice.POSITIVE]] = True
        hidden = self.truth & ~found if groups is None else self.truth & ~found & groups
        return int(self.copies[hidden].sum())


def printed(review: Review, when: str, doubted: int = 0) -> None:
    print(f"{when} ({review.hidden()} hidden): {replace(review.limits(), doubted=doubted).sentence}")


def without_lapses() -> None:
    review = Review(3000, 0.03, "learns", np.random.default_rng(5), lapses=False)
    review.rank(300)
    review.limits()
    review.rank(300)
    printed(review, "after 600 decisions")
    review.close(Stream.AUDIT, 200)
    printed(review, "after 200 more random images")


def with_slips(random_slips: int = 2, others: int = 6) -> None:
    """So many rejected images are accepted wrongly, positives are missed, and a second look mends both."""
    review = Review(3000, 0.03, "learns", np.random.default_rng(5), lapses=False, missed=0.05)
    review.rank(600)
    rejected = [group for group, stack in review.decisions.items() if stack and stack[-1][0] is Choice.NEGATIVE]
    negative = [group for group in rejected if not review.truth[group]]
    drawn = [
        one.group
        for one in review.entries
        if one.is_draw and one.stream is Stream.AUDIT and not review.truth[one.group]
    ]
    wrong = drawn[:random_slips] + [group for group in negative if group not in drawn][:others]
    missed = [group for group in rejected if review.truth[group]]
    for group in wrong:
        review.write(group, Stream.RANKED, Choice.POSITIVE)
    review.close(Stream.AUDIT, 100)
    print(f"{len(wrong)} accepted wrongly, {len(missed)} overlooked")
    printed(review, "before a second look", len(wrong) + len(missed))
    for group in wrong:
        review.write(group, Stream.RANKED, Choice.NEGATIVE)
    for group in missed:
        review.write(group, Stream.RANKED, Choice.POSITIVE)
    printed(review, "after it")
    review.missed = 0.0
    review.close(Stream.AUDIT, 200)
    printed(review, "after 200 more random images")


if __name__ == "__main__":
    without_lapses()
    with_slips()
