"""A review session: labels, log and audit draws of one pile, for any number of tabs and threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np

from ..cache.embedding_cache import CacheLike, EmbeddingCache, open_cache
from ..errors import SessionError, StaleDecisionError
from ..labels.labels import TWIN_COSINE, Labels
from .cache_match import image_of
from .log_entries import Decision, Draw, Entry, Proposal, Stream
from .log_records import Record
from .session_folder import lock_folder, session_folder
from .session_start import Start, begin_or_resume, labels_before, read
from .sitting_state import SittingCounts

_REQUEST_LENGTH = 200


class Session:
    """A session that is open; see `open_session`.

    Attributes
    ----------
    cache : EmbeddingCache
    folder : Path
    pile_size : int
        Rows that were neither labelled nor twins of labelled ones when the epoch began.
    grouping : str
        How twins were found, see `pucache.reviewing.twins`.
    epoch_note : str
        What has changed in the cache since the session began, and what that means for the audit; "" if nothing.
    lock : threading.RLock
        Every method holds it; hold it around several that belong together.
    """

    def __init__(self, cache: EmbeddingCache, folder: Path, start: Start, stack: ExitStack):
        self.cache, self.folder, self._stack = cache, folder, stack
        self.pile_size, self.grouping = start.facts.pile, start.facts.grouping
        self.epoch_note = start.note
        self._start, self._log = start, start.log
        self.lock = threading.RLock()
        self._load()

    def _load(self) -> None:
        """Bring labels and counts to what the log says."""
        self._state, self._entries, self._by_request = self._start.replay(self.cache)

    def close(self) -> None:
        """Close the log and release the folder; closing twice is allowed."""
        with self.lock:
            self._log.close()
            self._stack.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- what stands -------------------------------------------------------------------------------

    @property
    def groups(self) -> np.ndarray:
        """Smallest row of the images that show the same picture, int64 (n,)."""
        return self._start.groups.group

    @property
    def file_labels(self) -> Labels:
        """Labels from before the session, without what twins inherit."""
        return self._start.labels

    @property
    def unknown(self) -> np.ndarray:
        """Rows of the pile neither decided nor drawn for the audit, bool (n,); read-only, follows each entry."""
        return _read_only(self._state.unknown)

    @property
    def skipped(self) -> np.ndarray:
        """Rows whose last decision is a skip, bool (n,); read-only, follows each entry."""
        return _read_only(self._state.skipped)

    @property
    def label_serial(self) -> int:
        """Serial number of the last decision; labels are the same as long as it is."""
        with self.lock:
            return self._state.last_decision

    def labels(self) -> tuple[np.ndarray, np.ndarray]:
        """Labels as of now.

        Returns
        -------
        s : ndarray of int8, (n,)
            1 labelled positive before the session. Where none was, 1 for the positives decided in it.
        reviewed : ndarray of int8, (n,)
            1 confirmed positive, -1 known negative, 0 neither. Twins of labelled and of decided images inherit.
        """
        with self.lock:
            return self._state.labels()

    def counts(self) -> SittingCounts:
        """Progress of the sitting."""
        with self.lock:
            return self._state.counts()

    def entries(self) -> list[Entry]:
        """Draws and decisions of the present epoch, in order; what the audit is computed from."""
        with self.lock:
            return list(self._entries)

    def decision_in_force(self, row: int) -> Decision | None:
        """Decision in force on the picture of a row."""
        with self.lock:
            return self._state.in_force(row)

    def decision_to_show(self, row: int) -> Decision | None:
        """As `decision_in_force`, but None where a recheck is pending, which must look like any new image."""
        with self.lock:
            draw = self._state.pending.get(int(self.groups[row]))
            return None if draw is not None and draw.stream is Stream.RECHECK else self._state.in_force(row)

    def pending_draws(self) -> list[Draw]:
        """Draws that no decision has answered, in order."""
        with self.lock:
            return list(self._state.pending.values())

    # --- what is written ----------------------------------------------------------------------------

    def decide(self, proposals: Sequence[Proposal]) -> list[Decision]:
        """Write decisions: all of them in one transaction, or none.

        Parameters
        ----------
        proposals : sequence of Proposal
            On different pictures.

        Returns
        -------
        list of Decision
            On disk. For a request that was written before, what was written then.

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
            if fresh:
                self._write(fresh)
            return [self._by_request[proposal.request] for proposal in proposals]

    def _fresh(self, proposals: Sequence[Proposal]) -> list[Proposal]:
        """Proposals that are not yet written, checked."""
        fresh: dict[str, Proposal] = {}
        decided: set[int] = set()
        for proposal in proposals:
            self._check(proposal)
            group = int(self.groups[proposal.row])
            earlier = self._by_request.get(proposal.request) or fresh.get(proposal.request)
            if earlier is not None:
                if int(self.groups[earlier.row]) != group:
                    raise ValueError(f"request {proposal.request} was for another image; send it with a new identifier")
                continue
            if group in decided or not self._state.accepts(proposal):
                raise StaleDecisionError(proposal.request, proposal.row, self._state.in_force(proposal.row))
            fresh[proposal.request] = proposal
            decided.add(group)
        return list(fresh.values())

    def _check(self, proposal: Proposal) -> None:
        if not 0 <= proposal.row < len(self.cache):
            raise ValueError(f"{self.cache.name} has {len(self.cache):,} rows; there is no row {proposal.row}")
        if not 0 < len(proposal.request) <= _REQUEST_LENGTH:
            raise ValueError(f"a request has an identifier of 1 to {_REQUEST_LENGTH} characters")

    def draw(
        self,
        rng: np.random.Generator,
        stream: Stream,
        count: int = 1,
        expected: float = float("nan"),
        model_version: int = 0,
        exclude: Sequence[int] = (),
    ) -> list[Draw]:
        """Draw images at random, one after another, and write the draws in one transaction.

        Parameters
        ----------
        rng : Generator
        stream : Stream
            AUDIT: uniform over the unknown rows. RECHECK: uniform over the known positive rows without a draw.
        count : int
        expected : float
            Share of positives among the unknown rows by the model; NaN without one.
        model_version : int
        exclude : sequence of int
            Rows that a recheck leaves out, together with their twins. An audit leaves out none.

        Returns
        -------
        list of Draw
            On disk; fewer than `count` where no more rows are there.

        Raises
        ------
        SessionError
            The log cannot be written.
        ValueError
            An audit with `exclude`, or a stream that is not drawn.
        """
        if stream is Stream.RANKED or (stream is Stream.AUDIT and len(exclude)):
            raise ValueError(
                "draws are for the audit, from all unknown rows, or for rechecks, which can leave out rows"
            )
        excluded = np.unique(self.groups[np.asarray(exclude, np.int64)])
        draws: list[Draw] = []
        with self.lock, self._writing() as records:
            for _ in range(count):
                rows = self._drawable(stream, excluded)
                if not len(rows):
                    break
                draw = self._state.draw(
                    int(rng.choice(rows)), stream, serial=self._log.last + 1 + len(records), time=time.time()
                )
                draws.append(replace(draw, expected=float(expected), model_version=model_version))
                self._take_in(draws[-1], records)
        return draws

    def _drawable(self, stream: Stream, excluded: np.ndarray) -> np.ndarray:
        if stream is Stream.AUDIT:
            return np.flatnonzero(self._state.unknown)
        rows = self._state.recheck_candidates()
        return rows[~np.isin(self.groups[rows], excluded)]

    def _write(self, proposals: Sequence[Proposal]) -> None:
        with self._writing() as records:
            for proposal in proposals:
                serial = self._log.last + 1 + len(records)
                decision, restores = self._state.decision(proposal, serial=serial, time=time.time())
                self._take_in(decision, records, restores)

    def _take_in(self, entry: Entry, records: list[Record], restores: int = 0) -> None:
        image = image_of(self.cache, entry.row)
        records.append(Record(entry, image.key, image.digest, restores))
        self._state.apply(entry, restores)

    @contextmanager
    def _writing(self) -> Iterator[list[Record]]:
        """Write the records that the block collects. The state runs ahead of the log, and goes back if that fails."""
        if self._log.read_only:
            raise SessionError(f"the session {self.folder} was opened for reading; open it with pucache review")
        records: list[Record] = []
        try:
            yield records
            if records:
                self._log.append(records)
        except BaseException:
            self._load()
            raise
        for entry in (record.entry for record in records):
            self._entries.append(entry)
            if isinstance(entry, Decision):
                self._by_request[entry.request] = entry


