"""Images inside ZIP archives, read in place."""

from __future__ import annotations

import calendar
import logging
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..errors import ImageError
from ..storage.filesystem import open_object
from ..storage.urls import without_secrets
from .listing import MOST_TIMES, ListingBuilder, check_size
from .shards import MAX_BESIDE, ShardSource
from .zip_names import guess_encoding, has_backslashes, member_name, open_archive

log = logging.getLogger("pucache")
_ENCRYPTED = 1  # bit of a member's flags
_SIGNATURE = b"PK\3\4"  # of a local header, which ends in the lengths of the name and of the extra field after it
_LOCAL_HEADER = struct.Struct("<26xHH")
_SMALL = 1 << 26  # bytes that any member may unpack to, such as a large bitmap of one colour
_SPARE = 512  # bytes read beyond a member, as its header there may be longer than in the directory


class Member(NamedTuple):
    """An image in an archive, as the directory at the archive's end announces it."""

    shard: str
    offset: int  # of its local header
    end: int  # of all members
    name_length: int  # in bytes, at most
    packed: int  # bytes
    size: int
    crc: int
    method: int


class ZipSource(ShardSource):
    """Images inside ZIP archives, stored or deflated."""

    kind = "ZIP"

    def _add_members(self, fs: Any, shard: str, key_prefix: str, builder: ListingBuilder) -> None:
        with open_object(fs, shard) as stream, open_archive(stream) as archive:
            archive.NameToInfo.clear()
            encoding, backslashes = self._encoding_of(archive, shard), has_backslashes(archive.filelist)
            for at, info in enumerate(archive.filelist):
                archive.filelist[at] = None  # type: ignore[call-overload]  # a million of them take a gigabyte
                name = member_name(info, encoding, backslashes=backslashes)
                if name.endswith("/") or not (key := self._accepts(builder, key_prefix, name)):
                    continue
                if problem := _problem(info):
                    builder.add_failure(key, problem)
                    continue
                # the time has a resolution of two seconds; the checksum tells versions of the same second apart
                mtime = calendar.timegm((*info.date_time, 0, 0, 0)) * 10**9 + info.CRC % 10**9
                builder.add(key, info.file_size, mtime)
                self._members[key] = Member(
                    shard,
                    info.header_offset,
                    archive.start_dir,
                    len(info.orig_filename.encode()),
                    info.compress_size,
                    info.file_size,
                    info.CRC,
                    info.compress_type,
                )

    def _encoding_of(self, archive: zipfile.ZipFile, shard: str) -> str:
        """Encoding of names that do not tell theirs; a line says which one is guessed."""
        if self.encoding:
            return self.encoding
        if guessed := guess_encoding(archive.filelist):
            log.warning(
                "%s: names without a mark of their encoding are read as %s; '%s#encoding=NAME' names another one",
                without_secrets(shard),
                guessed,
                self.name,
            )
        return guessed or "utf-8"

    def _beside(self, fs: Any, shard: str, ending: str) -> Iterator[tuple[str, bytes]]:
        with open_object(fs, shard) as stream, open_archive(stream) as archive:
            encoding = self.encoding or guess_encoding(archive.filelist) or "utf-8"
            backslashes = has_backslashes(archive.filelist)
            for info in archive.infolist():
                name = member_name(info, encoding, backslashes=backslashes)
                if name.endswith(ending) and not _problem(info) and info.file_size <= MAX_BESIDE:
                    yield name, archive.read(info)

    def _read(self, member: Member) -> bytes:
        check_size(member.size)
        check_size(member.packed)
        if member.size > _SMALL + MOST_TIMES * member.packed:
            raise ImageError(f"unpacks to more than {MOST_TIMES} times its size; it holds no image")
        length = _LOCAL_HEADER.size + member.name_length + member.packed
        raw = self._bytes(member.shard, member.offset, min(length + _SPARE, member.end - member.offset))
        if len(raw) < _LOCAL_HEADER.size or not raw.startswith(_SIGNATURE):
            raise ImageError("no member of the ZIP archive begins where its directory says; embed again")
        begin = _LOCAL_HEADER.size + sum(_LOCAL_HEADER.unpack_from(raw))
        if begin + member.packed > len(raw):
            raw = self._bytes(member.shard, member.offset, min(begin + member.packed, member.end - member.offset))
        return _unpacked(member, raw[begin : begin + member.packed])


def _problem(info: zipfile.ZipInfo) -> str:
    """Why a member cannot be read, or ""."""
    if stat.S_ISLNK(info.external_attr >> 16):
        return "a link or special file inside a ZIP archive; only plain members are read"
    if info.flag_bits & _ENCRYPTED:
        return "encrypted; only archives without a password are read"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"compressed by method {info.compress_type}; only stored and deflated members are read"
    return ""


def _unpacked(member: Member, data: bytes) -> bytes:
    """Content of a member, never more bytes than announced; raises `ImageError`."""
    if len(data) == member.packed and member.method == zipfile.ZIP_DEFLATED:
        try:
            data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, member.size + 1)
        except zlib.error as error:
            raise ImageError(f"damaged ZIP member: {error}") from error
    if len(data) != member.size:
        got = "more" if len(data) > member.size else f"{len(data)}"
        raise ImageError(f"damaged ZIP member: expected {member.size} bytes, got {got}")
    if zlib.crc32(data) != member.crc:
        raise ImageError("damaged ZIP member: its checksum differs")
    return data
