"""Writing one cache file: rows of one encoder in key order, atomically and with checksums.

docs/cache-format.md specifies the format; `pucache.cache.reader` reads it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..encoders.spec import EncoderSpec
from ..storage.atomic import replacing
from ..version import __version__
from . import hdf5
from .checksums import ColumnChecksums, ColumnHasher, append_table, rows_per_hash
from .hdf5 import DatasetExtent
from .keys import encode_keys
from .layout import COLUMNS, FAILURES, FORMAT, VERSION
from .mapped_file import as_bytes


@dataclass
class Rows:
    """Rows of a cache file, sorted by key."""

    keys: np.ndarray  # (n,), of dtype S
    X: np.ndarray  # (n, d), float16 or float32
    digests: np.ndarray  # (n, 32), uint8
    size_mtime: np.ndarray  # (n, 2), int64


def write_file(
    path: str | Path,
    encoder: EncoderSpec,
    source: str,
    blocks: Iterable[Rows],
    *,
    shape: tuple[int, int, np.dtype],
    failures: dict[str, str],
    created: str = "",
    shard: str = "",
    reordered: bool = False,
) -> None:
    """Write one cache file from blocks of rows in key order; it appears under its name when it is complete.

    `shape` is (n, key width in bytes, dtype of the embeddings), `failures` are reasons by key, sorted. `created` is the
    UTC time of writing, by default now; `reordered` says that the rows came in another order. Raises `OutputError`.
    """
    with replacing(path) as temporary:
        with hdf5.new_file(temporary) as file:
            columns = _create_columns(file, encoder.dim, shape)
            _write_rows(columns, blocks, n=shape[0])
            columns |= _write_failures(file, failures)
            attributes: hdf5.Attributes = {"format": FORMAT, "version": VERSION, "encoder": encoder.to_json()}
            attributes |= {"created": created or creation_time(), "pucache_version": __version__, "source": source}
            attributes |= {"shard": shard} if shard else {}
            attributes |= {"reordered": 1} if reordered else {}
            file.set_attributes(attributes)
            checksums = {name: column.checksums() for name, column in columns.items()}
        append_table(temporary, checksums)


def _create_columns(file: hdf5.Writer, dim: int, shape: tuple[int, int, np.dtype]) -> dict[str, _HashedDataset]:
    n, key_bytes, dtype = shape
    layouts: dict[str, tuple[tuple[int, ...], np.dtype]] = {
        "embeddings": ((n, dim), dtype),
        "keys": ((n,), np.dtype(f"S{max(key_bytes, 1)}")),
        "digests": ((n, 32), np.dtype("u1")),
        "size_mtime": ((n, 2), np.dtype("<i8")),
    }
    return {name: _HashedDataset(file, name, *layouts[name], block_rows=rows_per_hash(n)) for name in COLUMNS}


def _write_rows(columns: dict[str, _HashedDataset], blocks: Iterable[Rows], n: int) -> None:
    start = 0
    for rows in blocks:
        for name, values in zip(COLUMNS, (rows.X, rows.keys, rows.digests, rows.size_mtime), strict=True):
            columns[name].write(start, values)
        start += len(rows.keys)
    assert start == n, f"{start} rows written, {n} announced"


def _write_failures(file: hdf5.Writer, failures: dict[str, str]) -> dict[str, _HashedDataset]:
    columns = {}
    for name, texts in zip(FAILURES, (failures, failures.values()), strict=True):
        encoded = encode_keys(list(texts))
        columns[name] = _HashedDataset(file, name, encoded.shape, encoded.dtype, block_rows=len(encoded))
        columns[name].write(0, encoded)
    return columns


class _HashedDataset:
    """A dataset that is hashed while it is written."""

    def __init__(self, file: hdf5.Writer, name: str, shape: tuple[int, ...], dtype: np.dtype, *, block_rows: int):
        self._file, self._name, self._dtype = file, name, dtype
        file.create(name, shape, dtype)
        self._hasher = ColumnHasher(block_rows * DatasetExtent(None, shape, dtype).row_bytes)

    def write(self, start: int, values: np.ndarray) -> None:
        """Write consecutive rows, the first of them row `start`; rows must come in order."""
        values = np.ascontiguousarray(values, self._dtype)
        self._file.write(self._name, start, values)
        if values.size:
            self._hasher.update(as_bytes(values))

    def checksums(self) -> ColumnChecksums:
        return self._hasher.checksums(self._file.offset(self._name))


def creation_time() -> str:
    """Return the UTC time, or SOURCE_DATE_EPOCH if it is set, so that two runs can write the same bytes."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(epoch) if epoch else None))
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(f"SOURCE_DATE_EPOCH is {epoch!r}; expected seconds since 1970, or leave it unset") from error
