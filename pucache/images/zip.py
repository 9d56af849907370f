"""Images inside ZIP archives, read in place, and the names of members: in the encoding in which letters make words."""

from __future__ import annotations

import calendar
import io
import logging
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
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
_ENTRY = re.compile(rb"PK\x01\x02")  # of the directory, with the flags at 8 and the name's length at 28
_ENTRY_SIZE = 46
_NEVER_ASSIGNED = "\U00040000", "\U000dffff"  # planes of Unicode that hold nothing
_MOST_GUESSED = 1 << 16  # bytes of names that are looked at for the encoding


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
        if guessed := _guessed(archive.filelist):
            log.warning(
                "%s: names without a mark of their encoding are read as %s; '%s#encoding=NAME' names another one",
                without_secrets(shard),
                guessed,
                self.name,
            )
        return guessed or "utf-8"

    def _beside(self, fs: Any, shard: str, ending: str) -> Iterator[tuple[str, bytes]]:
        with open_object(fs, shard) as stream, open_archive(stream) as archive:
            encoding = self.encoding or _guessed(archive.filelist) or "utf-8"
            backslashes = has_backslashes(archive.filelist)
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


def _guessed(infos: Iterable[zipfile.ZipInfo]) -> str:
    """Encoding of the names that do not tell theirs, by the first of them; "" where every name does."""
    names: list[bytes] = []
    for info in infos:
        if _told_name(info) is None and sum(map(len, names)) < _MOST_GUESSED:
            names.append(_raw(info))
    return guess_encoding(names) if names else ""


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
        text = name.decode()
    except UnicodeDecodeError:
        return False
    return not any(_NEVER_ASSIGNED[0] <= character <= _NEVER_ASSIGNED[1] for character in text)


# --- names --------------------------------------------------------------------------------------


_WESTERN = "äöüßÄÖÜéèêëàâçîïôùûáíóúñÑåÅæÆÇÉ"
_CENTRAL = "äöüßÄÖÜąćęłńóśźżĄĆĘŁŃÓŚŹŻáčďéěíňřšťúůýžÁČĎÉĚÍŇŘŠŤÚŮÝŽőűŐŰăâîşţ"
_LATIN = {"cp437": _WESTERN, "cp850": _WESTERN + "øØãõÃÕÁÍÓÚÀÂÊËÈÎÏÔÛÙÌÒ", "cp852": _CENTRAL}  # letters that are usual
# frequent characters in the names of pictures and folders
_USUAL = {
    "gb2312": "的图片照相人大中国上年月日新文件夹车汽花猫狗山水风景家生活旅行北京海天小学",
    "big5": "的圖片照相人大中國上年月日新文件夾車汽花貓狗山水風景家生活旅行台灣海天小學",
    "euc_kr": "이가사진그림지다고의에는한로도인스트기리동물강아자차비행마바하나라파일새폴더국서울양",
}
_JAPANESE = re.compile("[\u3000-\u30ff\u4e00-\u9fff\uff01-\uff5e]")
_RIGHT, _WRONG = 3.0, -4.0  # for a character of two bytes, and one that no name has


def guess_encoding(names: Sequence[bytes]) -> str:
    """The most plausible encoding of names; of equally plausible ones the first of cp437, cp850, cp852, cp866, ...."""
    ways: dict[str, Callable[[str], float]] = {encoding: _latin(usual) for encoding, usual in _LATIN.items()}
    ways |= {"cp866": _russian, "cp932": _of_pairs(_japanese)}
    ways |= {encoding: _of_pairs(_of_levels(encoding)) for encoding in _USUAL}
    points: dict[str, float] = {}
    for encoding, way in ways.items():
        try:
            points[encoding] = sum(way(name.decode(encoding)) for name in names)
        except UnicodeDecodeError:
            continue
    best = max(points, key=points.__getitem__, default="cp437")
    return "gbk" if best == "gb2312" else best  # which has more characters


def _latin(usual: str) -> Callable[[str], float]:
    def points(text: str) -> float:
        total = 0.0
        for before, letter in zip(" " + text, text, strict=False):
            if letter > "\x7f":
                total += 2 if letter in usual else -1 if letter.isalpha() else -3
                total -= before > "\x7f"  # two accents in a row are rare
            total -= 2 * (before.islower() and letter.isupper() and max(before, letter) > "\x7f")
        return total

    return points


def _russian(text: str) -> float:
    total = sum(2.0 if "А" <= letter <= "ё" else -3 for letter in text if letter > "\x7f")
    return total - 3 * len(re.findall("[А-ё](?=[A-Za-z])|[A-Za-z](?=[А-ё])", text))


def _of_pairs(points_of: Callable[[str], float]) -> Callable[[str], float]:
    """Characters of two bytes: of a word in Latin letters one alone is an accent and the letter after it."""

    def points(text: str) -> float:
        lone = re.findall(r"[A-Za-z][^\x00-\x7f](?![^\x00-\x7f])|(?<![^\x00-\x7f])[^\x00-\x7f](?=[A-Za-z])", text)
        return sum(points_of(letter) for letter in text if letter > "\x7f") + _WRONG * len(lone)

    return points


def _japanese(letter: str) -> float:
    return _RIGHT if _JAPANESE.match(letter) else _WRONG


def _of_levels(encoding: str) -> Callable[[str], float]:
    """Characters by how frequent those are among which the encoding has them."""
    frequent = {"gb2312": (0xB0, 0xD7), "big5": (0xA4, 0xC6), "euc_kr": (0xB0, 0xC8)}[encoding]

    def points(letter: str) -> float:
        if not letter.isalpha() or "\u3040" <= letter <= "\u30ff":
            return _WRONG
        first = letter.encode(encoding)[0]
        return (_RIGHT if frequent[0] <= first <= frequent[1] else 1.0) + 2 * (letter in _USUAL[encoding])

    return points
