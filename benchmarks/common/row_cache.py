"""Caches of bare rows, for benchmarks of what reads caches."""

from pathlib import Path

import numpy as np

from pucache import EmbeddingCache
from pucache.cache.keys import encode_keys
from pucache.cache.writer import Rows, write_file
from pucache.encoders.spec import EncoderSpec


def write_row_cache(path: Path, X: np.ndarray, encoder: EncoderSpec | None = None) -> EmbeddingCache:
    """A cache of bare rows, by default of no encoder, with keys that are row numbers.

    Parameters
    ----------
    path : Path
    X : ndarray of float16 or float32, (n, d)
    encoder : EncoderSpec, optional
    """
    encoder = encoder or EncoderSpec.imported("made", X.shape[1])
    keys = encode_keys([f"{row:06}.png" for row in range(len(X))])
    empty = np.zeros((len(X), 32), np.uint8), np.full((len(X), 2), -1)
    write_file(path, encoder, "", [Rows(keys, X, *empty)], shape=(len(X), keys.itemsize, X.dtype), failures={})
    return EmbeddingCache(path)
