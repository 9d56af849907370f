"""Images inside tar shards, read in place."""

from __future__ import annotations

import errno
import tarfile
from dataclasses import dataclass
from typing import Any

from ..errors import ImageError, MissingExtraError, SourceError
from ..storage.filesystem import open_filesystem, open_object, read_range, source_errors
from ..storage.retries import RetriesExhausted, error_text, remedy_for, with_retries
from ..storage.urls import is_url, without_secrets
from .listing import Listing, ListingBuilder, check_size, is_hidden
from .remote_walk import glob_base, glob_files, is_glob


@dataclass(frozen=True)
class _Member:
    shard: str  # its path in the file system of the source
    offset: int
    size: int


class TarSource:
    """Images inside uncompressed tar shards, read in place; nothing is extracted.

    One shard: the key is the member's name. A glob of shards: the shard's name below the glob's
    fixed part, a slash, and the member's name. Of members with one name the last counts, as in tar.
    """

    def __init__(self, where: str):
        self.name = without_secrets(where) if is_url(where) else where
        self._where = where
        self._members: dict[str, _Member] | None = None

    def scan(self) -> Listing:
        """Index the members of every shard; one that is damaged or may not be read becomes a failure."""
        found = ListingBuilder()
        self._members = {}
        shards = self._shards(found)
        for shard, prefix in shards:
            self._index(shard, prefix, found)
        return found.listing()

    def _shards(self, found: ListingBuilder) -> list[tuple[str, str]]:
        with source_errors(self.name):
            fs, pattern = open_filesystem(self._where, retry_each_request=True)
            if not is_glob(fs, pattern):
                return [(pattern, "")]
            fs.invalidate_cache()  # in which a shard that has come since would be missing
            if with_retries(lambda: fs.isfile(pattern)):  # its own name holds the brackets
                return [(pattern, "")]
            shards = glob_files(fs, pattern, found)
        if not shards and not found.failures:
            raise SourceError(f"no such source: no shard matches {self.name}")
        above = len(glob_base(fs, pattern))
        return [(shard, shard[above:].lstrip("/") + "/") for shard in shards]

    def _index(self, shard: str, prefix: str, found: ListingBuilder) -> None:
        with source_errors(self.name):
            fs, pattern = open_filesystem(self._where)
        shown = self.name.removesuffix(pattern) + shard if self.name.endswith(pattern) else without_secrets(shard)
        try:
            self._enter_members(fs, shard, prefix, found)
        except (RetriesExhausted, MissingExtraError) as error:  # members would be missing that are there
            raise SourceError(f"cannot read {shown}: {error_text(error)}{remedy_for(error)}") from error
        except Exception as error:  # remote file systems and damaged headers raise almost anything
            unread = _is_unread(error)
            if not prefix and (unread or not found.entries):
                raise SourceError(f"cannot read {shown} as tar: {error_text(error)}{remedy_for(error)}") from error
            if unread:
                found.fail(prefix, f"tar shard cannot be read: {error_text(error)}")
            else:
                found.fail(prefix.rstrip("/") or shown, f"tar shard is damaged or truncated: {error_text(error)}")

    def _enter_members(self, fs: Any, shard: str, prefix: str, found: ListingBuilder) -> None:
        with open_object(fs, shard) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
            for member in tar:
                self._add(member, shard, prefix, found)
            stream.seek(tar.offset)
            if stream.read(tarfile.BLOCKSIZE).strip(b"\0"):  # tarfile takes a damaged header for the end
                raise tarfile.ReadError(f"bad header at byte {tar.offset}")

    def _add(self, member: tarfile.TarInfo, shard: str, prefix: str, found: ListingBuilder) -> None:
        assert self._members is not None
        key = prefix + member.name.removeprefix("./")
        if member.isdir() or is_hidden(member.name) or not found.wants(key):
            return
        found.forget(key)
        if not member.isreg() or member.sparse is not None:
            found.fail(key, "a link or special file inside a tar; only plain members are read")
            return
        found.add(key, member.size, int(member.mtime * 1e9))
        self._members[key] = _Member(shard, member.offset_data, member.size)

    def read(self, key: str) -> bytes:
        """Read one member in place; raises `ImageError`."""
        if self._members is None:
            self.scan()
        assert self._members is not None
        member = self._members[key]
        check_size(member.size)
        try:
            data = self._read(member)
        except Exception as error:  # every remote file system has exceptions of its own
            raise ImageError(f"cannot be read: {error_text(error)}") from error
        if len(data) != member.size:
            raise ImageError(f"truncated tar member: expected {member.size} bytes, got {len(data)}")
        return data

    def _read(self, member: _Member) -> bytes:
        fs, _ = open_filesystem(self._where)
        start, end = member.offset, member.offset + member.size
        if is_url(self._where):
            return read_range(fs, member.shard, start, end)
        return bytes(fs.cat_file(member.shard, start=start, end=end))


def _is_unread(error: Exception) -> bool:
    """Whether bytes of a shard could not be had, rather than made no sense; a damaged header leads to places < 0."""
    return bool(remedy_for(error)) or (isinstance(error, OSError) and error.errno != errno.EINVAL)
