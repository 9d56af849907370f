"""Images inside tar shards: plain ones are read in place, compressed ones are unpacked one at a time."""

from __future__ import annotations

import bz2
import gzip
import lzma
import mmap
import tarfile
import tempfile
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

from ..errors import ImageError, one_line
from ..storage.filesystem import open_filesystem, open_object
from ..storage.limits import IMAGE_BYTES, MEMBER_BYTES, UNPACKED_TIMES
from .listing import ListingBuilder, check_size
from .shards import ShardSource


class Member(NamedTuple):
    """Where an image lies in a shard."""

    shard: str  # its path in the file system of the source
    offset: int
    size: int


class TarSource(ShardSource):
    """Images inside uncompressed tar shards, read in place."""

    kind = "tar"

    def _opened(self, fs: Any, shard: str) -> Any:
        """The plain tar, as a stream to use in a `with` block."""
        return open_object(fs, shard)

    def _add_members(self, fs: Any, shard: str, key_prefix: str, builder: ListingBuilder) -> None:
        with self._opened(fs, shard) as stream:
            if ending := _compression(stream)[0]:
                raise ImageError(f"is a compressed tar; rename it so that it ends in .tar{ending}")
            with tarfile.open(fileobj=stream, mode="r:", encoding=self.encoding or "utf-8") as tar:
                for member in tar:
                    if member.isdir() or not (key := self._accepts(builder, key_prefix, member.name)):
                        continue
                    if member.isreg() and member.sparse is None:
                        builder.add(key, member.size, int(member.mtime * 1e9))
                        self._members[key] = Member(shard, member.offset_data, member.size)
                    else:
                        builder.add_failure(key, "a link or special file inside a tar; only plain members are read")
            stream.seek(tar.offset)
            if stream.read(tarfile.BLOCKSIZE).strip(b"\0"):  # tarfile takes a damaged header for the end
                raise tarfile.ReadError(f"bad header at byte {tar.offset}")

    def _beside(self, fs: Any, shard: str, ending: str) -> Iterator[tuple[str, bytes]]:
        with (
            self._opened(fs, shard) as stream,
            tarfile.open(fileobj=stream, mode="r:", encoding=self.encoding or "utf-8") as tar,
        ):
            for member in tar:
                if member.name.endswith(ending) and member.isreg() and member.size <= MEMBER_BYTES:
                    file = tar.extractfile(member)  # in memory
                    yield member.name, b"" if file is None else file.read()

    def _read(self, member: Member) -> bytes:
        data = self._bytes(*member)
        if len(data) != member.size:
            raise ImageError(f"truncated tar member: expected {member.size} bytes, got {len(data)}")
        return data

    def _head(self, member: Member, size: int) -> bytes:
        return self._bytes(member.shard, member.offset, min(size, member.size))


# --- compressed -----------------------------------------------------------------------------------


def _zstandard(packed: Any) -> Any:
    import pyarrow  # which has Zstandard, as Python 3.11 has not

    return pyarrow.CompressedInputStream(packed, "zstd")


_UNPACKERS: dict[bytes, tuple[str, Any]] = {  # by the first bytes
    b"\x1f\x8b": (".gz", gzip.open),
    b"BZh": (".bz2", bz2.open),
    b"\xfd7zXZ": (".xz", lzma.open),
    b"\x28\xb5\x2f\xfd": (".zst", _zstandard),
}
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_KEPT = 2  # unpacked shards
_COPIED = 1 << 20  # bytes at a time


class CompressedTarSource(TarSource):
    """Images inside compressed tar shards, each of which is unpacked into a temporary file when its turn comes."""

    sequential = True
    _unpickled = ("_lock", "_unpacked")

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._unpacked: OrderedDict[str, tuple[Any, str]] = OrderedDict()

    def _opened(self, fs: Any, shard: str) -> Any:
        content, _ = self._content(shard)
        content.seek(0)
        return nullcontext(content)

    def _add_members(self, fs: Any, shard: str, key_prefix: str, builder: ListingBuilder) -> None:
        super()._add_members(fs, shard, key_prefix, builder)
        if problem := self._content(shard)[1]:
            raise tarfile.ReadError(problem)

    def _bytes(self, shard: str, start: int, size: int) -> bytes:
        check_size(size)
        return bytes(self._content(shard)[0][start : start + size])

    def _content(self, shard: str) -> tuple[Any, str]:
        """What a shard unpacks to, mapped into memory, and why its end is missing, or ""."""
        with self._lock:
            if shard not in self._unpacked:
                self._unpacked[shard] = self._unpack(shard)
                if len(self._unpacked) > _KEPT:
                    self._unpacked.popitem(last=False)
            self._unpacked.move_to_end(shard)
            return self._unpacked[shard]

    def _unpack(self, shard: str) -> tuple[Any, str]:
        fs, _ = open_filesystem(self._where)
        problem, size = "", 0
        with open_object(fs, shard) as packed, tempfile.TemporaryFile() as file:
            most = IMAGE_BYTES + UNPACKED_TIMES * packed.seek(0, 2)
            packed.seek(0)
            with _compression(packed)[1](packed) as stream:
                while size <= most and not problem:
                    try:
                        data = stream.read(_COPIED)
                    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
                        if getattr(error, "errno", None):  # of the drive, not of the content
                            raise
                        data, problem = b"", one_line(error)
                    if not data:
                        break
                    size += _write(file, data)
            if size > most:
                raise ImageError(f"unpacks to more than {UNPACKED_TIMES} times its size; it holds no images")
            file.flush()
            if not size:
                raise tarfile.ReadError(problem or "empty file")
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), problem


def _write(file: Any, data: bytes) -> int:
    try:
        return int(file.write(data))
    except OSError as error:
        reason = f"it cannot be unpacked in {tempfile.gettempdir()} ({error.strerror}); name another folder in TMPDIR"
        raise OSError(error.errno, reason) from error


def _compression(stream: Any) -> tuple[str, Any]:
    """Ending of a shard that is compressed as its first bytes tell, and what unpacks it; a plain one stays as it is."""
    head = stream.read(6)
    stream.seek(0)
    return next((how for magic, how in _UNPACKERS.items() if head.startswith(magic)), ("", nullcontext))
