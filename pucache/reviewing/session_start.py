"""What a session starts from: a new log, the log of the same cache, or that of a cache that has changed since."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..errors import SessionError, SessionLockedError, one_line
from ..labels.label_files import name_first
from ..labels.labels import Labels
from ..neighbours.graph_file import sidecar_path
from ..storage.atomic import locked_folder
from ..storage.rows import evenly_spaced
from .log import (
    LABELS,
    Choice,
    DecisionLog,
    Entry,
    EpochFacts,
    LoggedImage,
    labelling_decisions,
)
from .log_file import LOG
from .pile import Groups, KeptPile, Twins, keep_pile, kept_pile, pile_path
from .session_folder import is_first_start, open_log
from .session_state import rows_of_urns

_LOCK = ".lock"
MOST_URNS = 4  # the limit is searched over the totals of all but one
_LISTED = 256  # images that a cache is recognised by
_UNKNOWN = bytes(32)  # digest


@dataclass(frozen=True)
class ReplayBase:
    """A log, and what its present epoch is replayed on."""

    log: DecisionLog
    facts: EpochFacts  # of the present epoch
    labels: Labels  # from before the session
    groups: Groups
    urn_of: np.ndarray  # number of the urn of each row, int8 (n,); -1 outside the pile
    carried: tuple[Entry, ...] = ()  # in force from earlier epochs, by the rows of the cache
    begins: bool = False  # whether an epoch is to begin, as the cache has changed
    note: str = ""  # what has changed in the cache
    kept: bool = False  # whether the pile of the cache is kept

    @property
    def current(self) -> bool:
        """Whether the present epoch of the log is of this cache, or of one that has grown to it."""
        return not self.begins or self.facts.continued is not None

    @property
    def first(self) -> int:
        """First epoch of the log that the present one goes on with."""
        return self.facts.continued[0] if self.facts.continued else self.log.epoch

    def since(self, entries: Sequence[Entry]) -> int:
        """As `DecisionLog.since`, also where an epoch is to begin."""
        return self.log.last if self.begins and self.facts.continued else self.log.since(entries)


def session_folder(cache: EmbeddingCache, folder: str | Path | None = None) -> Path:
    """Folder of a session; by default ``CACHE.review`` beside the first file of the cache."""
    return sidecar_path(cache, "review") if folder is None else Path(folder)


def lock_folder(folder: Path, stack: ExitStack) -> None:
    """Create the folder, and keep other servers out of it until the stack closes.

    Raises `SessionLockedError` where another process runs the session, `SessionError` where it cannot be written.
    """
    locked = SessionLockedError(
        f"{folder} is in use by another pucache review; open the address that it printed, or end it first"
    )
    try:
        stack.enter_context(locked_folder(folder, _LOCK, locked))
    except OSError as error:
        raise SessionError(
            f"cannot write the session {folder}: {one_line(error)}; name another folder with --session"
        ) from error


def begin_or_resume(folder: Path, cache: EmbeddingCache, given: Labels | None, twins: Twins) -> ReplayBase:
    """Begin a session in a locked folder, or go on with the one that is there.

    Raises `SessionError` where it is of another cache, began with other labels or twins, is damaged, or cannot be
    written.
    """
    if is_first_start(folder):
        labels, groups = given or Labels.of(np.zeros(len(cache))), Groups(twins.group)
        urn_of = _urns(labels, groups, ())
        facts = _facts(cache, urn_of, twins)
        log = DecisionLog.create(folder / LOG, facts, _images(cache, labels))
        keep_pile(pile_path(folder, facts.checksums), cache, urn_of, groups)
        return ReplayBase(log, facts, labels, groups, urn_of)
    log = open_log(folder)
    try:
        base = _LoggedSession(log, cache, twins).base(given)
        if not base.kept:
            keep_pile(pile_path(folder, base.facts.checksums), cache, base.urn_of, base.groups)
        if base.begins:
            log.begin_epoch(base.facts, _images(cache, base.labels))
        return replace(base, begins=False)
    except BaseException:
        log.close()
        raise


def begin_beside(first: Path, folder: Path, cache: EmbeddingCache) -> None:
    """Begin the session of a second reader: with the labels, the pile and the query of the first one's."""
    base = read(first, cache)
    with base.log as log:
        asked = log.asked()
    facts = replace(base.facts, continued=None)
    with DecisionLog.create(folder / LOG, facts, _images(cache, base.labels)) as log:
        keep_pile(pile_path(folder, facts.checksums), cache, base.urn_of, base.groups)
        if asked:
            log.ask(asked)


