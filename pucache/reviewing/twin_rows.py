"""Groups of twins, and the labels that twins inherit."""

from __future__ import annotations

import numpy as np

from ..labels.labels import Labels


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
