"""Listings of sources: keys, sizes and failures, and the limits on them."""

from __future__ import annotations

import os
import re
import sys
import zlib
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import unquote

import numpy as np

from ..errors import ImageError, SourceError, counted
from ..storage.file_kinds import IMAGE_ENDINGS
from ..storage.limits import IMAGE_BYTES as MAX_BYTES
from ..storage.limits import KEY_BYTES as MAX_KEY_BYTES
from ..storage.urls import is_url, without_secrets

EXTENSIONS = frozenset(IMAGE_ENDINGS)
_OPTION = "(?:key|image|encoding|images|category|confidence)=[^#&]+"
_OPTIONS = re.compile(f"#({_OPTION}(?:&{_OPTION})*)$")
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
    order, groups : ndarray of int64, (n,), optional
        Of images in shards that are decoded from their beginning: the order in which they are best read, and a number
        that is equal for images which one share takes together.
    reordered : bool
        Whether the source is a table whose rows had another order.
    unanswered : frozenset of str
        Keys among the failures of which nothing is known, as a store gave no answer; their rows are kept.
    """

    keys: list[str]
    size_mtime: np.ndarray
    failures: dict[str, str] = field(default_factory=dict)
    ignored: Counter[str] = field(default_factory=Counter)
    order: np.ndarray | None = None
    groups: np.ndarray | None = None
    reordered: bool = False
    unanswered: frozenset[str] = frozenset()


def source_name(where: str, **options: str | None) -> str:
    """Name of a source: its location without secrets, and its options as `split_options` reads them."""
    named = "&".join(f"{option}={quoted(value, '%&#')}" for option, value in sorted(options.items()) if value)
    return (without_secrets(where) if is_url(where) else where) + "#" * bool(named) + named


def split_options(where: str) -> tuple[str, dict[str, str]]:
    """Split ``FILE#key=COLUMN&image=COLUMN`` into the file and its options; a file of that very name has none."""
    found = _OPTIONS.search(where)
    if not found or (not is_url(where) and os.path.exists(where)):
        return where, {}
    options = (option.split("=", 1) for option in found[1].split("&"))
    return where[: found.start()], {name: unquote(value) for name, value in options}


def quoted(text: str, characters: str) -> str:
    """A text with these characters written as in URLs; ``%`` is the first of them."""
    for character in characters:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


class ListingBuilder:
    """Collects the images of a source, and rejects keys that a cache cannot hold."""

    def __init__(self) -> None:
        self.images: dict[str, tuple[int, int]] = {}  # key: size in bytes, modification time
        self.failures: dict[str, str] = {}
        self.ignored: Counter[str] = Counter()

    def accepts(self, key: str) -> bool:
        """Whether a file has an image's extension; other files are counted as ignored."""
        if is_image(key):
            return True
        self.ignored[os.path.splitext(key)[1].lower() or "(none)"] += 1
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

    def remove(self, key: str) -> bool:
        """Remove the image or failure with this key, and return whether there was one."""
        return bool(self.images.pop(key, None) or self.failures.pop(_printable(key), None))

    def build(self) -> Listing:
        """Return the sorted listing."""
        keys = sorted(self.images)
        table = np.array([self.images[key] for key in keys], np.int64).reshape(-1, 2)
        return Listing(keys, table, dict(sorted(self.failures.items())), self.ignored)


def is_image(name: str) -> bool:
    """Whether a file name has the extension of an image."""
    return os.path.splitext(name)[1].lower() in EXTENSIONS


def is_hidden(key: str) -> bool:
    """Whether a part of the path begins with a dot."""
    return any(part.startswith(".") and part not in (".", "..") for part in key.split("/"))


def is_special_file(path: str) -> bool:
    """Whether a local path is a named pipe, a device or a folder, which would be read without end or not at all."""
    return os.path.exists(path) and not os.path.isfile(path)


def check_size(size: int) -> None:
    """Raise `ImageError` for a file of more than `MAX_BYTES`."""
    if size > MAX_BYTES:
        raise ImageError(f"file of {size:,} bytes; at most {MAX_BYTES:,} are read")


