"""Checksums of a cache file: the table behind the HDF5 bytes that covers every one of them.

docs/cache-format.md calls this table the seal and specifies it. A column is hashed in blocks of rows,
so that damage can be located. Everything else (HDF5's own structure and the attributes) is hashed as
one; it is small, and checked before HDF5 sees the file, because damage there makes HDF5 loop or crash.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO, cast

_MIN_ROWS_PER_HASH, _MAX_BLOCKS = 256, 1024
_MAX_TABLE_BYTES = 1 << 24  # four columns in 1024 blocks need a fiftieth of that
_FOOTER = re.compile(rb"\npucache-seal (\d{12}) ([0-9a-f]{64})\n")
FOOTER_BYTES = len("\npucache-seal \n") + 12 + 1 + 64
_READ_BYTES = 1 << 20
ReadAt = Callable[[int, int], bytes]  # offset, count -> bytes; fewer at the end of the file


class ChecksumError(ValueError):
    """The checksums do not match the file; the message continues 'FILE is damaged: '."""


class MissingChecksumsError(ChecksumError):
    """The file does not end in a checksum table."""


def rows_per_hash(n: int) -> int:
    """Number of rows of an n-row column that are hashed together: at least 256, and at most 1,024 blocks."""
    return max(_MIN_ROWS_PER_HASH, -(-n // _MAX_BLOCKS))


@dataclass(frozen=True)
class ColumnChecksums:
    """Position and checksums of one dataset; the field names are those of the JSON in the file."""

    offset: int  # in bytes, from the beginning of the file
    size: int
    block: int  # bytes hashed together; the last block may be shorter
    sha256: tuple[str, ...]  # of each block, hexadecimal


@dataclass(frozen=True)
class ChecksumTable:
    """Checksums of every byte of a cache file."""

    size: int  # HDF5 bytes, which come before the table
    columns: dict[str, ColumnChecksums]
    rest: str  # sha256 of all HDF5 bytes outside the columns, hexadecimal
    checksum: str  # sha256 of the table itself; as the table covers all other bytes, it identifies the file

    @classmethod
    def read(cls, stream: BinaryIO) -> ChecksumTable:
        """Read the table at the end of a file, and check all bytes outside the columns.

        Raises `MissingChecksumsError` where there is no table, `ChecksumError` where it is damaged or does not match
        the file.
        """
        read_at, end = stream_reader(stream), stream.seek(0, os.SEEK_END)
        footer = _FOOTER.fullmatch(read_at(max(0, end - FOOTER_BYTES), FOOTER_BYTES))
        if not footer:
            raise MissingChecksumsError("there is no table of checksums at its end")
        length, digest = int(footer[1]), footer[2]
        if length > min(_MAX_TABLE_BYTES, end - FOOTER_BYTES):
            raise ChecksumError(f"its table of checksums would be of {length:,} bytes")
        size = end - FOOTER_BYTES - length
        text = read_at(size, length)
        if hashlib.sha256(text).hexdigest().encode() != digest:
            raise ChecksumError("its table of checksums is not as it was written")
        table = cls._parse(text, digest.decode())
        if table.size != size:
            raise ChecksumError(f"it has {size:,} bytes before its checksums, expected {table.size:,}")
        if _hash_rest(read_at, size, table.columns) != table.rest:
            raise ChecksumError("its structure or attributes are not as they were written")
        return table

    @classmethod
    def _parse(cls, text: bytes, checksum: str) -> ChecksumTable:
        """Parse the JSON. Its own hash is right, but the file may come from an untrusted writer."""
        try:
            content = json.loads(text)
            columns = {
                str(name): ColumnChecksums(
                    offset=int(column["offset"]),
                    size=int(column["size"]),
                    block=int(column["block"]),
                    sha256=tuple(map(str, column["sha256"])),
                )
                for name, column in content["columns"].items()
            }
            table = cls(size=int(content["size"]), columns=columns, rest=str(content["rest"]), checksum=checksum)
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ChecksumError("its table of checksums makes no sense") from error
        table._check_extents()
        return table

    def _check_extents(self) -> None:
        """Raise `ChecksumError` unless the columns lie within the file, do not overlap, and have all their hashes."""
        end = 0
        for column in sorted(self.columns.values(), key=lambda column: column.offset):
            blocks = -(-column.size // column.block) if column.block > 0 else -1
            if column.offset < end or column.size < 0 or blocks != len(column.sha256):
                raise ChecksumError("its table of checksums makes no sense")
            end = column.offset + column.size
        if end > self.size:
            raise ChecksumError("its table of checksums makes no sense")

    def damaged_blocks(self, read_at: ReadAt, names: Iterable[str]) -> dict[str, list[int]]:
        """Read columns; return the numbers of the damaged blocks of each column that has any."""
        damaged = {}
        for name in names:
            column = self.columns[name]
            hasher = ColumnHasher(column.block)
            for data in _pieces(read_at, column.offset, column.size):
                hasher.update(memoryview(data))
            digests = zip_longest(hasher.checksums(column.offset).sha256, column.sha256)  # fewer if bytes are missing
            numbers = [number for number, (digest, expected) in enumerate(digests) if digest != expected]
            if numbers:
                damaged[name] = numbers
        return damaged


class ColumnCheck:
    """Compares a column with its checksums, several blocks at once in a pool, from consecutive pieces of it."""

    def __init__(self, column: ColumnChecksums, pool: Executor):
        self._column, self._pool = column, pool
        self._size, self._last = 0, cast("Future[Any]", None)

    def begin(self, data: memoryview) -> Callable[[], None]:
        """Begin to hash the next bytes; they must stay until the function that is returned has waited for all of them.

        That raises `ChecksumError` where a block ends in these bytes and differs from what was written.
        """
        begun: list[Future[Any]] = []
        while data:
            number, before = divmod(self._size, self._column.block)
            piece = data[: self._column.block - before]
            self._size += len(piece)
            ends = not self._size % self._column.block or self._size == self._column.size
            expected = self._column.sha256[number] if ends else ""
            self._last = self._pool.submit(_hash_piece, self._last if before else None, piece, number, expected)
            begun.append(self._last)
            data = data[len(piece) :]

        def wait() -> None:
            for piece_hashed in begun:
                piece_hashed.result()

        return wait


def _hash_piece(before: Future[Any] | None, piece: memoryview, number: int, expected: str) -> Any:
    """Hash a piece of a block behind the piece `before` it; a pool begins these in their order, so none waits long."""
    state = hashlib.sha256() if before is None else before.result()
    state.update(piece)
    if expected and state.hexdigest() != expected:
        raise ChecksumError(f"block {number} is not as it was written")
    return state


class ColumnHasher:
    """Hashes one column in blocks of bytes, from consecutive pieces of it."""

    def __init__(self, block: int):
        self._block = max(1, block)
        self._size = 0
        self._digests: list[str] = []
        self._state = hashlib.sha256()

    def update(self, data: memoryview) -> None:
        """Add the next bytes."""
        while data:
            room = self.missing or self._block
            self._state.update(data[:room])
            self._size += min(room, len(data))
            if not self.missing:
                self._finish_block()
            data = data[room:]

    @property
    def missing(self) -> int:
        """Bytes until the present block ends; 0 between two blocks."""
        return -self._size % self._block

    def _finish_block(self) -> None:
        self._digests.append(self._state.hexdigest())
        self._state = hashlib.sha256()

    def checksums(self, offset: int) -> ColumnChecksums:
        """End the column, whose last block may be shorter, and return its checksums; `offset` is where it begins."""
        if self.missing:
            self._finish_block()
        return ColumnChecksums(offset=offset, size=self._size, block=self._block, sha256=tuple(self._digests))


def append_table(path: Path, columns: dict[str, ColumnChecksums]) -> None:
    """Append the checksum table to a finished HDF5 file."""
    with open(path, "rb+") as stream:
        size = stream.seek(0, os.SEEK_END)
        rest = _hash_rest(stream_reader(stream), size, columns)
        content = {"size": size, "columns": {name: asdict(column) for name, column in columns.items()}, "rest": rest}
        text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        stream.seek(size)
        stream.write(text + f"\npucache-seal {len(text):012d} {hashlib.sha256(text).hexdigest()}\n".encode())


def stream_reader(stream: BinaryIO) -> ReadAt:
    """Return a function that reads from a seekable stream."""

    def read_at(offset: int, count: int) -> bytes:
        stream.seek(offset)
        return stream.read(count)

    return read_at


def _hash_rest(read_at: ReadAt, size: int, columns: dict[str, ColumnChecksums]) -> str:
    """Hash the first `size` bytes but for the columns; missing bytes change the hash as altered ones do."""
    state, position = hashlib.sha256(), 0
    ordered = sorted(columns.values(), key=lambda column: column.offset)
    for offset, end in [*((column.offset, column.offset + column.size) for column in ordered), (size, size)]:
        for data in _pieces(read_at, position, offset - position):
            state.update(data)
        position = max(position, end)
    return state.hexdigest()


def _pieces(read_at: ReadAt, offset: int, count: int) -> Iterator[bytes]:
    """Yield bytes of a file in pieces, until the file ends."""
    while count > 0:
        data = read_at(offset, min(count, _READ_BYTES))
        if not data:
            break
        yield data
        offset += len(data)
        count -= len(data)