def read(folder: Path, cache: EmbeddingCache) -> ReplayBase:
    """Read the session in a folder; nothing is written. Raises `SessionError` as `begin_or_resume`."""
    log = open_log(folder, read_only=True)
    try:
        return _LoggedSession(log, cache, Twins(cache, log.facts().twins)).base(None)
    except BaseException:
        log.close()
        raise


class _LoggedSession:
    """What a log holds, by the rows of a cache: the one that it was written for, or what has become of it."""

    def __init__(self, log: DecisionLog, cache: EmbeddingCache, twins: Twins):
        self.log, self.cache, self.twins, self.facts = log, cache, twins, log.facts()
        self.is_same_cache = self.facts.checksums == _checksums(cache)
        if self.is_same_cache and self.facts.twins != twins.cosine:
            began = "equal bytes only" if self.facts.twins is None else f"a cosine of {self.facts.twins}"
            raise SessionError(
                f"{log.path.parent} began with twins by {began}; go on with these (--twins), or name another folder "
                "with --session"
            )
        self.images, self.entries = log.images(), log.entries()
        self.image_rows, self.entry_rows = rows_of(cache, self.images), rows_of(cache, self.entries)
        path = pile_path(log.path.parent, self.facts.checksums)
        self.kept = kept_pile(path, cache, twins) if self.facts.twins == twins.cosine else None
        self.groups = Groups(twins.group) if self.kept is None else self.kept.groups
        self.first = self.facts.continued[0] if self.facts.continued else log.epoch

    def base(self, given: Labels | None) -> ReplayBase:
        """The present epoch of the log, or where the cache has changed, the epoch to begin."""
        log, cache, facts, kept, labels = self.log, self.cache, self.facts, self.kept, self._labels()
        carried, note = self._carried(self.first), self._note()
        if self.is_same_cache:
            _check_labels(log, labels, given)
            urn_of = _urns(labels, self.groups, carried) if kept is None else kept.urn_of
            if tuple(rows_of_urns(urn_of)) == facts.urns and _pile_checksum(cache, urn_of) == facts.pile_checksum:
                note = _grown_note(facts.urns[-1]) if facts.continued else note if log.epoch > 1 else ""
                is_kept = kept is not None
                return ReplayBase(log, facts, labels, self.groups, urn_of, carried, note=note, kept=is_kept)
        elif not (self.image_rows >= 0).any() and not (self.entry_rows >= 0).any():
            raise SessionError(
                f"{log.path.parent} is a session of {facts.cache}; {cache.name} holds none of its images: name another "
                "folder with --session"
            )
        elif kept is not None and len(facts.urns) < MOST_URNS and self._goes_on(kept, labels, given):
            since = self.entry_rows[[entry.epoch >= self.first for entry in self.entries]]
            labels, urn_of = given or labels, kept.urn_of.copy()
            came = ~self.groups.spread(kept.old | ~labels.unlabelled)
            urn_of[came] = len(facts.urns)
            urns = (*facts.urns, int(came.sum()))
            continued = self.first, tuple(self.groups.group[since].tolist())
            facts = replace(_facts(cache, urn_of, self.twins), urns=urns, continued=continued)
            return ReplayBase(log, facts, labels, self.groups, urn_of, carried, True, _grown_note(urns[-1]))
        labels, carried = given or labels, self._carried(log.epoch + 1)
        urn_of = _urns(labels, self.groups, carried)
        return ReplayBase(log, _facts(cache, urn_of, self.twins), labels, self.groups, urn_of, carried, True, note)

    def _goes_on(self, kept: KeptPile, labels: Labels, given: Labels | None) -> bool:
        """Whether the log goes on with its pile: its images are there, and no label of before has changed."""
        rows = zip(self.entries, self.entry_rows.tolist(), strict=True)
        there = all(row >= 0 for entry, row in rows if entry.epoch >= self.first)
        old = kept.old
        same = given is None or (
            np.array_equal(given.s[old], labels.s[old]) and np.array_equal(given.reviewed[old], labels.reviewed[old])
        )
        return there and same and not labels.positive[~old].any() and not (labels.reviewed[~old] != 0).any()

    def _labels(self) -> Labels:
        """Labels that the present epoch began with, as far as the cache still holds the images."""
        s, reviewed = np.zeros(len(self.cache), np.int8), np.zeros(len(self.cache), np.int8)
        for image, row in zip(self.images, self.image_rows.tolist(), strict=True):
            if row < 0 or image.label is None or image.epoch != self.log.epoch:
                continue
            if image.label and not image.reviewed:
                s[row] = 1
            else:
                reviewed[row] = 1 if image.label else -1
        return Labels(s, reviewed)

    def _carried(self, epoch: int) -> tuple[Entry, ...]:
        """Decisions that label after the entries before an epoch, without those whose image is gone."""
        present = (
            replace(entry, row=row, group=int(self.groups.group[row]), copies=0)
            for entry, row in zip(self.entries, self.entry_rows.tolist(), strict=True)
            if row >= 0 and entry.epoch < epoch
        )
        kept = (decision for decision in labelling_decisions(present).values() if decision.choice is not Choice.UNDONE)
        return tuple(sorted(kept, key=lambda decision: decision.serial))

    def _note(self) -> str:
        """What has changed since the session began, and what that means for the audit."""
        images = zip(self.images, self.image_rows.tolist(), strict=True)
        entries = zip(self.entries, self.entry_rows.tolist(), strict=True)
        gone = {image.key for image, row in images if row < 0 and image.label}
        gone |= {entry.key for entry, row in entries if row < 0 and not entry.is_draw}
        lost = f" {len(gone):,} labelled or decided images are gone or other images now ({name_first(sorted(gone))})."
        return "The cache has changed since this session began; the audit counts from the change on." + lost * bool(
            gone
        )


