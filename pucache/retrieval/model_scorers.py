r"""Scores by a classifier's margin, and by margin and neighbours fused.

The fused score is the log odds of the classifier plus twice the log odds of the nearest rows' classes:

    log f_P / f_N (m)  +  2 * logit( sum_j w_j p_j ),     w_j ~ exp(c_j / T)

over the `_NEIGHBOURS` rows of greatest whitened cosine c_j. p_j is 1 for a known positive, 0 for a known
negative, and else the classifier's posterior. This lifts rows that the linear classifier doubts but whose
neighbours it is sure of. Number, temperature and weight have the best mean over one-vs-rest tasks
(docs/results/retrieval.md).

Neighbours are searched for the rows of the highest margins: 50 for each row wanted, but no more than can be
compared with all rows in about a minute on two cores. All other rows rank below, in the order of their margins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..neighbours.whitening import Whitening
from ..progress import Progress, Silent
from ..pu.labels import Labels
from .scorer import Scores

if TYPE_CHECKING:
    from ..pu.linear_model import PULinearModel

_NEIGHBOURS, _TEMPERATURE, _WEIGHT = 30, 0.1, 2.0
_MIN_SHARE = 1e-3  # shares of positives among neighbours are clipped to [_MIN_SHARE, 1 - _MIN_SHARE]
_MAX_PAIRS = 1 << 34  # rows compared with rows
_MIN_CANDIDATES, _CANDIDATES_PER_ROW = 2000, 50  # rows whose neighbours are searched; the second for each row wanted
_ROWS_PER_SEARCH = 1 << 16


@dataclass(frozen=True)
class Margins:
    """Scores rows by a classifier's margin.

    Parameters
    ----------
    model : PULinearModel
    """

    model: PULinearModel

    @property
    def name(self) -> str:
        """Description for messages and pages."""
        return "classifier"

    def __call__(
        self, cache: EmbeddingCache, labels: Labels, count: int | None = None, progress: Progress | None = None
    ) -> Scores:
        """Score every row, block by block."""
        margins = np.empty(len(cache), np.float32)
        progress = progress or Silent()
        progress.start(len(cache), "scoring")
        for rows, block in self.model.margins_of(cache):
            margins[rows] = block
            progress.advance(len(block))
        return Scores(margins, posterior=lambda rows: self.model.tilt_.posterior(margins[rows]))


@dataclass(frozen=True)
class Fused:
    """Scores rows by a classifier's margin and by the classes of the nearest rows.

    Parameters
    ----------
    model : PULinearModel
    device : str
        Where neighbours are searched.
    """

    model: PULinearModel
    device: str = "auto"

    @property
    def name(self) -> str:
        """Description for messages and pages."""
        return "classifier and neighbours, fused"

    def __call__(
        self, cache: EmbeddingCache, labels: Labels, count: int | None = None, progress: Progress | None = None
    ) -> Scores:
        """Score every row; rows that are no candidates get the least share of positives among neighbours."""
        by_margin = Margins(self.model)(cache, labels, count, progress)
        margins = by_margin.values
        share = np.full(len(cache), _MIN_SHARE)
        candidates = self._candidates(margins, labels, count)
        share[candidates] = self._share_of_positives(cache, labels, margins, candidates, progress)
        values = self.model.tilt_.log_ratio(margins) + _WEIGHT * _logit(share.clip(_MIN_SHARE, 1 - _MIN_SHARE))
        return Scores(values.astype(np.float32), posterior=by_margin.posterior)

    @staticmethod
    def _candidates(margins: np.ndarray, labels: Labels, count: int | None) -> np.ndarray:
        """Unlabelled rows of the highest margins, ascending."""
        unlabelled = np.flatnonzero(labels.unlabelled)
        enough = len(margins) if count is None else _CANDIDATES_PER_ROW * count
        size = max(_MIN_CANDIDATES, min(enough, _MAX_PAIRS // len(margins)))
        if size >= len(unlabelled):
            return unlabelled
        return np.sort(unlabelled[np.argpartition(-margins[unlabelled], size)[:size]])

    def _share_of_positives(
        self,
        cache: EmbeddingCache,
        labels: Labels,
        margins: np.ndarray,
        candidates: np.ndarray,
        progress: Progress | None,
    ) -> np.ndarray:
        """Weighted share of positives among the neighbours of each candidate, (m,)."""
        cosines, rows = neighbours(cache, candidates, _NEIGHBOURS, device=self.device, progress=progress)
        probability = self.model.tilt_.posterior(margins)
        probability[labels.positive], probability[labels.negative] = 1, 0
        weights = np.where(rows < 0, 0, np.exp(cosines / _TEMPERATURE))
        return (weights * probability[rows]).sum(1) / np.maximum(weights.sum(1), 1e-300)


def neighbours(
    cache: EmbeddingCache, query_rows: np.ndarray, k: int, *, device: str = "auto", progress: Progress | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Find the k rows of greatest whitened cosine to each query row, itself left out.

    Parameters
    ----------
    cache : EmbeddingCache
    query_rows : ndarray of int64, (m,), ascending
    k : int
    device : str
    progress : Progress, optional

    Returns
    -------
    cosines : ndarray of float32, (m, k), falling
        -inf where there are fewer rows.
    rows : ndarray of int64, (m, k)
        -1 where there are fewer rows.
    """
    from ..neighbours.knn import merge_neighbours, nearest  # imports faiss

    whitening = Whitening.estimate(cache)
    queries = whitening.whiten(whitening.centred_units(cache.take(query_rows)))
    best = np.full((len(query_rows), k), -np.inf, np.float32), np.full((len(query_rows), k), -1, np.int64)
    progress = progress or Silent()
    progress.start(len(cache), "finding neighbours")
    for first_row, whitened in _whitened_blocks(cache, whitening):
        cosines, indices = nearest(queries, whitened, k + 1, device=device)
        rows = indices + first_row
        cosines[rows == query_rows[:, None]] = -np.inf
        best = merge_neighbours(best, (cosines, rows), k)
        progress.advance(len(whitened))
    best[1][best[0] == -np.inf] = -1
    return best


def _whitened_blocks(cache: EmbeddingCache, whitening: Whitening) -> Iterator[tuple[int, np.ndarray]]:
    """Whitened rows, `_ROWS_PER_SEARCH` or a block more at a time, and the number of the first."""
    blocks: list[np.ndarray] = []
    first_row = 0
    for rows, X in cache.blocks():
        blocks.append(whitening.whiten(whitening.centred_units(X)))
        if rows.stop - first_row >= _ROWS_PER_SEARCH or rows.stop == len(cache):
            yield first_row, np.concatenate(blocks)
            blocks, first_row = [], rows.stop


def _logit(share: np.ndarray) -> np.ndarray:
    return np.log(share) - np.log1p(-share)
