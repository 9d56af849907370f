"""Which images are shown next.

Most are the first of the ranking. Mixed in, at random slots and unmarked, are images drawn at random for the audit,
and now and then a known positive, to see whether it is recognised. There are more of these the less the ranking
yields: early draws cost positives (docs/results/review.md), and late ones say more about what is hidden. A random draw
is written to the log before anybody sees its image, and is offered again until it is answered.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..estimates.limits import RECHECKS_NEEDED
from ..neighbours.whitening import Whitening
from ..threads import one_blas_thread
from .log import Stream

if TYPE_CHECKING:
    from .session import Session

SILENCE = 90.0  # seconds after which the images of a silent tab are free again; a hidden one asks once a minute
SAMPLE = 4096  # rows that a spread-out selection selects from
AUDIT_SHARE, RECHECK_SHARE = 0.05, 0.02  # probabilities of a slot where the ranking yields nothing
CLOSING_RECHECK_SHARE = 0.15  # in a closing audit, until `RECHECKS_NEEDED` are answered
MIN_POSITIVES = 10  # known, before any is shown again
_TOP = 4096  # rows of the ranking that are kept sorted
_LIKELY = 0.5  # probability of the images that come one of each group first
_RECENT = 100  # images after which one may be shown again
LEAST_ZONE, ZONE_SHARE, EXPECTED_IN_ZONE = 1000, 0.2, 0.9  # rows, unless few are left; share of them; see `likeliest`
_DRAWS = 20  # attempts to fill the slots of a closing audit


class NextImages:
    """Gives rows to the tabs of a review, different ones to each.

    Where none of the last 100 images was positive, a slot is drawn at random from all unknown rows with a probability
    of `audit_share`, and shows a positive again with `recheck_share`, once `MIN_POSITIVES` are found; both fall to 0
    with the share of positives. With `closing_audit` all other slots are drawn at random, by `closing_stream`: from the
    pile, or from the zone until it is used up; rechecks are frequent until `RECHECKS_NEEDED` are answered.

    Of the likely positives one image of each of the `clusters` (n,), groups that the user named, comes before a second
    one: those before it count that are labelled, decided or skipped. Random draws know no groups.
    """

    def __init__(self, session: Session, rng: np.random.Generator, clusters: np.ndarray | None = None):
        self.audit_share, self.recheck_share = AUDIT_SHARE, RECHECK_SHARE
        self.closing_audit = False
        self.closing_stream = Stream.AUDIT
        self._session, self._rng, self._clusters = session, rng, clusters
        self._reservations = Reservations()
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._scores: np.ndarray | None = None
        self._p: np.ndarray | None = None
        self._version = 0
        self._top = np.empty(0, np.int64)  # best unknown rows when it was made, best first
        self._spread: SpreadSelection | None = None
        self._slots = self._answered()  # decisions so far, and images on their way to one: each slot is drawn once
        self._lock = threading.RLock()

    def set_ranking(self, scores: np.ndarray, p: np.ndarray | None, version: int) -> None:
        """Rank by new scores from the next call on.

        `scores` and `p`, the probability of being positive, are float32 (n,); `version` is the serial number of the
        last entry of the log that the model has seen.
        """
        shape = self._session.state.groups.shape
        if scores.shape != shape or (p is not None and p.shape != shape):
            raise ValueError(f"expected a score and a probability for each of {shape[0]:,} rows, got {scores.shape}")
        if np.isnan(scores).any():
            raise ValueError("scores are NaN")
        top = self._best(scores, p)
        with self._lock:
            self._scores, self._p, self._version, self._top = scores, p, version, top

    def next(self, tab: str, count: int, keep: Sequence[int] = (), *, of: Sequence[int] | None = None) -> list[int]:
        """Rows to show next, in the order of showing, reserved for a tab; fewer where the pile is used up.

        `count` rows are wanted besides those that the tab keeps: the ones that it shows, or will show, or has decided
        without an answer yet. It loses all others. With `of` only these rows come.
        """
        with self._lock:
            self._reservations.keep_only(tab, (int(self._session.state.groups[row]) for row in keep))
            if of is not None:
                return self._take(tab, of, count)
            drawn = self._waiting(tab, count)
            drawn += self._rechecks_and_audits(tab, count - len(drawn))
            rows = self._mixed(self._ranked(tab, count - len(drawn)), drawn)
            if len(rows) < count:
                rows += self._skipped_rows(tab, count - len(rows))
            self._recent.extend(rows)
            return rows

    def keep_alive(self, tab: str) -> None:
        """Note that a tab is alive: a silent one loses its rows."""
        with self._lock:
            self._reservations.keep_alive(tab)

    def free(self, tab: str, rows: Sequence[int]) -> int:
        """How many of some rows no other tab holds; the tab that asks is alive."""
        with self._lock:
            if tab:
                self._reservations.keep_alive(tab)
            groups = self._session.state.groups
            return sum(self._reservations.holder(int(groups[row])) in (None, tab) for row in rows)

    def release(self, tab: str) -> None:
        """Free the rows of a tab that closes."""
        with self._lock:
            self._reservations.release(tab)

    # --- random draws --------------------------------------------------------------------------------

    def _waiting(self, tab: str, count: int) -> list[int]:
        """Rows that were drawn, or taken back, and that no open tab holds."""
        with self._session.lock:
            rows = [one.row for one in self._session.state.waiting()]
        return self._take(tab, rows, count)

    def _rechecks_and_audits(self, tab: str, slots: int) -> list[int]:
        """Each slot is drawn with its probability, once: a tab that changes its images for better ones gains none."""
        before, self._slots = self._slots, max(self._slots, self._answered() + len(self._reservations.groups) + slots)
        if slots <= 0:
            return []
        counts, fresh = self._session.state.progress(), min(slots, self._slots - before)
        if self.closing_audit:
            share = CLOSING_RECHECK_SHARE if counts.rechecked < RECHECKS_NEEDED else self.recheck_share
            rows = self._drawn(tab, Stream.RECHECK, int(self._rng.binomial(max(0, fresh), share)))
            return self._mixed(self._closing_audit(tab, slots - len(rows)), rows)
        slots, factor = fresh, 1 - counts.rate
        rows = self._drawn(tab, Stream.AUDIT, int(self._rng.binomial(slots, factor * self.audit_share)))
        again = int(self._rng.binomial(slots - len(rows), factor * self.recheck_share))
        if counts.positives >= MIN_POSITIVES:
            rows += self._drawn(tab, Stream.RECHECK, again)
        return rows

    def _answered(self) -> int:
        """Images that were decided, skipped, or recognised again."""
        counts = self._session.state.progress()
        return counts.decided + counts.skipped + counts.rechecked

    def _closing_audit(self, tab: str, slots: int) -> list[int]:
        rows, state = list[int](), self._session.state
        for _ in range(_DRAWS):  # a draw of a row that a tab holds already fills no slot
            if len(rows) == slots or not state.untaken.any():
                break
            in_zone = self.closing_stream is Stream.ZONE and state.zone[state.untaken].any()
            rows += self._drawn(tab, Stream.ZONE if in_zone else Stream.AUDIT, slots - len(rows))
        return rows

    def _drawn(self, tab: str, stream: Stream, count: int) -> list[int]:
        """Draw rows; those that a tab holds already are answered there.

        The audit draws from all unknown rows, whoever holds them, or it would not be uniform.
        """
        if not count:
            return []
        exclude: list[int] = []
        if stream is Stream.RECHECK:
            exclude = [*self._recent, *self._reservations.groups.tolist(), *self._session.state.examples.tolist()]
        draws = self._session.draw(self._rng, stream, count, self._version, exclude)
        return self._take(tab, (draw.row for draw in draws), count)

    # --- rows by rank --------------------------------------------------------------------------------

    def _ranked(self, tab: str, count: int) -> list[int]:
        if count <= 0 or self.closing_audit:
            return []
        if self._scores is None:
            return self._spread_out(tab, count)
        rows = self._take(tab, self._open(self._top), count)
        if len(rows) < count:
            self._top = self._best(self._scores, self._p)
            rows += self._take(tab, self._open(self._top), count - len(rows))
        return rows

    def _best(self, scores: np.ndarray, p: np.ndarray | None) -> np.ndarray:
        """Undecided rows, best first; of those that are likely positive, or of all without probabilities, by group."""
        undecided = self._undecided()
        top = best_rows(scores, undecided, _TOP)
        if self._clusters is None:
            return top
        likely = len(top) if p is None else np.count_nonzero(p[top] >= _LIKELY)
        first = one_of_each_first(self._clusters[top[:likely]], self._clusters[~undecided])
        return np.concatenate([top[:likely][first], top[likely:]])

    def _spread_out(self, tab: str, count: int) -> list[int]:
        rows: list[int] = []
        while len(rows) < count:
            if self._spread is not None:
                rows += self._take(tab, self._open(self._spread.rows), count - len(rows))
            if self._spread is None or self._spread.exhausted:
                left = self._open(np.flatnonzero(self._undecided()))
                if not len(left):
                    break
                self._spread = SpreadSelection(self._session.cache, left, self._rng)
            self._spread.extend(count - len(rows))
        return rows

    def _skipped_rows(self, tab: str, count: int) -> list[int]:
        """Rows that were skipped, longest ago first, once nothing else is left."""
        state = self._session.state
        decisions = map(state.in_force, np.flatnonzero(state.skipped).tolist())
        serials = {decision.row: decision.serial for decision in decisions if decision is not None}
        return self._take(tab, sorted(serials, key=serials.__getitem__), count)

    def likeliest(self) -> np.ndarray:
        """Undecided rows of highest rank, among which the model expects nine tenths of what is hidden, int64.

        Of the rows that the zone is not of at least 1,000 and at most a fifth; none before the first ranking.
        """
        with self._lock:
            undecided = self._undecided() & self._session.outside_zone
            most = math.ceil(ZONE_SHARE * np.count_nonzero(undecided))
            if self._scores is None or not most:
                return np.empty(0, np.int64)
            count = least = min(LEAST_ZONE, most)
            if self._p is not None:
                expected = np.cumsum(np.sort(self._p[undecided])[::-1], dtype=np.float64)
                count = int(np.searchsorted(expected, EXPECTED_IN_ZONE * expected[-1])) + 1
            return best_rows(self._scores, undecided, min(max(count, least), most))

    # --- what may be given ---------------------------------------------------------------------------

    def _undecided(self) -> np.ndarray:
        """Rows of the pile neither decided nor skipped nor drawn, bool (n,)."""
        return self._session.state.untaken & ~self._session.state.skipped

    def _open(self, rows: np.ndarray) -> np.ndarray:
        """Those of some rows that are undecided, and that no tab holds."""
        state = self._session.state
        undecided = rows[state.untaken[rows] & ~state.skipped[rows]]
        return undecided[~np.isin(state.groups[undecided], self._reservations.groups)]

    def _take(self, tab: str, rows: Iterable[int], count: int) -> list[int]:
        """Reserve the first rows whose groups are free: one image of a group."""
        taken: list[int] = []
        for row in map(int, rows if count > 0 else ()):
            if self._reservations.take(tab, int(self._session.state.groups[row])):
                taken.append(row)
                if len(taken) == count:
                    break
        return taken

    def _mixed(self, ranked: list[int], drawn: list[int]) -> list[int]:
        """Ranked rows in their order, with the others at random slots.

        Random images are shown in the order of their draws: the audit leaves out only the last ones without an answer.
        """
        rows = np.empty(len(ranked) + len(drawn), np.int64)
        is_drawn = np.zeros(len(rows), bool)
        is_drawn[self._rng.choice(len(rows), len(drawn), replace=False)] = True
        rows[is_drawn], rows[~is_drawn] = drawn, ranked
        return rows.tolist()


def best_rows(scores: np.ndarray, unknown: np.ndarray, count: int) -> np.ndarray:
    """Unknown rows of the highest scores, best first, int64 (at most count,); ties by row number."""
    rows = np.flatnonzero(unknown)
    if count < len(rows):  # 17 times as fast as sorting five million
        values = scores[rows]
        least = np.partition(values, len(rows) - count)[len(rows) - count]
        above, level = rows[values > least], rows[values == least]
        rows = np.concatenate([above, level[: count - len(above)]])
    return rows[np.lexsort((rows, -scores[rows]))]


def one_of_each_first(groups: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Positions of groups (m,) in which every group comes once before any comes twice, counting those of `before`."""
    times = Counter(before.tolist())
    turns = []
    for group in groups.tolist():
        turns.append(times[group])
        times[group] += 1
    return np.argsort(np.array(turns, np.int64), kind="stable")


