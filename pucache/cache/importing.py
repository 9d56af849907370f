"""Importing embeddings that were computed elsewhere into a cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ..encoders.spec import EncoderSpec
from ..errors import CacheError
from ..storage.atomic import check_writable
from ..storage.tables import read_table
from .keys import encode_keys
from .layout import DTYPES
from .reader import rows_per_read
from .writer import Rows, write_file


def import_embeddings(
    embeddings: str | Path | np.ndarray,
    keys: str | Path | Sequence[str],
    out: str | Path,
    *,
    name: str | None = None,
    dtype: str | None = None,
) -> int:
    """Write embeddings that were computed elsewhere, of any modality, as a cache file.

    Parameters
    ----------
    embeddings : path, str or ndarray of float, (n, d)
        An array, or a NumPy ``.npy`` file of one; a file is mapped, and never unpickled.
    keys : path, str or sequence of str
        One per row, unique; in any order. A path: a text file, or a CSV with a ``key`` column.
    out : path or str
        The file to write.
    name : str, optional
        Name of the encoder; by default the stem of the file, or ``array``.
    dtype : {"float16", "float32"}, optional
        Type of the stored embeddings; by default float16 if the array has it, else float32.

    Returns
    -------
    int
        Number of rows written.

    Raises
    ------
    CacheError
        The array cannot be read, has the wrong shape or type, or holds NaN or infinity; a key occurs twice.
    OutputError
        `out` cannot be written.
    """
    out = check_writable(out)
    source = "the array" if isinstance(embeddings, np.ndarray) else Path(embeddings)
    X = _open_array(embeddings)
    if isinstance(keys, str | Path):
        keys = [row["key"] for row in read_table(keys)]
    if len(keys) != len(X):
        raise CacheError(f"{source} has {len(X)} rows, but {len(keys)} keys were given; one key per row is needed")
    encoded = encode_keys(keys)
    order = _order(encoded)
    stored = DTYPES[dtype or ("float16" if X.dtype == np.float16 else "float32")]

    def blocks() -> Iterator[Rows]:
        step = rows_per_read(X.shape[1] * X.itemsize)
        for start in range(0, len(X), step):
            rows = order[start : start + step]
            with np.errstate(over="ignore"):
                block = X[rows].astype(stored)
            not_finite = np.flatnonzero(~np.isfinite(block).all(1))
            if len(not_finite):
                row = rows[not_finite[0]]
                raise CacheError(
                    f"row {row} of {source} ({keys[row]!r}) is NaN, infinite or overflows {stored}; "
                    "correct it, or pass --dtype float32"
                )
            digests, size_mtime = np.zeros((len(rows), 32), np.uint8), np.full((len(rows), 2), -1, np.int64)
            yield Rows(keys=encoded[rows], X=block, digests=digests, size_mtime=size_mtime)

    default_name = "array" if isinstance(embeddings, np.ndarray) else Path(embeddings).stem
    encoder = EncoderSpec.imported(name or default_name, X.shape[1])
    write_file(out, encoder, "", blocks(), shape=(len(X), encoded.itemsize, stored), failures={})
    return len(X)


def _order(keys: np.ndarray) -> np.ndarray:
    """Return the order that sorts the keys; raises `CacheError` if one occurs twice."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    duplicates = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(duplicates):
        raise CacheError(f"the key {duplicates[0].decode()!r} is given twice; keys must be unique")
    return order


def _open_array(embeddings: str | Path | np.ndarray) -> np.ndarray:
    X = embeddings if isinstance(embeddings, np.ndarray) else _map_npy(Path(embeddings))
    if not isinstance(X, np.ndarray) or X.ndim != 2 or X.dtype.kind != "f" or 0 in X.shape:
        holder = "the array" if isinstance(embeddings, np.ndarray) else embeddings
        got = f"{X.dtype} {X.shape}" if isinstance(X, np.ndarray) else "an archive of arrays"
        raise CacheError(f"{holder} holds {got}; expected one array of floats with rows and columns")
    return X


def _map_npy(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise CacheError(f"no such file: {path}") from error
    except Exception as error:  # numpy parses the header as Python, and damage raises almost anything
        raise CacheError(f"{path} is not a .npy array of numbers; save one with numpy.save") from error