def check_shard(shard: tuple[int, int]) -> None:
    """Raise `ValueError` unless ``shard`` is (I, N) with 1 <= I <= N."""
    number, count = shard
    if not 1 <= number <= count:
        raise ValueError(f"there is no shard {number}/{count}; expected I/N with 1 <= I <= N, such as 1/4")


def take_shard(listing: Listing, shard: tuple[int, int]) -> Listing:
    """Select the images of shard (I, N).

    Images are assigned by a hash of their key, so that a file added later moves no other image to another
    shard; those of a compressed tar or of a row group together, by the file's name and the group's number. A
    directory that cannot be listed is a failure of every shard: rows of images in it are kept.
    """
    number, count = shard
    return listing if count == 1 else _select(listing, np.flatnonzero(_shares(listing, count) == number), shard)


def take_shards(listing: Listing, count: int) -> list[Listing]:
    """Cut a listing into all its `count` shards; hashes each key once."""
    shares = _shares(listing, count)
    order = np.argsort(shares, kind="stable")
    positions = np.split(order, np.searchsorted(shares[order], np.arange(2, count + 1)))
    return [_select(listing, chosen, (number, count)) for number, chosen in enumerate(positions, 1)]


def check_shard_images(share: Listing, shard: tuple[int, int], listing: Listing, name: str) -> None:
    """Raise `SourceError` where the source `name`, which has this listing, or a shard of it holds no image."""
    if share.keys or share.failures:
        return
    if listing.keys:
        number, count = shard
        held = f"{len(listing.keys):,} image{'s' * (len(listing.keys) > 1)}"
        raise SourceError(f"share {number} of {count} holds none of the {held} in {name}; use fewer shares")
    raise SourceError(f"no image in {name}{_ignored_note(name, listing)}")


def in_reading_order(listing: Listing, positions: np.ndarray) -> np.ndarray:
    """Positions in a listing, sorted as they are best read."""
    return positions if listing.order is None else positions[np.argsort(listing.order[positions], kind="stable")]


def _shares(listing: Listing, count: int) -> np.ndarray:
    """Number of the share, from 1 to `count`, that each image belongs to."""
    if listing.groups is None:
        return np.array([_shard_of(key, count) for key in listing.keys], np.int64)
    return listing.groups % count + 1


def _shard_of(key: str, count: int) -> int:
    """Number of the shard, from 1 to `count`, that an image belongs to."""
    return zlib.crc32(key.encode()) % count + 1


def _select(listing: Listing, positions: np.ndarray, shard: tuple[int, int]) -> Listing:
    """The images at these positions, with the failures of the shard."""
    number, count = shard
    failures = {
        key: reason for key, reason in listing.failures.items() if key.endswith("/") or _shard_of(key, count) == number
    }
    keys = [listing.keys[position] for position in positions]
    order, groups = (None if each is None else each[positions] for each in (listing.order, listing.groups))
    unanswered = listing.unanswered & failures.keys()
    size_mtime, ignored, reordered = listing.size_mtime[positions], listing.ignored, listing.reordered
    return Listing(keys, size_mtime, failures, ignored, order, groups, reordered, unanswered)


def _ignored_note(name: str, listing: Listing) -> str:
    if not listing.ignored:
        return "; expected files such as .jpg, .png, .webp or .tif"
    kinds = ", ".join(f"{count} {ending}" for ending, count in listing.ignored.most_common(4))
    shards = (".tar", ".zip", ".parquet", ".tgz", ".gz")
    found = [ending.replace(".gz", ".tar.gz") for ending in shards if ending in listing.ignored]
    hint = "".join(f"; pass the shards as 'FOLDER/**/*{ending}'" for ending in found)
    if hint and name.lower().endswith(shards):
        hint = "; archives within an archive are not read: unpack it"
    hint += "; caches in a store are given one by one" if ".h5" in listing.ignored else ""
    return f" ({counted(sum(listing.ignored.values()), 'file')} with other endings: {kinds}){hint}"


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
        if (encoding := sys.getfilesystemencoding()) != "utf-8":
            return f"Python reads file names as {encoding} here; set PYTHONUTF8=1"
        return "file name is not UTF-8; rename the file"
    if len(encoded) > MAX_KEY_BYTES:
        return f"key of {len(encoded)} bytes; at most {MAX_KEY_BYTES} are kept"
    if "\0" in key:
        return "key contains a NUL character"
    return None
