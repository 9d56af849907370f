"""A file that is read as it was when it was opened, whatever takes its name meanwhile."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np

from ..errors import CacheError
from .checksums import Read, reader

Identity = tuple[int, int, int, int]


def identity(stream: int) -> Identity:
    """What tells an open file from another of the same name: device, inode, size, time of change."""
    info = os.fstat(stream)
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


class Opened:
    """One immutable file: mapped, or read without the map.

    Reading by calls is bounded in memory, and an error of the disk is an exception; in a map it is the
    death of the process.

    Parameters
    ----------
    path : Path
    stream : int
        The file, open; it may be closed afterwards.
    hold : bool
        Map at once, which keeps the file, and a descriptor, until `release`.
    """

    def __init__(self, path: Path, stream: int, hold: bool):
        self.path, self.identity = path, identity(stream)
        if hold:
            self.map = _mapped(stream)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.identity[2]

    @cached_property
    def map(self) -> mmap.mmap:
        """The whole file; raises `CacheError` where another has its name."""
        with self._again() as stream:
            if stream is None:
                raise CacheError(f"{self.path} was replaced or removed while it was open; open it again")
            return _mapped(stream)

    def release(self) -> None:
        """Drop the map and its descriptor; the next access maps again."""
        self.__dict__.pop("map", None)

    @contextmanager
    def reading(self) -> Iterator[Read]:
        """Yield what reads bytes from an offset on; errors within become `CacheError`."""
        with self._again() as stream:
            yield reader(stream) if stream is not None else lambda offset, count: self.map[offset : offset + count]

    @contextmanager
    def filling(self) -> Iterator[Fill]:
        """Yield what fills an array with the bytes from an offset on; errors within become `CacheError`."""
        with self._again() as stream:
            yield Fill(self, stream)

    @contextmanager
    def _again(self) -> Iterator[int | None]:
        """The file, open once more; None where another has its name."""
        try:
            stream = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield None
            return
        except OSError as error:  # more files than `ulimit -n` allows, say
            raise CacheError(f"cannot read {self.path}: {error.strerror}") from error
        try:
            yield stream if identity(stream) == self.identity else None
        except OSError as error:
            raise CacheError(f"cannot read {self.path}: {error.strerror}") from error
        finally:
            os.close(stream)


class Fill:
    """Fills arrays from a file."""

    def __init__(self, file: Opened, stream: int | None):
        self._file, self._stream = file, stream

    def __call__(self, array: np.ndarray, offset: int) -> None:
        """Fill all of a contiguous array."""
        view = as_bytes(array)
        if self._stream is None:
            view[:] = memoryview(self._file.map)[offset : offset + len(view)]
            return
        while view:
            count = os.preadv(self._stream, [view], offset)
            if not count:
                raise CacheError(f"{self._file.path} was cut short while it was read; restore it from a copy")
            view, offset = view[count:], offset + count


def as_bytes(array: np.ndarray) -> memoryview:
    """The bytes of a contiguous array, as they lie."""
    return array.reshape(-1).view(np.uint8).data


def _mapped(stream: int) -> mmap.mmap:
    return mmap.mmap(stream, 0, access=mmap.ACCESS_READ)
