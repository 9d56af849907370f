"""What earlier runs left: rows of the existing cache that are still valid, parts, and what is missing."""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..cache.keys import encode_keys, find_sorted
from ..cache.layout import DTYPES
from ..cache.reader import CacheFile
from ..encoders.spec import EncoderSpec
from ..errors import CacheError, OutputError
from ..images.listing import UNKNOWN, Listing
from ..storage.atomic import fsync_directory
from .parts import Parts

log = logging.getLogger("pucache")


class ExistingCache:
    """The cache that is there before a run, compared with what is listed now.

    Parameters
    ----------
    file : CacheFile or None
    listing : Listing
    keys : ndarray of bytes (dtype S), (n,)
        Encoded keys of the listing.

    Attributes
    ----------
    file : CacheFile or None
    is_unchanged : ndarray of bool, (n,)
        Listed images that have a row and are unchanged.
    unchanged : ndarray of int64
        Rows of those images, in the order of the listing.
    unlistable : ndarray of int64
        Rows in folders that cannot be listed at the moment.
    vanished : ndarray of int64
        Rows of images that are gone from the source.
    damaged : int
        Rows that `check` has given up.
    """

    def __init__(self, file: CacheFile | None, listing: Listing, keys: np.ndarray):
        self.file, self._listing, self._keys = file, listing, keys
        self._intact = np.ones(0 if file is None else len(file), bool)
        self._is_repaired = self._is_checked = False
        self.damaged = 0
        self._compare()

    def _compare(self) -> None:
        self.is_unchanged = np.zeros(len(self._keys), bool)
        self.unchanged = self.unlistable = self.vanished = np.empty(0, np.int64)
        if self.file is None:
            return
        if self._intact.all():
            self._classify(self.file.raw_keys, self.file.size_mtime)
            return
        rows = np.flatnonzero(self._intact)  # with the keys of damaged rows the keys may not be sorted
        self._classify(self.file.raw_keys[rows], self.file.size_mtime[rows])
        self.unchanged, self.unlistable, self.vanished = (
            rows[some] for some in (self.unchanged, self.unlistable, self.vanished)
        )

    def _classify(self, cached_keys: np.ndarray, size_mtime: np.ndarray) -> None:
        rows = find_sorted(cached_keys, self._keys)  # of each listed image, or -1
        is_cached = rows >= 0
        unchanged = is_cached.copy()
        unchanged[is_cached] = (size_mtime[rows[is_cached]] == self._listing.size_mtime[is_cached]).all(1)
        unchanged &= (self._listing.size_mtime != UNKNOWN).all(1)  # without a time only the content can tell
        unlisted = np.ones(len(cached_keys), bool)
        unlisted[rows[is_cached]] = False
        failed = find_sorted(cached_keys, encode_keys(list(self._listing.failures)))
        unlisted[failed[failed >= 0]] = False
        in_failed_folder = _rows_in_folders(cached_keys, [key for key in self._listing.failures if key.endswith("/")])
        self.is_unchanged, self.unchanged = unchanged, rows[unchanged]
        self.unlistable = np.flatnonzero(unlisted & in_failed_folder)
        self.vanished = np.flatnonzero(unlisted & ~in_failed_folder)

    def rows_to_keep(self, *, prune: bool) -> np.ndarray:
        """Rows that stay in the cache, rising; with `prune` without those of vanished images."""
        return np.sort(np.concatenate([self.unchanged, self.unlistable, *([] if prune else [self.vanished])]))

    def intact_rows(self) -> np.ndarray:
        """Rows that are as they were written, rising; call `check` first."""
        return np.flatnonzero(self._intact)

    def would_change(self, *, failures: dict[str, str], rows: int, source: str) -> bool:
        """Whether a cache of only kept rows, `rows` in number, with these failures and source would be another one."""
        if self.file is None or self._is_repaired or rows != len(self.file) or source != self.file.source:
            return True
        try:
            return failures != self.file.failures
        except CacheError:  # damaged, as `check` will report
            return True

    def check(self) -> bool:
        """Read every byte, once, and give up damaged rows; returns whether this call gave up any.

        Raises
        ------
        CacheError
            The file cannot be read.
        OutputError
            The damaged file cannot be set aside.
        """
        if self.file is None or self._is_checked:
            return False
        self._is_checked = True
        damaged_rows, datasets = self.file.damaged_rows()
        if not datasets:
            return False
        aside = _set_aside(self.file.path)
        self._intact, self._is_repaired, self.damaged = ~damaged_rows, True, int(damaged_rows.sum())
        self._compare()
        log.warning(
            "%s is damaged (%s): %d of its %d rows are given up and their images embedded again, as far as they are "
            "still there; the damaged file is set aside as %s",
            self.file.path,
            ", ".join(datasets),
            self.damaged,
            len(damaged_rows),
            aside.name,
        )
        return True


