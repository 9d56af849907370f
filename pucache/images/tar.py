"""Images inside tar shards, read in place."""

from __future__ import annotations

import errno
import tarfile
from typing import Any, NamedTuple

from ..errors import ImageError, MissingExtraError, SourceError
from ..storage.filesystem import open_filesystem, open_object, read_range, source_errors
from ..storage.retries import RetriesExhausted, error_text, remedy_for, with_retries
from ..storage.urls import is_url, without_secrets
from .listing import Listing, ListingBuilder, check_size, is_hidden, is_special_file
from .remote import glob_base, glob_files, is_glob


class _Member(NamedTuple):
    shard: str  # its path in the file system of the source
    offset: int
    size: int


class TarSource:
    """Images inside uncompressed tar shards, read in place; nothing is extracted.

    With one shard the key is the member's name. With a glob of shards it is the shard's path below the
    glob's folders, a slash, and the member's name. Of several members with one name the last counts, as
    in tar.
    """

    def __init__(self, where: str):
        self.name = without_secrets(where) if is_url(where) else where
        self._where = where
        self._members: dict[str, _Member] | None = None

    def scan(self) -> Listing:
        """Index the members of every shard; a shard that is damaged or may not be read becomes a failure.

        Raises `SourceError` where no shard exists, the only shard cannot be read, or a store does not answer.
        """
        builder, members = ListingBuilder(), dict[str, _Member]()
        for shard, key_prefix in self._shards(builder):
            self._index(shard, key_prefix, builder, members)
        self._members = members
        return builder.build()

    def _shards(self, builder: ListingBuilder) -> list[tuple[str, str]]:
        """Path and key prefix of each shard."""
        with source_errors(self.name):
            fs, pattern = open_filesystem(self._where, retry_each_request=True)
            if not is_glob(fs, pattern):
                return [(pattern, "")]
            fs.invalidate_cache()  # a cached listing would lack new shards
            if with_retries(lambda: fs.isfile(pattern)):  # a file name that holds brackets
                return [(pattern, "")]
            shards = glob_files(fs, pattern, builder)
        if not shards and not builder.failures:
            raise SourceError(f"no such source: no shard matches {self.name}")
        base_length = len(glob_base(fs, pattern))
        return [(shard, shard[base_length:].lstrip("/") + "/") for shard in shards]

    def _index(self, shard: str, key_prefix: str, builder: ListingBuilder, members: dict[str, _Member]) -> None:
        """Add the members of one shard."""
        with source_errors(self.name):
            fs, pattern = open_filesystem(self._where)
        name = self.name.removesuffix(pattern) + shard if self.name.endswith(pattern) else without_secrets(shard)
        try:
            if not is_url(self._where) and is_special_file(shard):
                raise OSError("not a regular file")
            _add_members(fs, shard, key_prefix, builder, members)
        except (RetriesExhausted, MissingExtraError) as error:  # the listing would lack members that exist
            raise SourceError(f"cannot read {name}: {error_text(error)}{remedy_for(error)}") from error
        except Exception as error:  # remote file systems and damaged headers raise almost anything
            unreadable = _is_unreadable(error)
            if not key_prefix and (unreadable or not builder.images):
                raise SourceError(f"cannot read {name} as tar: {error_text(error)}{remedy_for(error)}") from error
            if unreadable:
                builder.add_failure(key_prefix, f"tar shard cannot be read: {error_text(error)}")
            else:
                key = key_prefix.rstrip("/") or name
                builder.add_failure(key, f"tar shard is damaged or truncated: {error_text(error)}")

    def read(self, key: str) -> bytes:
        """Read one member in place; raises `ImageError`."""
        if self._members is None:
            self.scan()
        assert self._members is not None
        shard, offset, size = self._members[key]
        check_size(size)
        try:
            fs, _ = open_filesystem(self._where)
            if is_url(self._where):
                data = read_range(fs, shard, offset, offset + size)
            else:  # not tried again
                data = bytes(fs.cat_file(shard, start=offset, end=offset + size))
        except Exception as error:  # every remote file system has exceptions of its own
            raise ImageError(f"cannot be read: {error_text(error)}") from error
        if len(data) != size:
            raise ImageError(f"truncated tar member: expected {size} bytes, got {len(data)}")
        return data


def _add_members(fs: Any, shard: str, key_prefix: str, builder: ListingBuilder, members: dict[str, _Member]) -> None:
    with open_object(fs, shard) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
        for member in tar:
            key = key_prefix + member.name.removeprefix("./")
            if member.isdir() or is_hidden(member.name) or not builder.accepts(key):
                continue
            builder.remove(key)
            if member.isreg() and member.sparse is None:
                builder.add(key, member.size, int(member.mtime * 1e9))
                members[key] = _Member(shard, member.offset_data, member.size)
            else:
                builder.add_failure(key, "a link or special file inside a tar; only plain members are read")
        stream.seek(tar.offset)
        if stream.read(tarfile.BLOCKSIZE).strip(b"\0"):  # tarfile takes a damaged header for the end
            raise tarfile.ReadError(f"bad header at byte {tar.offset}")


def _is_unreadable(error: Exception) -> bool:
    """Whether bytes of a shard could not be read; otherwise its content is invalid.

    A damaged header may lead to a negative offset, for which the file system reports EINVAL.
    """
    return bool(remedy_for(error)) or (isinstance(error, OSError) and error.errno != errno.EINVAL)
