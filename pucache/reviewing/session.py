"""A review session: the state of one pile and the log behind it, for any number of tabs and threads."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..cache.embedding_cache import CacheLike, EmbeddingCache, open_cache
from ..errors import OutputError, SessionError, one_line
from ..estimates.agreement import Agreement
from ..estimates.limits import Limits
from ..labels.labels import LOOK_AGAIN, TWIN_COSINE
from ..labels.read_labels import LabelSource, open_labels
from ..storage.atomic import replacing
from .history import agreement, joined
from .log import DRAWN, NO_ZONE, DecisionLog, Entry, Stream
from .log_file import REMEDY
from .pile import NumberedRows, Pile, Twins, mixed, random_numbers
from .resume import begin_or_resume, image_of, read, rows_of
from .session_folder import DOUBTED, another_readers, doubted_numbers, lock_folder, session_folder
from .state import Proposal, State

_REQUEST_LENGTH = 200


class StaleDecisionError(SessionError):
    """A decision would replace one that is no longer in force."""

    def __init__(self, row: int, in_force: Entry | None):
        self.in_force = in_force
        present = "none" if in_force is None else f"number {in_force.serial}, {in_force.choice}"
        super().__init__(f"row {row} was decided meanwhile: the decision in force is {present}; look at it again")


class Session:
    """A session that `open_session` opened. Hold its `lock` around what reads `state`, where other threads decide."""

    def __init__(self, cache: EmbeddingCache, folder: Path, log: DecisionLog, pile: Pile, stack: ExitStack):
        self.cache, self.folder, self.lock = cache, folder, threading.RLock()
        self.pile = pile  # with the labels from before the session, and a note of what has changed in the cache since
        self.failure = ""  # why the session takes and tells nothing more
        self._log, self._stack = log, stack
        self._numbered: dict[Stream, NumberedRows] = {}  # rows in the order in which they are drawn
        self._fold()

    @property
    def state(self) -> State:
        """What the log amounts to; raises `SessionError` once the session has failed."""
        self._check_open()
        return self._state

    def _check_open(self) -> None:
        if self.failure:
            raise SessionError(self.failure)

    def _fold(self) -> None:
        """Bring the state to what the log says."""
        pile = self.pile
        self._zone = self._log.zone(pile.first) if pile.first <= self._log.epoch else NO_ZONE
        zone, rows = np.zeros(len(self.cache), np.int32), self.cache.keys.rows(list(self._zone.parts))
        zone[rows[rows >= 0]] = np.array(list(self._zone.parts.values()), np.int32)[rows >= 0]
        state, by_request = State(pile, zone, is_by_query=bool(self._log.asked())), dict[str, Entry]()
        self.last_change: float | None = None
        self._since, self._logged = 0, 0
        for entry, row in self._mapped():
            self._logged = entry.serial
            if entry.request is not None:
                by_request[entry.request] = entry
            if entry.epoch >= pile.first:
                self._since = entry.serial if entry.epoch < pile.epoch else self._since
                self.last_change = entry.time
                self._replay(state, entry, row)
        self._state, self._by_request = state, by_request
        self._doubted = state.history.doubted(doubted_numbers(self.folder))  # groups by number of the decision
        self._restart_numbers()

    def _restart_numbers(self) -> None:
        """Look for rows of least number from the beginning, as other rows may be drawn now."""
        for numbered in self._numbered.values():
            numbered.restart()

    def _replay(self, state: State, entry: Entry, row: int) -> None:
        try:
            if row < 0:
                raise ValueError(f"entry {entry.serial} is of an image that is gone")
            state.after(entry)
        except ValueError as error:
            raise SessionError(f"{self._log.path} is damaged: {one_line(error)}; {REMEDY}") from error

    def _mapped(self) -> Iterator[tuple[Entry, int]]:
        """All entries of the log, by the rows of the cache, and these rows; -1 where the image is gone."""
        logged, groups = self._log.entries(), self.pile.groups.group
        for entry, row in zip(logged, rows_of(self.cache, logged).tolist(), strict=True):
            yield (entry if row < 0 else replace(entry, row=row, group=int(groups[row]))), row

    def close(self) -> None:
        """Close the log and release the folder; closing twice is allowed."""
        with self.lock:
            self._log.close()
            self._stack.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- what stands -------------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """Draws and decisions of the present epoch, in order; what the audit is computed from."""
        with self.lock:
            self._check_open()
            return [entry for entry, _ in self._mapped() if entry.epoch >= self.pile.first]

    def limits(self, level: float = 0.95) -> Limits:
        """What can be said of the pile."""
        with self.lock:
            history, doubted = self.state.history, len(self.doubted())
            limits = history.limits(level=level, zone=self._zone, since=self._since, doubted=doubted)
            return replace(limits, restarted=self.pile.first > 1)

    def doubted(self) -> list[int]:
        """Rows of the decisions to look at again, those that the last ranking contradicts most first."""
        with self.lock:
            pictures = self.state.history.pictures
            known = ((number, pictures[group]) for number, group in self._doubted.items())
            return [one.row for number, one in known if one.number == number and one.can_be_doubted]

    def doubt(self, rows: np.ndarray) -> None:
        """Take in what a ranking contradicts, worst first: it is offered until it is looked at, so that what was
        offered stays so; kept beside the log, for the audit."""
        with self.lock:
            state = self.state
            newest = state.given_once(rows, LOOK_AGAIN)
            both = list(dict.fromkeys([*newest, *self.doubted()]))[:LOOK_AGAIN]
            pictures = [state.history.pictures[int(state.groups[row])] for row in both]
            found = {one.number: int(state.groups[one.row]) for one in pictures}
            if [*found] != doubted_numbers(self.folder):
                with suppress(OutputError), replacing(self.folder / DOUBTED) as temporary:
                    temporary.write_text(json.dumps(list(found)))
            self._doubted = found

    @property
    def asked(self) -> str:
        """What the review began with in place of positives, the JSON of a query; "" where nothing was asked."""
        with self.lock:
            return self._log.asked()

    def join(self, other: Session) -> Agreement:
        """Take in what another reader says, in memory alone, and return how they agree; both are read."""
        mine, theirs = self.state.history, other.state.history
        said, agreed = joined(mine, theirs), agreement(mine, theirs)
        for entry in said:
            self.state.after(replace(entry, **self.state.place(entry.row)))
        return agreed

    # --- what is written ----------------------------------------------------------------------------

    def decide(self, proposal: Proposal) -> Entry:
        """Write a decision; it is on disk when this returns.

        A request that was written before is answered with what was written then. Raises `StaleDecisionError` where it
        replaces a decision that is no longer in force, and `ValueError` for one that stands for another picture.
        """
        if not 0 <= proposal.row < len(self.cache):
            raise ValueError(f"{self.cache.name} has {len(self.cache):,} rows; there is no row {proposal.row}")
        if not 0 < len(proposal.request) <= _REQUEST_LENGTH:
            raise ValueError(f"a request has an identifier of 1 to {_REQUEST_LENGTH} characters")
        with self.lock:
            state, written = self.state, self._by_request.get(proposal.request)
            if written is None:
                if not state.accepts(proposal):
                    raise StaleDecisionError(proposal.row, state.in_force(proposal.row))
                with self._writing():
                    return self._write(proposal.row, **state.decision(proposal))
            if written.group != int(state.groups[proposal.row]):
                raise ValueError(f"request {proposal.request} was for another image; send it with a new identifier")
            return written

    def draw(
        self,
        rng: np.random.Generator,
        stream: Stream,
        count: int = 1,
        model_version: int = 0,
        exclude: Sequence[int] = (),
    ) -> list[Entry]:
        """Draw images at random, one after another, and write the draws.

        An AUDIT is the row of least number of the pile that has not left it, a ZONE one of the zone by another number
        (`pucache.reviewing.pile.random_numbers`): each is uniform over these rows given all that happened before. A
        RECHECK is drawn by `rng` from the known positive rows without a draw, and without the rows of `exclude` and
        their twins. Fewer than `count` draws where no more rows are there.
        """
        if stream not in (*DRAWN, Stream.RECHECK) or (stream in DRAWN and len(exclude)):
            raise ValueError(
                "draws are for the audit, from all unknown rows, or for rechecks, which can leave out rows"
            )
        numbered = self._rows_by_number(stream) if stream in DRAWN else None  # before anybody waits for the lock
        drawn = []
        with self.lock, self._writing():
            for _ in range(count):
                row = self._known_positive(rng, exclude) if numbered is None else self._least(numbered, stream)
                if row is None:
                    break
                fields, state = dict[str, Any](), self.state
                if stream is Stream.ZONE:
                    fields = {"unknown": int((state.untaken & (state.zone == state.zone[row])).sum())}
                drawn.append(self._write(row, stream=stream, model_version=model_version, **fields))
        return drawn

    def _rows_by_number(self, stream: Stream) -> NumberedRows:
        if not self._numbered:
            numbers = random_numbers(self.cache, self.pile.urn_of)
            self._numbered = {Stream.AUDIT: NumberedRows(numbers), Stream.ZONE: NumberedRows(mixed(numbers))}
        return self._numbered[stream]

    def _least(self, numbered: NumberedRows, stream: Stream) -> int | None:
        """The row of least number that is left in the pile, or in its zone; None where none is."""
        state, left = self.state, sum(self.state.history.left)
        if np.count_nonzero(state.untaken) != left:  # what is written could never be taken out of the log again
            raise SessionError(f"{state.untaken.sum():,} rows are left, not {left:,}; nothing was drawn: send it again")
        if stream is Stream.ZONE:
            return numbered.first(lambda rows: state.untaken[rows] & (state.zone[rows] > 0))
        return numbered.first(lambda rows: state.untaken[rows])

    def _known_positive(self, rng: np.random.Generator, exclude: Sequence[int]) -> int | None:
        """A known positive row for a recheck; None where there is none."""
        state = self.state
        rows, excluded = state.known_positive(), state.groups[np.asarray(exclude, np.int64)]
        rows = rows[~np.isin(state.groups[rows], excluded)]
        return int(rng.choice(rows)) if len(rows) else None

    def ask(self, query: str) -> None:
        """Write what is asked, durably, unless it was asked last; raises `SessionError` where that fails."""
        with self.lock:
            if query != self._log.asked():
                with self._writing():
                    self._log.ask(query)
                self._fold()

    def fix_zone(self, rows: np.ndarray) -> None:
        """Fix a part of the zone of the likeliest images for the rest of the review, durably.

        It holds those of some rows, and of their twins, that have not left the pile, as far as they are `outside_zone`.
        Raises `SessionError` where the log cannot be written.
        """
        with self.lock:
            chosen = np.zeros(len(self.cache), bool)
            chosen[rows] = True
            chosen = self.pile.groups.spread(chosen) & self.state.untaken & self.outside_zone
            if chosen.any():
                with self._writing():
                    self._log.fix_zone([self.cache.keys[row] for row in np.flatnonzero(chosen).tolist()])
                self._zone = self._log.zone(self.pile.first)
                self.state.zone[chosen] = self.state.zone.max() + 1
                self._restart_numbers()

    @property
    def outside_zone(self) -> np.ndarray:
        """Rows of the urns that the zone is not of, bool (n,): of all, or of those that came after it was fixed."""
        return self.pile.urn_of >= self._zone.urns

    def _write(self, row: int, **fields: Any) -> Entry:
        """Complete the next entry, let the state run ahead by it, and write it."""
        if self._logged != self._log.last:
            raise SessionError(f"{self._log.path} was written by another process meanwhile; send it again")
        key, digest = image_of(self.cache, row)
        named: dict[str, Any] = {"serial": self._logged + 1, "row": row, "key": key, "digest": digest}
        entry = Entry(time=time.time(), **(named | self.state.place(row) | fields))
        self.state.after(entry)
        self._log.append([entry])
        self._logged, self.last_change = entry.serial, entry.time
        if entry.request is not None:
            self._by_request[entry.request] = entry
        return entry

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Fold the log again where the block fails to write, and close the session where that fails too."""
        if self._log.read_only:
            raise SessionError(f"the session {self.folder} was opened for reading; open it with pucache review")
        self._check_open()
        try:
            yield
        except BaseException:
            try:
                self._fold()
            except BaseException as error:
                self.failure = (
                    f"the review in {self.folder} has closed: its log could neither be written nor read back "
                    f"({one_line(error, 160)}); what was acknowledged is in it: end pucache review, and start it again"
                )
                self.close()
                raise SessionError(self.failure) from error
            raise


