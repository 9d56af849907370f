"""Consecutive rows of a cache, as a value that another process or machine can open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import CacheError
from .embedding_cache import CacheRows, EmbeddingCache
from .local_copies import url_of_copy
from .reader import CacheFile, rows_per_read
from .remote import local_copies

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
            (path,) = local_copies(self.url)
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


class RangeRows(CacheRows):
    """The rows of a range, opened for reading; with `row_ranges`, in the blocks of the cache."""

    def __init__(self, rows: RowRange):
        super().__init__([(piece.open(), piece.start, piece.stop) for piece in rows.pieces])

    @property
    def d(self) -> int:
        """Number of dimensions."""
        return self.encoder.dim


class Workers(Protocol):
    """Worker processes, such as `pucache.scaling.workers.RayWorkers`."""

    def check(self, problem: Callable[[], str], packages: Iterable[str]) -> None:
        """Check every machine; raises `EngineError` where `problem` is not empty there."""

    def map(self, function: Callable[[Any, Any], Any], shared: Any, items: Iterable[Any]) -> Iterator[Any]:
        """Yield function(shared, item) of every item, in order."""


def check_workers(workers: Workers, cache: EmbeddingCache) -> None:
    """Check that every machine has this pucache and can read the cache's first file; else raises `EngineError`."""
    workers.check(partial(reading_problem, file_ranges(cache)[0]), ("numpy",))
