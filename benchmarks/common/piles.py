"""Small piles of the rows of a task, and embeddings along their leading directions."""

import numpy as np

from benchmarks.common.tasks import ATTRIBUTES, KINDS, TOPICS, TaskGroups

DIM, SAMPLE = 256, 5000


def task_rows(groups: TaskGroups, group: str, task: str) -> tuple[np.ndarray, np.ndarray]:
    """Training rows of a task, (n, d), and which are positive, (n,)."""
    data = groups.data(group)
    if group == ATTRIBUTES:
        negatives, positives, *_ = data.base(task)
        return np.concatenate([positives, negatives]), np.arange(len(positives) + len(negatives)) < len(positives)
    if group in (TOPICS, KINDS):
        return data.X[~data.test], data.labels[task][~data.test]
    return data.X, data.label == task


def pile_rows(y: np.ndarray, *, labelled: int, hidden: int, unlabelled: int, draw: np.random.Generator) -> np.ndarray:
    """Row numbers of a pile: the labelled ones come first, then the hidden positives."""
    positive, negative = (draw.permutation(np.flatnonzero(y == value)) for value in (True, False))
    return np.concatenate([positive[: labelled + hidden], negative[: unlabelled - hidden]])


class Directions:
    """The first `DIM` principal components of evenly spaced rows."""

    def __init__(self, X: np.ndarray):
        sample = X[:: max(1, len(X) // SAMPLE)].astype(np.float32)
        self._mean = sample.mean(axis=0)
        self._directions = np.linalg.eigh(np.cov(sample.T))[1][:, : -DIM - 1 : -1].astype(np.float32)

    def reduce(self, X: np.ndarray) -> np.ndarray:
        """Rows along the directions, float16, (n, DIM)."""
        parts = [(rows - self._mean) @ self._directions for rows in np.array_split(X, 10)]
        return np.concatenate(parts).astype(np.float16)