def open_session(
    cache: CacheLike,
    positives: str | Path | np.ndarray | Labels | None = None,
    *,
    negatives: str | Path | None = None,
    folder: str | Path | None = None,
    twins: float | None = TWIN_COSINE,
) -> Session:
    """Begin a review session, or go on with one.

    Parameters
    ----------
    cache : EmbeddingCache, path, or sequence of paths
    positives : path, str, ndarray of int8 (n,), Labels, or None
        Labels from before the session, as for `pucache.train_pu`. None: those that the session began with; for a
        new session none.
    negatives : path or str, optional
        As for `pucache.train_pu`.
    folder : path, optional
        Default: ``CACHE.review`` beside the cache.
    twins : float or None
        Cosine from which on two images show the same picture and share their label. None: equal bytes only.
        Large caches are grouped by equal bytes; see `Session.grouping`.

    Returns
    -------
    Session
        Holds the folder's lock until it is closed.

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
    given = labels_before(cache, positives, negatives)
    path = session_folder(cache, folder)
    with ExitStack() as stack:
        lock_folder(path, stack)
        start = begin_or_resume(path, cache, given, twins)
        return Session(cache, path, start, stack.pop_all())


def read_session(cache: CacheLike, folder: str | Path | None = None) -> Session:
    """Open a session to read it, also while `pucache review` runs it.

    Parameters
    ----------
    cache : EmbeddingCache, path, or sequence of paths
        Where it has changed since, decisions are matched by key and digest, and the session has no audit.
    folder : path, optional
        As for `open_session`.

    Returns
    -------
    Session
        It shows the log as it was when it was opened.

    Raises
    ------
    SessionError
        There is no session, it is of another cache, or it is damaged.
    """
    cache = open_cache(cache)
    path = session_folder(cache, folder)
    return Session(cache, path, read(path, cache), ExitStack())


def _read_only(values: np.ndarray) -> np.ndarray:
    view = values.view()
    view.flags.writeable = False
    return view