def _grown_note(count: int) -> str:
    """What images that came since mean for the audit."""
    return (
        f"{count:,} images came to the cache since this session began. The limit of the others stands; of the new ones "
        "all may be positive until random images come from them."
    )


def _urns(labels: Labels, groups: Groups, carried: Sequence[Entry]) -> np.ndarray:
    """Urn of each row, int8 (n,): one urn, the rows neither labelled, nor decided before, nor twins of such rows."""
    outside = ~labels.unlabelled
    outside[[decision.row for decision in carried if decision.choice in LABELS]] = True
    return -groups.spread(outside).astype(np.int8)


def _facts(cache: EmbeddingCache, urn_of: np.ndarray, twins: Twins) -> EpochFacts:
    return EpochFacts(
        cache=cache.name,
        checksums=_checksums(cache),
        rows=len(cache),
        urns=tuple(rows_of_urns(urn_of)),
        pile_checksum=_pile_checksum(cache, urn_of),
        twins=twins.cosine,
        grouping=twins.kind,
    )


def _checksums(cache: EmbeddingCache) -> tuple[str, ...]:
    """Checksums of the files of a cache, in an order that does not depend on how they were named."""
    return tuple(sorted(cache.checksums))


def _pile_checksum(cache: EmbeddingCache, urn_of: np.ndarray) -> str:
    """Checksum of which images are in the pile, file by file in the order of `_checksums`."""
    parts = np.split(urn_of >= 0, np.cumsum([len(file) for file in cache.files])[:-1])
    ordered = sorted(zip(cache.checksums, parts, strict=True), key=lambda pair: pair[0])
    return hashlib.sha256(b"".join(np.packbits(part).tobytes() for _, part in ordered)).hexdigest()[:32]


def _images(cache: EmbeddingCache, labels: Labels) -> list[LoggedImage]:
    """Labelled images of a cache, and a few others by which it can be recognised."""
    labelled = np.flatnonzero(~labels.unlabelled)
    others = np.setdiff1d(evenly_spaced(len(cache), _LISTED), labelled)
    images = [
        LoggedImage(*image_of(cache, row), int(labels.positive[row]), int(labels.reviewed[row] != 0))
        for row in labelled.tolist()
    ]
    return images + [LoggedImage(*image_of(cache, row)) for row in others.tolist()]


def image_of(cache: EmbeddingCache, row: int) -> tuple[str, bytes]:
    """Key and digest of a row."""
    return cache.keys[row], cache.digest_matrix[row].tobytes()


def rows_of(cache: EmbeddingCache, images: Sequence[LoggedImage | Entry]) -> np.ndarray:
    """Row of each image, int64 (len(images),); -1 where the key is gone or names another image now.

    A digest that is unknown on either side agrees with any other.
    """
    rows = cache.keys.rows([image.key for image in images])
    digests = cache.digest_matrix
    for position, image in enumerate(images):
        row = int(rows[position])
        if row >= 0 and image.digest != _UNKNOWN:
            present = digests[row].tobytes()
            if present not in (image.digest, _UNKNOWN):
                rows[position] = -1
    return rows


def _check_labels(log: DecisionLog, labels: Labels, given: Labels | None) -> None:
    if given is None:
        return
    if not (np.array_equal(given.s, labels.s) and np.array_equal(given.reviewed, labels.reviewed)):
        began, now = (f"{of.positive.sum():,} positives, {of.negative.sum():,} negatives" for of in (labels, given))
        raise SessionError(
            f"{log.path.parent} began with other labels ({began}; now {now}); leave --positives out to go on with "
            "those, or name another folder with --session"
        )
