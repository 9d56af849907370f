"""Copies of remote files of which only some bytes are fetched."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any

from .filesystem import read_range

_BLOCK_BYTES = 1 << 16  # fetched together: a request for less takes as long


class PartialCopy:
    """A file of this machine with the size of a remote one, of which the blocks that were read are fetched.

    All other bytes are a hole, which takes no space on the disk and reads as zeros.

    Parameters
    ----------
    fs : fsspec.AbstractFileSystem
    path : str
        Remote file.
    target : Path
        Local file, which is made.
    size : int
        Of the remote file in bytes.
    """

    def __init__(self, fs: Any, path: str, target: Path, size: int):
        self._fs, self._path, self._size = fs, path, size
        self._fetched: set[int] = set()  # numbers of blocks
        self._file = target.open("w+b")
        self._file.truncate(size)

    def read_at(self, offset: int, count: int) -> bytes:
        """Read bytes, fewer at the end of the file; blocks that this machine lacks are fetched.

        Raises
        ------
        RetriesExhausted, or the store's own error
            The remote file cannot be read.
        OSError
            The local file cannot be written.
        """
        end = min(offset + count, self._size)
        missing = [number for number in self._blocks(offset, end) if number not in self._fetched]
        if missing:
            start = missing[0] * _BLOCK_BYTES
            data = read_range(self._fs, self._path, start, min((missing[-1] + 1) * _BLOCK_BYTES, self._size))
            self._file.seek(start)
            self._file.write(data)
            self._file.flush()
            self._fetched.update(range(missing[0], missing[-1] + 1))
        return os.pread(self._file.fileno(), max(0, end - offset), offset)

    @staticmethod
    def _blocks(offset: int, end: int) -> range:
        return range(offset // _BLOCK_BYTES, -(-end // _BLOCK_BYTES)) if end > offset else range(0)

    def __enter__(self) -> PartialCopy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()
