"""The order of keys of any number of rows, in bounded memory: sorted runs on disk, merged into one file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from ...storage.atomic import replacing

MERGE_BYTES = 48 << 20  # of records in memory while runs are merged
_FAN_IN = 128  # runs merged at once
_RUN_BYTES = 24 << 20
ROW_NUMBER_DIGITS = 10


class DuplicateKeyError(Exception):
    """A key occurs twice.

    Attributes
    ----------
    key : bytes
    rows : tuple of int
        Row numbers over all parts.
    """

    def __init__(self, key: bytes, rows: tuple[int, int]):
        super().__init__(key, rows)
        self.key, self.rows = key, rows


class KeyOrder(Protocol):
    """Keys in ascending order, and the row that each belongs to."""

    @property
    def width(self) -> int:
        """Bytes of the longest key."""

    @property
    def is_row_order(self) -> bool:
        """Whether the keys ascend with the rows."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys, (m,) of dtype S, and rows, (m,) int64, at positions of the order."""


@dataclass(frozen=True)
class RowNumbers:
    """Row numbers as keys: ten digits, so that they sort as numbers."""

    n: int
    is_row_order: bool = True

    @property
    def width(self) -> int:
        """Bytes of a key."""
        return max(ROW_NUMBER_DIGITS, len(str(self.n - 1)))

    def __len__(self) -> int:
        return self.n

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """See `KeyOrder.read`."""
        rows = np.arange(start, stop)
        return np.char.zfill(rows.astype(f"S{self.width}"), self.width), rows


@dataclass(frozen=True)
class SortedKeys:
    """A file of (key, row) records in key order."""

    path: Path
    n: int
    width: int
    is_row_order: bool

    @property
    def record(self) -> np.dtype:
        """Layout of one record."""
        return np.dtype([("key", f"S{self.width}"), ("row", "<i8")])

    def __len__(self) -> int:
        return self.n

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """See `KeyOrder.read`."""
        records = self.records(start, stop)
        return np.ascontiguousarray(records["key"]), np.ascontiguousarray(records["row"])

    def records(self, start: int, stop: int) -> np.ndarray:
        """Read records."""
        size = self.record.itemsize
        return np.fromfile(self.path, self.record, max(0, min(stop, self.n) - start), offset=start * size)


def sort_keys(blocks: Iterable[np.ndarray], folder: Path) -> SortedKeys:
    """Sort keys with their row numbers.

    Parameters
    ----------
    blocks : iterable of ndarray of bytes (dtype S)
        Keys in row order.
    folder : Path
        For runs, which are removed, and the result.

    Returns
    -------
    SortedKeys

    Raises
    ------
    DuplicateKeyError
        A key occurs twice.
    """
    runs, row = [], 0
    for number, block in enumerate(_pieces(blocks)):
        runs.append(_write_run(folder / f"run-{number:06}", block, row))
        row += len(block)
    level = 0
    while len(runs) > 1 or level == 0:
        level += 1
        merged = []
        for begin in range(0, len(runs), _FAN_IN):
            together = runs[begin : begin + _FAN_IN]
            merged.append(_merge(together, folder / f"merged-{level}-{begin:06}"))
            for run in together:
                run.path.unlink()
        runs = merged
    return runs[0]


def _pieces(blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Cut blocks to at most `_RUN_BYTES`, and join small ones."""
    waiting: list[np.ndarray] = []
    for block in blocks:
        width = max(block.itemsize, *(piece.itemsize for piece in waiting)) if waiting else block.itemsize
        if waiting and width * (len(block) + sum(map(len, waiting))) > _RUN_BYTES:
            yield np.concatenate(waiting)
            waiting = []
        step = max(1, _RUN_BYTES // block.itemsize)
        for start in range(0, len(block) - step, step):
            yield block[start : start + step]
        waiting.append(block[(len(block) - 1) // step * step :])
    if waiting:
        yield np.concatenate(waiting)


def _write_run(path: Path, keys: np.ndarray, first_row: int) -> SortedKeys:
    ascending = bool(np.all(keys[1:] > keys[:-1]))
    run = SortedKeys(path, len(keys), keys.itemsize, ascending)
    records = np.empty(len(keys), run.record)
    order = np.arange(len(keys)) if ascending else np.argsort(keys, kind="stable")
    records["key"], records["row"] = keys[order], order + first_row
    records.tofile(path)
    return run


def _merge(runs: list[SortedKeys], path: Path) -> SortedKeys:
    """Merge sorted runs; equal keys raise `DuplicateKeyError`."""
    width, n = max(run.width for run in runs), sum(map(len, runs))
    record = SortedKeys(path, n, width, True).record
    step = max(1, MERGE_BYTES // record.itemsize // len(runs))
    readers, ascending, last = [_RunReader(run, step, record) for run in runs], True, np.empty(0, record)
    with replacing(path) as temporary, open(temporary, "wb") as stream:
        while readers := [reader for reader in readers if reader.fill()]:
            bound = min(reader.last_key for reader in readers)
            block = np.concatenate([reader.take_until(bound) for reader in readers])
            block = block[np.argsort(block["key"], kind="stable")]
            checked = np.concatenate([last, block])
            _check_unique(checked)
            ascending = ascending and bool(np.all(np.diff(checked["row"]) > 0))
            last = block[-1:]
            block.tofile(stream)
        stream.flush()
        os.fsync(stream.fileno())
    return SortedKeys(path, n, width, ascending)


def _check_unique(records: np.ndarray) -> None:
    same = np.flatnonzero(records["key"][1:] == records["key"][:-1])
    if len(same):
        first, second = records["row"][same[0] : same[0] + 2].tolist()
        raise DuplicateKeyError(bytes(records["key"][same[0]]), (min(first, second), max(first, second)))


class _RunReader:
    """Reads one run forward."""

    def __init__(self, run: SortedKeys, step: int, record: np.dtype):
        self._run, self._step, self._position = run, step, 0
        self._held = np.empty(0, record)

    def fill(self) -> bool:
        """Read on if nothing is held; returns whether there is anything."""
        if not len(self._held):
            read = self._run.records(self._position, self._position + self._step)
            self._position += len(read)
            self._held = read.astype(self._held.dtype)
        return len(self._held) > 0

    @property
    def last_key(self) -> bytes:
        """Greatest key held."""
        return bytes(self._held["key"][-1])

    def take_until(self, bound: bytes) -> np.ndarray:
        """Take the records with keys up to `bound`."""
        count = int(np.searchsorted(self._held["key"], np.bytes_(bound), side="right"))
        taken, self._held = self._held[:count], self._held[count:]
        return taken
