"""Groups of images that show the same picture, kept in the folder of a session, and the labels that they share.

Near duplicates are searched where that takes seconds. Larger caches are grouped by the digests of the image
bytes alone, which reads no embeddings.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..labels import near_duplicates
from ..labels.labels import Labels
from ..storage.atomic import replacing

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
    return near_duplicates.equal_digests(cache.digest_matrix)


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


class Groups:
    """Groups of twins, and the rows of each.

    Parameters
    ----------
    group : ndarray of int64, (n,)
        The smallest row of the group that each row is in.
    """

    def __init__(self, group: np.ndarray):
        self.group = group
        in_group = np.flatnonzero(np.bincount(group, minlength=len(group))[group] > 1)
        order = np.argsort(group[in_group], kind="stable")
        self._rows = in_group[order]  # of the groups of two and more, group by group
        self._groups = group[self._rows]

    def rows(self, group: int) -> np.ndarray:
        """Rows of one group, int64, ascending."""
        first, last = np.searchsorted(self._groups, (group, group + 1))
        return self._rows[first:last] if last > first else np.array([group])

    def spread(self, chosen: np.ndarray) -> np.ndarray:
        """Mark all rows of the groups of chosen rows; bool (n,) to bool (n,)."""
        marked = chosen.copy()
        rows = self._rows
        marked[rows] = np.isin(self._groups, self._groups[chosen[rows]])
        return marked


def inherited(labels: Labels, groups: Groups) -> Labels:
    """Labels in which unlabelled twins of labelled rows are reviewed.

    Twins of positives become confirmed positives, twins of negatives alone known negatives.
    """
    reviewed, undecided = labels.reviewed.copy(), labels.unlabelled
    positive, negative = groups.spread(labels.positive), groups.spread(labels.negative)
    reviewed[undecided & negative] = -1
    reviewed[undecided & positive] = 1
    return Labels(labels.s, reviewed)
