r"""Ranking by a classifier, and by a classifier and likeness fused.

Fused is the log odds of the classifier plus twice the log odds of what the nearest rows say:

    log f_P / f_N (m)  +  2 * logit( sum_j w_j p_j ),     w_j ~ exp(c_j / T)

over the `_NEIGHBOURS` rows of greatest whitened cosine c_j, where p_j is 1 for a known positive, 0 for a known
negative, and else the classifier's posterior. So a row is lifted that the linear head alone doubts, but
whose like it is sure of. Number, temperature and weight are those of the best mean over one-vs-rest tasks
(docs/results/retrieval.md).

Neighbours are sought for the rows of the highest margins: 50 for each that is wanted, but no more than can be
compared with all rows in about a minute on two cores. The others come after them, in the order of their
margins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import logit

from ..cache.embedding_cache import EmbeddingCache
from ..progress import Progress, Silent
from ..pu.classifier import PULinearClassifier
from ..pu.labels import Labels
from .knn import nearest
from .scorer import Scores
from .whitening import Space

_NEIGHBOURS, _TEMPERATURE, _WEIGHT = 30, 0.1, 2.0
_SURE = 1e-3  # no neighbourhood says more than this, or less than 1 minus it
_PAIRS = 1 << 34  # of rows compared, at most
_LEAST, _FOR_EACH = 2000, 50  # rows whose neighbours are sought: at least, and for each that is wanted
_AT_ONCE = 1 << 16  # rows to compare with


@dataclass(frozen=True)
class Margins:
    """Scores by a classifier's margin."""

    model: PULinearClassifier

    @property
    def name(self) -> str:
        """What to call it."""
        return "classifier"

    def __call__(
        self, cache: EmbeddingCache, labels: Labels, count: int | None = None, progress: Progress | None = None
    ) -> Scores:
        """Score every row, in blocks."""
        margins = np.empty(len(cache), np.float32)
        shown = progress or Silent()
        shown.start(len(cache), "scoring")
        for rows, values in self.model.margins_of(cache):
            margins[rows] = values
            shown.advance(len(values))
        return Scores(margins, lambda rows: self.model.tilt_.posterior(margins[rows]))


@dataclass(frozen=True)
class Fused:
    """Scores by a classifier and by what it says of the nearest rows.

    Parameters
    ----------
    model : PULinearClassifier
    device : str
    """

    model: PULinearClassifier
    device: str = "auto"

    @property
    def name(self) -> str:
        """What to call it."""
        return "classifier and neighbours, fused"

    def __call__(
        self, cache: EmbeddingCache, labels: Labels, count: int | None = None, progress: Progress | None = None
    ) -> Scores:
        """Score every row; those far down by the margin and the least that neighbours can say."""
        scored = Margins(self.model)(cache, labels, count, progress)
        margins = scored.values
        opinion = np.full(len(cache), logit(_SURE))
        pool = self._pool(margins, labels, count)
        opinion[pool] = logit(self._of_neighbours(cache, labels, margins, pool, progress).clip(_SURE, 1 - _SURE))
        values = self.model.tilt_.log_ratio(margins) + _WEIGHT * opinion
        return Scores(values.astype(np.float32), scored.posterior)

    @staticmethod
    def _pool(margins: np.ndarray, labels: Labels, count: int | None) -> np.ndarray:
        """The unlabelled rows of the highest margins, rising."""
        unlabelled = np.flatnonzero(labels.unlabelled)
        enough = len(margins) if count is None else _FOR_EACH * count
        size = max(_LEAST, min(enough, _PAIRS // len(margins)))
        if size >= len(unlabelled):
            return unlabelled
        return np.sort(unlabelled[np.argpartition(-margins[unlabelled], size)[:size]])

    def _of_neighbours(
        self, cache: EmbeddingCache, labels: Labels, margins: np.ndarray, pool: np.ndarray, progress: Progress | None
    ) -> np.ndarray:
        """Share of positives around each row of the pool, (m,)."""
        cosines, rows = neighbours(cache, pool, _NEIGHBOURS, device=self.device, progress=progress)
        told = self.model.tilt_.posterior(margins)
        told[labels.positive], told[labels.negative] = 1, 0
        weights = np.where(rows < 0, 0, np.exp(cosines / _TEMPERATURE))
        return (weights * told[rows]).sum(1) / np.maximum(weights.sum(1), 1e-300)


def neighbours(
    cache: EmbeddingCache, wanted: np.ndarray, k: int, *, device: str = "auto", progress: Progress | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Find the k rows of greatest whitened cosine to each wanted row, itself left out.

    Parameters
    ----------
    cache : EmbeddingCache
    wanted : ndarray of int64, (m,), rising
    k : int
    device : str
    progress : Progress, optional

    Returns
    -------
    cosines : ndarray of float32, (m, k), falling
    rows : ndarray of int64, (m, k)
        -1 where there are fewer.
    """
    space = Space.of(cache)
    asked = space.whitened(space.unit(cache.take(wanted)))
    best = np.full((len(wanted), k), -np.inf, np.float32), np.full((len(wanted), k), -1, np.int64)
    shown = progress or Silent()
    shown.start(len(cache), "finding neighbours")
    for first, among in _stretches(cache, space):
        cosines, places = nearest(asked, among, k + 1, device=device)
        cosines[places + first == wanted[:, None]] = -np.inf
        best = _merged(*best, cosines, places + first)
        shown.advance(len(among))
    return best


def _stretches(cache: EmbeddingCache, space: Space) -> Iterator[tuple[int, np.ndarray]]:
    """Whitened rows, many at a time, and the number of the first."""
    held: list[np.ndarray] = []
    first = 0
    for rows, X in cache.blocks():
        held.append(space.whitened(space.unit(X)))
        if rows.stop - first >= _AT_ONCE or rows.stop == len(cache):
            yield first, np.concatenate(held)
            held, first = [], rows.stop


def _merged(
    cosines: np.ndarray, rows: np.ndarray, more: np.ndarray, more_rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The best of two lists of each row, as long as the first."""
    every, of = np.hstack([cosines, more]), np.hstack([rows, more_rows])
    order = np.argsort(-every, axis=1, kind="stable")[:, : cosines.shape[1]]
    every, of = np.take_along_axis(every, order, 1), np.take_along_axis(of, order, 1)
    of[every == -np.inf] = -1
    return every, of
