"""Rows in memory, as a notebook has them, as a cache that lasts as long as it is used."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from ..encoders.spec import EncoderSpec
from ..errors import CacheError
from .embedding_cache import EmbeddingCache
from .importing import import_embeddings
from .merging import merge


def are_rows(given: Any) -> bool:
    """Whether an object is a matrix of rows: an array, a tensor, a table, or a list of lists of numbers."""
    if isinstance(given, list | tuple):
        return bool(given) and isinstance(given[0], list | tuple | np.ndarray)
    return len(getattr(given, "shape", ())) == 2


def cache_of_rows(rows: Any, encoder: EncoderSpec | None) -> EmbeddingCache:
    """A cache of rows that an encoder is said to have made, None: of no known one.

    Keys are the index of a table, or the numbers of the rows as ten digits. Raises `CacheError` as
    `pucache.import_embeddings`, and for rows of another length than the encoder's.
    """
    folder = Path(tempfile.mkdtemp(prefix="pucache-rows-"))
    try:
        path = folder / "rows.h5"
        import_embeddings(rows, path)
        if encoder is not None:
            imported = EmbeddingCache(path)
            if imported.encoder.dim != encoder.dim:
                raise CacheError(f"expected rows of {encoder.dim} numbers, of {encoder}; got {imported.encoder.dim}")
            (file,), path = imported.files, folder / "of_encoder.h5"
            merge(path, [(file, np.arange(len(file)))], encoder=encoder, dtype=file.dtype, source="", failures={})
        cache = EmbeddingCache(path)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(cache, shutil.rmtree, folder, ignore_errors=True)
    return cache
