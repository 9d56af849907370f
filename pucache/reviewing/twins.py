"""Groups of images that show the same picture, kept in the folder of a session.

Near duplicates are searched where that takes seconds. Larger caches are grouped by the digests of the image
bytes alone, which reads no embeddings.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..labels import near_duplicates
from ..storage.atomic import replacing
from ..storage.rows import RowMatrix, take_rows

NEAR_DUPLICATES = "near duplicates and equal bytes"
EQUAL_BYTES = "equal bytes"
_SCANNED_VALUES = 1 << 27  # embedding values up to which near duplicates are searched


def grouping_of(cache: EmbeddingCache, twins: float | None) -> str:
    """How twins of a cache are found: `NEAR_DUPLICATES` or `EQUAL_BYTES`."""
    small = len(cache) * cache.encoder.dim <= _SCANNED_VALUES
    return NEAR_DUPLICATES if small and twins is not None and twins <= 1 else EQUAL_BYTES


def twin_groups(cache: EmbeddingCache, twins: float | None) -> np.ndarray:
    """Smallest row of the group that each row is in, int64 (n,).

    Parameters
    ----------
    cache : EmbeddingCache
    twins : float or None
        Least cosine of twins; None, or above 1: equal bytes only.
    """
    if grouping_of(cache, twins) == NEAR_DUPLICATES:
        return near_duplicates.groups(cache.matrix, cache.digest_matrix, cosine=twins)
    return _equal_digests(cache.digest_matrix)


def _equal_digests(digests: RowMatrix) -> np.ndarray:
    """Groups of rows with equal digests; a digest of zeros is unknown, and equal to none."""
    recorded, words = near_duplicates.first_words(digests)
    rows = recorded[near_duplicates.repeated(words[recorded])]  # few: only these are compared in full
    content = take_rows(digests, rows).view("V32").ravel()
    group = np.arange(len(digests))
    _, first, inverse = np.unique(content, return_index=True, return_inverse=True)
    group[rows] = rows[first[inverse]]
    return group


def kept_groups(path: Path, n: int) -> np.ndarray | None:
    """Groups that `keep_groups` wrote, int64 (n,); None where there are none of `n` rows, or they are damaged."""
    try:
        group = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    if group.dtype != np.int64 or group.shape != (n,):
        return None
    if n and not ((group >= 0) & (group <= np.arange(n))).all():
        return None
    return group if (group[group] == group).all() else None


def keep_groups(path: Path, group: np.ndarray) -> None:
    """Write groups, int64 (n,), atomically; raises `OutputError` where the file system refuses."""
    with replacing(path) as temporary, open(temporary, "wb") as stream:
        np.save(stream, group)