def open_session(
    cache: CacheLike,
    labels: LabelSource | None = None,
    *,
    folder: str | Path | None = None,
    twins: float | Twins | None = TWIN_COSINE,
    beside: str | Path | None = None,
) -> Session:
    """Begin a review session, or go on with one; it holds the folder's lock until it is closed.

    `labels` are those of one list from before the session; None: those that the session began with, for a new one none.
    `folder` is by default ``CACHE.review`` beside the cache. From a cosine of `twins` on two images show the same
    picture and share their label; None: equal bytes only. Large caches are grouped by equal bytes. Sessions of one
    cache may share one `pucache.reviewing.pile.Twins`. A new session `beside` that of another reader begins with its
    labels, pile and query. Raises `SessionLockedError` where another process runs the session, and `SessionError` where
    it is of another cache, began with other labels or twins, is damaged, or cannot be written.
    """
    cache = open_cache(cache)
    given = None if labels is None else open_labels(cache, labels).only
    path = session_folder(cache, folder)
    with ExitStack() as stack:
        lock_folder(path, stack)
        twins = twins if isinstance(twins, Twins) else Twins(cache, twins)
        log, pile = begin_or_resume(
            path, cache, given, twins, None if beside is None else another_readers(beside, path)
        )
        stack.callback(log.close)
        return Session(cache, path, log, pile, stack.pop_all())


def read_session(cache: CacheLike, folder: str | Path | None = None) -> Session:
    """Open a session to read it, as the log is now, also while `pucache review` runs it.

    Where the cache has changed since, decisions are matched by key and digest, and the session has no audit.
    """
    cache = open_cache(cache)
    path = session_folder(cache, folder)
    with ExitStack() as stack:
        log, pile = read(path, cache)
        stack.callback(log.close)
        return Session(cache, path, log, pile, stack.pop_all())
