"""Scores of the rows of a cache, and the result of retrieval: rows in order, and the table of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..labels.labels import PULabels
from ..progress import Progress
from ..storage.atomic import replacing
from ..storage.file_kinds import TABLE
from ..storage.outputs import check_output
from ..storage.table_writer import open_table
from ..threads import one_blas_thread

_TYPES = {"rank": "int64", "key": "string", "score": "float32"}
_POOL_FACTOR, _MAX_POOL = 10, 20_000  # rows of the pool per row selected; the limit gives way to twice the selection
MAX_SELECTED = 10_000


@dataclass(frozen=True)
class Scores:
    """Scores of all rows of a cache."""

    values: np.ndarray  # float32, (n,): higher is more likely positive
    # row numbers to the probability of being positive, by a model of at least 30 labels
    posterior: Callable[[np.ndarray], np.ndarray] | None = None
    note: str = ""  # why neighbours count, or do not, where a model took part
    search: str = ""  # how neighbours were searched; "" where they do not count
    search_by: str = ""  # what compared rows, such as "torch on the GPU"; "" where none were compared now


class Scorer(Protocol):
    """Scores the rows of a cache, given the labels of some."""

    @property
    def name(self) -> str:
        """Description for messages and pages, such as "similarity (whitened)"."""

    def __call__(
        self, cache: EmbeddingCache, labels: PULabels, count: int | None = None, progress: Progress | None = None
    ) -> Scores:
        """Score every row; `count` is how many unlabelled rows of the highest scores are wanted."""


def pool_size(k: int) -> int:
    """Number of best rows to select k from."""
    return min(_POOL_FACTOR * k, max(2 * k, _MAX_POOL))


def check_diverse(weight: float, k: int) -> None:
    """Raise ValueError for a weight outside [0, 1], or more than `MAX_SELECTED` rows to select."""
    if not 0 <= weight <= 1:
        raise ValueError(f"diverse must lie between 0 and 1, got {weight}")
    if weight and k > MAX_SELECTED:
        raise ValueError(
            f"a spread-out selection of at most {MAX_SELECTED:,} rows can be made, got k = {k:,}; use a smaller k"
        )


@one_blas_thread
def select_diverse(Z: np.ndarray, k: int, weight: float) -> np.ndarray:
    """Select k rows of a pool by maximal marginal relevance (Carbonell and Goldstein 1998).

    Z (m, d) are unit rows, best first. They are taken one by one, each time the row of greatest

        (1 - w) * relevance  -  w * (greatest cosine to the rows taken),

    where the relevance falls linearly from 1 for the first of the pool to 0 for the last, whatever the scores are. The
    weight w is in [0, 1]: 0 selects the first k; with 1 the relevance does not count. Returns indices into the pool, in
    the order of selection.
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


@dataclass(frozen=True, repr=False)
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
        Probability of being positive, by a model of at least 30 labelled positives.
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

    def __repr__(self) -> str:
        first = ", ".join(f"{key!r} {score:.4g}" for key, score in zip(self.keys[:3], self.scores, strict=False))
        by = f" by {self.scorer}" if self.scorer else ""
        return f"Ranking({len(self.keys):,} rows{by}: {first}{', ...' if len(self.keys) > 3 else ''})"

    @property
    def _columns(self) -> dict[str, Any]:
        """Columns of the table, by name: ``rank`` (from 1), ``key`` and ``score``, (k,) each."""
        return {"rank": np.arange(1, len(self.keys) + 1), "key": self.keys, "score": self.scores}

    def first(self, k: int) -> Ranking:
        """The best k rows."""
        return replace(
            self,
            rows=self.rows[:k],
            keys=self.keys[:k],
            scores=self.scores[:k],
            posterior=None if self.posterior is None else self.posterior[:k],
        )

    def save(self, path: str | Path) -> None:
        """Write ``rank,key,score`` as CSV; a table that is there is replaced as a whole.

        Raises `OutputError` where `path` cannot be written, or is a file of another kind.
        """
        checked = check_output(path, TABLE)
        with replacing(checked) as temporary, open_table(temporary, _TYPES, parquet=False) as write:
            write(self._columns)


def save_concepts(rankings: Mapping[str, Ranking], path: str | Path) -> None:
    """Write ``concept,rank,key,score`` of several rankings as CSV; raises `OutputError` where it cannot be written."""
    checked = check_output(path, TABLE)
    types = {"concept": "string"} | _TYPES
    with replacing(checked) as temporary, open_table(temporary, types, parquet=False) as write:
        for concept, ranking in rankings.items():
            write(ranking._columns | {"concept": [concept] * len(ranking.keys)})


def top_rows(values: np.ndarray, rows: np.ndarray, count: int) -> np.ndarray:
    """Rows of the `count` highest values, and all that equal the last of them; in the order of `rows`."""
    if count >= len(rows):
        return rows
    return rows[values[rows] >= np.partition(values[rows], len(rows) - count)[len(rows) - count]]


def in_order(rows: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Rows by falling score; ties by row number."""
    return rows[np.lexsort((rows, -scores))]
