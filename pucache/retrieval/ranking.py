"""What retrieval finds: rows in order, and the file of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..storage.atomic import check_writable, replacing
from ..storage.tables import table_writer


@dataclass(frozen=True)
class Ranking:
    """Unlabelled rows, best first.

    Attributes
    ----------
    rows : ndarray of int64, (k,)
        Row numbers in the cache.
    keys : list of str
    scores : ndarray of float32, (k,)
        Cosines, margins, or what they were fused to; falling, but for a selection that is spread out.
    posterior : ndarray of float64, (k,), or None
        Probability of being positive, where a model took part.
    """

    rows: np.ndarray
    keys: list[str]
    scores: np.ndarray
    posterior: np.ndarray | None = None

    def first(self, k: int) -> Ranking:
        """The best k.

        Parameters
        ----------
        k : int

        Returns
        -------
        Ranking
        """
        posterior = None if self.posterior is None else self.posterior[:k]
        return Ranking(self.rows[:k], self.keys[:k], self.scores[:k], posterior)

    def save(self, path: str | Path) -> None:
        """Write ``rank,key,score`` as CSV.

        Parameters
        ----------
        path : path or str
            The file is replaced as a whole.
        """
        with replacing(check_writable(path)) as temporary, temporary.open("w", newline="", encoding="utf-8") as stream:
            write = table_writer(stream)
            write(["rank", "key", "score"])
            for rank, (key, score) in enumerate(zip(self.keys, self.scores, strict=True), 1):
                write([rank, key, f"{score:.6g}"])
