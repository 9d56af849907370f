"""Images inside ZIP archives, read in place, and the names of members."""

from __future__ import annotations

import calendar
import logging
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ..errors import ImageError
from ..storage.filesystem import open_object
from ..storage.limits import MEMBER_BYTES, UNPACKED_SMALL, UNPACKED_TIMES
from ..storage.urls import without_secrets
from .listing import ListingBuilder, check_size
from .shards import ShardSource

log = logging.getLogger("pucache")
_ENCRYPTED = 1  # bit of a member's flags
_SIGNATURE = b"PK\3\4"  # of a local header, which ends in the lengths of the name and of the extra field after it
_LOCAL_HEADER = struct.Struct("<26xHH")
_SPARE = 512  # bytes read beyond a member, as its header there may be longer than in the directory
_UTF8 = 1 << 11  # bit of a member's flags
_DOS = (0, 10, 14)  # systems on which a backslash separates folders: FAT, NTFS and VFAT
_UNICODE_PATH = 0x7075  # extra field of Info-ZIP
_UNICODE_PATH_HEAD = struct.Struct("<BL")  # version, and crc32 of the name that it replaces
_STANDARD = "cp437"  # encoding of names that do not tell theirs


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
        with open_object(fs, shard) as stream, _opened(stream) as archive:
            archive.NameToInfo.clear()
            encoding, backslashes = self.encoding or _STANDARD, has_backslashes(archive.filelist)
            if not self.encoding and any(_told_name(info) is None for info in archive.filelist):
                log.warning(
                    "%s: names without a mark of their encoding are read as %s; '%s#encoding=NAME' names another one, "
                    "such as cp932 or gbk",
                    without_secrets(shard),
                    _STANDARD,
                    self.name,
                )
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

    def _beside(self, fs: Any, shard: str, ending: str) -> Iterator[tuple[str, bytes]]:
        with open_object(fs, shard) as stream, _opened(stream) as archive:
            encoding, backslashes = self.encoding or _STANDARD, has_backslashes(archive.filelist)
            for info in archive.infolist():
                name = member_name(info, encoding, backslashes=backslashes)
                if name.endswith(ending) and not _problem(info) and info.file_size <= MEMBER_BYTES:
                    yield name, archive.read(info)

    def _read(self, member: Member) -> bytes:
        check_size(member.size)
        check_size(member.packed)
        if member.size > UNPACKED_SMALL + UNPACKED_TIMES * member.packed:
            raise ImageError(f"unpacks to more than {UNPACKED_TIMES} times its size; it holds no image")
        return _unpacked(member, self._packed(member, member.packed))

    def _head(self, member: Member, size: int) -> bytes:
        data = self._packed(member, min(2 * size, member.packed))
        if member.method == zipfile.ZIP_DEFLATED:
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size)
        return data[:size]

    def _packed(self, member: Member, size: int) -> bytes:
        """The first bytes of a member, as they are stored."""
        length = _LOCAL_HEADER.size + member.name_length + size
        raw = self._bytes(member.shard, member.offset, min(length + _SPARE, member.end - member.offset))
        if len(raw) < _LOCAL_HEADER.size or not raw.startswith(_SIGNATURE):
            raise ImageError("no member of the ZIP archive begins where its directory says; embed again")
        begin = _LOCAL_HEADER.size + sum(_LOCAL_HEADER.unpack_from(raw))
        if begin + size > len(raw):
            raw = self._bytes(member.shard, member.offset, min(begin + size, member.end - member.offset))
        return raw[begin : begin + size]


def _opened(stream: Any) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(stream)
    except UnicodeDecodeError as error:
        raise ImageError("has names that are marked as UTF-8 and are not; pack it again") from error


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


# --- names ----------------------------------------------------------------------------------------


def has_backslashes(infos: Iterable[zipfile.ZipInfo]) -> bool:
    """Whether every name has backslashes and none a slash, as programs on Windows write them that claim to be Unix."""
    return all("\\" in info.orig_filename and "/" not in info.orig_filename for info in infos)


def member_name(info: zipfile.ZipInfo, encoding: str, *, backslashes: bool) -> str:
    """Name of a member, with slashes; `encoding` is that of names which do not tell theirs.

    `backslashes` separate folders in an archive of Unix too. Bytes that the encoding lacks become lone surrogates,
    which no key may hold.
    """
    name = _told_name(info)
    if name is None:
        name = _raw(info).decode(encoding, "surrogateescape")
    return name.replace("\\", "/") if backslashes or info.create_system in _DOS else name


def _told_name(info: zipfile.ZipInfo) -> str | None:
    """Name of a member that is marked as UTF-8, or is UTF-8, as the commands zip and ditto write it without a mark."""
    if info.flag_bits & _UTF8:
        return info.filename
    raw = _raw(info)
    if (path := _unicode_path(info.extra, raw)) is not None:
        return path
    return raw.decode() if _is_utf8(raw) else None


def _raw(info: zipfile.ZipInfo) -> bytes:
    return info.orig_filename.partition("\0")[0].encode("cp437")


def _unicode_path(extra: bytes, raw: bytes) -> str | None:
    """Name in the extra field of Info-ZIP, where it is of this name."""
    while len(extra) >= 4:
        kind, size = struct.unpack_from("<HH", extra)
        field, extra = extra[4 : 4 + size], extra[4 + size :]
        if kind == _UNICODE_PATH and len(field) > _UNICODE_PATH_HEAD.size:
            name = field[_UNICODE_PATH_HEAD.size :]
            if _UNICODE_PATH_HEAD.unpack_from(field) == (1, zlib.crc32(raw)) and _is_utf8(name):
                return name.decode()
    return None


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
