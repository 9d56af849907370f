"""Duplicates of labelled images among the unlabelled; retrieval leaves them out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..neighbours.whitening import centred_units
from ..storage.rows import row_slices, take_rows

_ROUNDING = 1e-6  # error of a cosine in float32
_DOUBT = 1e-5  # beyond it, the rounding of a matrix product decides nothing
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
    digests = cache.digest_matrix
    labelled = LabelledPictures(take_rows(digests, labelled_rows), cache.take(labelled_rows))
    is_duplicate = labelled.have_digests(take_rows(digests, rows))
    if cosine is None or cosine > 1:
        return is_duplicate
    for part in row_slices(len(rows), cache.encoder.dim):
        is_duplicate[part] |= labelled.are_close(cache.take(rows[part]), cosine)
    return is_duplicate


@dataclass(frozen=True)
class LabelledPictures:
    """Labelled images, to compare others with.

    Parameters
    ----------
    digests : ndarray of uint8, (p, 32)
    embeddings : ndarray of float16 or float32, (p, d)
        As stored.
    """

    digests: np.ndarray
    embeddings: np.ndarray

    @cached_property
    def _recorded_digests(self) -> np.ndarray:
        return _as_bytes(self.digests[self.digests.any(1)])  # a digest of zeros is unknown

    @cached_property
    def _units(self) -> np.ndarray:
        return centred_units(self.embeddings)

    def have_digests(self, digests: np.ndarray) -> np.ndarray:
        """Mark the digests, uint8 (m, 32), that are one of the labelled images'; bool (m,)."""
        return np.asarray(np.isin(_as_bytes(digests), self._recorded_digests))

    def are_close(self, X: np.ndarray, cosine: float) -> np.ndarray:
        """Mark the rows, (m, d) as stored, with this cosine to a labelled image, or a greater one; bool (m,)."""
        units, least, close = centred_units(X), cosine - _ROUNDING, np.zeros(len(X), bool)
        for begin in range(0, len(self._units), _LABELLED_PER_BLOCK):
            labelled = self._units[begin : begin + _LABELLED_PER_BLOCK]
            greatest = (units @ labelled.T).max(1, initial=-1)
            above = greatest >= least
            # a product of matrices may round a row differently beside other rows; single products do not
            for row in np.flatnonzero(np.abs(greatest - least) < _DOUBT):
                above[row] = np.vecdot(units[row], labelled).max() >= least
            close |= above
        return close


def _as_bytes(digests: np.ndarray) -> np.ndarray:
    """One value of 32 bytes a row."""
    return np.ascontiguousarray(digests).view("V32").ravel()