class Reservations:
    """Groups of images by the tab that holds them; a group has one holder at most, and none once it is silent."""

    def __init__(self) -> None:
        self._heard: dict[str, float] = {}  # when a tab was last alive
        self._holder: dict[int, str] = {}

    @property
    def groups(self) -> np.ndarray:
        """Groups that any tab holds, int64 (m,)."""
        return np.fromiter(self._holder, np.int64, len(self._holder))

    def holder(self, group: int) -> str | None:
        """The tab that holds a group."""
        return self._holder.get(group)

    def keep_alive(self, tab: str) -> None:
        """Note that a tab is alive, and free what silent tabs hold."""
        now = self._heard[tab] = monotonic()
        for gone in [name for name, heard in self._heard.items() if now - heard > SILENCE]:
            self.release(gone)

    def keep_only(self, tab: str, groups: Iterable[int]) -> None:
        """Free what a tab holds besides these groups; take those of them that nobody holds."""
        self.keep_alive(tab)
        self._holder = {group: holder for group, holder in self._holder.items() if holder != tab}
        for group in groups:
            self._holder.setdefault(group, tab)

    def take(self, tab: str, group: int) -> bool:
        """Let a tab hold a group; False where any tab holds it."""
        if group in self._holder:
            return False
        self._holder[group] = tab
        return True

    def release(self, tab: str) -> None:
        """Free all that a tab holds, when it closes."""
        self._heard.pop(tab, None)
        self._holder = {group: holder for group, holder in self._holder.items() if holder != tab}


