"""Rows of one part: what every kind of part gives, and the checks that a file is still the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from ...errors import CacheError, one_line


class SourceLostError(CacheError):
    """A file of the source is gone or another one, or cannot be read; what was imported so far is kept."""


@dataclass(frozen=True)
class PartRows:
    """Rows of a part as they are stored.

    Attributes
    ----------
    X : ndarray of float, (m, d)
    digests : ndarray of uint8, (m, 32), or None
    size_mtime : ndarray of int64, (m, 2), or None
        Only an export of pucache has these.
    """

    X: np.ndarray
    digests: np.ndarray | None = None
    size_mtime: np.ndarray | None = None


class Part(Protocol):
    """Embeddings of one file, or of an array in memory."""

    @property
    def name(self) -> str:
        """Name in messages."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    @property
    def dim(self) -> int:
        """Length of a row."""

    @property
    def dtype(self) -> np.dtype:
        """Type of the values of `PartRows.X`."""

    @property
    def sequential(self) -> bool:
        """Whether rows can only be read forward, in contiguous stretches."""

    def take(self, rows: np.ndarray) -> PartRows:
        """Read rows, ascending; contiguous ones, ahead of those read before, if the part is `sequential`."""


@dataclass(frozen=True)
class FileState:
    """Size and time of change of a file, by which another file of its name is noticed.

    Attributes
    ----------
    path : Path
    size, mtime_ns : int
    """

    path: Path
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> FileState:
        """Look at a file now; raises `SourceLostError` if that is impossible."""
        with reading(path):
            status = os.stat(path)
        return cls(path, status.st_size, status.st_mtime_ns)

    def check(self) -> None:
        """Raise `SourceLostError` if the file is gone, or is another one."""
        if FileState.of(self.path) != self:
            raise SourceLostError(f"{self.path} changed during the import; run the same command to import it as it is")

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Open the file, which must be the same as before, and yield its descriptor."""
        with reading(self.path):
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if (status.st_size, status.st_mtime_ns) != (self.size, self.mtime_ns):
                self.check()
            with reading(self.path):
                yield descriptor
        finally:
            os.close(descriptor)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an `OSError` into a `SourceLostError` that says how to go on."""
    try:
        yield
    except FileNotFoundError as error:
        raise SourceLostError(f"{path} is gone; restore it and run the same command, which then goes on") from error
    except OSError as error:
        raise SourceLostError(f"cannot read {path}: {one_line(error)}; run the same command to go on") from error


def read_into(descriptor: int, view: memoryview, offset: int, path: Path) -> None:
    """Fill a buffer from a file; raises `SourceLostError` if the file ends before."""
    while view:
        count = os.preadv(descriptor, [view], offset)
        if not count:
            raise SourceLostError(f"{path} was cut short while it was imported; restore it and run the same command")
        view, offset = view[count:], offset + count
