"""Stratified folds for cross-fitting: each holds positives and unlabelled rows, and groups stay together."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np


def assign_folds(
    s: np.ndarray, count: int, seed: int | Sequence[int] = 0, group: np.ndarray | None = None
) -> np.ndarray:
    """Assign rows to at most `count` folds at random, P and U each evenly, and every group to one fold; int64 (n,).

    Groups of several rows are assigned one by one, the largest first, to the fold with the fewest P (groups of U only:
    the fewest U). Groups with both P and U come first, then groups of P only, then groups of U only. Single rows fill
    up the folds at random. So every fold holds P and U. A single fold is used where P, or U, occurs in
    fewer than two groups.

    `s` (n,) is 1 for P and 0 for U. Rows with equal numbers in `group` (n,) are kept in one fold, as by
    `pucache.labels.near_duplicates.groups`; ValueError where it has another shape than `s`. `seed`, one number or
    several, is that of the order of rows and of groups of equal composition.
    """
    if group is not None and group.shape != s.shape:
        raise ValueError(f"expected one group for each of {len(s)} rows, got groups {group.shape}")
    group_of_row = np.arange(len(s)) if group is None else group
    count = min(count, *(len(np.unique(group_of_row[s == value])) for value in (0, 1)))
    if count < 2:
        return np.zeros(len(s), np.int64)
    generator = np.random.default_rng(seed)
    fold = np.full(len(s), -1)
    sizes = np.zeros((2, count), np.int64)  # rows of U and of P in each fold
    if group is not None:
        _assign_groups(fold, sizes, s, group, generator)
    for value in (0, 1):
        rows = np.flatnonzero((s == value) & (fold < 0))
        fold[generator.permutation(rows)] = _fill(sizes[value], len(rows))
    return fold


def _assign_groups(
    fold: np.ndarray, sizes: np.ndarray, s: np.ndarray, groups: np.ndarray, generator: np.random.Generator
) -> None:
    """Assign the groups of several rows; writes into `fold`, (n,), and `sizes`, (2, count)."""
    _, group, size = np.unique(groups, return_inverse=True, return_counts=True)
    several = np.flatnonzero(size[group] > 1)
    _, group = np.unique(group[several], return_inverse=True)
    n_p, n_u = (np.bincount(group[s[several] == value], minlength=(size > 1).sum()) for value in (1, 0))
    order = generator.permutation(len(n_p))
    order = order[np.lexsort((-n_u[order], -n_p[order], n_u[order] == 0, n_p[order] == 0))]
    with_p, without_p = np.split(order, [np.count_nonzero(n_p)])
    fold_of_group = np.empty(len(n_p), np.int64)
    fold_of_group[with_p] = _greedy(n_p[with_p], n_u[with_p], sizes[::-1])
    fold_of_group[without_p] = _greedy(n_u[without_p], n_p[without_p], sizes)
    fold[several] = fold_of_group[group]


def _greedy(first: np.ndarray, second: np.ndarray, sizes: np.ndarray) -> list[int]:
    """Assign each group to the fold with the smallest sizes[0], then sizes[1]; adds to `sizes`, (2, count)."""
    heap = [(a, b, number) for number, (a, b) in enumerate(sizes.T.tolist())]
    heapq.heapify(heap)
    assigned = []
    for more_a, more_b in zip(first.tolist(), second.tolist(), strict=True):
        a, b, number = heap[0]
        heapq.heapreplace(heap, (a + more_a, b + more_b, number))
        assigned.append(number)
    for a, b, number in heap:
        sizes[:, number] = a, b
    return assigned


def _fill(sizes: np.ndarray, more: int) -> np.ndarray:
    """Folds (more,) that further rows go to, each the smallest fold at that time."""
    top, numbers = sizes.max(), np.arange(len(sizes))
    below_top = np.repeat(numbers, top - sizes)
    level = np.concatenate([np.arange(size, top) for size in sizes])
    even = np.tile(numbers, max(0, more - len(below_top)) // len(sizes) + 1)
    return np.concatenate([below_top[np.argsort(level, kind="stable")], even])[:more]
