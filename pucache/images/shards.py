"""Sources whose images lie in shards: files that each hold many images, named one by one or by a glob."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..errors import ImageError, MissingExtraError, SourceError
from ..storage.file_kinds import BINARY, EMPTY, TEXT, kind_of
from ..storage.filesystem import open_filesystem, read_range, source_errors
from ..storage.limits import SHARDS
from ..storage.retries import RetriesExhausted, error_text, remedy_for, with_retries
from ..storage.urls import is_url, without_secrets
from .folders import glob_base, glob_files, is_glob
from .listing import Listing, ListingBuilder, check_size, is_hidden, is_special_file, source_name

log = logging.getLogger("pucache")

# Ranges and lists by which shards are usually named: {00000..00009}.tar, {train,test}.zip
_BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}/]*,[^{}/]*))\}")


class ShardSource:
    """Images inside shards; nothing is extracted.

    With one shard the key is the image's name in it. With a glob of shards it is the shard's path below the
    glob's folders, a slash, and that name. Of several images with one name the last counts, as in tar, and a line
    says so.
    """

    kind = ""  # of shards, for messages
    sequential = False  # whether a shard is decoded from its beginning: its images are best read in order, once
    is_table = False  # whether images are rows of a table, whose order users know
    _unpickled: tuple[str, ...] = ()  # attributes that `_reset` makes anew in another process

    def __init__(self, where: str, encoding: str = ""):
        self.name, self._where = source_name(where, encoding=encoding), where
        self.encoding = encoding  # of names that do not tell theirs
        self._twice: dict[str, None] = {}  # keys that several images have
        self._members: dict[str, Any] = {}  # key to what `_read` needs, in the order of the shards
        self._is_listed = False
        self._reset()

    def _reset(self) -> None:
        """Make what is not pickled."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in self._unpickled}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reset()

    def scan(self) -> Listing:
        """Index every shard; a shard that is damaged or may not be read becomes a failure.

        Raises `SourceError` where no shard exists, the only shard cannot be read, or a store does not answer.
        """
        builder = ListingBuilder()
        self._members, self._is_listed, self._twice = {}, True, {}
        for shard, key_prefix in self._shards(builder):
            self._index(shard, key_prefix, builder)
        if self._twice:
            count, first = f"{len(self._twice):,}", next(iter(self._twice))
            log.warning("%s: names of several images: %s, such as %r; the last one counts", self.name, count, first)
        listing = builder.build()
        if self.sequential:
            in_order = [key for key in self._members if key in builder.images]
            listing.order = np.array(sorted(range(len(in_order)), key=in_order.__getitem__), np.int64)
            listing.reordered = self.is_table and in_order != listing.keys
            groups = (self._group(self._members[key]) for key in listing.keys)
            listing.groups = np.fromiter(groups, np.int64, len(listing.keys))
        return listing

    def index(self) -> None:
        """List the shards unless that has been done; afterwards several threads may read at once."""
        if not self._is_listed:
            self.scan()

    def _shards(self, builder: ListingBuilder) -> list[tuple[str, str]]:
        """Path and key prefix of each shard."""
        with source_errors(self.name):
            fs, pattern = open_filesystem(self._where, retry_each_request=True)
            paths = expand_braces(pattern)
            if not is_glob(fs, pattern) and paths == [pattern]:
                return [(pattern, "")]
            fs.invalidate_cache()  # a cached listing would lack new shards
            if with_retries(lambda: fs.isfile(pattern)):  # a file name that holds brackets
                return [(pattern, "")]
            # a shard that is named and missing becomes a failure when it is opened
            shards = [
                path for each in paths for path in (glob_files(fs, each, builder) if is_glob(fs, each) else [each])
            ]
        if not shards and not builder.failures:
            raise SourceError(f"no such source: no shard matches {self.name}")
        before = _BRACES.split(pattern, 1)[0]
        base_length = len(glob_base(fs, before) if is_glob(fs, before) else before.rpartition("/")[0])
        return [(shard, shard[base_length:].lstrip("/") + "/") for shard in shards]

    def _index(self, shard: str, key_prefix: str, builder: ListingBuilder) -> None:
        """Add the images of one shard."""
        with source_errors(self.name):
            fs, pattern = open_filesystem(self._where)
        name = self.name.removesuffix(pattern) + shard if self.name.endswith(pattern) else without_secrets(shard)
        try:
            if not is_url(self._where) and is_special_file(shard):
                raise OSError("not a regular file")
            self._add_members(fs, shard, key_prefix, builder)
        except SourceError:
            raise
        except (RetriesExhausted, MissingExtraError) as error:  # the listing would lack members that exist
            raise SourceError(f"cannot read {name}: {error_text(error)}{remedy_for(error)}") from error
        except ImageError as error:  # it is whole, and holds no images in a form that can be read
            if not key_prefix:
                raise SourceError(f"{name} {error}") from error
            builder.add_failure(key_prefix.rstrip("/"), str(error))
        except Exception as error:  # remote file systems and damaged headers raise almost anything
            # of its bytes, not of its content: a damaged header may lead to a negative offset, which is EINVAL
            unreadable = bool(remedy_for(error)) or (isinstance(error, OSError) and error.errno != errno.EINVAL)
            if not key_prefix and (unreadable or not builder.images):
                kind = BINARY if is_url(self._where) else kind_of(shard)
                what = "" if kind in (BINARY, TEXT, EMPTY) or self.kind in kind else f"; it is {kind}"
                raise SourceError(
                    f"cannot read {name} as {self.kind}: {error_text(error)}{what}{remedy_for(error)}"
                ) from error
            if unreadable:
                builder.add_failure(key_prefix, f"{self.kind} shard cannot be read: {error_text(error)}")
            else:
                key = key_prefix.rstrip("/") or name
                builder.add_failure(key, f"{self.kind} shard is damaged or truncated: {error_text(error)}")

    def _add_members(self, fs: Any, shard: str, key_prefix: str, builder: ListingBuilder) -> None:
        """Add the images of one shard to the listing and to `_members`."""
        raise NotImplementedError

    def _accepts(self, builder: ListingBuilder, key_prefix: str, name: str) -> str:
        """Key of a member that is an image by its name, else ""; what had this key before is removed."""
        key = key_prefix + name.removeprefix("./")
        if is_hidden(name) or not builder.accepts(key):
            return ""
        if builder.remove(key):
            self._twice[key] = None
        self._members.pop(key, None)
        return key

    def files(self) -> list[str]:
        """Paths of the shards that hold images, which are listed first."""
        self.index()
        return list(dict.fromkeys(member[0] for member in self._members.values()))

    def labels(self, column: str) -> Iterator[tuple[str, str]]:
        """Key and label of each image: the text of the member beside it that ends in `column`, such as ``cls``.

        ``json.NAME`` is a value of a JSON member. Blank where an image has no such member. Raises `SourceError` where
        none has, or one cannot be read.
        """
        self.index()
        ending, _, field = column.removeprefix(".").partition(".")
        fs, _ = open_filesystem(self._where)
        texts: dict[str, str] = {}
        for shard, key_prefix in self._shards(ListingBuilder()):
            try:
                for name, content in self._beside(fs, shard, f".{ending}"):
                    texts[key_prefix + name.removeprefix("./").removesuffix(f".{ending}")] = _label(content, field)
            except Exception as error:  # every file system has exceptions of its own
                if not any(member[0] == shard for member in self._members.values()):
                    continue  # a failure already
                raise SourceError(f"cannot read the labels in {without_secrets(shard)}: {error_text(error)}") from error
        labels = {key: _beside_image(texts, key) for key in self._members}
        if not any(labels.values()):
            raise SourceError(
                f"{self.name} holds no .{ending} beside an image, such as {next(iter(labels), 'a.png')!r}"
            )
        yield from labels.items()

    def _beside(self, fs: Any, shard: str, ending: str) -> Iterator[tuple[str, bytes]]:
        """Name and content of each member with this ending."""
        raise NotImplementedError

    def _group(self, member: Any) -> int:
        """Number that decides to which of several shares an image belongs; equal for images that are read together."""
        return zlib.crc32(member[0].encode())

    def read(self, key: str) -> bytes:
        """Read one image in place; raises `ImageError`."""
        return self._bytes_of(key, self._read)

    def head(self, key: str, size: int) -> bytes:
        """The first `size` bytes of an image, or all that it has; raises `ImageError`."""
        return self._bytes_of(key, lambda member: self._head(member, size))

    def _bytes_of(self, key: str, read: Callable[[Any], bytes]) -> bytes:
        self.index()
        member = self._members[key]
        try:
            return read(member)
        except ImageError:
            raise
        except Exception as error:  # every remote file system has exceptions of its own
            raise ImageError(f"cannot be read: {error_text(error)}") from error

    def _read(self, member: Any) -> bytes:
        raise NotImplementedError

    def _head(self, member: Any, size: int) -> bytes:
        """The first bytes of an image, or all of them."""
        return self._read(member)

    def _bytes(self, shard: str, start: int, size: int) -> bytes:
        """Bytes of a shard, fewer where it ends; raises `ImageError` for too many."""
        check_size(size)
        if is_url(self._where):
            return read_range(open_filesystem(self._where)[0], shard, start, start + size)
        with open(shard, "rb") as stream:  # not tried again
            stream.seek(start)
            return stream.read(size)