class SpreadSelection:
    """Rows in the order of selection, made longer on demand, to find a first positive where none is known.

    Rows of a sample are selected as k-means++ selects its seeds (Arthur and Vassilvitskii 2007): each with a
    probability in proportion to its squared distance to the nearest row selected before. Distances are between
    whitened rows, so that no direction counts for its variance alone. `candidates` are int64 (m,), ascending.
    """

    def __init__(self, cache: EmbeddingCache, candidates: np.ndarray, rng: np.random.Generator):
        if len(candidates) > SAMPLE:
            candidates = np.sort(rng.choice(candidates, SAMPLE, replace=False))
        self._candidates, self._rng = candidates, rng
        self._order: list[int] = []
        self._distance = np.ones(len(candidates), np.float32)  # squared, to the nearest selected row
        self._Z = np.empty((0, 1), np.float32)
        if len(candidates):
            X = cache.take(candidates)
            whitening = Whitening.estimate(X)
            self._Z = whitening.whiten(whitening.centred_units(X))  # (m, q)

    @property
    def rows(self) -> np.ndarray:
        """Rows selected up to now, int64 (k,)."""
        return self._candidates[self._order]

    @property
    def exhausted(self) -> bool:
        """Whether the whole sample is selected."""
        return len(self._order) == len(self._candidates)

    def extend(self, count: int) -> None:
        """Select further rows, up to the end of the sample."""
        for _ in range(min(count, len(self._candidates) - len(self._order))):
            self._order.append(self._drawn())

    @one_blas_thread
    def _drawn(self) -> int:
        """Position of a row, which is never drawn again."""
        weights = self._distance.astype(np.float64)
        if not weights.any():  # copies of rows selected before
            weights = np.ones(len(weights))
            weights[self._order] = 0
        chosen = int(self._rng.choice(len(weights), p=weights / weights.sum()))
        distance = np.maximum(2 - 2 * (self._Z @ self._Z[chosen]), 0)
        np.minimum(self._distance, np.where(distance > 1e-6, distance, 0), out=self._distance)
        self._distance[chosen] = 0
        return chosen
