"""What a source lists, and what it may: kinds of files, sizes, and keys that a cache can hold."""

from __future__ import annotations

import os
import zlib
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from ..errors import ImageError

EXTENSIONS = frozenset(".jpg .jpeg .jpe .jfif .png .webp .gif .tif .tiff .bmp .ppm .pgm".split())
MAX_BYTES = 1 << 30  # encoded bytes of one image
MAX_KEY_BYTES = 4096
UNKNOWN = -1


@dataclass
class Listing:
    """What a source holds.

    Attributes
    ----------
    keys : list of str
        Sorted by their UTF-8 bytes, unique.
    size_mtime : ndarray of int64, (n, 2)
        Bytes, and modification time in nanoseconds (behind a URL, where a store tells no time, a
        63-bit fingerprint of what it does tell; -1 where it tells nothing).
    failures : dict of str to str
        Keys that cannot even be listed (a directory without permission, a name that is not
        UTF-8), with the reason.
    ignored : Counter
        Files left out because their name ends unlike an image's, counted by ending.
    """

    keys: list[str]
    size_mtime: np.ndarray
    failures: dict[str, str] = field(default_factory=dict)
    ignored: Counter[str] = field(default_factory=Counter)


class ListingBuilder:
    """Collects what a source lists, refusing keys that a cache cannot hold."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[int, int]] = {}
        self.failures: dict[str, str] = {}
        self.ignored: Counter[str] = Counter()

    def wants(self, key: str) -> bool:
        """Whether a name ends like an image's; the others are counted."""
        ending = os.path.splitext(key)[1].lower()
        if ending in EXTENSIONS:
            return True
        self.ignored[ending or "(none)"] += 1
        return False

    def add(self, key: str, size: int, mtime: int) -> None:
        """Take an image, or the reason why a cache cannot hold its key."""
        problem = _key_problem(key)
        if problem:
            self.fail(key, problem)
        else:
            self.entries[key] = (_int64(size), _int64(mtime))

    def fail(self, key: str, reason: str) -> None:
        """Take something that cannot be listed."""
        self.failures[_printable(key)] = reason

    def forget(self, key: str) -> None:
        """Drop what was taken under this key."""
        self.entries.pop(key, None)
        self.failures.pop(_printable(key), None)

    def listing(self) -> Listing:
        """Everything taken, sorted."""
        keys = sorted(self.entries)
        table = np.array([self.entries[key] for key in keys], np.int64).reshape(-1, 2)
        return Listing(keys, table, dict(sorted(self.failures.items())), self.ignored)


def is_hidden(key: str) -> bool:
    """Whether a part of the path begins with a dot."""
    return any(part.startswith(".") and part not in (".", "..") for part in key.split("/"))


def check_size(size: int) -> None:
    """Raise `ImageError` where no image is as large."""
    if size > MAX_BYTES:
        raise ImageError(f"file of {size:,} bytes; at most {MAX_BYTES:,} are read")


def _int64(number: int) -> int:
    return number if -(1 << 63) <= number < 1 << 63 else UNKNOWN


def _printable(key: str) -> str:
    raw = key.encode("utf-8", "surrogateescape")
    text = raw.decode("utf-8", "backslashreplace").replace("\0", "\\x00")
    return text.encode()[:MAX_KEY_BYTES].decode("utf-8", "ignore")


def _key_problem(key: str) -> str | None:
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        return "file name is not UTF-8; rename the file"
    if len(encoded) > MAX_KEY_BYTES:
        return f"key of {len(encoded)} bytes; at most {MAX_KEY_BYTES} are kept"
    if "\0" in key:
        return "key contains a NUL character"
    return None


def check_shard(shard: tuple[int, int]) -> None:
    """Raise `ValueError` unless ``shard`` is (I, N) with 1 <= I <= N."""
    number, count = shard
    if not 1 <= number <= count:
        raise ValueError(f"shard {number}/{count} is not one of 1/{count} to {count}/{count}")


def take_shard(listing: Listing, shard: tuple[int, int]) -> Listing:
    """Select the images of shard I of N.

    Images are assigned by a hash of their key, so that a file added later moves no other image to
    another shard. A directory that cannot be listed is a failure of every shard: rows of images in it
    are kept.

    Parameters
    ----------
    listing : Listing
    shard : tuple of int
        (I, N), 1 <= I <= N.

    Returns
    -------
    Listing
    """
    number, count = shard
    if count == 1:
        return listing

    def in_shard(key: str) -> bool:
        return zlib.crc32(key.encode()) % count == number - 1

    selected = [in_shard(key) for key in listing.keys]
    failures = {key: reason for key, reason in listing.failures.items() if in_shard(key) or key.endswith("/")}
    keys = [key for key, is_selected in zip(listing.keys, selected, strict=True) if is_selected]
    return Listing(keys, listing.size_mtime[selected], failures, listing.ignored)
