"""The result of retrieval: rows in order, and the table of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..storage.atomic import check_writable, replacing
from ..storage.tables import open_table

_TYPES = {"rank": "int64", "key": "string", "score": "float32"}


@dataclass(frozen=True)
class Ranking:
    """Unlabelled rows, best first.

    Attributes
    ----------
    rows : ndarray of int64, (k,)
        Row numbers in the cache.
    keys : list of str
    scores : ndarray of float32, (k,)
        Similarities, margins, or both fused; falling, except in a diverse selection.
    posterior : ndarray of float64, (k,), or None
        Probability of being positive, where a model took part.
    scorer : str
        Name of the scorer, such as "similarity (whitened)".
    note : str
        Why neighbours count, or do not, where a model took part.
    search : str
        How neighbours were searched; "" where they do not count.
    search_by : str
        What compared rows, such as "torch on the GPU"; "" where the classifier ranks alone, or the graph of
        neighbours was kept beside the cache.
    """

    rows: np.ndarray
    keys: list[str]
    scores: np.ndarray
    posterior: np.ndarray | None = None
    scorer: str = ""
    note: str = ""
    search: str = ""
    search_by: str = ""

    def first(self, k: int) -> Ranking:
        """The best k rows.

        Parameters
        ----------
        k : int

        Returns
        -------
        Ranking
        """
        return replace(
            self,
            rows=self.rows[:k],
            keys=self.keys[:k],
            scores=self.scores[:k],
            posterior=None if self.posterior is None else self.posterior[:k],
        )

    def save(self, path: str | Path) -> None:
        """Write ``rank,key,score`` as CSV.

        Parameters
        ----------
        path : path or str
            The file is replaced as a whole.

        Raises
        ------
        OutputError
            `path` cannot be written.
        """
        checked = check_writable(path, is_table=True)
        with replacing(checked) as temporary, open_table(temporary, _TYPES, parquet=False) as write:
            write({"rank": np.arange(1, len(self.keys) + 1), "key": self.keys, "score": self.scores})


def top_rows(values: np.ndarray, rows: np.ndarray, count: int) -> np.ndarray:
    """Rows of the `count` highest values, and all that equal the last of them; in the order of `rows`."""
    if count >= len(rows):
        return rows
    return rows[values[rows] >= np.partition(values[rows], len(rows) - count)[len(rows) - count]]


def in_order(rows: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Rows by falling score; ties by row number."""
    return rows[np.lexsort((rows, -scores))]
