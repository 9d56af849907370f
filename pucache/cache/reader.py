"""Reading one cache file: the rows of one encoder.

docs/cache-format.md specifies the format. A file is written once (`pucache.cache.writer`) and never
changed; its arrays are contiguous, so that they can be mapped, and it ends in a table of checksums
(`pucache.cache.checksums`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import CacheError, counted
from ..storage.atomic import open_regular
from ..storage.rows import drop_pages
from . import hdf5
from .checksums import ChecksumError, ChecksumTable, ColumnCheck, MissingChecksumsError, ReadAt, rows_per_hash
from .hdf5 import DatasetExtent
from .keys import decode_text, decode_texts
from .layout import (
    ATTRIBUTES,
    COLUMNS,
    FAILURES,
    OPTIONAL_ATTRIBUTES,
    PARTIAL,
    REMEDY,
    FileAttributes,
    check_layout,
    damage_error,
    require,
)
from .mapped_file import MappedFile, as_bytes

Check = Callable[[], None]
BLOCK_BYTES = 8 << 20  # bytes of a column that are in memory at once
_CHECKED_KEYS = 1 << 16  # at once


def rows_per_read(row_bytes: int) -> int:
    """Number of rows of a column that are read at once, at most `BLOCK_BYTES` of them."""
    return max(1, BLOCK_BYTES // max(1, row_bytes))


@dataclass(frozen=True)
class CacheHeader:
    """What a cache file says of itself: attributes, positions of its datasets, checksums."""

    name: str  # path or URL, for messages
    attributes: FileAttributes
    extents: dict[str, DatasetExtent]
    checksums: ChecksumTable

    @classmethod
    def read(cls, stream: BinaryIO, name: str) -> CacheHeader:
        """Read from a seekable stream, and check everything but the columns; `CacheError` where a check fails."""
        try:
            checksums = _read_checksums(stream, name)
            attributes, extents = hdf5.read(stream, (*ATTRIBUTES, *OPTIONAL_ATTRIBUTES), (*COLUMNS, *FAILURES))
        except KeyError as error:
            raise CacheError(f"{name} is damaged or incomplete: a dataset is missing; {REMEDY}") from error
        except hdf5.DAMAGE as error:
            if isinstance(error, OSError) and error.strerror:
                raise CacheError(f"cannot read {name}: {error.strerror}") from error
            raise CacheError(f"{name} cannot be read ({str(error)[:160]}); {REMEDY}") from error
        parsed = FileAttributes.parse(name, attributes)
        check_layout(name, extents, checksums, dim=parsed.encoder.dim)
        return cls(name, parsed, extents, checksums)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.extents["keys"].shape[0])

    @property
    def dtype(self) -> np.dtype:
        """Type of the embeddings, float16 or float32."""
        return self.extents["embeddings"].dtype

    def read_failures(self, read_at: ReadAt) -> dict[str, str]:
        """Reason by key of every image that could not be read, or only in part; checked against the checksums."""
        damaged = self.checksums.damaged_blocks(read_at, FAILURES)
        if damaged:
            raise damage_error(self.name, sorted(damaged))
        keys, reasons = (self._texts(name, read_at) for name in FAILURES)
        return dict(zip(keys, reasons, strict=True))

    def _texts(self, name: str, read_at: ReadAt) -> list[str]:
        extent = self.extents[name]
        count = math.prod(extent.shape) * extent.dtype.itemsize
        stored = np.frombuffer(read_at(extent.offset or 0, count) if count else b"", extent.dtype)
        return [decode_text(text) for text in stored.tolist()]


def _read_checksums(stream: BinaryIO, name: str) -> ChecksumTable:
    signature = stream.read(len(hdf5.SIGNATURE))
    if not signature:
        raise CacheError(f"{name} is empty (0 bytes); remove it and make it again")
    if signature != hdf5.SIGNATURE:
        raise CacheError(f"{name} is not a pucache cache (not an HDF5 file); a cache is what embed writes")
    try:
        return ChecksumTable.read(stream)
    except MissingChecksumsError as error:
        raise CacheError(
            f"{name} ends without pucache's checksums: it is truncated, or an HDF5 file from elsewhere; {REMEDY}"
        ) from error
    except ChecksumError as error:
        raise CacheError(f"{name} is damaged: {error}; {REMEDY}") from error


class CacheFile:
    """One cache file, opened for reading.

    Opening checks everything but the columns, which are mapped at the first access. With `map_now` the file is mapped
    at once, so that it can be read even after another file has taken its name; this takes a file descriptor until
    `release`. `was_listed`: the command has seen the file in its folder before, so if it is missing, the message says
    that it vanished. Raises `CacheError`, as `CacheHeader.read`.
    """

    def __init__(self, path: str | Path, *, map_now: bool = False, was_listed: bool = False):
        self.path = Path(path)
        try:
            with open_regular(self.path) as stream:
                self.header = CacheHeader.read(stream, str(self.path))
                self._file = MappedFile(self.path, stream.fileno(), map_now=map_now)
        except FileNotFoundError as error:
            if self.path.is_symlink():
                raise CacheError(f"{self.path} is a link to no file; restore what it leads to, or remove it") from error
            if not was_listed:
                raise CacheError(f"no such cache: {self.path}; name a file, or a folder of .h5 files") from error
            raise CacheError(
                f"the cache file {self.path.name} vanished from the folder {self.path.parent} while the command ran; "
                "put it back, or run the command again without it"
            ) from error
        except IsADirectoryError as error:
            raise CacheError(f"{self.path} is a directory, not a cache file") from error
        except OSError as error:
            raise CacheError(f"cannot read {self.path}: {error.strerror or error}") from error
        attributes = self.header.attributes
        self.encoder, self.source, self.shard = attributes.encoder, attributes.source, attributes.shard
        self.created, self.pucache_version = attributes.created, attributes.pucache_version
        self.reordered = attributes.reordered

    def __len__(self) -> int:
        return self.header.rows

    def __repr__(self) -> str:
        return f"CacheFile({str(self.path)!r}, {counted(len(self), 'row')} of {self.encoder}, {self.dtype})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path and the checksum; the file is opened again, and must still be the same."""
        return reopened, (os.path.abspath(self.path), self.checksum)

    @property
    def dtype(self) -> np.dtype:
        """Type of the embeddings, float16 or float32."""
        return self.header.dtype

    @property
    def checksum(self) -> str:
        """sha256 of the checksum table, hexadecimal; it identifies the content of the file."""
        return self.header.checksums.checksum

    # --- mapped arrays ---------------------------------------------------------------------------

    def _array(self, name: str) -> np.ndarray:
        extent = self.header.extents[name]
        if 0 in extent.shape:
            return np.empty(extent.shape, extent.dtype)
        flat = np.frombuffer(self._file.map, extent.dtype, math.prod(extent.shape), extent.offset or 0)
        return flat.reshape(extent.shape)

    @property
    def X(self) -> np.ndarray:
        """Embeddings, (n, d) float16 or float32, mapped read-only."""
        return self._array("embeddings")

    @property
    def raw_keys(self) -> np.ndarray:
        """Keys as fixed-width UTF-8, (n,) of dtype S, sorted."""
        return self._array("keys")

    @property
    def digests(self) -> np.ndarray:
        """sha256 of each image's bytes, (n, 32) uint8."""
        return self._array("digests")

    @property
    def size_mtime(self) -> np.ndarray:
        """Size in bytes and modification time in ns of each image, (n, 2) int64."""
        return self._array("size_mtime")

    @property
    def records(self) -> dict[str, str]:
        """The failures, and what was not read of images that have a row; checked against the checksums."""
        with self._file.byte_reader() as read_at:
            return self.header.read_failures(read_at)

    @property
    def failures(self) -> dict[str, str]:
        """Reason by key of every image that could not be read."""
        return {key: reason for key, reason in self.records.items() if not reason.startswith(PARTIAL)}

    @property
    def partial(self) -> dict[str, str]:
        """What was not read, by key of every image that has a row all the same."""
        return {key: reason for key, reason in self.records.items() if reason.startswith(PARTIAL)}

    def release(self) -> None:
        """Drop the map and its file descriptor; the next access maps again."""
        self._file.release()

    # --- copies, read without the map: bounded in memory, and a disk error is an exception ----------

    @contextmanager
    def embedding_reader(self, pool: Executor | None = None) -> Iterator[Callable[[np.ndarray, int], Check]]:
        """Yield a function that fills an array, (b, d), with the rows from a given one on.

        With a `pool`, all rows must be read in their order, and are checked in its threads. What the function returns
        is called before the array is used: it waits, and raises `CacheError` for damage, at the latest of the last row.
        """
        extent, column = self.header.extents["embeddings"], self.header.checksums.columns["embeddings"]
        check = ColumnCheck(column, pool) if pool else None
        with self._file.array_reader() as read_into:

            def read(block: np.ndarray, row: int) -> Check:
                read_into(block, extent.row_offset(row))
                return partial(self._wait, check.begin(as_bytes(block))) if check else lambda: None

            yield read

    def _wait(self, wait: Check) -> None:
        try:
            wait()
        except ChecksumError as error:
            raise damage_error(self.path, ["embeddings"]) from error

    def take(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Copy rows of a column, given their ascending numbers, by reading all between, a bounded stretch at a time."""
        extent, begin = self.header.extents[name], 0
        taken, step = extent.empty(len(rows)), rows_per_read(extent.row_bytes)
        with self._file.array_reader() as read_into:
            while begin < len(rows):
                first = int(rows[begin])
                end = int(np.searchsorted(rows, first + step))
                adjacent = (np.diff(rows[begin:end]) == 1).all()
                stretch = taken[begin:end] if adjacent else extent.empty(int(rows[end - 1]) + 1 - first)
                read_into(stretch, extent.row_offset(first))
                if not adjacent:
                    taken[begin:end] = stretch[rows[begin:end] - first]
                begin = end
        return taken

    # --- damage ----------------------------------------------------------------------------------

    def damaged_rows(self, names: Iterable[str] = (*COLUMNS, *FAILURES)) -> tuple[np.ndarray, list[str]]:
        """Rows, bool (n,), in blocks that fail their checksums, and the names of the damaged datasets."""
        with self._file.byte_reader() as read_at:
            blocks = self.header.checksums.damaged_blocks(read_at, names)
        rows, step = np.zeros(len(self), bool), rows_per_hash(len(self))
        for name in set(blocks) & set(COLUMNS):
            for number in blocks[name]:
                rows[number * step : (number + 1) * step] = True
        return rows, sorted(blocks)

    def check(self, *names: str) -> None:
        """Read whole datasets and check them against the checksums; damage raises `CacheError`."""
        _, datasets = self.damaged_rows(names)
        if datasets:
            raise damage_error(self.path, datasets)

    def check_texts(self) -> None:
        """Raise `CacheError` if keys are not sorted, or if a text is not UTF-8."""
        keys = self.raw_keys
        for start in range(0, len(keys), _CHECKED_KEYS):
            block = keys[start : start + _CHECKED_KEYS + 1]
            require(self.path, bool(np.all(block[1:] > block[:-1])), "keys are not sorted and unique")
            decode_texts(block.tolist())
            drop_pages(keys)
        _ = self.records  # decoded


def reopened(path: str, checksum: str) -> CacheFile:
    """Open a file of which another process knew the checksum; `CacheError` where it is another one now."""
    file = CacheFile(path, map_now=True)
    if file.checksum != checksum:
        raise CacheError(f"{path} was replaced since this cache was opened; open it again where it is used")
    return file
