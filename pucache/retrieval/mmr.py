"""Maximal marginal relevance (Carbonell and Goldstein 1998): a selection of rows that differ from each other.

Rows are taken from a pool of the best one by one, each time the row of greatest

    (1 - w) * relevance  -  w * (greatest cosine to the rows taken),

where the relevance falls linearly from 1 for the first of the pool to 0 for the last, whatever the scores are.
"""

from __future__ import annotations

import numpy as np

_POOL_FACTOR, _MAX_POOL = 10, 20_000  # rows of the pool per row selected; the limit gives way to twice the selection
MAX_SELECTED = 10_000


def pool_size(k: int) -> int:
    """Number of best rows to select k from."""
    return min(_POOL_FACTOR * k, max(2 * k, _MAX_POOL))


def check(weight: float, k: int) -> None:
    """Raise ValueError for a weight outside [0, 1], or more than `MAX_SELECTED` rows to select."""
    if not 0 <= weight <= 1:
        raise ValueError(f"diverse must lie between 0 and 1, got {weight}")
    if weight and k > MAX_SELECTED:
        raise ValueError(
            f"a spread-out selection of at most {MAX_SELECTED:,} rows can be made, got k = {k:,}; use a smaller k"
        )


def select_diverse(Z: np.ndarray, k: int, weight: float) -> np.ndarray:
    """Select k rows of a pool.

    Parameters
    ----------
    Z : ndarray of float32, (m, d)
        Unit rows, best first.
    k : int
    weight : float
        In [0, 1]. 0 selects the first k; with 1 the relevance does not count.

    Returns
    -------
    ndarray of int64, (min(k, m),)
        Indices into the pool, in the order of selection.
    """
    relevance = (1 - weight) * np.linspace(1, 0, len(Z), dtype=np.float32)
    max_cosine = np.full(len(Z), -1, np.float32)  # to the rows selected so far
    selected = np.empty(min(k, len(Z)), np.int64)
    value = relevance.copy()
    for number in range(len(selected)):
        chosen = int(np.argmax(value))
        selected[number] = chosen
        np.maximum(max_cosine, Z @ Z[chosen], out=max_cosine)
        value = relevance - np.float32(weight) * max_cosine
        value[selected[: number + 1]] = -np.inf
    return selected
