"""Listings of sources: keys, sizes and failures, and the limits on them."""

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
UNKNOWN = -1  # a size or modification time that the source does not give


@dataclass
class Listing:
    """The images of a source.

    Attributes
    ----------
    keys : list of str
        Sorted by their UTF-8 bytes, unique.
    size_mtime : ndarray of int64, (n, 2)
        Size in bytes, and modification time in nanoseconds. Where a remote store gives no time, a 63-bit
        hash of its version tag stands in for it. -1 where the source gives nothing.
    failures : dict of str to str
        Keys that cannot be listed (a directory without permission, a name that is not UTF-8), with the
        reason.
    ignored : Counter
        Number of files left out because their extension is not an image's, by extension.
    """

    keys: list[str]
    size_mtime: np.ndarray
    failures: dict[str, str] = field(default_factory=dict)
    ignored: Counter[str] = field(default_factory=Counter)


class ListingBuilder:
    """Collects the images of a source, and rejects keys that a cache cannot hold."""

    def __init__(self) -> None:
        self.images: dict[str, tuple[int, int]] = {}  # key: size in bytes, modification time
        self.failures: dict[str, str] = {}
        self.ignored: Counter[str] = Counter()

    def accepts(self, key: str) -> bool:
        """Whether a file has an image's extension; other files are counted as ignored."""
        extension = os.path.splitext(key)[1].lower()
        if extension in EXTENSIONS:
            return True
        self.ignored[extension or "(none)"] += 1
        return False

    def add(self, key: str, size: int, mtime: int) -> None:
        """Add an image, or a failure where a cache cannot hold its key."""
        problem = _key_problem(key)
        if problem:
            self.add_failure(key, problem)
        else:
            self.images[key] = (_int64(size), _int64(mtime))

    def add_failure(self, key: str, reason: str) -> None:
        """Record a file or directory that cannot be listed."""
        self.failures[_printable(key)] = reason

    def remove(self, key: str) -> None:
        """Remove the image or failure with this key."""
        self.images.pop(key, None)
        self.failures.pop(_printable(key), None)

    def build(self) -> Listing:
        """Return the sorted listing."""
        keys = sorted(self.images)
        table = np.array([self.images[key] for key in keys], np.int64).reshape(-1, 2)
        return Listing(keys, table, dict(sorted(self.failures.items())), self.ignored)


def is_hidden(key: str) -> bool:
    """Whether a part of the path begins with a dot."""
    return any(part.startswith(".") and part not in (".", "..") for part in key.split("/"))


def check_size(size: int) -> None:
    """Raise `ImageError` for a file of more than `MAX_BYTES`."""
    if size > MAX_BYTES:
        raise ImageError(f"file of {size:,} bytes; at most {MAX_BYTES:,} are read")


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
