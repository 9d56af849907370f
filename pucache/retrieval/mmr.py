"""A selection that is spread out: maximal marginal relevance (Carbonell and Goldstein 1998).

Of a pool of the best, rows are taken one by one: each time the one of greatest

    (1 - w) * relevance  -  w * (greatest cosine to those taken),

the relevance falling evenly from 1 for the first of the pool to 0 for the last, whatever the scores are.
"""

from __future__ import annotations

import numpy as np

_POOL, _MOST_IN_POOL = 10, 20_000  # rows of the pool for one that is taken; but where twice as many are taken
MOST = 10_000  # rows that can be taken


def pool_of(k: int) -> int:
    """How many of the best rows to take k from."""
    return min(_POOL * k, max(2 * k, _MOST_IN_POOL))


def check(weight: float, k: int) -> None:
    """Raise ValueError for a weight outside [0, 1], or where so many rows cannot be spread out."""
    if not 0 <= weight <= 1:
        raise ValueError(f"diverse must lie between 0 and 1, got {weight}")
    if weight and k > MOST:
        raise ValueError(f"a spread-out selection of at most {MOST:,} rows can be made, got k = {k:,}; use a smaller k")


def spread_out(Z: np.ndarray, k: int, weight: float) -> np.ndarray:
    """Choose k rows of a pool.

    Parameters
    ----------
    Z : ndarray of float32, (m, d)
        Rows at length 1, best first.
    k : int
    weight : float
        0: the first k; 1: relevance does not count.

    Returns
    -------
    ndarray of int64, (min(k, m),)
        Places in the pool, in the order in which they were taken.
    """
    relevance = (1 - weight) * np.linspace(1, 0, len(Z), dtype=np.float32)
    likest = np.full(len(Z), -1, np.float32)  # cosine to the nearest one taken
    taken = np.empty(min(k, len(Z)), np.int64)
    value = relevance.copy()
    for number in range(len(taken)):
        chosen = int(np.argmax(value))
        taken[number] = chosen
        np.maximum(likest, Z @ Z[chosen], out=likest)
        value = relevance - np.float32(weight) * likest
        value[taken[: number + 1]] = -np.inf
    return taken
