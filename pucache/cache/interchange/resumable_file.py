"""Writing one large cache file so that a killed process loses no more than the segment it was writing.

The HDF5 structure is written first, complete and closed. The columns are then filled in place, outside
HDF5, in segments: after each segment the file is flushed to disk and the progress recorded. The result
has the same bytes as what `pucache.cache.writer` writes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...encoders.spec import EncoderSpec
from ...errors import OutputError, one_line
from ...storage.atomic import fsync_directory, replacing
from ...storage.prefetch import prefetch
from ...version import __version__
from .. import hdf5
from ..checksums import ColumnChecksums, ColumnHasher, append_table, rows_per_hash
from ..hdf5 import DatasetExtent
from ..keys import encode_keys
from ..layout import ATTRIBUTES, COLUMNS, FAILURES, FORMAT, VERSION
from ..mapped_file import as_bytes
from ..writer import Rows, creation_time

SEGMENT_BYTES = 128 << 20  # of embeddings, at least; a kill loses at most one segment
ReadRows = Callable[[int, int], Iterable[Rows]]  # first row and end of a segment -> its blocks


@dataclass(frozen=True)
class FileContent:
    """What a cache file holds beside its rows.

    Attributes
    ----------
    encoder : EncoderSpec
    source : str
    failures : dict of str to str
        Sorted by key.
    n, key_bytes : int
        Number of rows, and bytes of the longest key.
    dtype : numpy.dtype
        Of the embeddings.
    """

    encoder: EncoderSpec
    source: str
    failures: dict[str, str]
    n: int
    key_bytes: int
    dtype: np.dtype

    def column_layouts(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and type of each column."""
        return {
            "embeddings": ((self.n, self.encoder.dim), self.dtype),
            "keys": ((self.n,), np.dtype(f"S{self.key_bytes}")),
            "digests": ((self.n, 32), np.dtype("u1")),
            "size_mtime": ((self.n, 2), np.dtype("<i8")),
        }

    def failure_columns(self) -> dict[str, np.ndarray]:
        """Keys and reasons of the failures."""
        return {
            name: encode_keys(list(texts))
            for name, texts in zip(FAILURES, (self.failures, self.failures.values()), strict=True)
        }


