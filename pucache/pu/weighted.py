"""Weighted samples of margins."""

from __future__ import annotations

import numpy as np

_FINE = 4000  # rows at the top that are binned finely: that is where positives are
_BINS = 1500


def binned(margins: np.ndarray, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Merge neighbouring margins, the more the lower they are; sums over rows hardly change.

    Parameters
    ----------
    margins, weights : ndarray, (n,)

    Returns
    -------
    ndarray of float64, (b,), rising
        Weighted mean of each bin.
    ndarray of float64, (b,)
        Its weight, above 0.
    """
    order = np.argsort(margins, kind="stable")
    m, w = margins[order].astype(np.float64), np.ones(len(order)) if weights is None else weights[order].astype(float)
    m, w = m[w > 0], w[w > 0]
    top = max(0, len(m) - _FINE)
    low, high = (np.linspace(*ends, _BINS + 1).astype(int)[:-1] for ends in ((0, top), (top, len(m))))
    starts = np.unique(np.concatenate([low, high]))
    total = np.add.reduceat(w, starts)
    return np.add.reduceat(m * w, starts) / total, total
