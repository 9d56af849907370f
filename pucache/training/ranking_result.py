"""What a ranking says, without what makes one: processes that only show it import no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class RankingResult:
    """What a fit says about every row of a cache."""

    scores: np.ndarray  # float32 (n,); higher is more likely positive; known rows have scores too
    posterior: np.ndarray | None  # float32 (n,); None without a head, and with fewer than ten positives
    seconds: float  # that it took
    doubted: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """Known rows that heads without them contradict, worst first, int64; none without a posterior."""
