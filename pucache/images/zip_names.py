"""Names of the members of ZIP archives, whose encoding few archives tell."""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable
from typing import Any

_UTF8 = 1 << 11  # bit of a member's flags
_DOS = (0, 10, 14)  # systems on which a backslash separates folders: FAT, NTFS and VFAT
_UNICODE_PATH = 0x7075  # extra field of Info-ZIP
_UNICODE_PATH_HEAD = struct.Struct("<BL")  # version, and crc32 of the name that it replaces
_ENTRY = re.compile(rb"PK\x01\x02")  # of the directory, with the flags at 8 and the name's length at 28
_ENTRY_SIZE = 46
_JAPANESE = re.compile("[\u3000-\u30ff\u4e00-\u9fff\uff01-\uff5e]+")
_MOST_GUESSED = 1 << 16  # bytes of names that are looked at for the encoding


def open_archive(stream: Any) -> zipfile.ZipFile:
    """Open an archive; a name that is marked as UTF-8 and is not counts as one without the mark."""
    try:
        return zipfile.ZipFile(stream)
    except UnicodeDecodeError:
        stream.seek(0)
        return zipfile.ZipFile(_WithoutWrongMarks(stream))  # type: ignore[arg-type]


class _WithoutWrongMarks(io.RawIOBase):
    """An archive in which the mark for UTF-8 is taken from names that are not; the directory is read in one piece."""

    def __init__(self, stream: Any):
        self._stream = stream

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._stream.seek(offset, whence))

    def tell(self) -> int:
        return int(self._stream.tell())

    def read(self, size: int = -1) -> bytes:
        data = bytearray(self._stream.read(size))
        for found in _ENTRY.finditer(data):
            at = found.start()
            name = data[at + _ENTRY_SIZE :][: int.from_bytes(data[at + 28 : at + 30], "little")]
            if len(data) >= at + _ENTRY_SIZE and data[at + 9] & 8 and not _is_utf8(name):
                data[at + 9] &= ~8
        return bytes(data)


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


def guess_encoding(infos: Iterable[zipfile.ZipInfo]) -> str:
    """Encoding of the names that do not tell theirs: cp932, gbk, cp437 or cp850; "" where every name does."""
    names: list[bytes] = []
    for info in infos:
        if _told_name(info) is None and sum(map(len, names)) < _MOST_GUESSED:
            names.append(_raw(info))
    if not names:
        return ""
    if _all_decode(names, "cp932", lambda text: _JAPANESE.fullmatch(text) is not None):
        return "cp932"
    if _all_decode(names, "gb2312", lambda text: True):
        return "gbk"
    is_letters = str.isalpha
    return (
        "cp850" if not _all_decode(names, "cp437", is_letters) and _all_decode(names, "cp850", is_letters) else "cp437"
    )


def _all_decode(names: list[bytes], encoding: str, fits: Any) -> bool:
    """Whether all names are of an encoding, and what is not ASCII in them fits."""
    try:
        texts = [name.decode(encoding) for name in names]
    except UnicodeDecodeError:
        return False
    return all(fits(run) for text in texts for run in re.findall(r"[^\x00-\x7f]+", text))


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


def _is_utf8(name: bytes | bytearray) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
