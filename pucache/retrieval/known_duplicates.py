"""Duplicates of labelled images among the unlabelled; retrieval leaves them out."""

from __future__ import annotations

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..neighbours.whitening import centred_units

_ROUNDING = 1e-6  # error of a cosine in float32
_LABELLED_PER_BLOCK = 1 << 12


def duplicates_of(
    cache: EmbeddingCache, rows: np.ndarray, labelled_rows: np.ndarray, cosine: float | None
) -> np.ndarray:
    """Mark rows that show the same picture as a labelled one, by its digest or by the cosine to it.

    Parameters
    ----------
    cache : EmbeddingCache
    rows : ndarray of int64, (m,), ascending
    labelled_rows : ndarray of int64, (p,), ascending
        Positives and known negatives.
    cosine : float or None
        Least cosine of duplicates, between embeddings as stored, not centred. None, or above 1: digests only.

    Returns
    -------
    ndarray of bool, (m,)
    """
    digests = cache.digests
    recorded = np.asarray(digests.any(1))  # a digest of zeros is unknown
    labelled_digests = _as_bytes(digests[labelled_rows[recorded[labelled_rows]]])
    is_duplicate = np.asarray(np.isin(_as_bytes(digests[rows]), labelled_digests))
    if cosine is None or cosine > 1:
        return is_duplicate
    labelled = centred_units(cache.take(labelled_rows))
    for block, X in cache.blocks():
        inside = slice(*np.searchsorted(rows, (block.start, block.stop)))
        units = centred_units(X[rows[inside] - block.start])
        for begin in range(0, len(labelled), _LABELLED_PER_BLOCK):
            greatest = (units @ labelled[begin : begin + _LABELLED_PER_BLOCK].T).max(1, initial=-1)
            is_duplicate[inside] |= greatest >= cosine - _ROUNDING
    return is_duplicate


def _as_bytes(digests: np.ndarray) -> np.ndarray:
    """One value of 32 bytes a row."""
    return np.ascontiguousarray(digests).view("V32").ravel()
