"""Rows of all parts in key order: gathered, checked, normalised and converted, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import CacheError
from ...storage.atomic import replacing
from ..writer import Rows
from .array_parts import RecordFile
from .key_order import KeyOrder
from .parts import FileState, Part, PartRows

BLOCK_BYTES = 24 << 20  # of values as they are read
_SPILL_BYTES = 16 << 20
_CHECKED_BYTES = 1 << 19  # checked for NaN at once: they stay in the processor's cache


@dataclass(frozen=True)
class RowTable:
    """The rows of all parts, numbered in the order of the parts.

    Attributes
    ----------
    parts : sequence of Part
        Of one length and type of rows.
    """

    parts: Sequence[Part]

    @property
    def starts(self) -> np.ndarray:
        """First row of each part, and the number of rows."""
        return np.cumsum([0, *(part.rows for part in self.parts)])

    @property
    def dim(self) -> int:
        """Length of a row."""
        return self.parts[0].dim

    @property
    def dtype(self) -> np.dtype:
        """Type of the values."""
        return self.parts[0].dtype

    @property
    def sequential(self) -> bool:
        """Whether rows can only be read forward."""
        return any(part.sequential for part in self.parts)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def position(self, row: int) -> str:
        """Describe a row in messages: its number in its part."""
        number = int(np.searchsorted(self.starts, row, "right")) - 1
        return f"row {row - self.starts[number]} of {self.parts[number].name}"

    def take(self, rows: np.ndarray) -> PartRows:
        """Read rows, in any order."""
        order = None if bool(np.all(np.diff(rows) > 0)) else np.argsort(rows)
        ascending = rows if order is None else rows[order]
        bounds = np.searchsorted(ascending, self.starts)
        taken = PartRows(
            np.empty((len(rows), self.dim), self.dtype),
            np.zeros((len(rows), 32), np.uint8),
            np.full((len(rows), 2), -1, "<i8"),
        )
        for number, part in enumerate(self.parts):
            begin, end = bounds[number : number + 2]
            if begin < end:
                target = slice(begin, end) if order is None else order[begin:end]
                _assign(taken, target, part.take(ascending[begin:end] - self.starts[number]))
        return taken


def _assign(taken: PartRows, target: slice | np.ndarray, rows: PartRows) -> None:
    assert taken.digests is not None and taken.size_mtime is not None
    taken.X[target] = rows.X
    if rows.digests is not None and rows.size_mtime is not None:
        taken.digests[target], taken.size_mtime[target] = rows.digests, rows.size_mtime


@dataclass(frozen=True)
class OrderedRows:
    """Rows in key order, ready to be written.

    Attributes
    ----------
    table : RowTable
    order : KeyOrder
    stored : numpy.dtype
        Type of the embeddings in the cache.
    normalize : bool
        Scale each row to length 1.
    """

    table: RowTable
    order: KeyOrder
    stored: np.dtype
    normalize: bool

    def blocks(self, start: int, stop: int) -> Iterator[Rows]:
        """Read rows of the cache, from `start` to `stop`."""
        step = max(1, BLOCK_BYTES // (self.table.dim * self.table.dtype.itemsize))
        for begin in range(start, stop, step):
            keys, rows = self.order.read(begin, min(begin + step, stop))
            taken = self.table.take(rows)
            assert taken.digests is not None and taken.size_mtime is not None
            yield Rows(keys, self._converted(taken.X, keys, rows), taken.digests, taken.size_mtime)

    def _converted(self, X: np.ndarray, keys: np.ndarray, rows: np.ndarray) -> np.ndarray:
        if self.normalize:
            X = self._normalized(X, keys, rows)
        with np.errstate(over="ignore"):
            stored = X.astype(self.stored, copy=False)
        not_finite = np.flatnonzero(rows_not_finite(stored))
        if len(not_finite):
            overflows = self.stored == np.float16 and np.isfinite(X[not_finite[0]]).all()
            remedy = "pass --dtype float32" if overflows else "leave it out"
            problem = f"is NaN, infinite or overflows {self.stored}; correct it, or {remedy}"
            raise self._error(not_finite[0], keys, rows, problem)
        return stored

    def _normalized(self, X: np.ndarray, keys: np.ndarray, rows: np.ndarray) -> np.ndarray:
        norms = np.sqrt(np.einsum("ij,ij->i", X, X, dtype=np.float64))
        if not norms.all():
            zero = int(np.flatnonzero(norms == 0)[0])
            problem = "is all zeros and has no direction to normalize; correct it, or leave it out"
            raise self._error(zero, keys, rows, problem)
        scaled = X.astype(np.float32 if X.dtype.itemsize < 8 else np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            divisors = norms.astype(scaled.dtype)
            np.divide(scaled, divisors[:, None], out=scaled)
        scaled[~np.isfinite(divisors)] = np.nan  # finite values over an infinite norm would be zeros
        return scaled

    def _error(self, position: int, keys: np.ndarray, rows: np.ndarray, problem: str) -> CacheError:
        key = keys[position].decode(errors="replace")
        return CacheError(f"{self.table.position(int(rows[position]))} ({key!r}) {problem}")


def rows_not_finite(X: np.ndarray) -> np.ndarray:
    """Whether each row holds NaN or infinity, (n,); much faster than numpy for float16."""
    if X.dtype == np.float16:
        bits, greatest = np.ascontiguousarray(X).view(np.uint16), np.empty(len(X), np.uint16)
        step = max(1, _CHECKED_BYTES // X[:1].nbytes) if X.size else 1
        for start in range(0, len(X), step):
            (bits[start : start + step] & 0x7FFF).max(1, out=greatest[start : start + step])
        return greatest >= 0x7C00
    return ~np.isfinite(X).all(1)


@dataclass(frozen=True)
class SpilledPart:
    """Rows that were copied to a file of records, from which they can be read in any order."""

    name: str
    records: RecordFile
    rows: int
    dim: int
    dtype: np.dtype
    sequential: bool = False

    def take(self, rows: np.ndarray) -> PartRows:
        """Read rows."""
        records = self.records.take(rows)
        return PartRows(records["X"], records["digest"], records["size_mtime"])


def spill(part: Part, path: Path) -> SpilledPart:
    """Copy the rows of a part that can only be read forward; a finished copy is kept as it is.

    Parameters
    ----------
    part : Part
    path : Path
        File of the copy; complete if it exists.

    Returns
    -------
    SpilledPart
    """
    fields = [("X", part.dtype, (part.dim,)), ("digest", "u1", (32,)), ("size_mtime", "<i8", (2,))]
    record = np.dtype(fields)
    if not path.exists():
        with replacing(path) as temporary, open(temporary, "wb") as stream:
            step = max(1, _SPILL_BYTES // record.itemsize)
            table = RowTable([part])
            for start in range(0, part.rows, step):
                taken = table.take(np.arange(start, min(start + step, part.rows)))
                records = np.empty(len(taken.X), record)
                records["X"], records["digest"], records["size_mtime"] = taken.X, taken.digests, taken.size_mtime
                records.tofile(stream)
    return SpilledPart(part.name, RecordFile(FileState.of(path), 0, record), part.rows, part.dim, part.dtype)
