"""Consecutive rows of a cache, as a value that another process or machine can open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from pathlib import Path

import numpy as np

from ..encoders.spec import EncoderSpec
from ..errors import CacheError
from ..storage.prefetch import prefetch
from .checksums import ChecksumError, ColumnHasher
from .embedding_cache import EmbeddingCache
from .keys import Keys
from .mapped_file import ReadInto, as_bytes
from .reader import CacheFile, rows_per_read
from .working_folders import url_of_copy

_BLOCKS_PER_RANGE = 8  # blocks of 8 MB that one task reads


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of one cache file.

    Attributes
    ----------
    path : str
        Absolute.
    checksum : str
        `CacheFile.checksum`, by which another file of that name is noticed.
    start, stop : int
        Rows of the file.
    url : str
        URL that the file is a copy of, from which another machine fetches its own; "" where there is none.
    """

    path: str
    checksum: str
    start: int
    stop: int
    url: str = ""

    def open(self) -> CacheFile:
        """Open the file.

        Raises
        ------
        CacheError
            It is missing, damaged, or another file than the one that was listed.
        """
        path = Path(self.path)
        file = None if self.url and not path.exists() else CacheFile(path, was_listed=True)
        if self.url and (file is None or file.checksum != self.checksum):  # none here, or an older copy
            from .remote import local_copy  # imports fsspec, which most caches do not need

            path = local_copy(self.url)
            file = CacheFile(path)
        if file is None or file.checksum != self.checksum:
            raise CacheError(f"{path} was replaced while it was read; run the command again")
        return file


@dataclass(frozen=True)
class RowRange:
    """Consecutive rows of a cache, in one or more of its files.

    Attributes
    ----------
    start : int
        First row of the cache.
    pieces : tuple of Piece
        At least one, in row order.
    """

    start: int
    pieces: tuple[Piece, ...]

    def __len__(self) -> int:
        return sum(piece.stop - piece.start for piece in self.pieces)

    def __str__(self) -> str:
        more = f" and {len(self.pieces) - 1} more" if len(self.pieces) > 1 else ""
        return f"rows {self.start:,} to {self.start + len(self) - 1:,} ({self.pieces[0].path}{more})"

    def open(self) -> RangeRows:
        """Open the files of the range; raises `CacheError` as `Piece.open`."""
        return RangeRows(self)


def row_ranges(cache: EmbeddingCache) -> list[RowRange]:
    """Divide the rows of a cache into ranges of about 64 MB, which consist of whole blocks of `cache.blocks()`.

    Parameters
    ----------
    cache : EmbeddingCache

    Returns
    -------
    list of RowRange
        In row order.
    """
    step = rows_per_read(cache.encoder.dim * cache.files[0].dtype.itemsize) * _BLOCKS_PER_RANGE
    bounds, ranges = np.cumsum([0, *map(len, cache.files)]).tolist(), []
    first = 0  # number of the first file that holds rows of the range
    for start in range(0, len(cache), step):
        stop, pieces = min(start + step, len(cache)), []
        while bounds[first + 1] <= start:
            first += 1
        for number in range(first, len(cache.files)):
            if bounds[number] >= stop:
                break
            begin, end = max(start, bounds[number]), min(stop, bounds[number + 1])
            if end > begin:
                pieces.append(_piece(cache.files[number], begin - bounds[number], end - bounds[number]))
        ranges.append(RowRange(start, tuple(pieces)))
    return ranges


def file_ranges(cache: EmbeddingCache) -> list[RowRange]:
    """All rows of each file of a cache, a range for each."""
    starts = np.cumsum([0, *map(len, cache.files)]).tolist()
    return [RowRange(start, (_piece(file, 0, len(file)),)) for file, start in zip(cache.files, starts, strict=False)]


def reading_problem(rows: RowRange) -> str:
    """Reason why this machine cannot open a range; "" where it can."""
    remedy = "mount its files at the same path on every node, or use a URL"
    for piece in rows.pieces:
        if not (piece.url or Path(piece.path).exists()):
            return f"cannot read the cache (no such cache: {piece.path}); {remedy}"
    try:
        rows.open()
    except CacheError as error:
        return f"cannot read the cache ({error}); {remedy}"
    return ""


def _piece(file: CacheFile, start: int, stop: int) -> Piece:
    path = file.path.absolute()
    return Piece(str(path), file.checksum, start, stop, url_of_copy(path))


