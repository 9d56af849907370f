"""Which rows show the same picture as a known one: nothing is found by showing it again."""

from __future__ import annotations

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from .whitening import unit

_ROUNDING = 1e-6  # of a cosine in float32
_AT_ONCE = 1 << 12  # known rows that a block is held against


def twins_of(cache: EmbeddingCache, rows: np.ndarray, known: np.ndarray, cosine: float | None) -> np.ndarray:
    """Tell which rows have the digest of a known row, or a cosine to it that reaches the limit.

    Parameters
    ----------
    cache : EmbeddingCache
    rows : ndarray of int64, (m,), rising
    known : ndarray of int64, (p,), rising
    cosine : float or None
        Of the embeddings as they are, not centred. None, or above 1, for equal bytes only.

    Returns
    -------
    ndarray of bool, (m,)
    """
    digests = cache.digests
    told = np.asarray(digests.any(1))
    of_known = _as_text(digests[known[told[known]]])
    twin = np.asarray(np.isin(_as_text(digests[rows]), of_known))
    if cosine is None or cosine > 1:
        return twin
    as_they_are = np.zeros(cache.encoder.dim, np.float32)
    pictures = unit(cache.take(known), as_they_are)
    for block, X in cache.blocks():
        here = slice(*np.searchsorted(rows, (block.start, block.stop)))
        asked = unit(X[rows[here] - block.start], as_they_are)
        for begin in range(0, len(pictures), _AT_ONCE):
            likest = (asked @ pictures[begin : begin + _AT_ONCE].T).max(1, initial=-1)
            twin[here] |= likest >= cosine - _ROUNDING
    return twin


def _as_text(digests: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(digests).view("V32").ravel()
