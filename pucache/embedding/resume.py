"""What earlier runs left: rows of the existing cache that are still valid, parts, and what is missing."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..cache.keys import decode_texts, encode_keys, find_sorted
from ..cache.layout import DTYPES
from ..cache.parts import Parts
from ..cache.reader import CacheFile
from ..encoders.spec import EncoderSpec
from ..errors import CacheError, ImageError, OutputError, SourceError
from ..images.listing import UNKNOWN, Listing
from ..images.regions import BOXES, MARK, covered_size, grid_regions, image_of, split_key
from ..images.source import Source, image_digest, part_digest
from ..images.tiling import Known
from ..storage.atomic import fsync_directory
from ..storage.rows import evenly_spaced

_COMPARED = 20  # images of a cache that tell whether a source under another path is that of its images
log = logging.getLogger("pucache")
Picks = list[tuple[CacheFile, np.ndarray]]
"""Row numbers, ascending, of each of several files."""


def require_source(file: CacheFile, source: Source) -> None:
    """Raise `CacheError` for a cache of another source; one that has moved holds the same images."""
    if file.source == source.name:
        return
    if not _holds_its_images(source, file):
        raise CacheError(
            f"{file.path} holds images of {file.source or 'no source'}, and {source.name} has others under their keys; "
            "write another cache (of score: --cache FILE)"
        )
    log.info("%s was made from %s; %s holds the same images", file.path, file.source or "no source", source.name)


def _holds_its_images(source: Source, file: CacheFile) -> bool:
    """Whether some images of a cache have the same content in a source."""
    rows = evenly_spaced(len(file), _COMPARED)
    for row in rows.tolist():
        image, region = split_key(file.raw_keys[row].decode())
        try:
            found = part_digest(image_digest(source.read(image)), region)
        except (ImageError, SourceError):
            return False
        if found != file.digests[row].tobytes():
            return False
    return len(rows) > 0


class ExistingCache:
    """The cache that is there before a run, compared with what is listed now."""

    def __init__(self, file: CacheFile | None, listing: Listing, keys: np.ndarray, tiles: str = ""):
        self.file, self._listing, self._keys, self._tiles = file, listing, keys, tiles
        self.intact = np.arange(0 if file is None else len(file))  # rows that are as they were written
        self._is_repaired = self._is_checked = False
        self.damaged = 0  # rows that `check` has given up
        self._compare()

    def _compare(self) -> None:
        self.is_unchanged = np.zeros(len(self._keys), bool)  # of the listed images: has a row and is unchanged
        # rows: of these images, of images in folders that cannot be listed at the moment, and of those gone from the
        # source
        self.unchanged = self.unlistable = self.vanished = np.empty(0, np.int64)
        self._unanswered: set[str] = set()  # images of which nothing is known now, and which have rows
        if self.file is None:
            return
        cached_keys, size_mtime = self.file.raw_keys, self.file.size_mtime
        if self.damaged:  # with the keys of damaged rows the keys may not be sorted
            cached_keys, size_mtime = cached_keys[self.intact], size_mtime[self.intact]
        rows = find_sorted(cached_keys, self._keys)  # of each listed image, or -1
        unlisted = np.ones(len(cached_keys), bool)
        unlisted[rows[rows >= 0]] = False
        unlisted &= ~self._rows_of(cached_keys, list(self._listing.failures))
        in_failed_folder = _rows_beginning(cached_keys, [key for key in self._listing.failures if key.endswith("/")])
        waiting = self._rows_of(cached_keys, sorted(self._listing.unanswered))
        self._unanswered = {
            image_of(key) if self._tiles else key for key in decode_texts(cached_keys[waiting].tolist())
        }
        listed, equal = self._listing.size_mtime, rows >= 0
        equal[equal] = (size_mtime[rows[equal]] == listed[equal]).all(1)
        self.is_unchanged = equal & (listed[:, 1] != UNKNOWN)  # without a time only the content can tell
        self.unchanged = self.intact[rows[self.is_unchanged]]
        self.unlistable = self.intact[waiting | (unlisted & in_failed_folder)]
        self.vanished = self.intact[unlisted & ~in_failed_folder]

    def _rows_of(self, cached_keys: np.ndarray, images: list[str]) -> np.ndarray:
        """Whether each row is of one of these images, or of a part of it; bool, (n,)."""
        if self._tiles:
            return _rows_beginning(cached_keys, [image + MARK for image in images])
        found, rows = np.zeros(len(cached_keys), bool), find_sorted(cached_keys, encode_keys(images))
        found[rows[rows >= 0]] = True
        return found

    def inventory(self, parts: Parts, *, prune: bool, retry_failures: bool = True) -> Inventory:
        """Find what this cache and the parts hold of the listing; with `prune`, without rows of vanished images.

        With `retry_failures`, images that failed before count as missing: a store may have been out of reach.
        """
        picks, has_row, failures = _rows_of_parts(self._listing, self._keys, self.is_unchanged, parts)
        positions = find_sorted(self._keys, encode_keys(list(failures)))
        current = positions >= 0
        current[current] = ~has_row[positions[current]]  # listed, and without a row
        failed = {
            key: reason for (key, reason), is_current in zip(failures.items(), current, strict=True) if is_current
        }
        if self._tiles:
            failed = _by_image(failed, self._listing.keys, self._keys)
        is_missing = ~has_row
        if not retry_failures:
            is_missing[positions[current]] = False
        if self.file is not None:
            kept = [self.unchanged, self.unlistable, *([] if prune else [self.vanished])]
            picks.append((self.file, np.sort(np.concatenate(kept))))
        listed = {key: why for key, why in self._listing.failures.items() if key not in self._unanswered}
        return Inventory(picks, {**listed, **failed}, np.flatnonzero(is_missing))

    def differs_from(self, inventory: Inventory, source: str) -> bool:
        """Whether writing what an inventory lists, of images in this source, changes the cache."""
        if self.file is None or self._is_repaired or source != self.file.source:
            return True
        if any(file is not self.file for file, _ in inventory.picks) or inventory.rows != len(self.file):
            return True
        try:
            return inventory.failures != self.file.failures
        except CacheError:  # damaged, as `check` will report
            return True

    def check(self) -> bool:
        """Read every byte, once, and give up damaged rows; returns whether this call gave up any."""
        if self.file is None or self._is_checked:
            return False
        self._is_checked = True
        damaged_rows, datasets = self.file.damaged_rows()
        if not datasets:
            return False
        aside = _set_aside(self.file.path)
        self.intact, self._is_repaired = np.flatnonzero(~damaged_rows), True
        self.damaged = len(damaged_rows) - len(self.intact)
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
    """What the cache would hold if nothing more were embedded."""

    picks: Picks  # rows of parts and of the existing cache
    failures: dict[str, str]  # reason by key
    missing: np.ndarray  # positions in the listing of images that are to be embedded

    @property
    def rows(self) -> int:
        """Number of rows it would hold."""
        return sum(len(rows) for _, rows in self.picks)


def _rows_of_parts(
    listing: Listing, keys: np.ndarray, has_row: np.ndarray, parts: Parts
) -> tuple[Picks, np.ndarray, dict[str, str]]:
    """Rows of parts that no other file has, which images have a row then, and the failures of all parts."""
    picks: Picks = []
    failures: dict[str, str] = {}
    has_row = has_row.copy()
    for file in parts.files:
        positions = find_sorted(keys, file.raw_keys)
        valid = positions >= 0
        listed = positions[valid]
        valid[valid] = (file.size_mtime[valid] == listing.size_mtime[listed]).all(1) & ~has_row[listed]
        has_row[positions[valid]] = True
        if valid.any():
            picks.append((file, np.flatnonzero(valid)))
        failures.update(file.failures)
        file.release()  # there may be more parts than file descriptors
    return picks, has_row, failures


class ContentLookup:
    """Embeddings by content digest, of undamaged rows alone: a copy of a damaged one would get a new checksum."""

    def __init__(self, picks: Picks):
        self._files = [file for file, _ in picks]
        per_file = [file.take("digests", rows).reshape(-1).view("S32") for file, rows in picks]
        digests = np.concatenate([np.empty(0, "S32"), *per_file])
        self._order = np.argsort(digests)
        self.sorted_digests = digests[self._order]
        self._starts = np.cumsum([0, *(len(rows) for _, rows in picks)])
        self._rows = np.concatenate([np.empty(0, np.int64), *(rows for _, rows in picks)])
        self.partial = {digest: reason for file in self._files for digest, reason in _partial_contents(file)}

    def __getitem__(self, digest: bytes) -> np.ndarray:
        """Embedding of the image with this digest, which must be among `sorted_digests`; (d,)."""
        position = self._order[np.searchsorted(self.sorted_digests, np.bytes_(digest))]
        file = int(np.searchsorted(self._starts, position, "right")) - 1
        return self._files[file].X[self._rows[position]]


def _partial_contents(file: CacheFile) -> Iterator[tuple[bytes, str]]:
    """Digest of each image of which a part was read, and what was not."""
    partial = file.partial
    rows = find_sorted(file.raw_keys, encode_keys(list(partial)))
    for row, reason in zip(rows.tolist(), partial.values(), strict=True):
        if row >= 0:
            yield file.digests[row].tobytes(), reason


def open_existing(cache: Path | None, spec: EncoderSpec, dtype: str | None) -> CacheFile | None:
    """Open the cache that is there already, or None; `CacheError` if it is damaged, or of another encoder or dtype."""
    if cache is None:
        return None
    file = CacheFile(cache)
    require_encoder(file, spec)
    if dtype is not None and file.dtype != DTYPES[dtype]:
        raise CacheError(f"{cache} holds {file.dtype}, asked for {dtype}; leave out dtype, or write another cache")
    return file


def known_sizes(file: CacheFile | None) -> dict[str, Known]:
    """Sizes of the images all of whose squares have rows; empty for a cache of other parts, or of whole images."""
    tiles = "" if file is None else file.encoder.tiles
    if file is None or tiles in ("", BOXES) or grid_regions(tiles) is not None:
        return {}
    found = {}
    rows = zip(decode_texts(file.raw_keys.tolist()), file.size_mtime.tolist(), strict=True)
    for image, of_image in itertools.groupby(rows, lambda row: image_of(row[0])):
        keys, states = zip(*of_image, strict=True)
        size = covered_size([key.removeprefix(image + MARK) for key in keys], tiles)
        if size is not None and all(state == states[0] for state in states):
            found[image] = (size, *states[0])
    return found


def require_encoder(
    file: CacheFile,
    spec: EncoderSpec,
    remedy: str = "write another cache, or pass the encoder and options it was made with",
) -> None:
    """Raise `CacheError` unless a file holds embeddings of this encoder."""
    differing = file.encoder.differences(spec)
    if differing:
        raise CacheError(
            f"{file.path} holds embeddings of {file.encoder}, not of {spec} (they differ in {', '.join(differing)}); "
            f"{remedy}"
        )


def _rows_beginning(sorted_keys: np.ndarray, prefixes: list[str]) -> np.ndarray:
    """Whether each key begins with one of the prefixes, such as a folder with its slash; bool, (n,)."""
    begins = np.zeros(len(sorted_keys), bool)
    for prefix in map(str.encode, prefixes):
        begins[_range_of(sorted_keys, prefix)] = True
    return begins


def _range_of(sorted_keys: np.ndarray, prefix: bytes) -> slice:
    """The keys that begin with a prefix, whose last character is ASCII; the next one ends their range."""
    ends = np.array([prefix, prefix[:-1] + bytes([prefix[-1] + 1])])
    return slice(*np.searchsorted(sorted_keys, ends).tolist())


def _by_image(failures: dict[str, str], keys: list[str], encoded_keys: np.ndarray) -> dict[str, str]:
    """Failures of parts of images; those of several, all listed ones of an image for one reason, become the image's."""
    reasons: dict[str, dict[str, str]] = {}
    for key, reason in failures.items():
        reasons.setdefault(image_of(key), {})[key] = reason
    merged: dict[str, str] = {}
    for image, of_parts in reasons.items():
        listed = keys[_range_of(encoded_keys, f"{image}{MARK}".encode())]
        are_all = len(of_parts) > 1 and set(of_parts) == {key for key in listed if image_of(key) == image}
        if are_all and len(set(of_parts.values())) == 1:
            merged[image] = f"{next(iter(of_parts.values()))} (all {len(of_parts):,} parts)"
        else:
            merged |= of_parts
    return merged


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