def _label(content: bytes, field: str) -> str:
    """Text of a member, or of a value of its JSON object; "" where that is missing or null."""
    if not field:
        return content.decode("utf-8-sig").strip()
    value = json.loads(content)
    for name in field.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _beside_image(texts: dict[str, str], key: str) -> str:
    """Text of the member that has the image's name up to its ending, or up to the first dot as WebDataset has it."""
    folder, slash, name = key.rpartition("/")
    return texts.get(os.path.splitext(key)[0]) or texts.get(folder + slash + name.partition(".")[0]) or ""


def expand_braces(pattern: str) -> list[str]:
    """The paths that a pattern stands for, in its order; itself where it has no braces of this kind.

    Numbers have as many digits as the first one of their range where that begins with a zero. Raises `ValueError` for
    too many paths.
    """
    paths = [pattern]
    while found := _BRACES.search(paths[0]):
        inner = _texts(found)
        if len(inner) * len(paths) > SHARDS:
            raise ValueError(f"{pattern} stands for more than {SHARDS:,} files; name fewer")
        inner = [text.replace("\\", r"\\") for text in inner]  # as a replacement
        paths = [_BRACES.sub(text, path, count=1) for path in paths for text in inner]
    return paths


def _texts(found: re.Match[str]) -> list[str]:
    first, last, listed = found.groups()
    if listed is not None:
        return listed.split(",")
    begin, end = int(first), int(last)
    if abs(end - begin) >= SHARDS:
        raise ValueError(f"{found[0]} stands for more than {SHARDS:,} files; name fewer")
    width = max(len(first), len(last)) if "0" in (first[0], last[0]) and max(len(first), len(last)) > 1 else 0
    step = 1 if begin <= end else -1
    return [f"{number:0{width}}" for number in range(begin, end + step, step)]
