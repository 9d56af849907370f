"""Reading a file as it was when it was opened, even if another file takes its name."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np

from ..errors import CacheError
from .checksums import ReadAt

FileIdentity = tuple[int, int, int, int]
ReadInto = Callable[[np.ndarray, int], None]  # contiguous array, offset: fills all of the array


def file_identity(descriptor: int) -> FileIdentity:
    """Device, inode, size and time of change of an open file: different for another file of the same name."""
    info = os.fstat(descriptor)
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


class MappedFile:
    """One immutable file, read through a memory map or by calls.

    Reading by calls is bounded in memory, and a disk error is an exception; in a map it ends the process. A map that is
    made at once keeps the content and a descriptor until `release`; otherwise the first access maps. The `descriptor`
    that is passed may be closed afterwards.
    """

    def __init__(self, path: Path, descriptor: int, *, map_now: bool):
        self.path, self._identity = path, file_identity(descriptor)
        if map_now:
            self.map = _map(descriptor)

    @cached_property
    def map(self) -> mmap.mmap:
        """The whole file; raises `CacheError` if another file has taken its name."""
        with self._reopened() as descriptor:
            if descriptor is None:
                raise CacheError(f"{self.path} was replaced or removed while it was open; open it again")
            return _map(descriptor)

    def release(self) -> None:
        """Drop the map and its descriptor; the next access maps again."""
        self.__dict__.pop("map", None)

    @contextmanager
    def array_reader(self) -> Iterator[ReadInto]:
        """Yield a function that fills arrays; an `OSError` in the block becomes a `CacheError`."""
        with self._reopened() as descriptor:
            if descriptor is None:
                yield self._copy_from_map
            else:
                yield lambda array, offset: self._read_into(array, offset, descriptor)

    @contextmanager
    def byte_reader(self) -> Iterator[ReadAt]:
        """Yield a function that reads bytes; an `OSError` in the block becomes a `CacheError`."""
        with self.array_reader() as read_into:

            def read_at(offset: int, count: int) -> bytes:
                data = np.empty(count, np.uint8)
                read_into(data, offset)
                return data.tobytes()

            yield read_at

    def _copy_from_map(self, array: np.ndarray, offset: int) -> None:
        if self.map.size() < len(self.map):  # reading a map beyond the end of its file ends the process
            raise self._cut_short()
        view = as_bytes(array)
        view[:] = memoryview(self.map)[offset : offset + len(view)]

    def _cut_short(self) -> CacheError:
        return CacheError(f"{self.path} was cut short while it was read; restore it from a copy")

    def _read_into(self, array: np.ndarray, offset: int, descriptor: int) -> None:
        view = as_bytes(array)
        while view:
            count = os.preadv(descriptor, [view], offset)
            if not count:
                raise self._cut_short()
            view, offset = view[count:], offset + count

    @contextmanager
    def _reopened(self) -> Iterator[int | None]:
        """Open the file again; yields None if another file has taken its name."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield None
            return
        except OSError as error:  # such as more open files than `ulimit -n` allows
            raise CacheError(f"cannot read {self.path}: {error.strerror}") from error
        try:
            yield descriptor if file_identity(descriptor) == self._identity else None
        except OSError as error:
            raise CacheError(f"cannot read {self.path}: {error.strerror}") from error
        finally:
            os.close(descriptor)


def as_bytes(array: np.ndarray) -> memoryview:
    """View of the bytes of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data


def _map(descriptor: int) -> mmap.mmap:
    return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
