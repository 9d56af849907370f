"""What a session starts from: a new log, the log of the same cache, or that of a cache that has changed since."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..errors import SessionError
from ..labels.label_files import name_first, read_decisions
from ..labels.labels import Labels, open_labels
from .cache_match import listed_images, rows_of
from .decision_log import DecisionLog, is_unwritten
from .log_entries import Choice, Decision, Entry
from .log_records import LoggedImage, Record, SittingFacts
from .session_folder import LOG, groups_in
from .sitting_state import SittingState
from .twins import Groups, grouping_of


@dataclass(frozen=True)
class Start:
    """A log, and what it is replayed on.

    Attributes
    ----------
    log : DecisionLog
    facts : SittingFacts
        Of the present epoch.
    labels : Labels
        From before the session.
    groups : Groups
    in_pile : ndarray of bool, (n,)
    carried : tuple of Decision
        Decisions in force from earlier epochs, by the rows of the cache.
    current : bool
        Whether the present epoch of the log is of this cache.
    note : str
        What has changed in the cache.
    """

    log: DecisionLog
    facts: SittingFacts
    labels: Labels
    groups: Groups
    in_pile: np.ndarray
    carried: tuple[Decision, ...] = ()
    current: bool = True
    note: str = ""

    def replay(self, cache: EmbeddingCache) -> tuple[SittingState, list[Entry], dict[str, Decision]]:
        """State after all entries, entries of the present epoch, and all decisions by request."""
        state = SittingState(self.labels, self.groups, self.in_pile)
        for decision in self.carried:
            state.carry(decision)
        entries: list[Entry] = []
        by_request: dict[str, Decision] = {}
        records = self.log.records()
        for record, row in zip(records, rows_of(cache, records).tolist(), strict=True):
            entry = record.entry if row < 0 else replace(record.entry, row=row, group=int(self.groups.group[row]))
            if isinstance(entry, Decision):
                by_request[entry.request] = entry
            if self.current and record.epoch == self.log.epoch:
                if row < 0 or not state.can_apply(entry, record.restores):
                    raise SessionError(
                        f"{self.log.path} is damaged: entry {entry.serial} does not fit those before it; restore it "
                        "from a copy, or name another folder with --session"
                    )
                state.apply(entry, record.restores)
                entries.append(entry)
        return state, entries, by_request


def labels_before(
    cache: EmbeddingCache, positives: str | Path | np.ndarray | Labels | None, negatives: str | Path | None
) -> Labels | None:
    """Labels that a session is to begin with; None where none are named.

    Raises
    ------
    LabelError
        As `pucache.labels.labels.open_labels`.
    """
    if positives is not None:
        return open_labels(cache, positives, negatives)
    if negatives is None:
        return None
    reviewed = np.zeros(len(cache), np.int8)
    reviewed[read_decisions(cache, negatives, 0)[0]] = -1
    return Labels(np.zeros(len(cache), np.int8), reviewed)


def begin_or_resume(folder: Path, cache: EmbeddingCache, given: Labels | None, twins: float | None) -> Start:
    """Begin a session in a locked folder, or go on with the one that is there.

    Raises
    ------
    SessionError
        It is of another cache, began with other labels or twins, is damaged, or cannot be written.
    """
    path = folder / LOG
    if is_unwritten(path):
        labels = given or Labels.of(np.zeros(len(cache)))
        groups = Groups(groups_in(folder, cache, twins, keep=True))
        in_pile = _pile(labels, groups, ())
        facts = _facts(cache, groups, in_pile, twins)
        return Start(DecisionLog.create(path, facts, _images(cache, labels)), facts, labels, groups, in_pile)
    log = DecisionLog.open(path)
    try:
        _check_twins(log, cache, twins)
        start = _standing(log, cache, given, twins, keep=True)
        if not start.current:
            log.begin_epoch(start.facts, _images(cache, start.labels))
        return replace(start, current=True)
    except BaseException:
        log.close()
        raise


def read(folder: Path, cache: EmbeddingCache) -> Start:
    """Read the session in a folder; nothing is written.

    Raises
    ------
    SessionError
        There is none, it is of another cache, or it is damaged.
    """
    log = DecisionLog.open(folder / LOG, read_only=True)
    try:
        return _standing(log, cache, None, log.facts().twins, keep=False)
    except BaseException:
        log.close()
        raise


def _standing(
    log: DecisionLog, cache: EmbeddingCache, given: Labels | None, twins: float | None, *, keep: bool
) -> Start:
    """The present epoch of a log, or where the cache has changed, the epoch to begin."""
    facts, images, records = log.facts(), log.images(), log.records()
    groups = Groups(groups_in(log.path.parent, cache, twins, keep=keep))
    image_rows, record_rows = rows_of(cache, images), rows_of(cache, records)
    labels = _labels(cache, [(image, row) for image, row in zip(images, image_rows.tolist(), strict=True)], log.epoch)
    if facts.checksums == _checksums(cache):
        _check_labels(log, labels, given)
        before = [number for number, record in enumerate(records) if record.epoch < log.epoch]
        carried = _carried([records[number] for number in before], record_rows[before], groups)
        in_pile = _pile(labels, groups, carried)
        if _pile_checksum(cache, in_pile) == facts.pile_checksum:
            note = _note(log, cache, images, image_rows, records, record_rows) if log.epoch > 1 else ""
            return Start(log, facts, labels, groups, in_pile, carried, note=note)
    elif not (image_rows >= 0).any() and not (record_rows >= 0).any():
        raise SessionError(
            f"{log.path.parent} is a session of {facts.cache}; {cache.name} holds none of its images: name another "
            "folder with --session"
        )
    labels, carried = given or labels, _carried(records, record_rows, groups)
    in_pile = _pile(labels, groups, carried)
    note = _note(log, cache, images, image_rows, records, record_rows)
    return Start(log, _facts(cache, groups, in_pile, twins), labels, groups, in_pile, carried, False, note)


def _labels(cache: EmbeddingCache, images: Sequence[tuple[LoggedImage, int]], epoch: int) -> Labels:
    """Labels that an epoch began with, as far as the cache still holds the images."""
    s, reviewed = np.zeros(len(cache), np.int8), np.zeros(len(cache), np.int8)
    for image, row in images:
        if row < 0 or image.label is None or image.epoch != epoch:
            continue
        if image.label and not image.reviewed:
            s[row] = 1
        else:
            reviewed[row] = 1 if image.label else -1
    return Labels(s, reviewed)


def _carried(records: Sequence[Record], rows: np.ndarray, groups: Groups) -> tuple[Decision, ...]:
    """Decisions in force after some records, by the rows of the cache; without those whose image is gone."""
    in_force: dict[int, Decision] = {}
    for record, row in zip(records, rows.tolist(), strict=True):
        if row < 0 or not isinstance(record.entry, Decision):
            continue
        group = int(groups.group[row])
        in_force[group] = replace(record.entry, row=row, group=group, copies=0)
    kept = (decision for decision in in_force.values() if decision.choice is not Choice.UNDONE)
    return tuple(sorted(kept, key=lambda decision: decision.serial))


def _pile(labels: Labels, groups: Groups, carried: Sequence[Decision]) -> np.ndarray:
    """Rows that are neither labelled, nor decided in an earlier epoch, nor twins of such rows; bool (n,)."""
    outside = ~labels.unlabelled
    outside[[decision.row for decision in carried if decision.choice.is_label]] = True
    return ~groups.spread(outside)


def _facts(cache: EmbeddingCache, groups: Groups, in_pile: np.ndarray, twins: float | None) -> SittingFacts:
    return SittingFacts(
        cache=cache.name,
        checksums=_checksums(cache),
        rows=len(cache),
        pile=int(in_pile.sum()),
        pile_checksum=_pile_checksum(cache, in_pile),
        twins=twins,
        grouping=grouping_of(cache, twins),
    )


def _checksums(cache: EmbeddingCache) -> tuple[str, ...]:
    """Checksums of the files of a cache, in an order that does not depend on how they were named."""
    return tuple(sorted(file.checksum for file in cache.files))


def _pile_checksum(cache: EmbeddingCache, in_pile: np.ndarray) -> str:
    """Checksum of which images are in the pile, file by file in the order of `_checksums`."""
    parts = np.split(in_pile, np.cumsum([len(file) for file in cache.files])[:-1])
    ordered = sorted(zip((file.checksum for file in cache.files), parts, strict=True), key=lambda pair: pair[0])
    return hashlib.sha256(b"".join(np.packbits(part).tobytes() for _, part in ordered)).hexdigest()[:32]


def _images(cache: EmbeddingCache, labels: Labels) -> list[LoggedImage]:
    return listed_images(cache, labels.s, labels.reviewed)


def _check_twins(log: DecisionLog, cache: EmbeddingCache, twins: float | None) -> None:
    facts = log.facts()
    if facts.checksums == _checksums(cache) and facts.twins != twins:
        began = "equal bytes only" if facts.twins is None else f"a cosine of {facts.twins}"
        raise SessionError(
            f"{log.path.parent} began with twins by {began}; go on with these (--twins), or name another folder with "
            "--session"
        )


def _check_labels(log: DecisionLog, labels: Labels, given: Labels | None) -> None:
    if given is None:
        return
    if not (np.array_equal(given.s, labels.s) and np.array_equal(given.reviewed, labels.reviewed)):
        began, now = (f"{of.positive.sum():,} positives, {of.negative.sum():,} negatives" for of in (labels, given))
        raise SessionError(
            f"{log.path.parent} began with other labels ({began}; now {now}); leave --positives out to go on with "
            "those, or name another folder with --session"
        )


def _note(
    log: DecisionLog,
    cache: EmbeddingCache,
    images: Sequence[LoggedImage],
    image_rows: np.ndarray,
    records: Sequence[Record],
    record_rows: np.ndarray,
) -> str:
    """What has changed since the session began, and what that means for the audit."""
    labelled = {image.key for image, row in zip(images, image_rows.tolist(), strict=True) if row < 0 and image.label}
    decided = {
        record.key
        for record, row in zip(records, record_rows.tolist(), strict=True)
        if row < 0 and isinstance(record.entry, Decision)
    }
    gone = sorted(labelled | decided)
    lost = (
        f" {len(gone):,} labelled or decided images are gone or other images now ({name_first(gone)})." if gone else ""
    )
    return f"The cache has changed since this session began; the audit counts from the change on.{lost}"
