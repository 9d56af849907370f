"""A review session: labels, log and audit draws of one pile, for any number of tabs and threads."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..cache.embedding_cache import CacheLike, EmbeddingCache, open_cache
from ..errors import SessionError, one_line
from ..labels.label_files import EXPORT
from ..labels.labels import TWIN_COSINE, Labels, labels_if_any
from ..labels.row_values import RowValues
from .agreement import SharedDraws
from .log import DRAWN, AuditedEntries, Entry, LoggedImage, Stream, Zone
from .log_file import REMEDY, acknowledged
from .pile import Twins
from .session_folder import exported_decisions
from .session_start import (
    ReplayBase,
    begin_or_resume,
    image_of,
    lock_folder,
    read,
    rows_of,
    session_folder,
)
from .session_state import Proposal, SessionState, StaleDecisionError

_REQUEST_LENGTH = 200


class Session(SessionState):
    """A session that is open; see `open_session`. Arrays are to be read alone.

    Attributes
    ----------
    cache : EmbeddingCache
    folder : Path
    urns : tuple of int
        Rows of each urn; together the pile, the rows neither labelled nor twins of labelled ones when the epoch began.
    epoch_note : str
        What has changed in the cache since the session began, and what that means for the audit; "" if nothing.
    first_reader : Path or None
        Folder of the first reader's session, where this one is the second reader's.
    """

    def __init__(
        self, cache: EmbeddingCache, folder: Path, base: ReplayBase, stack: ExitStack, first_reader: Path | None = None
    ):
        self.cache, self.folder, self.first_reader, self._stack = cache, folder, first_reader, stack
        self.urns, self.epoch_note = base.facts.urns, base.note
        self._base, self._log = base, base.log
        super().__init__(base.labels, base.groups, base.urn_of)
        self._replay()
        if not any(acknowledged(folder)):  # a log of before 0.4
            self._check_export()
            self._log.acknowledge_all()

    def _replay(self) -> None:
        """Bring labels and counts to what the log says."""
        base, rows = self._base, self.cache.keys.rows
        self.is_by_query = bool(base.log.asked())
        self._zone = base.log.zone(base.first) if base.current else Zone({}, 0)
        zone, parts = rows(list(self._zone.parts)), np.array(list(self._zone.parts.values()), np.int32)
        self.zone[zone[zone >= 0]] = parts[zone >= 0]
        for decision in base.carried:
            self._carry(decision)
        self._entries: list[Entry] = []  # of the present epoch
        self._by_request: dict[str, Entry] = {}
        logged = self._mapped()
        for entry, row in logged:
            if entry.request is not None:
                self._by_request[entry.request] = entry
            if base.current and entry.epoch >= base.first:
                if row < 0 or not self._can_apply(entry):
                    raise SessionError(
                        f"{base.log.path} is damaged: entry {entry.serial} does not fit those before it; {REMEDY}"
                    )
                self._apply(entry)
                self._entries.append(entry)
        self._replayed = len(logged)

    def _mapped(self) -> list[tuple[Entry, int]]:
        """All entries of the log, by the rows of the cache, and these rows; -1 where the image is gone."""
        logged = self._log.entries()
        rows = rows_of(self.cache, logged).tolist()
        by_row = zip(logged, rows, strict=True)
        return [(e if row < 0 else replace(e, row=row, group=int(self.groups[row])), row) for e, row in by_row]

    def _check_export(self) -> None:
        """Refuse a log without decisions that the table of an export beside it holds."""
        if self._base.note:  # the cache has changed: other images may be twins
            return
        logged = rows_of(self.cache, self._log.entries())
        known = self._labelled_before.copy()
        known[logged[logged >= 0]] = True
        exported = exported_decisions(self.folder)
        rows = rows_of(self.cache, [LoggedImage(key, bytes(32)) for key in exported])
        missing = int((~self._groups.spread(known)[rows[rows >= 0]]).sum())
        if missing:
            raise SessionError(
                f"{self._log.path} lacks {missing:,} of the {len(exported):,} decisions that {EXPORT} beside it holds; "
                f"{REMEDY}, or move {EXPORT} away if it is of another review"
            )

    def close(self) -> None:
        """Close the log and release the folder; closing twice is allowed."""
        with suppress(SessionError), self.lock:  # a session that failed is closed
            self._close()

    def _close(self) -> None:
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
            return list(self._entries)

    def history(self) -> list[Entry]:
        """Draws and decisions of all epochs whose images are there, in order, by the rows of the cache."""
        with self.lock:
            return [entry for entry, row in self._mapped() if row >= 0]

    def audited_entries(self) -> AuditedEntries:
        """What the audit is computed from."""
        with self.lock:
            zone, since = self._zone, self._base.since(self._entries)
            return AuditedEntries(list(self._entries), self.urns, zone.rows, since, zone.came_since(self.urns))

    @property
    def asked(self) -> str:
        """What the review began with in place of positives, the JSON of a query; "" where nothing was asked."""
        with self.lock:
            return self._log.asked()

    @property
    def second_reader(self) -> tuple[str, Path] | None:
        """Name and folder of the second reader; None where there is none."""
        with self.lock:
            found = self._log.reader()
            return None if found is None else (found[0], self.folder / found[1])

    @property
    def last_change(self) -> float | None:
        """Time of the last entry of the present epoch, in seconds; None before the first."""
        with self.lock:
            return self._entries[-1].time if self._entries else None

    def random_undecided(self) -> list[int]:
        """Rows drawn for the audit that count there without a label: skipped, or passed over; in order."""
        with self.lock:
            draws = [entry for entry in self._entries if entry.is_draw and entry.stream in DRAWN]
            waiting = [self._pending.get(draw.group) == draw for draw in draws]
            answered = max((number for number, one in enumerate(waiting) if not one), default=-1)
            counted = zip(draws[: answered + 1], waiting, strict=False)
            return [draw.row for draw, one in counted if one or self.skipped[draw.row]]

    # --- what is written ----------------------------------------------------------------------------

    def decide(self, proposals: Sequence[Proposal]) -> list[Entry]:
        """Write decisions on different pictures: all of them in one transaction, or none.

        A request that was written before is answered with what was written then.

        Raises
        ------
        StaleDecisionError
            A proposal replaces a decision that is no longer in force.
        SessionError
            The log cannot be written.
        ValueError
            A row that does not exist, an empty or overlong request, or one that stands for another picture.
        """
        with self.lock:
            fresh = self._fresh(proposals)
            with self._writing() as written:
                for proposal, group in fresh:
                    self._take_in(written, proposal.row, **self._decision(proposal, group))
            return [self._by_request[proposal.request] for proposal in proposals]

    def _fresh(self, proposals: Sequence[Proposal]) -> list[tuple[Proposal, int]]:
        """Proposals that are not yet written, checked, and their groups."""
        fresh: dict[str, tuple[Proposal, int]] = {}
        decided: set[int] = set()
        for proposal in proposals:
            if not 0 <= proposal.row < len(self.cache):
                raise ValueError(f"{self.cache.name} has {len(self.cache):,} rows; there is no row {proposal.row}")
            if not 0 < len(proposal.request) <= _REQUEST_LENGTH:
                raise ValueError(f"a request has an identifier of 1 to {_REQUEST_LENGTH} characters")
            group, written = int(self.groups[proposal.row]), self._by_request.get(proposal.request)
            earlier = written.group if written else fresh[proposal.request][1] if proposal.request in fresh else None
            if earlier is None:
                if group in decided or not self._accepts(proposal, group):
                    raise StaleDecisionError(proposal.request, proposal.row, self._in_force(group))
                fresh[proposal.request] = proposal, group
                decided.add(group)
            elif earlier != group:
                raise ValueError(f"request {proposal.request} was for another image; send it with a new identifier")
        return list(fresh.values())

    def ask(self, query: str) -> None:
        """Write what is asked, durably, unless it was asked last; raises `SessionError` where that fails."""
        with self.lock:
            if query != self._log.asked():
                self._check_writable()
                self._log.ask(query)
                self._reset()
                self._replay()

    def fix_zone(self, rows: np.ndarray) -> None:
        """Fix a part of the zone of the likeliest images for the rest of the review, durably.

        It holds the unknown ones of some rows, and their twins, as far as they are `outside_zone`.

        Raises
        ------
        SessionError
            The log cannot be written.
        """
        with self.lock:
            chosen = np.zeros(len(self.cache), bool)
            chosen[rows] = True
            chosen = self._groups.spread(chosen) & self.unknown & self.outside_zone
            if chosen.any():
                self._check_writable()
                with self._as_logged():
                    self._log.fix_zone([self.cache.keys[row] for row in np.flatnonzero(chosen).tolist()])
                self._zone = self._log.zone(self._base.first)
                self.zone[chosen] = self.zone.max() + 1

    @property
    def outside_zone(self) -> np.ndarray:
        """Rows of the urns that the zone is not of, bool (n,): of all, or of those that came after it was fixed."""
        with self.lock:
            return self._urn_of >= self._zone.urns

    def draw(
        self,
        rng: np.random.Generator,
        stream: Stream,
        count: int = 1,
        model_version: int = 0,
        exclude: Sequence[int] = (),
    ) -> list[Entry]:
        """Draw images at random, one after another, and write the draws in one transaction.

        An AUDIT is uniform over the unknown rows of the pile, a ZONE over those of the zone; a RECHECK over the known
        positive rows without a draw, and without the rows of `exclude` and their twins. Fewer than `count` draws where
        no more rows are there. An AUDIT of a second reader is an image that was drawn for the first, where it can be.

        Raises
        ------
        SessionError
            The log cannot be written.
        ValueError
            An audit with `exclude`, or a stream that is not drawn.
        """
        if stream not in (*DRAWN, Stream.RECHECK) or (stream in DRAWN and len(exclude)):
            raise ValueError(
                "draws are for the audit, from all unknown rows, or for rechecks, which can leave out rows"
            )
        excluded = np.unique(self.groups[np.asarray(exclude, np.int64)])
        first = self.first_reader if stream is Stream.AUDIT else None
        shared = SharedDraws.read(first, self._base.facts) if first else None
        with self.lock, self._writing() as written:
            for _ in range(count):
                rows = self._drawable(stream, excluded)
                if not len(rows):
                    break
                row = int(rng.choice(rows))
                if shared is not None:
                    row = self._shared_row(shared, row)
                fields: dict[str, Any] = {}
                if stream is Stream.ZONE:
                    fields = {"unknown": int((self.zone[rows] == self.zone[row]).sum())}
                self._take_in(written, row, stream=stream, model_version=model_version, **fields)
        return written

    def _shared_row(self, shared: SharedDraws, row: int) -> int:
        group = int(self.groups[row])
        draw = None if group in self._stacks else shared.instead_of(group, int(self._urn_of[row]), self._stacks)
        return row if draw is None else int(self.cache.keys.rows([draw.key])[0])

    def show_again(self, rows: Sequence[int]) -> None:
        """Let decided images be shown again, as if they were new, durably; each answer replaces the one before."""
        with self.lock, self._writing() as written:
            for row in rows:
                if int(self.groups[row]) not in self._pending:
                    self._take_in(written, row, stream=Stream.CONFLICT)

    def take_second(self, said: Sequence[Entry]) -> None:
        """Take in what the second reader says, in memory alone: the log of a session that is read stays as it is."""
        with self.lock:
            written: list[Entry] = []
            for entry in said:
                fields = {"choice": entry.choice, "request": "", "reviewer": entry.reviewer, "stream": Stream.SECOND}
                self._take_in(written, entry.row, **fields)
            self._entries += written

    def _drawable(self, stream: Stream, excluded: np.ndarray) -> np.ndarray:
        if stream is Stream.AUDIT:
            return np.flatnonzero(self.unknown)
        if stream is Stream.ZONE:
            return np.flatnonzero(self.unknown & (self.zone > 0))
        rows = self._recheck_candidates()
        return rows[~np.isin(self.groups[rows], excluded)]

    def _take_in(self, written: list[Entry], row: int, **fields: Any) -> None:
        """Complete the next entry, and let the state run ahead by it."""
        group, (key, digest) = int(self.groups[row]), image_of(self.cache, row)
        serial, counts = self._log.last + 1 + len(written), self._counts_of(group)
        named: dict[str, Any] = {"serial": serial, "row": row, "group": group, "key": key, "digest": digest}
        entry = Entry(time=time.time(), **(named | counts | fields))
        self._apply(entry)
        written.append(entry)

    def _check_writable(self) -> None:
        if self._log.read_only:
            raise SessionError(f"the session {self.folder} was opened for reading; open it with pucache review")

    @contextmanager
    def _writing(self) -> Iterator[list[Entry]]:
        """Write the entries that the block collects. The state runs ahead of the log, and goes back if that fails."""
        self._check_writable()
        written: list[Entry] = []
        with self._as_logged():
            yield written
            if written:
                self._check_counts(written)
                self._log.append(written)
        self._replayed += len(written)
        self._entries += written
        self._by_request |= {entry.request: entry for entry in written if entry.request is not None}

    def _check_counts(self, written: Sequence[Entry]) -> None:
        """Refuse entries that are not counted from what the log holds: they could never be taken out of it again."""
        if self._replayed != self._log.last:
            raise SessionError(f"{self._log.path} was written by another process meanwhile; send it again")
        if any(entry.is_draw for entry in written):
            counted = np.bincount(self._urn_of[self.unknown], minlength=len(self.urns)).tolist()
            if counted != self._unknown_rows:
                raise SessionError(
                    f"{counted} rows are unknown, not {self._unknown_rows}; nothing was drawn: send it again"
                )

    @contextmanager
    def _as_logged(self) -> Iterator[None]:
        """Bring the state to what the log says where the block fails; close the session where that fails too."""
        try:
            yield
        except BaseException:
            try:
                self._reset()
                self._replay()
            except BaseException as error:
                self.lock.failure = (
                    f"the review in {self.folder} has closed: its log could neither be written nor read back "
                    f"({one_line(error)[:160]}); what was acknowledged is in it: end pucache review, and start it again"
                )
                self._close()
                raise SessionError(self.lock.failure) from error
            raise


def open_session(
    cache: CacheLike,
    positives: str | Path | RowValues | Labels | None = None,
    *,
    negatives: str | Path | RowValues | None = None,
    folder: str | Path | None = None,
    twins: float | Twins | None = TWIN_COSINE,
) -> Session:
    """Begin a review session, or go on with one; it holds the folder's lock until it is closed.

    `positives` and `negatives` are labels from before the session, as for `pucache.train_pu`; None: those that the
    session began with, for a new one none. `folder` is by default ``CACHE.review`` beside the cache. From a cosine of
    `twins` on two images show the same picture and share their label; None: equal bytes only. Large caches are grouped
    by equal bytes. Sessions of one cache may share one `pucache.reviewing.pile.Twins`.

    Raises
    ------
    LabelError, CacheError
        As `pucache.labels.labels.Labels.read`.
    SessionLockedError
        Another process runs the session.
    SessionError
        The session is of another cache, began with other labels or twins, is damaged, or cannot be written.
    """
    cache = open_cache(cache)
    given = labels_if_any(cache, positives, negatives)
    path = session_folder(cache, folder)
    with ExitStack() as stack:
        lock_folder(path, stack)
        twins = twins if isinstance(twins, Twins) else Twins(cache, twins)
        return Session(cache, path, begin_or_resume(path, cache, given, twins), stack.pop_all())


def read_session(cache: CacheLike, folder: str | Path | None = None) -> Session:
    """Open a session to read it, as the log is now, also while `pucache review` runs it.

    Where the cache has changed since, decisions are matched by key and digest, and the session has no audit.

    Raises
    ------
    SessionError
        There is no session, it is of another cache, or it is damaged.
    """
    cache = open_cache(cache)
    path = session_folder(cache, folder)
    return Session(cache, path, read(path, cache), ExitStack())
