"""Writing one cache file: rows of one encoder in key order, atomically and with checksums.

docs/cache-format.md specifies the format; `pucache.cache.reader` reads it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..encoders.spec import EncoderSpec
from ..storage.atomic import replacing
from ..version import __version__
from . import hdf5
from .checksums import ColumnChecksums, ColumnHasher, append_table, rows_per_hash
from .hdf5 import DatasetExtent
from .keys import encode_keys
from .layout import COLUMNS, FAILURES, FORMAT, version_of
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
    n, key_bytes, dtype = shape
    recorded = [encode_keys(list(texts)) for texts in (failures, failures.values())]
    layouts: dict[str, tuple[tuple[int, ...], np.dtype]] = {
        "embeddings": ((n, encoder.dim), dtype),
        "keys": ((n,), np.dtype(f"S{max(key_bytes, 1)}")),
        "digests": ((n, 32), np.dtype("u1")),
        "size_mtime": ((n, 2), np.dtype("<i8")),
        **{name: (texts.shape, texts.dtype) for name, texts in zip(FAILURES, recorded, strict=True)},
    }
    attributes: hdf5.Attributes = {"format": FORMAT, "version": version_of(encoder), "encoder": encoder.to_json()}
    attributes |= {"created": created or creation_time(), "pucache_version": __version__, "source": source}
    attributes |= {"shard": shard} if shard else {}
    attributes |= {"reordered": 1} if reordered else {}
    with replacing(path) as temporary:
        offsets = hdf5.create(temporary, attributes, layouts)
        with open(temporary, "rb+") as stream:
            columns = {
                name: HashedColumn(
                    stream, offsets[name], rows_per_hash(n) if name in COLUMNS else len(recorded[0]), *each
                )
                for name, each in layouts.items()
            }
            written = 0
            for rows in blocks:
                for name, values in zip(COLUMNS, (rows.X, rows.keys, rows.digests, rows.size_mtime), strict=True):
                    columns[name].append(values)
                written += len(rows.keys)
            assert written == n, f"{written} rows written, {n} announced"
            for name, texts in zip(FAILURES, recorded, strict=True):
                columns[name].append(texts)
        append_table(temporary, {name: column.checksums() for name, column in columns.items()})


class HashedColumn:
    """A dataset that is written from its place in a file on, and hashed meanwhile in blocks of `block_rows`."""

    def __init__(self, stream: BinaryIO, offset: int, block_rows: int, shape: tuple[int, ...], dtype: np.dtype):
        self._stream, self._offset, self._position, self._dtype = stream, offset, offset, dtype
        self._hasher = ColumnHasher(block_rows * DatasetExtent(None, shape, dtype).row_bytes)

    def append(self, values: np.ndarray) -> None:
        """Write the next rows."""
        if values.size:
            data = as_bytes(np.ascontiguousarray(values, self._dtype))
            self._stream.seek(self._position)
            self._position += self._stream.write(data)
            self._hasher.update(data)

    def checksums(self) -> ColumnChecksums:
        """Checksums of all that was written."""
        return self._hasher.checksums(self._offset)


def creation_time() -> str:
    """Return the UTC time, or SOURCE_DATE_EPOCH if it is set, so that two runs can write the same bytes."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(epoch) if epoch else None))
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(f"SOURCE_DATE_EPOCH is {epoch!r}; expected seconds since 1970, or leave it unset") from error
