"""Limits of a review beside the one of the pile: coverage and width, over simulated reviews.

    python -m benchmarks.quality.audit_limits [--reviews 2000] [--large 400] [--out docs/results/audit.md]

A review has ranked images, random ones where the ranking yields little, and a closing audit among the likeliest and
then in the whole pile. `audit_entries` takes its log. The page is joined to that of `audit.py`, between marks.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context

import numpy as np

from benchmarks.common.cells import table
from benchmarks.common.command_line import page_parser, write_page
from pucache.reviewing.audit import UPPER_PART, Audit, audit_entries
from pucache.reviewing.audit_log import ReplayedLog, looks_of, replay, replay_zone
from pucache.reviewing.hidden_interval import evidence_above
from pucache.reviewing.log import Choice, Entry, Stream
from pucache.reviewing.queue import AUDIT_SHARE, RECHECK_SHARE

RANKINGS = ("learns", "chance", "negatives first")
KINDS, SIGNAL = 10, 7.0
TWINS, SKIPPED, WRONG = 0.03, 0.05, 0.03  # shares of groups of two, of skips, and of decisions corrected later
CELLS = [("learns", rows, share) for rows, share in ((3000, 0.01), (3000, 0.1), (50_000, 0.001), (50_000, 0.01))]
CELLS += [(ranking, 3000, share) for ranking in RANKINGS[1:] for share in (0.01, 0.1)]
RANKED, IN_ZONE, IN_PILE = 600, 150, 100  # looks of a review
PILES, SHARES, LOOKS = (3000, 50_000, 1_000_000), (0.001, 0.01, 0.1), (300, 1000, 3000)
ERROR, CHUNK = 0.05, 100  # reviews measured at once
LIMITS = ("pile", "zone and rest", "chance")


@dataclass
class Review:
    """A simulated review whose log is taken by `audit_entries`; groups of rows are numbered from 0."""

    rows: int
    share: float
    ranking: str
    rng: np.random.Generator
    retrain: int = 20
    lapses: bool = True

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
        self.labelled, self.entries, self.recent, self.wrong = np.zeros(KINDS), [], [], []
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
        self.entries.append(
            Entry(
                serial=len(self.entries) + 1,
                row=group,
                group=group,
                copies=int(self.copies[group]),
                stream=stream,
                unknown=unknown,
                positives=0,
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
                self.wrong.append(group)  # it is taken back at the next training, and shown again
                return
            self.write(group, stream, Choice.UNDONE)
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
                for group in self.wrong:
                    self.write(group, Stream.RANKED, Choice.UNDONE)
                    self.left[group] = True
                self.wrong = []
                self.order = self.best(2 * self.retrain)
            little = 1.0 - sum(self.recent[-100:]) / len(self.recent[-100:]) if self.recent else 1.0
            chance = self.rng.random()
            if chance < little * AUDIT_SHARE:
                self.draw(Stream.AUDIT)
            elif chance < little * (AUDIT_SHARE + RECHECK_SHARE) and len(self.found) > 10 and self.lapses:
                known = int(self.rng.choice(self.found))
                self.write(known, Stream.RECHECK, None)
                self.write(known, Stream.RECHECK, Choice.POSITIVE)
            else:
                group = next((one for one in self.order if self.left[one] and not self.skipped[one]), None)
                if group is not None:
                    self.decide(group, Stream.RANKED)

    def fix_zone(self, rows: int) -> None:
        self.zone[self.best(rows)] = True

    def close(self, stream: Stream, draws: int) -> None:
        for _ in range(draws):
            if not self.draw(stream):
                return

    def audit(self) -> Audit:
        return audit_entries(self.entries, [self.rows], zone=int(self.copies[self.zone].sum()))

    def hidden(self, groups: np.ndarray | None = None) -> int:
        """Rows that are positive and not labelled so."""
        last = {entry.group: entry.choice for entry in self.entries if entry.choice is not None}
        found = np.zeros(len(self.copies), bool)
        found[[group for group, choice in last.items() if choice is Choice.POSITIVE]] = True
        hidden = self.truth & ~found if groups is None else self.truth & ~found & groups
        return int(self.copies[hidden].sum())


def zone_of(rows: int) -> int:
    return min(5000, rows // 6)


def coverage(ranking: str, rows: int, share: float, reviews: range) -> list[tuple[bool, bool, bool]]:
    """Whether each limit excluded the truth at some moment, by review."""
    excluded = []
    for number in reviews:
        review = Review(rows, share, ranking, np.random.default_rng([rows, round(1000 * share), number]))
        review.rank(RANKED)
        review.fix_zone(zone_of(rows))
        review.close(Stream.ZONE, IN_ZONE)
        review.close(Stream.AUDIT, IN_PILE)
        review.rank(100)
        excluded.append(excluded_limits(review))
    return excluded


def excluded_limits(review: Review) -> tuple[bool, bool, bool]:
    """Whether the limits, as `audit_entries` computes them, exclude the truth: their evidence against it alone."""
    log, zone = (
        replay(review.entries, [review.rows]),
        replay_zone(review.entries, int(review.copies[review.zone].sum())),
    )
    looks = looks_of(review.entries, review.rows, log.labels)
    total, inside = (int(review.copies[review.truth & groups].sum()) for groups in (review.truth, review.zone))

    def above(log: ReplayedLog, total: int, error: float) -> bool:
        if total < int((log.found + log.doubtful).sum()):
            return False
        return bool(evidence_above(log.all_positive, total, int(log.rows[0])).max(initial=0.0) >= -np.log(error))

    chance = total >= looks.found and looks.evidence(total).max(initial=0.0) >= -np.log(ERROR)
    # the limit of the rest is that of the pile: wrong only where this one is
    return (
        above(log, total, UPPER_PART * ERROR),
        above(zone, inside, ERROR / 2) or above(log, total, ERROR / 2),
        bool(chance),
    )


def widths(rows: int, share: float, looks: int, reviews: range) -> np.ndarray:
    """Hidden and limits after looks of which the last two fifths are a closing audit, or the ranking; (reviews, 6)."""
    figures = []
    for number in reviews:
        seed = [rows, round(1000 * share), looks, number]
        ends = {}
        for closing in (Stream.AUDIT, Stream.ZONE, Stream.RANKED):
            retrain = 100 if rows > 100_000 else 20
            review = Review(rows, share, "learns", np.random.default_rng(seed), retrain, lapses=False)
            review.rank(looks * 3 // 5)
            if closing is Stream.RANKED:
                review.rank(looks - looks * 3 // 5)
            else:
                review.fix_zone(zone_of(rows) if closing is Stream.ZONE else 0)
                review.close(closing, looks - looks * 3 // 5)
            ends[closing] = review, review.audit()
        (pile, whole), (zoned, zone), (ranked, chance) = ends.values()
        assert zone.zone is not None
        inside = zoned.hidden(zoned.zone)
        figures.append(
            [pile.hidden(), whole.hidden_high, inside, zone.zone.hidden_high, ranked.hidden(), chance.chance_high]
        )
    return np.array(figures)


def _coverage(cell: tuple) -> list:
    return coverage(*cell)


def _widths(cell: tuple) -> np.ndarray:
    return widths(*cell)


TEXT = f"""
## Every limit

