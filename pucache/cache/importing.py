"""Embeddings that were made elsewhere -> a cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ..encoders.spec import EncoderSpec
from ..errors import CacheError
from ..storage.atomic import check_writable
from .keys import encode_keys
from .reader import DTYPES, rows_per_block
from .writer import Rows, write_file


def import_embeddings(
    embeddings: str | Path,
    keys: Sequence[str],
    out: str | Path,
    *,
    name: str | None = None,
    dtype: str | None = None,
) -> int:
    """Write embeddings that were made elsewhere, of any modality, as a cache file.

    Parameters
    ----------
    embeddings : path
        A NumPy ``.npy`` file of floats, (n, d); read through a map, never unpickled.
    keys : sequence of str
        One per row, unique; any order.
    out : path
    name : str, optional
        What to call the encoder; the file's stem by default.
    dtype : {"float16", "float32"}, optional
        Of the stored rows; by default float16 where the file is, else float32.

    Returns
    -------
    int
        Rows written.

    Raises
    ------
    CacheError
        The array cannot be read, has the wrong shape or type, or holds NaN or infinity.
    """
    out, source = check_writable(out), Path(embeddings)
    X = _open_npy(source)
    if len(keys) != len(X):
        raise CacheError(f"{source} has {len(X)} rows, but {len(keys)} keys were given; one key per row is needed")
    encoded = encode_keys(keys)
    order = np.argsort(encoded, kind="stable")
    twice = np.flatnonzero(encoded[order][1:] == encoded[order][:-1])
    if len(twice):
        raise CacheError(f"the key {encoded[order][twice[0]].decode()!r} is given twice; keys must be unique")
    stored = DTYPES[dtype or ("float16" if X.dtype == np.float16 else "float32")]
    encoder = EncoderSpec.imported(name or source.stem, X.shape[1])

    def blocks() -> Iterator[Rows]:
        step = rows_per_block(X)
        for start in range(0, len(X), step):
            rows = order[start : start + step]
            with np.errstate(over="ignore"):
                block = X[rows].astype(stored)
            bad = np.flatnonzero(~np.isfinite(block).all(1))
            if len(bad):
                raise CacheError(
                    f"row {rows[bad[0]]} of {source} ({keys[rows[bad[0]]]!r}) is NaN, infinite or overflows {stored}; "
                    "correct it, or pass --dtype float32"
                )
            empty = np.zeros((len(rows), 32), np.uint8), np.full((len(rows), 2), -1, np.int64)
            yield Rows(encoded[rows], block, *empty)

    shape = (len(X), encoded.itemsize, stored)
    write_file(out, encoder, "", blocks(), shape=shape, failures={})
    return len(X)


def _open_npy(path: Path) -> np.ndarray:
    try:
        X = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise CacheError(f"no such file: {path}") from error
    except Exception as error:  # numpy parses the header as Python, and damage raises almost anything
        raise CacheError(f"{path} is not a .npy array of numbers; save one with numpy.save") from error
    if not isinstance(X, np.ndarray) or X.ndim != 2 or X.dtype.kind != "f" or 0 in X.shape:
        got = f"{X.dtype} {X.shape}" if isinstance(X, np.ndarray) else "an archive of arrays"
        raise CacheError(f"{path} holds {got}; expected one array of floats with rows and columns")
    return X