@dataclass(frozen=True)
class Inventory:
    """What the cache would hold if nothing more were embedded.

    Attributes
    ----------
    picks : list of (CacheFile, ndarray of int)
        Rows of parts and of the existing cache.
    failures : dict of str to str
        Key to reason.
    missing : ndarray of int64
        Positions in the listing of images that are to be embedded.
    existing : ExistingCache
    """

    picks: list[tuple[CacheFile, np.ndarray]]
    failures: dict[str, str]
    missing: np.ndarray
    existing: ExistingCache

    @property
    def rows(self) -> int:
        """Number of rows it would hold."""
        return sum(len(rows) for _, rows in self.picks)

    def changes_cache(self, source: str) -> bool:
        """Whether that differs from the existing cache."""
        from_parts = any(file is not self.existing.file for file, _ in self.picks)
        return from_parts or self.existing.would_change(failures=self.failures, rows=self.rows, source=source)


def take_inventory(
    listing: Listing,
    keys: np.ndarray,
    *,
    existing: ExistingCache,
    parts: Parts,
    prune: bool,
    retry_failures: bool = False,
) -> Inventory:
    """Find what the existing cache and the parts hold of a listing.

    Parameters
    ----------
    listing : Listing
    keys : ndarray of bytes (dtype S), (n,)
        Its encoded keys.
    existing : ExistingCache
    parts : Parts
    prune : bool
        Drop rows of vanished images.
    retry_failures : bool
        Count images that failed before as missing: a store may have been out of reach.
    """
    contents = parts.contents(keys, listing.size_mtime, existing.is_unchanged)
    is_missing = ~contents.has_row
    if not retry_failures:
        is_missing[contents.failed] = False
    picks = contents.picks
    if existing.file is not None:
        picks = [*picks, (existing.file, existing.rows_to_keep(prune=prune))]
    return Inventory(
        picks=picks,
        failures={**listing.failures, **contents.failures},
        missing=np.flatnonzero(is_missing),
        existing=existing,
    )


def open_existing(cache: Path, spec: EncoderSpec, dtype: str | None) -> CacheFile | None:
    """Open the cache that is there already; None where there is none.

    Raises
    ------
    CacheError
        It is damaged, or of another encoder or dtype.
    """
    if not cache.exists():
        return None
    file = CacheFile(cache)
    require_encoder(file, spec)
    if dtype is not None and file.dtype != DTYPES[dtype]:
        raise CacheError(f"{cache} holds {file.dtype}, asked for {dtype}; leave out --dtype, or write another cache")
    return file


def require_encoder(file: CacheFile, spec: EncoderSpec) -> None:
    """Raise `CacheError` unless a file holds embeddings of this encoder."""
    differing = file.encoder.differences(spec)
    if differing:
        raise CacheError(
            f"{file.path} holds embeddings of {file.encoder}, not of {spec} (they differ in {', '.join(differing)}); "
            "write another cache, or pass the encoder and options it was made with"
        )


def _rows_in_folders(sorted_keys: np.ndarray, folders: list[str]) -> np.ndarray:
    """Whether each key lies in one of the folders, which end in a slash; bool, (n,)."""
    is_inside = np.zeros(len(sorted_keys), bool)
    for folder in (folder.encode() for folder in folders):
        # "0" follows "/" in ASCII, so it ends the range of keys that begin with the folder
        first, last = np.searchsorted(sorted_keys, np.array([folder, folder[:-1] + b"0"]))
        is_inside[first:last] = True
    return is_inside


def _set_aside(cache: Path) -> Path:
    """Give a damaged cache a second name, which it keeps when the repaired one takes its first."""
    aside = cache.with_name(cache.name + ".damaged")
    try:
        aside.unlink(missing_ok=True)
        try:
            os.link(cache, aside)
        except OSError:  # a file system without hard links
            shutil.copyfile(cache, aside)
        fsync_directory(cache.parent)
    except OSError as error:
        raise OutputError(
            f"cannot set {cache} aside as {aside.name}: {error.strerror}; make room, or move it"
        ) from error
    return aside