{{command}}: {{seconds:.0f}} CPU minutes. A review has {RANKED} looks by a ranking, with random images in up to 5 %
of the slots, then {IN_ZONE} random images in a zone of the likeliest (a sixth of the pile, at most 5,000), {IN_PILE} in
the whole pile, and 100 looks by the ranking. {100 * TWINS:.0f} % of the images are twins of another one,
{100 * SKIPPED:.0f} % are skipped, {100 * WRONG:.0f} % are decided wrongly and corrected later, and positives are shown
again. A limit is wrong if it excluded the truth at any moment, so also for somebody who stops at the luckiest one.
*Chance* is the limit that assumes a ranking that is no worse than chance. Where the ranking shows negatives first, that
is false, and with a tenth positive **the limit is wrong in most reviews**: it is meant for a ranking that learns.

"""


def page(cells: dict, wide: dict, command: str, seconds: float) -> str:
    def share(values: np.ndarray) -> str:
        mean = float(np.mean(values))
        return f"{100 * mean:.2f} ± {100 * np.sqrt(mean * (1 - mean) / len(values)):.2f}"

    rows = [
        [
            ranking,
            f"{pile:,}",
            f"{100 * positive:g} %",
            f"{len(excluded):,}",
            *(share(one) for one in np.array(excluded).T),
        ]
        for (ranking, pile, positive), excluded in cells.items()
    ]
    mean = {cell: figures.mean(axis=0) for cell, figures in wide.items()}
    widths = [
        [
            f"{pile:,}",
            f"{100 * positive:g} %",
            f"{looks:,}",
            *(f"{figure:,.0f}" for figure in mean[pile, positive, looks]),
        ]
        for pile, positive, looks in wide
    ]
    head = ["ranking", "pile", "positive", "reviews", *(f"{limit} excluded, %" for limit in LIMITS)]
    number = len(next(iter(wide.values()))) if wide else 0
    return (
        TEXT.format(command=f"`{command}`", seconds=seconds / 60)
        + table(head, rows)
        + f"""

Upper limits after so many looks of which the last two fifths are a closing audit in the pile, or in the zone; or the
ranking goes on, for the limit by chance (means of {number} reviews; beside each the true number).

"""
        + table(["pile", "positive", "looks", "hidden", "pile", "hidden in zone", "zone", "hidden", "chance"], widths)
        + "\n"
    )


def main() -> None:
    parser = page_parser(__doc__)
    parser.add_argument("--reviews", type=int, default=2000, help="per row of 3,000 (default: %(default)s)")
    parser.add_argument("--large", type=int, default=400, help="per row of 50,000 (default: %(default)s)")
    parser.add_argument("--widths", type=int, default=3, help="reviews per width (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: %(default)s)")
    arguments = parser.parse_args()
    began = time.monotonic()
    cells, wide = {}, {}
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        wanted = [
            (*cell, range(begin, begin + CHUNK))
            for begin in range(0, arguments.reviews, CHUNK)
            for cell in CELLS
            if cell[1] < 50_000 or begin < arguments.large
        ]
        measured = pool.map(_coverage, wanted)
        sizes = [cell for cell in product(PILES, SHARES, LOOKS) if cell[2] < cell[0]]
        wider = pool.map(_widths, [(*cell, range(arguments.widths)) for cell in sizes])
        for (*cell, _), excluded in zip(wanted, measured, strict=True):
            kept = cells.setdefault(tuple(cell), [])
            kept += excluded
            print(*cell, len(kept), np.mean(kept, axis=0), flush=True)
        for size, figures in zip(sizes, wider, strict=True):
            wide[size] = figures
            print(*size, figures.mean(axis=0), flush=True)
    options = f" --reviews {arguments.reviews} --large {arguments.large}"
    seconds = (time.monotonic() - began) * min(arguments.jobs, os.cpu_count() or 1)
    write_page(page(cells, wide, "python -m benchmarks.quality.audit_limits" + options, seconds), arguments.out)


if __name__ == "__main__":
    main()
