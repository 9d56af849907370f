"""Several arrays of rows, read as one matrix without a copy of the whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np


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
        self._recently_read: set[int] = set()
        self._read_before: set[int] = set()

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
        """Read some rows.

        Parameters
        ----------
        rows : slice, int, or array of int or bool
            An array in any order.

        Returns
        -------
        ndarray, (m, d); (d,) for a single row

        Raises
        ------
        IndexError
            A row that does not exist, or other than rows.
        """
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

    def pieces(self, rows: np.ndarray) -> Iterator[tuple[np.ndarray, slice, np.ndarray]]:
        """Split ascending row numbers by the parts that hold the rows.

        Parameters
        ----------
        rows : ndarray of int64, (m,)
            Ascending.

        Yields
        ------
        part : ndarray, (n_i, d)
        piece : slice
            Of `rows`; not empty.
        local_rows : ndarray of int64
            Numbers of these rows in the part.
        """
        ends = np.searchsorted(rows, self._starts).tolist()
        for number, (begin, end) in enumerate(pairwise(ends)):
            if end > begin:
                self._recently_read.add(number)
                yield self.parts[number], slice(begin, end), rows[begin:end] - self._starts[number]

    def parts_read(self) -> list[np.ndarray]:
        """Parts that were read since the last but one call of this method."""
        # two calls back, because another thread may still read a view that it got before the last call
        read, self._recently_read = self._recently_read, set()
        numbers, self._read_before = read | self._read_before, read
        return [self.parts[number] for number in sorted(numbers)]

    def _consecutive(self, start: int, stop: int, step: int) -> np.ndarray:
        if step != 1:
            return self._picked(np.arange(start, stop, step))
        stop = max(start, stop)
        first = int(np.searchsorted(self._starts[:-1], start, side="right")) - 1
        last = max(first, int(np.searchsorted(self._starts, stop, side="left")) - 1)
        self._recently_read.update(range(first, last + 1))
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
        in_order = rows if order is None else rows[order]
        ends = np.searchsorted(in_order, self._starts)
        local_rows = in_order - np.repeat(self._starts[:-1], np.diff(ends))
        picked = np.empty((len(rows), self.shape[1]), self.dtype)
        for number, (begin, end) in enumerate(pairwise(ends.tolist())):  # few calls, for batches of few rows
            if end > begin:
                self._recently_read.add(number)
                self.parts[number].take(local_rows[begin:end], 0, picked[begin:end], "clip")  # rows are checked above
        if order is None:
            return picked
        unsorted = np.empty_like(picked)
        unsorted[order] = picked
        return unsorted


RowMatrix = np.ndarray | StackedRows
