"""Messages between the server and its child process that trains; both ends are pucache's own.

Labels travel as the known rows alone, of which there are few. Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .ranking_result import RankingResult

_LABELLED, _CONFIRMED, _NEGATIVE = 2, 1, -1


@dataclass(frozen=True)
class Setup:
    """What the child needs first.

    Attributes
    ----------
    paths : tuple of str
        Files of the cache.
    rows, groups : ndarray of int64, (m,)
        Rows that share a picture with another one, and the number of their group.
    seed : int
    device : str
    """

    paths: tuple[str, ...]
    rows: np.ndarray
    groups: np.ndarray
    seed: int
    device: str

    @classmethod
    def of(cls, paths: tuple[str, ...], groups: np.ndarray | None, seed: int, device: str) -> Setup:
        """From the group number of each row, int64 (n,), or None."""
        if groups is None:
            return cls(paths, np.empty(0, np.int64), np.empty(0, np.int64), seed, device)
        _, group, size = np.unique(groups, return_inverse=True, return_counts=True)
        rows = np.flatnonzero(size[group] > 1)
        return cls(paths, rows, groups[rows].astype(np.int64), seed, device)

    def all_groups(self, n: int) -> np.ndarray:
        """Group number of each row, int64 (n,)."""
        groups = np.arange(n) + n
        _, groups[self.rows] = np.unique(self.groups, return_inverse=True)
        return groups


@dataclass(frozen=True)
class Job:
    """Labels to train on.

    Attributes
    ----------
    serial : int
        Of the last entry of the log that they rest on.
    rows : ndarray of int32, (k,)
        Known rows.
    values : ndarray of int8, (k,)
        What is known of each.
    """

    serial: int
    rows: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, serial: int, s: np.ndarray, reviewed: np.ndarray) -> Job:
        """From the labels of all rows, int8 (n,) each."""
        values = np.where(s == 1, np.int8(_LABELLED), reviewed).astype(np.int8)
        rows = np.flatnonzero(values)
        return cls(serial, rows.astype(np.int32), values[rows])

    @property
    def has_positive(self) -> bool:
        """Whether a positive is known."""
        return bool((self.values > 0).any())

    def labels(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """s and reviewed of all rows, int8 (n,) each."""
        s, reviewed = np.zeros(n, np.int8), np.zeros(n, np.int8)
        s[self.rows[self.values == _LABELLED]] = 1
        reviewed[self.rows] = np.where(self.values == _LABELLED, 0, self.values)
        return s, reviewed


@dataclass(frozen=True)
class Ranked:
    """A ranking by the labels of a serial number; several may follow each other, each better than the last."""

    serial: int
    result: RankingResult


@dataclass(frozen=True)
class Failed:
    """What went wrong, on one line."""

    message: str


@dataclass(frozen=True)
class Idle:
    """Nothing is left to do for the labels of a serial number."""

    serial: int
