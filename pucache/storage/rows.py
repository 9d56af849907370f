"""Matrices of rows: an array, a mapped file, or the rows of several files as one.

Numerical code takes anything with ``shape``, ``dtype``, slicing and indexing by row numbers. Rows of large files are
read in blocks whose pages are released afterwards, so that memory stays bounded.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

LARGE_MAP_BYTES = 1 << 29  # pages of a larger map are released as soon as they have been read
_RUN_BYTES = 1 << 26  # `take_rows` releases pages each time it has passed this many bytes of the file
_CHECKED_VALUES = 1 << 18  # by `finite_rows` at once
_BLOCK_VALUES = 1 << 22  # values per block of `row_slices`


class StackedRows:
    """Read-only matrix whose rows are those of several arrays, one array after the other.

    A slice within one array is a view of it; other rows are copied. numpy functions that take the matrix as
    a whole copy all of it.

    Parameters
    ----------
    parts : sequence of ndarray, (n_i, d)
        At least one; all of one type, and of one d. They may be memory maps.

    Attributes
    ----------
    parts : list of ndarray
        Those that hold rows.
    shape : (n, d)
    dtype : numpy.dtype
    """

    ndim = 2

    def __init__(self, parts: Sequence[np.ndarray]):
        first = parts[0]
        for part in parts:
            if part.ndim != 2 or part.shape[1] != first.shape[1] or part.dtype != first.dtype:
                raise ValueError(
                    f"parts must be matrices of one type with {first.shape[1]} columns of {first.dtype}, "
                    f"got {part.dtype} {part.shape}"
                )
        self.dtype = first.dtype
        self.parts = [part for part in parts if len(part)] or [first]
        self._starts = np.cumsum([0, *map(len, self.parts)])
        self.shape: tuple[int, int] = (int(self._starts[-1]), first.shape[1])

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def size(self) -> int:
        """Number of values."""
        return self.shape[0] * self.shape[1]

    @property
    def itemsize(self) -> int:
        """Bytes of a value."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self.size * self.itemsize

    def __repr__(self) -> str:
        return f"StackedRows({len(self.parts)} parts, {self.dtype} {self.shape})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Copy all rows into one array."""
        if copy is False:
            raise ValueError("stacked rows become one array only by a copy")
        return np.concatenate(self.parts).astype(dtype or self.dtype, copy=False)

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Read rows: a slice, a row number, or an array of row numbers in any order or of bool, (m, d) or (d,)."""
        if isinstance(rows, slice):
            return self._consecutive(*rows.indices(len(self)))
        if isinstance(rows, int | np.integer):
            return self._picked(np.array([rows]))[0]
        numbers = np.asarray(rows)
        if numbers.dtype == bool and numbers.shape == self.shape[:1]:
            return self._picked(np.flatnonzero(numbers))
        if isinstance(rows, tuple) or numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
            raise IndexError(f"stacked rows are indexed by a slice or a vector of row numbers, got {rows!r}")
        return self._picked(numbers.astype(np.int64, copy=False))

    def _consecutive(self, start: int, stop: int, step: int) -> np.ndarray:
        if step != 1:
            return self._picked(np.arange(start, stop, step))
        stop = max(start, stop)
        first = int(np.searchsorted(self._starts[:-1], start, side="right")) - 1
        last = max(first, int(np.searchsorted(self._starts, stop, side="left")) - 1)
        views = [
            self.parts[number][max(start - self._starts[number], 0) : max(stop - self._starts[number], 0)]
            for number in range(first, last + 1)
        ]
        return views[0] if len(views) == 1 else np.concatenate(views)

    def _picked(self, rows: np.ndarray) -> np.ndarray:
        """Rows of any order, copied; a file is read in its order."""
        n = len(self)
        if len(rows) and not -n <= rows.min() <= rows.max() < n:
            raise IndexError(f"rows must lie in 0 to {n - 1}, got {rows.min()} to {rows.max()}")
        rows = np.where(rows < 0, rows + n, rows)
        order = None if (rows[1:] >= rows[:-1]).all() else np.argsort(rows)
        picked = np.empty((len(rows), self.shape[1]), self.dtype)
        ascending = rows if order is None else rows[order]
        ends = np.searchsorted(ascending, self._starts).tolist()
        for part, start, (begin, end) in zip(self.parts, self._starts, pairwise(ends), strict=False):
            if end > begin:
                part.take(ascending[begin:end] - start, 0, picked[begin:end], "clip")  # rows are checked above
        if order is None:
            return picked
        unsorted = np.empty_like(picked)
        unsorted[order] = picked
        return unsorted


RowMatrix = np.ndarray | StackedRows


def row_step(d: int) -> int:
    """Rows of d values in a block of about 4 million values, at least 256."""
    return max(256, _BLOCK_VALUES // d)


def row_slices(n: int, d: int) -> Iterator[slice]:
    """Slices of consecutive rows, of about 4 million values each, that cover an (n, d) array."""
    step = row_step(d)
    return (slice(begin, min(begin + step, n)) for begin in range(0, n, step))


def evenly_spaced(n: int, count: int) -> np.ndarray:
    """Numbers of at most `count` of n rows, int64, ascending."""
    return np.unique(np.linspace(0, max(n - 1, 0), min(n, count)).astype(np.int64))


def rows_not_finite(X: RowMatrix) -> np.ndarray:
    """Row numbers, ascending int64, of the rows of X that hold NaN or infinity; X is read in blocks."""
    rows = [np.empty(0, np.int64)]
    for block in row_slices(len(X), X.shape[1]):
        rows.append(np.flatnonzero(~finite_rows(X[block])) + block.start)
        release_pages(X)
    return np.concatenate(rows)


def finite_rows(X: np.ndarray) -> np.ndarray:
    """Whether each row of a block of floats is finite, bool (n,); six times as fast as numpy for float16."""
    if X.dtype != np.float16:
        return np.isfinite(X).all(1)
    greatest = np.empty(len(X), np.uint16)
    step = max(1, _CHECKED_VALUES // max(1, X.shape[1]))  # they stay in the processor's cache
    for start in range(0, len(X), step):
        (X[start : start + step].view(np.uint16) & 0x7FFF).max(1, initial=0, out=greatest[start : start + step])
    return greatest < 0x7C00  # the bits of infinity


def take_rows(X: RowMatrix, rows: np.ndarray) -> np.ndarray:
    """Copy rows of X, given their ascending numbers.

    Pages are released at intervals, because reading one row may map hundreds of neighbouring pages.
    """
    copied = np.empty((len(rows), X.shape[1]), X.dtype)
    step = max(1, _RUN_BYTES // max(1, X.itemsize * X.shape[1]))
    for begin, end in pairwise(np.searchsorted(rows, np.arange(0, len(X) + step, step))):
        if end > begin:
            copied[begin:end] = X[rows[begin:end]]
            release_pages(X)
    return copied


def as_float32(X: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Copy floats as float32, into `out` where it is given.

    torch converts float16 2.8 to 20 times as fast as numpy, with the same result, but takes seconds to import; so it is
    used where it is loaded already.
    """
    out = np.empty(X.shape, np.float32) if out is None else out
    torch = sys.modules.get("torch")
    if torch is None or X.dtype != np.float16:
        np.copyto(out, X, casting="same_kind")
    else:
        to_tensor = torch.from_numpy if X.flags.writeable else torch.tensor  # the latter copies, for read-only maps
        torch.from_numpy(out).copy_(to_tensor(np.ascontiguousarray(X)))
    return out


def as_wide(X: np.ndarray) -> np.ndarray:
    """A copy in which squares do not overflow: float32 of float16, float64 of other types."""
    return as_float32(X) if X.dtype == np.float16 else X.astype(np.float64)


def release_pages(X: RowMatrix) -> None:
    """Release the pages of a large read-only map, or of several that are large together; they count as resident."""
    if X.nbytes > LARGE_MAP_BYTES:
        for part in X.parts if isinstance(X, StackedRows) else [X]:
            drop_pages(part)


def drop_pages(X: np.ndarray) -> None:
    """Release the pages of a read-only map of any size; other arrays stay as they are."""
    if (mapped := _map_of(X)) is not None:
        mapped.madvise(mmap.MADV_DONTNEED)


def _map_of(X: np.ndarray) -> mmap.mmap | None:
    """The memory map that an array is a view of; None for other arrays and for copy-on-write maps."""
    base: Any = X
    while base is not None and not isinstance(base, mmap.mmap):
        if isinstance(base, np.memmap) and base.mode == "c":  # modified values exist only in the pages
            return None
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    return base
