"""Deals rows into folds, each with labelled positives and unlabelled rows; what belongs together stays together."""

from __future__ import annotations

import heapq

import numpy as np


def deal(s: np.ndarray, count: int, seed: int, group: np.ndarray | None) -> np.ndarray:
    """Deal rows into at most `count` folds, every one with P and U; one fold where that cannot be.

    Parameters
    ----------
    s : ndarray, (n,)
    count, seed : int
    group : ndarray of int64, (n,), or None
        Rows of one group stay together.

    Raises
    ------
    ValueError
        `group` has not one number a row.
    """
    if group is not None and group.shape != s.shape:
        raise ValueError(f"expected one group for each of {len(s)} rows, got groups {group.shape}")
    of = np.arange(len(s)) if group is None else group
    count = min(count, *(len(np.unique(of[s == value])) for value in (0, 1)))
    if count < 2:
        return np.zeros(len(s), np.int64)
    return folds(s, count, seed, group)


def folds(s: np.ndarray, count: int, seed: int = 0, groups: np.ndarray | None = None) -> np.ndarray:
    """Deal rows into folds at random, P and U each evenly, and every group whole into one fold.

    Groups of several rows go one by one, the largest first, to the fold with the fewest P (groups
    of U alone: the fewest U): groups of both first, as they give a fold both, then those of P
    alone, then those of U alone. All other rows fill up the folds at random. So every fold holds P
    and U if that is possible at all. It is not where P, or U, is in fewer than `count` groups: then
    so many folds hold some and the others none; are all P twins, one fold holds every P.

    Parameters
    ----------
    s : ndarray of 0 and 1, (n,)
    count : int
        Of folds.
    seed : int
        Of the order in which rows, and groups that are alike, are dealt.
    groups : ndarray of int, (n,), optional
        Equal numbers mark rows to be kept together, such as `pucache.pu.near_duplicates.groups`.

    Returns
    -------
    ndarray of int64, (n,)
        The fold that each row is held out in, 0 .. count-1.

    Raises
    ------
    ValueError
        `groups` has not one number a row.
    """
    generator = np.random.default_rng(seed)
    fold = np.full(len(s), -1)
    held = np.zeros((2, count), np.int64)  # rows of U and of P in each fold
    if groups is not None:
        _deal_groups(fold, held, s, groups, generator)
    for value in (0, 1):
        rows = np.flatnonzero((s == value) & (fold < 0))
        fold[generator.permutation(rows)] = _fill(held[value], len(rows))
    return fold


def _deal_groups(
    fold: np.ndarray, held: np.ndarray, s: np.ndarray, groups: np.ndarray, generator: np.random.Generator
) -> None:
    """Deal the groups of several rows; writes into `fold`, (n,), and `held`, (2, count)."""
    if groups.shape != s.shape:
        raise ValueError(f"expected one group for each of {len(s)} rows, got groups {groups.shape}")
    _, group, size = np.unique(groups, return_inverse=True, return_counts=True)
    several = np.flatnonzero(size[group] > 1)
    _, group = np.unique(group[several], return_inverse=True)
    p, u = (np.bincount(group[s[several] == value], minlength=(size > 1).sum()) for value in (1, 0))
    order = generator.permutation(len(p))
    order = order[np.lexsort((-u[order], -p[order], u[order] == 0, p[order] == 0))]
    with_p, without = np.split(order, [np.count_nonzero(p)])
    to = np.empty(len(p), np.int64)
    to[with_p] = _greedily(p[with_p], u[with_p], held[::-1])
    to[without] = _greedily(u[without], p[without], held)
    fold[several] = to[group]


def _greedily(first: np.ndarray, second: np.ndarray, held: np.ndarray) -> list[int]:
    """Deal groups one by one to the fold with the least in held[0], then held[1]; adds to `held`, (2, count)."""
    heap = [(a, b, number) for number, (a, b) in enumerate(held.T.tolist())]
    heapq.heapify(heap)
    to = []
    for more_a, more_b in zip(first.tolist(), second.tolist(), strict=True):
        a, b, number = heap[0]
        heapq.heapreplace(heap, (a + more_a, b + more_b, number))
        to.append(number)
    for a, b, number in heap:
        held[:, number] = a, b
    return to


def _fill(held: np.ndarray, more: int) -> np.ndarray:
    """The folds (more,) that further rows go to, each the one with the fewest rows by then."""
    top, every = held.max(), np.arange(len(held))
    behind = np.repeat(every, top - held)
    level = np.concatenate([np.arange(rows, top) for rows in held])
    even = np.tile(every, max(0, more - len(behind)) // len(held) + 1)
    return np.concatenate([behind[np.argsort(level, kind="stable")], even])[:more]
