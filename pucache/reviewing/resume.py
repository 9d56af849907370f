"""The pile of a session that begins, or goes on: on the same cache, or on one that has changed since."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..errors import SessionError, counted
from ..labels.labels import PULabels
from ..labels.listing import name_first
from ..storage.rows import evenly_spaced
from .log import (
    LABELS,
    DecisionLog,
    Entry,
    EpochFacts,
    LoggedImage,
    labelling_decisions,
)
from .log_file import LOG, REMEDY
from .pile import Groups, KeptPile, Pile, Twins, keep_pile, kept_pile, pile_path, rows_of_urns
from .session_folder import is_first_start, open_log

MOST_URNS = 4  # the limit is searched over the totals of all but one
_LISTED = 256  # images that a cache is recognised by
_UNKNOWN = bytes(32)  # digest


def begin_or_resume(
    folder: Path, cache: EmbeddingCache, given: PULabels | None, twins: Twins, beside: Path | None = None
) -> tuple[DecisionLog, Pile]:
    """Begin a session in a locked folder, or go on with the one that is there.

    A new one `beside` another begins with the labels, the pile and the query of that. Raises `SessionError` where the
    session is of another cache, began with other labels or twins, is damaged, or cannot be written.
    """
    if is_first_start(folder):
        return _begin(folder, cache, given, twins) if beside is None else _begin_beside(folder, cache, beside)
    log = open_log(folder)
    try:
        pile = _LoggedSession(log, cache, twins).pile(given)
        if not pile.is_kept:
            keep_pile(pile_path(folder, pile.facts.checksums), cache, pile.urn_of, pile.groups)
        if pile.epoch > log.epoch:
            log.begin_epoch(pile.facts, _images(cache, pile.before))
        return log, pile
    except BaseException:
        log.close()
        raise


def _begin(folder: Path, cache: EmbeddingCache, given: PULabels | None, twins: Twins) -> tuple[DecisionLog, Pile]:
    labels, groups = given or PULabels.of(np.zeros(len(cache))), Groups(twins.group)
    urn_of = _urns(labels, groups, ())
    return _create(folder, cache, Pile(_facts(cache, urn_of, twins), labels, groups, urn_of, 1))


def _begin_beside(folder: Path, cache: EmbeddingCache, other: Path) -> tuple[DecisionLog, Pile]:
    log, pile = read(other, cache)
    with log:
        query = log.asked()
    facts = replace(pile.facts, continued=None)
    log, pile = _create(folder, cache, replace(pile, facts=facts, epoch=1, carried=(), note=""))
    if query:
        log.ask(query)
    return log, pile


def _create(folder: Path, cache: EmbeddingCache, pile: Pile) -> tuple[DecisionLog, Pile]:
    log = DecisionLog.create(folder / LOG, pile.facts, _images(cache, pile.before))
    keep_pile(pile_path(folder, pile.facts.checksums), cache, pile.urn_of, pile.groups)
    return log, pile


def read(folder: Path, cache: EmbeddingCache) -> tuple[DecisionLog, Pile]:
    """Read the session in a folder; nothing is written. Raises `SessionError` as `begin_or_resume`."""
    log = open_log(folder, read_only=True)
    try:
        return log, _LoggedSession(log, cache, Twins(cache, log.facts().twins)).pile(None)
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
                f"{log.path.parent} began with duplicates by {began}; go on with these, or name another folder "
                "with --session"
            )
        self.images, self.entries = log.images(), log.entries()
        self.image_rows, self.entry_rows = rows_of(cache, self.images), rows_of(cache, self.entries)
        path = pile_path(log.path.parent, self.facts.checksums)
        self.kept = kept_pile(path, cache, twins) if self.facts.twins == twins.cosine else None
        self.groups = Groups(twins.group) if self.kept is None else self.kept.groups
        self.first = self.facts.continued[0] if self.facts.continued else log.epoch

    def pile(self, given: PULabels | None) -> Pile:
        """The pile of the present epoch of the log, or where the cache has changed, of the epoch to begin."""
        log, cache, facts, kept, before = self.log, self.cache, self.facts, self.kept, self._labels()
        carried, note = self._carried(self.first), self._note()
        if self.is_same_cache:
            images = zip(self.images, self.image_rows.tolist(), strict=True)
            if any(row < 0 and image.epoch == log.epoch for image, row in images):
                raise SessionError(f"{log.path} is damaged (it names images that {cache.name} never had); {REMEDY}")
            _check_labels(log, before, given)
            urn_of = _urns(before, self.groups, carried) if kept is None else kept.urn_of
            if tuple(rows_of_urns(urn_of)) == facts.urns and _pile_checksum(cache, urn_of) == facts.pile_checksum:
                note = _grown_note(facts.urns[-1]) if facts.continued else note if log.epoch > 1 else ""
                return Pile(facts, before, self.groups, urn_of, log.epoch, carried, note, kept is not None)
        elif not (self.image_rows >= 0).any() and not (self.entry_rows >= 0).any():
            raise SessionError(
                f"{log.path.parent} is a session of {facts.cache}; {cache.name} holds none of its images: name another "
                "folder with --session"
            )
        elif kept is not None and len(facts.urns) < MOST_URNS and self._goes_on(kept, before, given):
            return self._grown(kept, given or before, carried)
        before, carried = given or before, self._carried(log.epoch + 1)
        urn_of = _urns(before, self.groups, carried)
        return Pile(_facts(cache, urn_of, self.twins), before, self.groups, urn_of, log.epoch + 1, carried, note)

    def _grown(self, kept: KeptPile, before: PULabels, carried: tuple[Entry, ...]) -> Pile:
        """The pile to which images have come: they are an urn of their own."""
        since = self.entry_rows[[entry.epoch >= self.first for entry in self.entries]]
        urn_of, came = kept.urn_of.copy(), ~self.groups.spread(kept.old | ~before.unlabelled)
        urn_of[came] = len(self.facts.urns)
        urns, continued = (*self.facts.urns, int(came.sum())), (self.first, tuple(self.groups.group[since].tolist()))
        facts = replace(_facts(self.cache, urn_of, self.twins), urns=urns, continued=continued)
        return Pile(facts, before, self.groups, urn_of, self.log.epoch + 1, carried, _grown_note(urns[-1]))

    def _goes_on(self, kept: KeptPile, labels: PULabels, given: PULabels | None) -> bool:
        """Whether the log goes on with its pile: its images are there, and no label of before has changed."""
        rows = zip(self.entries, self.entry_rows.tolist(), strict=True)
        there = all(row >= 0 for entry, row in rows if entry.epoch >= self.first)
        old = kept.old
        same = given is None or (
            np.array_equal(given.s[old], labels.s[old]) and np.array_equal(given.reviewed[old], labels.reviewed[old])
        )
        return there and same and not labels.positive[~old].any() and not (labels.reviewed[~old] != 0).any()

    def _labels(self) -> PULabels:
        """Labels that the present epoch began with, as far as the cache still holds the images."""
        s, reviewed = np.zeros(len(self.cache), np.int8), np.zeros(len(self.cache), np.int8)
        for image, row in zip(self.images, self.image_rows.tolist(), strict=True):
            if row < 0 or image.label is None or image.epoch != self.log.epoch:
                continue
            if image.label and not image.reviewed:
                s[row] = 1
            else:
                reviewed[row] = 1 if image.label else -1
        return PULabels(s, reviewed)

    def _carried(self, epoch: int) -> tuple[Entry, ...]:
        """Decisions that label after the entries before an epoch, without those whose image is gone."""
        present = (
            replace(entry, row=row, group=int(self.groups.group[row]), copies=0)
            for entry, row in zip(self.entries, self.entry_rows.tolist(), strict=True)
            if row >= 0 and entry.epoch < epoch
        )
        return tuple(labelling_decisions(present))

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
        f"{counted(count, 'image')} came to the cache since this session began. The limit of the others stands; of the "
        "new ones all may be positive until random images come from them."
    )


def _urns(labels: PULabels, groups: Groups, carried: Sequence[Entry]) -> np.ndarray:
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


def _images(cache: EmbeddingCache, labels: PULabels) -> list[LoggedImage]:
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


def _check_labels(log: DecisionLog, labels: PULabels, given: PULabels | None) -> None:
    if given is None:
        return
    if not (np.array_equal(given.s, labels.s) and np.array_equal(given.reviewed, labels.reviewed)):
        began, now = (f"{of.positive.sum():,} positives, {of.negative.sum():,} negatives" for of in (labels, given))
        raise SessionError(
            f"{log.path.parent} began with other labels ({began}; now {now}); leave --positives out to go on with "
            "those, or name another folder with --session"
        )
