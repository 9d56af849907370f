"""Writes one cache file: rows of one encoder, in key order, durably and sealed.

docs/cache-format.md specifies the format; `pucache.cache.reader` reads it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..encoders.spec import EncoderSpec
from ..storage.atomic import replacing
from ..version import __version__
from . import checksums, hdf5
from .hdf5 import Place
from .keys import encode_keys
from .mapped_file import as_bytes
from .reader import FAILURES, FORMAT, VERSION


@dataclass
class Rows:
    """Rows of a cache file, sorted by key.

    Attributes
    ----------
    keys : ndarray of bytes (dtype S), (n,)
    X : ndarray of float16 or float32, (n, d)
    digests : ndarray of uint8, (n, 32)
    size_mtime : ndarray of int64, (n, 2)
    """

    keys: np.ndarray
    X: np.ndarray
    digests: np.ndarray
    size_mtime: np.ndarray


def write_file(
    path: str | Path,
    encoder: EncoderSpec,
    source: str,
    blocks: Iterable[Rows],
    *,
    shape: tuple[int, int, np.dtype],
    failures: dict[str, str],
) -> None:
    """Write one cache file durably from blocks of rows in key order.

    Parameters
    ----------
    shape : (n, key width in bytes, dtype of the embeddings)
    """
    n, width, dtype = shape
    columns: dict[str, tuple[tuple[int, ...], np.dtype]] = {
        "embeddings": ((n, encoder.dim), dtype),
        "keys": ((n,), np.dtype(f"S{max(width, 1)}")),
        "digests": ((n, 32), np.dtype("u1")),
        "size_mtime": ((n, 2), np.dtype("<i8")),
    }
    texts = {name: encode_keys(list(said)) for name, said in zip(FAILURES, (failures, failures.values()), strict=True)}
    with replacing(path) as temporary:
        with hdf5.new_file(temporary) as file:
            sealed = {
                name: _Sealed(file, name, *column, checksums.rows_per_block(n)) for name, column in columns.items()
            }
            start = 0
            for rows in blocks:
                for name, values in zip(columns, (rows.X, rows.keys, rows.digests, rows.size_mtime), strict=True):
                    sealed[name].write(start, np.ascontiguousarray(values, columns[name][1]))
                start += len(rows.keys)
            assert start == n, f"{start} rows written, {n} announced"
            for name, values in texts.items():
                sealed[name] = _Sealed(file, name, values.shape, values.dtype, len(values))
                sealed[name].write(0, values)
            described: dict[str, Any] = {"format": FORMAT, "version": VERSION, "encoder": encoder.to_json()}
            file.describe({**described, "created": creation_time(), "pucache_version": __version__, "source": source})
            found = {name: column.found() for name, column in sealed.items()}
        checksums.append(temporary, found)


class _Sealed:
    """A dataset that is hashed while it is written."""

    def __init__(self, file: hdf5.Writer, name: str, shape: tuple[int, ...], dtype: np.dtype, rows: int):
        self._file, self._name = file, name
        file.create(name, shape, dtype)
        self._hasher = checksums.Hasher(rows * Place(None, shape, dtype).row_bytes)

    def write(self, start: int, values: np.ndarray) -> None:
        self._file.write(self._name, start, values)
        if values.size:
            self._hasher.update(as_bytes(values))

    def found(self) -> checksums.Column:
        return self._hasher.column(self._file.offset(self._name))


def creation_time() -> str:
    """UTC time, or SOURCE_DATE_EPOCH where it is set, so that two runs can give the same bytes.

    Raises
    ------
    ValueError
        SOURCE_DATE_EPOCH is no time.
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(epoch) if epoch else None))
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(f"SOURCE_DATE_EPOCH is {epoch!r}; expected seconds since 1970, or leave it unset") from error