class ResumableFile:
    """An unfinished cache file in a work folder.

    Parameters
    ----------
    folder : Path
        Exists; holds the file and the record of its progress.
    content : FileContent
        The same as when the file was begun.
    """

    def __init__(self, folder: Path, content: FileContent):
        self._path, self._progress = folder / "unfinished.h5", folder / "progress.json"
        self._content = content
        self.rows_done, self._digests = self._read_progress()
        if not self.rows_done:
            self._create()
        with open(self._path, "rb") as stream:
            _, self._extents = hdf5.read(stream, ATTRIBUTES, (*COLUMNS, *FAILURES))

    def _read_progress(self) -> tuple[int, dict[str, list[str]]]:
        """Rows that are safely on disk, and the digests of their blocks."""
        try:
            progress = json.loads(self._progress.read_text())
            os.truncate(self._path, progress["size"])  # drops a table that was appended before a kill
            return int(progress["rows"]), progress["digests"]
        except FileNotFoundError:
            return 0, {name: [] for name in COLUMNS}

    def _create(self) -> None:
        """Write the structure; one row of each column makes HDF5 reserve the place of the column."""
        content = self._content
        with replacing(self._path) as temporary, hdf5.new_file(temporary) as file:
            for name, (shape, dtype) in content.column_layouts().items():
                file.create(name, shape, dtype)
            for name, (shape, dtype) in content.column_layouts().items():
                file.write(name, 0, np.zeros((1, *shape[1:]), dtype))
            for name, texts in content.failure_columns().items():
                file.create(name, texts.shape, texts.dtype)
                file.write(name, 0, texts)
            attributes: hdf5.Attributes = {"format": FORMAT, "version": VERSION, "encoder": content.encoder.to_json()}
            attributes |= {"created": creation_time(), "pucache_version": __version__, "source": content.source}
            file.set_attributes(attributes)

    def segments(self) -> Iterator[tuple[int, int]]:
        """First row and end of each segment that is not yet on disk; the same ones in every run."""
        n, block = self._content.n, rows_per_hash(self._content.n)
        step = block * max(1, SEGMENT_BYTES // (block * self._extents["embeddings"].row_bytes))
        for start in range(0, n, step):
            if start >= self.rows_done:
                yield start, min(start + step, n)

    def fill(self, read_rows: ReadRows, advance: Callable[[int], None]) -> None:
        """Write the rows that are missing.

        Parameters
        ----------
        read_rows : callable
            Reads the rows of a segment, in order, in blocks; the next block is read while one is written and hashed.
        advance : callable
            Called with the number of rows of each block that was written.

        Raises
        ------
        OutputError
            The file cannot be written; what is on disk stays.
        """

        def blocks() -> Iterator[tuple[int, int, Rows]]:
            for start, stop in self.segments():
                for rows in read_rows(start, stop):
                    yield start, stop, rows

        try:
            with (
                open(self._path, "rb+", buffering=0) as stream,
                closing(prefetch(blocks())) as ahead,
                ThreadPoolExecutor(1) as pool,
            ):
                for start, stop, rows in ahead:
                    if start == self.rows_done:
                        hashers, row = self._hashers(), start
                        self.rows_done = -1
                    views = self._views(rows)
                    hashed = pool.submit(_update, hashers, views)  # while they are written
                    self._write(stream.fileno(), row, views)
                    hashed.result()
                    row += len(rows.keys)
                    advance(len(rows.keys))
                    if row == stop:
                        os.fsync(stream.fileno())
                        self._record(stop, hashers)
        except OSError as error:
            raise OutputError(f"cannot write {self._path}: {one_line(error)}; run the same command to go on") from error

    def _hashers(self) -> dict[str, ColumnHasher]:
        block = rows_per_hash(self._content.n)
        return {name: ColumnHasher(block * self._extents[name].row_bytes) for name in COLUMNS}

    def _views(self, rows: Rows) -> dict[str, memoryview]:
        """Bytes of rows, by column."""
        columns = zip(COLUMNS, (rows.X, rows.keys, rows.digests, rows.size_mtime), strict=True)
        return {name: as_bytes(np.ascontiguousarray(values, self._extents[name].dtype)) for name, values in columns}

    def _write(self, descriptor: int, row: int, views: dict[str, memoryview]) -> None:
        for name, view in views.items():
            _write_all(descriptor, view, self._extents[name].row_offset(row))

    def _record(self, rows: int, hashers: dict[str, ColumnHasher]) -> None:
        for name, hasher in hashers.items():
            self._digests[name] += hasher.checksums(0).sha256
        progress = {"rows": rows, "size": self._path.stat().st_size, "digests": self._digests}
        with replacing(self._progress) as temporary:
            temporary.write_text(json.dumps(progress))
        self.rows_done = rows

    def publish(self, out: Path) -> None:
        """Append the checksums, and give the file its name.

        Raises
        ------
        OutputError
            The file system refused; a file of that name is unchanged.
        """
        try:
            append_table(self._path, self._checksums())
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(self._path, 0o666 & ~umask)
            with open(self._path, "rb+") as stream:
                os.fsync(stream.fileno())
            os.replace(self._path, out)
            fsync_directory(out.parent)
        except OSError as error:
            raise OutputError(f"cannot write {out}: {one_line(error)}; run the same command to go on") from error

    def _checksums(self) -> dict[str, ColumnChecksums]:
        n, block = self._content.n, rows_per_hash(self._content.n)
        checksums = {}
        for name in COLUMNS:
            extent = self._extents[name]
            checksums[name] = ColumnChecksums(
                offset=extent.offset or 0,
                size=n * extent.row_bytes,
                block=block * extent.row_bytes,
                sha256=tuple(self._digests[name]),
            )
        for name, texts in self._content.failure_columns().items():
            hasher = ColumnHasher(len(texts) * DatasetExtent(None, texts.shape, texts.dtype).row_bytes)
            if texts.size:
                hasher.update(as_bytes(texts))
            checksums[name] = hasher.checksums(self._extents[name].offset or 0)
        return checksums


def _update(hashers: dict[str, ColumnHasher], views: dict[str, memoryview]) -> None:
    for name, view in views.items():
        hashers[name].update(view)


def _write_all(descriptor: int, view: memoryview, offset: int) -> None:
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count
