"""Where the keys of the rows come from: a column, a file of text, a sequence, or the numbers of the rows."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol, TextIO

import numpy as np

from ...errors import CacheError, LabelError
from ..keys import encode_keys
from .parquet_files import ParquetFile
from .parts import FileState

MAX_KEY_BYTES = 4096
_KEYS_PER_BLOCK = 1 << 15


class KeySource(Protocol):
    """Keys in row order."""

    @property
    def name(self) -> str:
        """What the keys are, in messages."""

    @property
    def states(self) -> list[FileState]:
        """Files that are read."""

    def blocks(self) -> Iterable[np.ndarray]:
        """Read the keys in blocks of fixed-width UTF-8."""


@dataclass(frozen=True)
class KeySequence:
    """A sequence in memory."""

    keys: Sequence[str]
    name: str = "the sequence of keys"

    @property
    def states(self) -> list[FileState]:
        """No file is read."""
        return []

    def blocks(self) -> Iterator[np.ndarray]:
        """See `KeySource.blocks`."""
        for start in range(0, len(self.keys), _KEYS_PER_BLOCK):
            yield _encoded(self.keys[start : start + _KEYS_PER_BLOCK])


class KeyFile:
    """A text file with one key a line, or a CSV file with a column ``key``."""

    def __init__(self, path: Path):
        self.path, self.name = path, str(path)
        self._is_csv = path.suffix.lower() == ".csv"
        if not path.is_file():
            raise LabelError(f"cannot read {path}: no such file")
        self.states = [FileState.of(path)]

    def blocks(self) -> Iterator[np.ndarray]:
        """See `KeySource.blocks`; raises `LabelError` if the file is not what it should be."""
        try:
            with open(self.path, encoding="utf-8-sig", newline="" if self._is_csv else None) as stream:
                keys = self._cells(stream) if self._is_csv else (line.rstrip("\n") for line in stream if line.strip())
                while block := list(islice(keys, _KEYS_PER_BLOCK)):
                    yield _encoded(block)
        except UnicodeDecodeError as error:
            raise LabelError(f"{self.path} is not UTF-8 text; save it as UTF-8") from error
        except OSError as error:
            raise LabelError(f"cannot read {self.path}: {error.strerror}") from error

    def _cells(self, stream: TextIO) -> Iterator[str]:
        table = csv.DictReader(stream, strict=True)
        columns = table.fieldnames or ["(none)"]
        if "key" not in columns:
            listing = " ".join(", ".join(columns).split())
            raise LabelError(f"{self.path} has columns {listing}; expected one called 'key'")
        try:
            for row in table:
                if any(row.values()):  # spreadsheets leave rows of commas
                    if not row["key"]:
                        raise LabelError(f"{self.path} line {table.line_num} has no key; complete or remove it")
                    yield row["key"]
        except csv.Error as error:
            raise LabelError(f"{self.path} line {table.line_num}: {error}") from error


@dataclass(frozen=True)
class KeyColumn:
    """A column of Parquet files, one file for each part."""

    files: Sequence[ParquetFile]
    column: str

    @property
    def name(self) -> str:
        """The column and its first file."""
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        return f"column {self.column!r} of {self.files[0].path}{more}"

    @property
    def states(self) -> list[FileState]:
        """The files."""
        return [file.state for file in self.files]

    def blocks(self) -> Iterator[np.ndarray]:
        """See `KeySource.blocks`."""
        for file in self.files:
            yield from file.keys(self.column)


def checked_keys(source: KeySource) -> Iterator[np.ndarray]:
    """Read keys; raises `CacheError` for one that is empty or longer than the format allows."""
    start = 0
    for block in source.blocks():
        lengths = np.char.str_len(block)
        for wrong in np.flatnonzero((lengths == 0) | (lengths > MAX_KEY_BYTES))[:1]:
            raise CacheError(
                f"key {start + wrong} of {source.name} has {lengths[wrong]} bytes; expected 1 to {MAX_KEY_BYTES}"
            )
        yield block
        start += len(block)


def _encoded(keys: Sequence[str]) -> np.ndarray:
    if any("\0" in key for key in keys):
        raise CacheError("a key holds a NUL character; expected text")
    return encode_keys(list(keys))
