"""Images inside tar shards, read in place."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass

from ..errors import ImageError, MissingExtraError, SourceError
from ..store import GaveUp, filesystem, is_url, open_object, read_range, said, source_errors, tried, without_secrets
from .listing import Found, Listing, check_size, is_hidden


@dataclass(frozen=True)
class _Member:
    shard: str
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
        """Index the members of every shard; a damaged shard becomes a failure."""
        found = Found()
        self._members = {}
        for shard, prefix in self._shards():
            self._index(shard, prefix, found)
        return found.listing()

    def _shards(self) -> list[tuple[str, str]]:
        with source_errors(self.name):
            fs, pattern = filesystem(self._where, patient=True)
            if not any(c in pattern for c in "*?["):
                return [(self._where, "")]
            fs.invalidate_cache()  # in which a shard that has come since would be missing
            if tried(lambda: fs.isfile(pattern)):  # its own name holds the brackets
                return [(self._where, "")]
            shards = sorted(map(str, tried(lambda: fs.glob(pattern))))
        if not shards:
            raise SourceError(f"no such source: no shard matches {self.name}")
        fixed = pattern[: min(pattern.index(c) for c in "*?[" if c in pattern)].rpartition("/")[0]
        scheme = self._where.split("://")[0] + "://" if is_url(self._where) else ""
        return [(scheme + shard if scheme else shard, shard[len(fixed) :].lstrip("/") + "/") for shard in shards]

    def _index(self, shard: str, prefix: str, found: Found) -> None:
        try:
            fs, path = filesystem(shard)
            with open_object(fs, path) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
                for member in tar:
                    self._add(member, shard, prefix, found)
                stream.seek(tar.offset)
                if stream.read(tarfile.BLOCKSIZE).strip(b"\0"):  # tarfile takes a damaged header for the end
                    raise tarfile.ReadError(f"bad header at byte {tar.offset}")
        except (GaveUp, MissingExtraError) as error:  # members would be missing that are there
            raise SourceError(f"cannot read {without_secrets(shard)}: {said(error)}") from error
        except Exception as error:  # remote file systems and damaged headers raise almost anything
            if not prefix and not found.entries:
                raise SourceError(f"cannot read {without_secrets(shard)} as tar: {said(error)}") from error
            name = prefix.rstrip("/") or without_secrets(shard)
            found.fail(name, f"tar shard is damaged or truncated: {said(error)}")

    def _add(self, member: tarfile.TarInfo, shard: str, prefix: str, found: Found) -> None:
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
            data = _read(member)
        except Exception as error:  # every remote file system has exceptions of its own
            raise ImageError(f"cannot be read: {said(error)}") from error
        if len(data) != member.size:
            raise ImageError(f"truncated tar member: expected {member.size} bytes, got {len(data)}")
        return data


def _read(member: _Member) -> bytes:
    fs, path = filesystem(member.shard)
    start, end = member.offset, member.offset + member.size
    return read_range(fs, path, start, end) if is_url(member.shard) else bytes(fs.cat_file(path, start=start, end=end))
