"""The cache that is there before a run of `embed`: which of its rows still hold, and mending it."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import numpy as np

from ..cache.keys import encode_keys, find
from ..cache.reader import DTYPES, CacheFile
from ..encoders.spec import EncoderSpec
from ..errors import CacheError, OutputError
from ..images.source import UNKNOWN, Listing
from ..storage.atomic import fsync_directory

log = logging.getLogger("pucache")


class Earlier:
    """What an existing cache, if there is one, has of a listing.

    Parameters
    ----------
    file : CacheFile or None
    listing : Listing

    Attributes
    ----------
    kept : ndarray of int64
        Rows whose image is unchanged.
    unseen : ndarray of int64
        Rows that lie in folders which cannot be listed now.
    vanished : ndarray of int64
        Rows of images that are gone from the source.
    damaged : int
        Rows that `check` gave up.
    """

    def __init__(self, file: CacheFile | None, listing: Listing):
        self.file, self._listing = file, listing
        self._good = np.ones(0 if file is None else len(file), bool)
        self._mended = self._checked = False
        self.damaged = 0
        self._split()

    def _split(self) -> None:
        if self.file is None:
            self.kept = self.unseen = self.vanished = np.empty(0, np.int64)
            return
        rows = None if self._good.all() else np.flatnonzero(self._good)  # keys that are damaged are not even sorted
        keys = self.file.raw_keys if rows is None else self.file.raw_keys[rows]
        size_mtime = self.file.size_mtime if rows is None else self.file.size_mtime[rows]
        split = _split(keys, size_mtime, self._listing)
        self.kept, self.unseen, self.vanished = split if rows is None else (rows[part] for part in split)

    @property
    def keys(self) -> np.ndarray:
        """Keys of the rows that are kept, (n,) of dtype S, in the order of the listing."""
        return encode_keys([]) if self.file is None else np.asarray(self.file.raw_keys[self.kept])

    def rows(self, prune: bool) -> np.ndarray:
        """Rows to take over, rising; with `prune` without those of images that are gone."""
        return np.sort(np.concatenate([self.kept, self.unseen, *([] if prune else [self.vanished])]))

    def good(self) -> np.ndarray:
        """Rows that are as they were written, rising, once `check` has been called."""
        return np.flatnonzero(self._good)

    def differs(self, failures: dict[str, str], rows: int, source: str) -> bool:
        """Whether a cache of these failures, so many rows and this source would be another one."""
        old = self.file
        if old is None or self._mended or rows != len(old) or source != old.source:
            return True
        try:
            return failures != old.failures
        except CacheError:  # damaged, as `check` will say
            return True

    def check(self) -> bool:
        """Read every byte, and give up the rows that are damaged; returns whether there are any.

        Raises
        ------
        CacheError
            The file cannot be read.
        OutputError
            The damaged file cannot be set aside.
        """
        if self.file is None or self._checked:
            return False
        self._checked = True
        damaged, datasets = self.file.damage()
        if not datasets:
            return False
        aside = _set_aside(self.file.path)
        self._good, self._mended, self.damaged = ~damaged, True, int(damaged.sum())
        self._split()
        log.warning(
            "%s is damaged (%s): %d of its %d rows are given up and their images embedded again, as far as they are "
            "still there; the damaged file is set aside as %s",
            self.file.path,
            ", ".join(datasets),
            self.damaged,
            len(damaged),
            aside.name,
        )
        return True


def open_earlier(cache: Path, spec: EncoderSpec, dtype: str | None) -> CacheFile | None:
    """Open the cache that is there already, which must be of this encoder and type; None where there is none."""
    if not cache.exists():
        return None
    old = CacheFile(cache)
    require_encoder(old, spec)
    if dtype is not None and old.dtype != DTYPES[dtype]:
        raise CacheError(f"{cache} holds {old.dtype}, asked for {dtype}; leave out --dtype, or write another cache")
    return old


def require_encoder(file: CacheFile, spec: EncoderSpec) -> None:
    """Raise `CacheError` unless a file holds embeddings of this encoder."""
    differing = file.encoder.differences(spec)
    if differing:
        raise CacheError(
            f"{file.path} holds embeddings of {file.encoder}, not of {spec} (they differ in {', '.join(differing)}); "
            "write another cache, or pass the encoder and options it was made with"
        )


def _split(keys: np.ndarray, size_mtime: np.ndarray, listing: Listing) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows that still hold, that lie in folders which cannot be listed now, and that are gone."""
    rows = find(keys, encode_keys(listing.keys))
    gone = np.ones(len(keys), bool)
    gone[rows[rows >= 0]] = False
    gone[[row for row in find(keys, encode_keys(list(listing.failures))) if row >= 0]] = False
    unseen = np.zeros(len(keys), bool)
    for folder in (key.encode() for key in listing.failures if key.endswith("/")):
        first, last = np.searchsorted(keys, np.array([folder, folder[:-1] + b"0"]))  # "0" follows "/"
        unseen[first:last] = gone[first:last]
    there = rows >= 0
    same = there.copy()
    same[there] = (size_mtime[rows[there]] == listing.size_mtime[there]).all(1)
    same &= (listing.size_mtime != UNKNOWN).all(1)  # no time, no proof: its content decides
    return rows[same], np.flatnonzero(unseen), np.flatnonzero(gone & ~unseen)


def _set_aside(cache: Path) -> Path:
    """Give a damaged cache a second name, under which it stays when a mended one takes its first."""
    aside = cache.with_name(cache.name + ".damaged")
    try:
        aside.unlink(missing_ok=True)
        try:
            os.link(cache, aside)
        except OSError:  # a file system without links
            shutil.copyfile(cache, aside)
        fsync_directory(cache.parent)
    except OSError as error:
        raise OutputError(
            f"cannot set {cache} aside as {aside.name}: {error.strerror}; make room, or move it"
        ) from error
    return aside
