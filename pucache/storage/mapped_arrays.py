"""Reading large memory-mapped arrays in bounded memory."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from .stacked_rows import RowMatrix, StackedRows

LARGE_MAP_BYTES = 1 << 29  # pages of a larger map are released as soon as they have been read
_RUN_BYTES = 1 << 26  # `take_rows` releases pages each time it has passed this many bytes of the file
_BLOCK_VALUES = 1 << 22  # values per block of `row_slices`


def row_step(d: int) -> int:
    """Rows of d values in a block of about 4 million values, at least 256."""
    return max(256, _BLOCK_VALUES // d)


def row_slices(n: int, d: int) -> Iterator[slice]:
    """Slices of consecutive rows, of about 4 million values each, that cover an (n, d) array.

    Parameters
    ----------
    n, d : int
        Shape of the array, d >= 1.

    Yields
    ------
    slice
    """
    step = row_step(d)
    return (slice(begin, min(begin + step, n)) for begin in range(0, n, step))


def rows_not_finite(X: RowMatrix) -> np.ndarray:
    """Find rows that hold NaN or infinity; X is read in blocks.

    Parameters
    ----------
    X : ndarray or StackedRows of float, (n, d)

    Returns
    -------
    ndarray of int64, (m,)
        Row numbers, ascending.
    """
    rows = []
    for block in row_slices(len(X), X.shape[1]):
        rows.append(np.flatnonzero(~np.isfinite(X[block]).all(1)) + block.start)
        release_pages(X)
    return np.concatenate(rows) if rows else np.empty(0, np.int64)


def take_rows(X: RowMatrix, rows: np.ndarray) -> np.ndarray:
    """Copy rows of X.

    Pages of the file are released at intervals, because reading one row may map hundreds of neighbouring
    pages.

    Parameters
    ----------
    X : ndarray or StackedRows, (n, d)
    rows : ndarray of int, (m,)
        Row numbers, ascending.

    Returns
    -------
    ndarray, (m, d)
    """
    copied = np.empty((len(rows), X.shape[1]), X.dtype)
    large = X.nbytes > LARGE_MAP_BYTES
    if not isinstance(X, StackedRows):
        _copy_rows(X, rows, copied, large)
        return copied
    for part, piece, local_rows in X.pieces(rows):
        _copy_rows(part, local_rows, copied[piece], large)
    return copied


def _copy_rows(X: np.ndarray, rows: np.ndarray, copied: np.ndarray, large: bool) -> None:
    step = max(1, _RUN_BYTES // max(1, X.itemsize * X.shape[1]))
    run_ends = np.searchsorted(rows, np.arange(0, len(X) + step, step))
    for begin, end in pairwise(run_ends):
        if end > begin:
            copied[begin:end] = X[rows[begin:end]]
            if large:
                drop_pages(X)


def release_pages(X: RowMatrix) -> None:
    """Release the pages of a large read-only map; mapped pages count as resident memory once read.

    Parameters
    ----------
    X : ndarray or StackedRows
        Of stacked rows, the pages of the maps read of late are released; their total size decides.
    """
    if X.nbytes > LARGE_MAP_BYTES:
        for part in X.parts_read() if isinstance(X, StackedRows) else [X]:
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
