"""The seal behind the HDF5 bytes of a cache file: what every byte was when it was written.

A column is hashed in blocks of rows, so that damage is found where it is; all that is not a column,
which is HDF5's own structure and the attributes, is hashed as one. The latter is little, and checked
before HDF5 sees the file: damage makes that library loop or crash. docs/cache-format.md specifies it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

_BLOCK_ROWS, _MOST_BLOCKS = 256, 1024
_MOST_BYTES = 1 << 24  # of a seal; four columns in 1024 blocks need a fiftieth of that
_FOOTER = re.compile(rb"\npucache-seal (\d{12}) ([0-9a-f]{64})\n")
FOOTER_BYTES = len("\npucache-seal \n") + 12 + 1 + 64
_READ = 1 << 20
Read = Callable[[int, int], bytes]  # offset, count -> bytes; fewer at the end


class Broken(ValueError):
    """A seal that does not fit the bytes before it; the text continues 'FILE is damaged: '."""


class Unsealed(Broken):
    """No seal at all."""


def rows_per_block(n: int) -> int:
    """Rows of a column that are hashed together: few, but never so few that the seal grows large."""
    return max(_BLOCK_ROWS, -(-n // _MOST_BLOCKS))


@dataclass(frozen=True)
class Column:
    """One dataset: where its bytes lie, and the sha256 of each block of them.

    Attributes
    ----------
    offset, size : int
        In bytes, from the beginning of the file.
    block : int
        Bytes hashed together; the last block may be shorter.
    sha256 : tuple of str
        Hexadecimal, one a block.
    """

    offset: int
    size: int
    block: int
    sha256: tuple[str, ...]

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield offset and size of each block."""
        for start in range(0, self.size, self.block):
            yield self.offset + start, min(self.block, self.size - start)


@dataclass(frozen=True)
class Seal:
    """What a file must be.

    Attributes
    ----------
    size : int
        Bytes of HDF5, before the seal.
    columns : dict of str to Column
    rest : str
        sha256 of all other bytes, hexadecimal.
    checksum : str
        sha256 of the seal itself, which names all of these, hexadecimal.
    """

    size: int
    columns: dict[str, Column]
    rest: str
    checksum: str

    @classmethod
    def read(cls, stream: int) -> Seal:
        """Read the seal at the end of an open file, and hold all but the columns against it.

        Raises
        ------
        Unsealed, Broken
            No seal, or another one than the file needs.
        OSError
            The file cannot be read.
        """
        end = os.fstat(stream).st_size
        footer = os.pread(stream, FOOTER_BYTES, max(0, end - FOOTER_BYTES))
        found = _FOOTER.fullmatch(footer)
        if not found:
            raise Unsealed("there is no seal at its end")
        length = int(found[1])
        if length > min(_MOST_BYTES, end - FOOTER_BYTES):
            raise Broken(f"its seal would be of {length:,} bytes")
        text = os.pread(stream, length, end - FOOTER_BYTES - length)
        if hashlib.sha256(text).hexdigest().encode() != found[2]:
            raise Broken("its seal is not as it was written")
        seal = cls._parse(text, found[2].decode())
        if seal.size != end - FOOTER_BYTES - length:
            raise Broken(f"it has {end - FOOTER_BYTES - length:,} bytes before the seal, expected {seal.size:,}")
        if _hash_rest(reader(stream), seal.size, seal.columns) != seal.rest:
            raise Broken("its structure or attributes are not as they were written")
        return seal

    @classmethod
    def _parse(cls, text: bytes, checksum: str) -> Seal:
        """Make sense of a seal whose own hash is right; a stranger may have written it all the same."""
        try:
            said = json.loads(text)
            columns = {
                str(name): Column(int(c["offset"]), int(c["size"]), int(c["block"]), tuple(map(str, c["sha256"])))
                for name, c in said["columns"].items()
            }
            seal = cls(int(said["size"]), columns, str(said["rest"]), checksum)
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise Broken("its seal makes no sense") from error
        here = 0
        for column in sorted(columns.values(), key=lambda column: column.offset):
            blocks = -(-column.size // column.block) if column.block > 0 else -1
            if column.offset < here or column.size < 0 or blocks != len(column.sha256):
                raise Broken("its seal makes no sense")
            here = column.offset + column.size
        if here > seal.size:
            raise Broken("its seal makes no sense")
        return seal

    def damage(self, read: Read, names: Iterable[str]) -> dict[str, list[int]]:
        """Read columns; returns the numbers of the blocks that are not as they were written."""
        found = {}
        for name in names:
            column = self.columns[name]
            wrong = [
                number
                for number, (block, expected) in enumerate(zip(column.blocks(), column.sha256, strict=True))
                if _hash(read, *block, hashlib.sha256()).hexdigest() != expected
            ]
            if wrong:
                found[name] = wrong
        return found


class Hasher:
    """Hashes the bytes of one column as they are written, or holds them against a seal as they are read.

    Parameters
    ----------
    block : int
        Bytes hashed together.
    expected : tuple of str, optional
        The hash of each block.
    """

    def __init__(self, block: int, expected: tuple[str, ...] | None = None):
        self._block = max(1, block)
        self._expected = expected
        self._size = 0
        self._done: list[str] = []
        self._state = hashlib.sha256()

    def update(self, data: memoryview) -> None:
        """Go on with these bytes; raises `Broken` at the end of a block that is not as expected."""
        while data:
            room = self._block - self._size % self._block
            self._state.update(data[:room])
            self._size += min(room, len(data))
            if self._size % self._block == 0:
                self._close()
            data = data[room:]

    def finish(self) -> None:
        """Close the last block, where it is shorter; raises `Broken` as `update` does."""
        if self._size % self._block:
            self._close()

    def _close(self) -> None:
        self._done.append(self._state.hexdigest())
        self._state = hashlib.sha256()
        number = len(self._done) - 1
        if self._expected is not None and self._expected[number : number + 1] != (self._done[number],):
            raise Broken(f"block {number} is not as it was written")

    def column(self, offset: int) -> Column:
        """Describe what was written, from `offset` on."""
        self.finish()
        return Column(offset, self._size, self._block, tuple(self._done))


def append(path: Path, columns: dict[str, Column]) -> None:
    """Seal a file that is complete but for its seal.

    Raises
    ------
    OSError
        The file system refused.
    """
    with open(path, "rb+") as stream:
        size = stream.seek(0, os.SEEK_END)
        described = {name: asdict(column) for name, column in columns.items()}
        content = {"size": size, "columns": described, "rest": _hash_rest(reader(stream.fileno()), size, columns)}
        text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        stream.write(text + f"\npucache-seal {len(text):012d} {hashlib.sha256(text).hexdigest()}\n".encode())


def _hash_rest(read: Read, size: int, columns: dict[str, Column]) -> str:
    state, here = hashlib.sha256(), 0
    for column in sorted(columns.values(), key=lambda column: column.offset):
        _hash(read, here, column.offset - here, state)
        here = max(here, column.offset + column.size)
    return _hash(read, here, size - here, state).hexdigest()


def reader(stream: int) -> Read:
    """Read an open file."""
    return lambda offset, count: os.pread(stream, count, offset)


def _hash(read: Read, offset: int, count: int, state: hashlib._Hash) -> hashlib._Hash:
    """Hash some bytes; those that are missing change the hash as others do."""
    while count > 0:
        data = read(offset, min(count, _READ))
        if not data:
            break
        state.update(data)
        offset += len(data)
        count -= len(data)
    return state
