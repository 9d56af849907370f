"""A review session: labels, log and audit draws of one pile, for any number of tabs and threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..cache.embedding_cache import CacheLike, EmbeddingCache, open_cache
from ..errors import SessionError, StaleDecisionError
from ..estimates.audited_prior import AuditedHidden
from ..labels.labels import TWIN_COSINE, Labels
from .audit import Audit, audit
from .log import DRAWN, AuditedEntries, Choice, Entry, Stream
from .session_start import ReplayBase, begin_or_resume, image_of, labels_before, lock_folder, read, session_folder
from .session_state import Proposal, SessionProgress

LEAST_POSITIVES = 3  # random images that are positive, from which on the likeliest number is a figure
_REQUEST_LENGTH = 200


class Session:
    """A session that is open; see `open_session`.

    Attributes
    ----------
    cache : EmbeddingCache
    folder : Path
    urns : tuple of int
        Rows of each urn; together the pile, the rows neither labelled nor twins of labelled ones when the epoch began.
    grouping : str
        How twins were found, see `pucache.reviewing.twins`.
    epoch_note : str
        What has changed in the cache since the session began, and what that means for the audit; "" if nothing.
    lock : threading.RLock
        Every method holds it; hold it around several that belong together.
    """

    def __init__(self, cache: EmbeddingCache, folder: Path, base: ReplayBase, stack: ExitStack):
        self.cache, self.folder, self._stack = cache, folder, stack
        self.urns, self.grouping = base.facts.urns, base.facts.grouping
        self.epoch_note = base.note
        self._base, self._log = base, base.log
        self.lock = threading.RLock()
        self._load()

    def _load(self) -> None:
        """Bring labels and counts to what the log says."""
        self._state, self._entries, self._by_request = self._base.replay(self.cache)

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
        return self._base.groups.group

    @property
    def file_labels(self) -> Labels:
        """Labels from before the session, without what twins inherit."""
        return self._base.labels

    @property
    def unknown(self) -> np.ndarray:
        """Rows of the pile neither decided nor drawn for the audit, bool (n,); read-only, follows each entry."""
        return _read_only(self._state.unknown)

    @property
    def zone(self) -> np.ndarray:
        """Rows of the zone of the likeliest images, bool (n,); read-only; none before `fix_zone`."""
        return _read_only(self._state.zone)

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
        """Labels as of now, int8 (n,) each.

        s is 1 for what was labelled positive before the session; where nothing was, for the positives decided in it.
        reviewed is 1 confirmed positive, -1 known negative, 0 neither. Twins of labelled and of decided images inherit.
        """
        with self.lock:
            return self._state.labels()

    def counts(self) -> SessionProgress:
        """Progress of the review."""
        with self.lock:
            return self._state.progress()

    def entries(self) -> list[Entry]:
        """Draws and decisions of the present epoch, in order; what the audit is computed from."""
        with self.lock:
            return list(self._entries)

    def audited_entries(self) -> AuditedEntries:
        """What the audit is computed from."""
        with self.lock:
            return AuditedEntries(list(self._entries), self.urns, int(self.zone.sum()), self._base.since(self._entries))

    def decision_in_force(self, row: int) -> Entry | None:
        """Decision in force on the picture of a row."""
        with self.lock:
            return self._state.in_force(int(self.groups[row]))

    def decision_to_show(self, row: int) -> Entry | None:
        """As `decision_in_force`, but None where a recheck is pending, which must look like any new image."""
        with self.lock:
            draw = self._state.pending.get(int(self.groups[row]))
            return None if draw is not None and draw.stream is Stream.RECHECK else self.decision_in_force(row)

    @property
    def last_change(self) -> float | None:
        """Time of the last entry of the present epoch, in seconds; None before the first."""
        with self.lock:
            return self._entries[-1].time if self._entries else None

    def past(self, before: int, count: int) -> list[tuple[int, int, Choice]]:
        """Serial number of the decision in force, row and label of decided pictures, newest first; see `correction`.

        Those that wait for a recheck are left out. `before`: only smaller serial numbers, 0 for all.
        """
        with self.lock:
            return self._state.past(before, count)

    def pending_draws(self) -> list[Entry]:
        """Draws that no decision has answered, in order."""
        with self.lock:
            return list(self._state.pending.values())

    def random_undecided(self) -> list[int]:
        """Rows drawn for the audit that count there without a label: skipped, or passed over; in order."""
        with self.lock:
            draws = [entry for entry in self._entries if entry.is_draw and entry.stream in DRAWN]
            waiting = [self._state.pending.get(draw.group) == draw for draw in draws]
            answered = max((number for number, one in enumerate(waiting) if not one), default=-1)
            counted = zip(draws[: answered + 1], waiting, strict=False)
            return [draw.row for draw, one in counted if one or self._state.skipped[draw.row]]

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
                    self._take_in(written, proposal.row, **self._state.decision(proposal, group))
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
                if group in decided or not self._state.accepts(proposal, group):
                    raise StaleDecisionError(proposal.request, proposal.row, self._state.in_force(group))
                fresh[proposal.request] = proposal, group
                decided.add(group)
            elif earlier != group:
                raise ValueError(f"request {proposal.request} was for another image; send it with a new identifier")
        return list(fresh.values())

    def fix_zone(self, rows: np.ndarray) -> None:
        """Fix the zone of the likeliest images for the rest of the review, durably; nothing where there is one.

        It holds the unknown ones of some rows, and their twins in the pile.

        Raises
        ------
        SessionError
            The log cannot be written.
        """
        with self.lock:
            chosen = np.zeros(len(self.cache), bool)
            chosen[rows] = True
            chosen = self._base.groups.spread(chosen) & self._state.unknown
            if chosen.any() and not self._state.zone.any():
                self._check_writable()
                self._log.fix_zone([self.cache.keys[row] for row in np.flatnonzero(chosen).tolist()])
                self._state.zone |= chosen

    def draw(
        self,
        rng: np.random.Generator,
        stream: Stream,
        count: int = 1,
        expected: float | None = None,
        model_version: int = 0,
        exclude: Sequence[int] = (),
    ) -> list[Entry]:
        """Draw images at random, one after another, and write the draws in one transaction.

        An AUDIT is uniform over the unknown rows of the pile, a ZONE over those of the zone; a RECHECK over the known
        positive rows without a draw, and without the rows of `exclude` and their twins. Fewer than `count` draws where
        no more rows are there.

        Raises
        ------
        SessionError
            The log cannot be written.
        ValueError
            An audit with `exclude`, or a stream that is not drawn.
        """
        if stream is Stream.RANKED or (stream in DRAWN and len(exclude)):
            raise ValueError(
                "draws are for the audit, from all unknown rows, or for rechecks, which can leave out rows"
            )
        excluded = np.unique(self.groups[np.asarray(exclude, np.int64)])
        with self.lock, self._writing() as written:
            for _ in range(count):
                rows = self._drawable(stream, excluded)
                if not len(rows):
                    break
                row = int(rng.choice(rows))
                fields: dict[str, Any] = {"unknown": len(rows)} if stream is Stream.ZONE else {}
                self._take_in(written, row, stream=stream, expected=expected, model_version=model_version, **fields)
        return written

    def _drawable(self, stream: Stream, excluded: np.ndarray) -> np.ndarray:
        if stream is Stream.AUDIT:
            return np.flatnonzero(self._state.unknown)
        if stream is Stream.ZONE:
            return np.flatnonzero(self._state.unknown & self._state.zone)
        rows = self._state.recheck_candidates()
        return rows[~np.isin(self.groups[rows], excluded)]

    def _take_in(self, written: list[Entry], row: int, **fields: Any) -> None:
        """Complete the next entry, and let the state run ahead by it."""
        group, (key, digest) = int(self.groups[row]), image_of(self.cache, row)
        serial, counts = self._log.last + 1 + len(written), self._state.counts_of(group)
        named: dict[str, Any] = {"serial": serial, "row": row, "group": group, "key": key, "digest": digest}
        entry = Entry(time=time.time(), **(named | counts | fields))
        self._state.apply(entry)
        written.append(entry)

    def _check_writable(self) -> None:
        if self._log.read_only:
            raise SessionError(f"the session {self.folder} was opened for reading; open it with pucache review")

    @contextmanager
    def _writing(self) -> Iterator[list[Entry]]:
        """Write the entries that the block collects. The state runs ahead of the log, and goes back if that fails."""
        self._check_writable()
        written: list[Entry] = []
        try:
            yield written
            if written:
                self._log.append(written)
        except BaseException:
            self._load()
            raise
        self._entries += written
        self._by_request |= {entry.request: entry for entry in written if entry.request is not None}


def open_session(
    cache: CacheLike,
    positives: str | Path | np.ndarray | Labels | None = None,
    *,
    negatives: str | Path | None = None,
    folder: str | Path | None = None,
    twins: float | None = TWIN_COSINE,
    group: np.ndarray | None = None,
) -> Session:
    """Begin a review session, or go on with one; it holds the folder's lock until it is closed.

    `positives` and `negatives` are labels from before the session, as for `pucache.train_pu`; None: those that the
    session began with, for a new one none. `folder` is by default ``CACHE.review`` beside the cache. From a cosine of
    `twins` on two images show the same picture and share their label; None: equal bytes only. Large caches are grouped
    by equal bytes; see `Session.grouping`. `group` are the groups where they are known, int64 (n,).

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
        return Session(cache, path, begin_or_resume(path, cache, given, twins, group), stack.pop_all())


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


