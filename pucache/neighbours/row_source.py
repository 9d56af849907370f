"""Rows of embeddings, wherever they are: in a cache, in an array, or some of the rows of either."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..storage.rows import RowMatrix, StackedRows, release_pages, row_slices, take_rows


class RowSource(Protocol):
    """Rows that are read in blocks."""

    @property
    def d(self) -> int:
        """Number of dimensions."""

    def __len__(self) -> int: ...

    def blocks(self, *, check: bool = False) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield (rows, X (b, d)) in order; X is valid until the next block is requested."""

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Copy some rows, given their ascending numbers."""

    def not_finite_error(self, rows: np.ndarray) -> Exception:
        """Return the error for rows that are NaN or infinite."""


@dataclass(frozen=True)
class CacheRows:
    """All rows of a cache."""

    cache: EmbeddingCache

    @property
    def d(self) -> int:
        """Number of dimensions."""
        return self.cache.encoder.dim

    def __len__(self) -> int:
        return len(self.cache)

    def blocks(self, *, check: bool = False) -> Iterator[tuple[slice, np.ndarray]]:
        """As `EmbeddingCache.blocks`."""
        return self.cache.blocks(check=check)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """As `EmbeddingCache.take`."""
        return self.cache.take(rows)

    def not_finite_error(self, rows: np.ndarray) -> Exception:
        """As `EmbeddingCache.not_finite_error`."""
        return self.cache.not_finite_error(rows)


@dataclass(frozen=True)
class ArrayRows:
    """All rows of a matrix (n, d), which may be mapped."""

    X: RowMatrix

    @property
    def d(self) -> int:
        """Number of dimensions."""
        return int(self.X.shape[1])

    def __len__(self) -> int:
        return len(self.X)

    def blocks(self, *, check: bool = False) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield blocks of about 4 million values; an array has no checksums to check."""
        for rows in row_slices(len(self.X), self.d):
            yield rows, self.X[rows]
            release_pages(self.X)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Copy some rows, given their ascending numbers."""
        return take_rows(self.X, rows)

    def not_finite_error(self, rows: np.ndarray) -> Exception:
        """Return the `ValueError` for rows that are NaN or infinite."""
        return ValueError(f"X holds NaN or infinite values, first in row {rows[0]}; remove or replace these rows")


@dataclass(frozen=True)
class SubsetRows:
    """Some rows of a source, numbered from 0."""

    source: RowSource
    rows: np.ndarray

    @property
    def d(self) -> int:
        """Number of dimensions."""
        return self.source.d

    def __len__(self) -> int:
        return len(self.rows)

    def blocks(self, *, check: bool = False) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield blocks of about 4 million values; checksums cover whole blocks of a file, so none is checked."""
        for part in row_slices(len(self.rows), self.d):
            yield part, self.source.take(self.rows[part])

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Copy some rows, given their ascending numbers in the subset."""
        return self.source.take(self.rows[rows])

    def not_finite_error(self, rows: np.ndarray) -> Exception:
        """Return the error of the source, which names the rows by their numbers there."""
        return self.source.not_finite_error(self.rows[rows])


def row_source(X: EmbeddingCache | RowMatrix | RowSource) -> RowSource:
    """Rows of a cache or an array; a source is returned as it is.

    Raises
    ------
    ValueError
        An array that is not (n, d), d >= 1, of float16, float32 or float64.
    """
    if isinstance(X, EmbeddingCache):
        return CacheRows(X)
    if not isinstance(X, np.ndarray | StackedRows):
        return X
    if X.ndim != 2 or not X.shape[1] or X.dtype.kind != "f":
        raise ValueError(f"expected X (n, d) of float16 or float32, got {X.dtype} {X.shape}")
    return ArrayRows(X)


def subset(source: RowSource, rows: np.ndarray) -> SubsetRows:
    """Some rows of a source.

    Raises
    ------
    ValueError
        `rows` are not strictly ascending row numbers of the source.
    """
    rows = np.asarray(rows)
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise ValueError(f"expected rows as a vector of row numbers, got {rows.dtype} {rows.shape}")
    rows = rows.astype(np.int64)
    if len(rows) and (rows[0] < 0 or rows[-1] >= len(source) or (np.diff(rows) <= 0).any()):
        raise ValueError(f"rows must be ascending and lie in 0 to {len(source) - 1}, each once")
    return SubsetRows(source, rows)
