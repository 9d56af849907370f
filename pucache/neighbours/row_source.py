"""Rows of embeddings, wherever they are: in a cache, in an array, or some of the rows of either."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..storage.rows import RowMatrix, release_pages, row_slices, take_rows


class RowSource:
    """Rows of an `EmbeddingCache`, or of a matrix (n, d) that may be mapped, read in blocks.

    `rows`, ascending, are the only ones, numbered from 0.
    """

    def __init__(self, X: EmbeddingCache | RowMatrix, rows: np.ndarray | None = None):
        self.X, self.rows = X, rows
        self.d = X.encoder.dim if isinstance(X, EmbeddingCache) else int(X.shape[1])

    def __len__(self) -> int:
        return len(self.X if self.rows is None else self.rows)

    def blocks(self, *, check: bool = False) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield (rows, X (b, d)) in order; X is valid until the next block is requested.

        Only all rows of a cache have checksums to `check`, which cover whole blocks of a file.
        """
        if isinstance(self.X, EmbeddingCache) and self.rows is None:
            yield from self.X.blocks(check=check)
            return
        for part in row_slices(len(self), self.d):
            if self.rows is None:
                yield part, self.X[part]  # type: ignore[index]
                release_pages(self.X)  # type: ignore[arg-type]
            else:
                yield part, self.take(np.arange(part.start, part.stop))

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Copy some rows, given their ascending numbers."""
        rows = self._numbers(rows)
        return self.X.take(rows) if isinstance(self.X, EmbeddingCache) else take_rows(self.X, rows)

    def not_finite_error(self, rows: np.ndarray) -> Exception:
        """Return the error for rows that are NaN or infinite; it names them by their numbers in X."""
        rows = self._numbers(rows)
        if isinstance(self.X, EmbeddingCache):
            return self.X.not_finite_error(rows)
        return ValueError(f"X holds NaN or infinite values, first in row {rows[0]}; remove or replace these rows")

    def _numbers(self, rows: np.ndarray) -> np.ndarray:
        return rows if self.rows is None else self.rows[rows]


def row_source(X: EmbeddingCache | RowMatrix | RowSource) -> RowSource:
    """Rows of a cache or of an array (n, d), d >= 1, of a floating type; a source is returned as it is."""
    if isinstance(X, RowSource):
        return X
    if not isinstance(X, EmbeddingCache) and (X.ndim != 2 or not X.shape[1] or X.dtype.kind != "f"):
        raise ValueError(f"expected X (n, d) of float16 or float32, got {X.dtype} {X.shape}")
    return RowSource(X)


def subset(source: RowSource, rows: np.ndarray) -> RowSource:
    """Some rows of a source; `ValueError` unless `rows` are strictly ascending row numbers of it."""
    rows = np.asarray(rows)
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise ValueError(f"expected rows as a vector of row numbers, got {rows.dtype} {rows.shape}")
    rows = rows.astype(np.int64)
    if len(rows) and (rows[0] < 0 or rows[-1] >= len(source) or (np.diff(rows) <= 0).any()):
        raise ValueError(f"rows must be ascending and lie in 0 to {len(source) - 1}, each once")
    return RowSource(source.X, rows if source.rows is None else source.rows[rows])