class RangeRows:
    """The rows of a range, opened for reading; they are numbered from 0, as those of a cache.

    Parameters
    ----------
    rows : RowRange

    Attributes
    ----------
    files : list of (CacheFile, int, int)
        Each file of the range, and its first and last row, the latter excluded.
    encoder : EncoderSpec
    """

    def __init__(self, rows: RowRange):
        self.files = [(piece.open(), piece.start, piece.stop) for piece in rows.pieces]
        self.encoder: EncoderSpec = self.files[0][0].encoder

    def __len__(self) -> int:
        return sum(stop - start for _, start, stop in self.files)

    @property
    def d(self) -> int:
        """Number of dimensions."""
        return self.encoder.dim

    @property
    def name(self) -> str:
        """Name of the first file, for messages."""
        return str(self.files[0][0].path)

    @cached_property
    def keys(self) -> Keys:
        """Keys in row order."""
        return Keys([file.raw_keys[start:stop] for file, start, stop in self.files])

    @property
    def failures(self) -> dict[str, str]:
        """Reason by key of every image of the files that could not be read."""
        return {key: reason for file, _, _ in self.files for key, reason in file.failures.items()}

    def check(self, *names: str) -> None:
        """Check datasets of the files whose first row is in the range; damage raises `CacheError`."""
        for file, start, _ in self.files:
            if not start:
                file.check(*names)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Copy the embeddings of some rows, given their ascending numbers; (m, d)."""
        return self._take("embeddings", rows)

    def take_digests(self, rows: np.ndarray) -> np.ndarray:
        """Copy the digests of some rows, given their ascending numbers; uint8, (m, 32)."""
        return self._take("digests", rows)

    def _take(self, name: str, rows: np.ndarray) -> np.ndarray:
        taken, offset = [], 0
        for file, start, stop in self.files:
            begin, end = np.searchsorted(rows, (offset, offset + stop - start))
            taken.append(file.take(name, rows[begin:end] - offset + start))
            offset += stop - start
        return np.concatenate(taken)

    def not_finite_error(self, rows: np.ndarray) -> CacheError:
        """Return the error for rows that are NaN or infinite, with the file of the first of them."""
        bounds = np.cumsum([0, *(stop - start for _, start, stop in self.files)])
        number = int(np.searchsorted(bounds, rows[0], "right")) - 1
        file, start, _ = self.files[number]
        return file.not_finite_error(rows[rows < bounds[number + 1]] - bounds[number] + start)

    def blocks(self, *, check: bool = False) -> Iterator[tuple[slice, np.ndarray]]:
        """Read the embeddings as `EmbeddingCache.blocks` does; with `row_ranges`, in the same blocks.

        Parameters
        ----------
        check : bool
            Check the blocks of the checksums that begin in the range, reading beyond its end where the last of
            them does; damage raises `CacheError`, at the latest in place of the last block.

        Yields
        ------
        rows : slice
        X : ndarray of float16 or float32, (b, d)
            Valid until the next block is requested.
        """
        with closing(prefetch(self._read_blocks(check))) as blocks:
            yield from blocks

    def _read_blocks(self, check: bool) -> Iterator[tuple[slice, np.ndarray]]:
        n, dtype = len(self), self.files[0][0].dtype
        step = min(rows_per_read(self.d * dtype.itemsize), n)
        buffers = cycle([np.empty((step, self.d), dtype) for _ in range(2)])
        first, filled, buffer = 0, 0, next(buffers)
        for file, start, stop in self.files:
            with _reader(file, start, stop, check=check) as read:
                row = start
                while row < stop:
                    count = min(step - filled, stop - row)
                    read(buffer[filled : filled + count], row)
                    row, filled = row + count, filled + count
                    if filled == step or first + filled == n:
                        yield slice(first, first + filled), buffer[:filled]
                        first, filled, buffer = first + filled, 0, next(buffers)


@contextmanager
def _reader(file: CacheFile, start: int, stop: int, *, check: bool) -> Iterator[Callable[[np.ndarray, int], None]]:
    """Yield a function that fills an array with the rows from a given one on; they must be read in order."""
    extent = file._extents["embeddings"]
    with file._file.array_reader() as read_into:
        checker = _Checker(file, start, read_into) if check else None

        def read(block: np.ndarray, row: int) -> None:
            read_into(block, extent.row_offset(row))
            if checker is not None:
                checker.update(block, is_last=row + len(block) == stop)

        yield read


class _Checker:
    """Compares the rows from `start` on with the checksums of the blocks that begin among them."""

    def __init__(self, file: CacheFile, start: int, read_into: ReadInto):
        extent, checksums = file._extents["embeddings"], file._checksums.columns["embeddings"]
        first = -(-start * extent.row_bytes // checksums.block)  # number of the first block that begins in the range
        self._skipped = first * checksums.block - start * extent.row_bytes
        self._hasher, self._block = ColumnHasher(checksums.block, checksums.sha256[first:]), checksums.block
        self._file, self._row, self._read_into, self._fed = file, start, read_into, 0

    def update(self, rows: np.ndarray, *, is_last: bool) -> None:
        """Add the next rows; raises `CacheError` for damage."""
        try:
            self._add(rows)
            if is_last:
                self._complete_block()
        except ChecksumError as error:
            raise self._file._damage_error(["embeddings"]) from error

    def _add(self, rows: np.ndarray) -> None:
        data = as_bytes(rows)[self._skipped :]
        self._skipped = max(0, self._skipped - rows.nbytes)
        self._hasher.update(data)
        self._fed, self._row = self._fed + len(data), self._row + len(rows)

    def _complete_block(self) -> None:
        """Read on, to the end of the block in which the range ends."""
        extent, n = self._file._extents["embeddings"], len(self._file)
        while self._fed % self._block and self._row < n:
            missing = -(-(-self._fed % self._block) // extent.row_bytes)
            rows = extent.empty(min(missing, rows_per_read(extent.row_bytes), n - self._row))
            self._read_into(rows, extent.row_offset(self._row))
            self._add(rows)
        if self._row == n:
            self._hasher.finish()
