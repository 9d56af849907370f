"""Lists of nearest rows: their products, falling, and their numbers."""

from __future__ import annotations

import numpy as np


def merge_neighbours(
    first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray], k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Merge two lists of (products, rows), each (m, any), into the k greatest; the first list wins ties."""
    products, rows = (np.hstack(pair) for pair in zip(first, second, strict=True))
    order = np.argsort(-products, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(products, order, 1), np.take_along_axis(rows, order, 1)
