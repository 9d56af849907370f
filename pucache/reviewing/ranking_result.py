"""What a fit of the ranker says about every row. Imports no torch: the server reads these too."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RankingResult:
    """Scores of all rows of a cache.

    Attributes
    ----------
    scores : ndarray of float32, (n,)
        Higher is more likely positive. Known rows have scores too.
    posterior : ndarray of float32, (n,), or None
        Probability of being positive; None without a head, and with fewer than ten positives.
    expected : float
        Mean posterior of the rows whose label is not known, in (0, 1); NaN without a posterior.
    seconds : float
        Time that it took.
    """

    scores: np.ndarray
    posterior: np.ndarray | None
    expected: float
    seconds: float