def session_labels(session: Session) -> Labels:
    """Labels of a session as of now, with the audit where a random image has a label."""
    return Labels(*session.labels(), hidden=_hidden(audit(session)))


def read_labels(cache: CacheLike, folder: str | Path | None = None) -> Labels:
    """Labels of the session in a folder, with its audit where a random image has a label.

    Parameters
    ----------
    cache : EmbeddingCache, path, or sequence of paths
        The cache that was reviewed.
    folder : path, optional
        Of the session. Default: ``CACHE.review`` beside the cache.

    Returns
    -------
    Labels
        They go wherever labels go, such as `pucache.train_pu` and `pucache.report`. With an audit, estimates of
        prior, recall, precision and F1 rest on it.

    Raises
    ------
    SessionError
        There is no session, it is of another cache, or it is damaged.
    LabelError
        There is no positive in it, or no unlabelled row.
    """
    with read_session(cache, folder) as session:
        labels = session_labels(session)
    labels.check()
    return labels


def _hidden(audited: Audit) -> AuditedHidden | None:
    if audited.draws <= audited.skipped + audited.pending:
        return None
    likeliest = audited.likeliest_share * audited.unknown if audited.unknown else 0.0
    is_figure = audited.positives >= LEAST_POSITIVES or audited.hidden_low == audited.hidden_high
    return AuditedHidden(
        low=audited.hidden_low,
        high=audited.hidden_high,
        likeliest=min(max(likeliest, audited.hidden_low), audited.hidden_high) if is_figure else None,
        draws=audited.draws,
        level=audited.level,
        overlooked=audited.sensitivity_low is not None,
        statements=tuple(audited.statements()),
    )


def _read_only(values: np.ndarray) -> np.ndarray:
    view = values.view()
    view.flags.writeable = False
    return view
