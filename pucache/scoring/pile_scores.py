"""Scores of new images with the neighbours that they have in a pile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..errors import ModelError
from ..neighbours.graph import NeighbourSearch, cached_graph
from ..neighbours.graph_file import checksums_of
from ..progress import Progress, Silent
from .neighbour_scores import NeighbourScores, chosen_weight, reason

if TYPE_CHECKING:
    from ..training.neighbour_evidence import NeighbourSettings
    from ..training.sklearn_classifier import PULinearClassifier

_VALUES_AT_ONCE = 1 << 25  # of new rows that are compared with the pile at once


@dataclass(frozen=True)
class Pile:
    """A cache whose rows are the neighbours of new images.

    Parameters
    ----------
    model : PULinearClassifier
        That has chosen a weight for neighbours.
    cache : EmbeddingCache
    p : ndarray of float32, (n,)
        Probability of being positive of each row of the cache, by the model alone.
    """

    model: PULinearClassifier
    cache: EmbeddingCache
    p: np.ndarray

    @classmethod
    def of(cls, model: PULinearClassifier, cache: EmbeddingCache) -> Pile:
        """Score the pile.

        Raises
        ------
        ModelError
            The model chose no weight for neighbours, or is of another encoder than the pile.
        CacheError
            The cache is damaged, or holds embeddings that are not finite.
        ValueError
            The cache has no rows.
        """
        check_weight(model)
        if not len(cache):
            raise ValueError(f"{cache.name} has no rows, so nothing has neighbours in it; leave neighbours out")
        scorer = NeighbourScores(model, chosen_weight(model))
        return cls(model=model, cache=cache, p=scorer.probabilities(_margins(model, cache)))

    @property
    def threshold(self) -> float:
        """Score above which a row is called positive."""
        return self._settings.threshold

    def posterior(self, scores: np.ndarray) -> np.ndarray:
        """Probability of being positive, float64 (b,), of rows with these scores."""
        return self._settings.tilt.posterior(scores, self.model.share_)

    @property
    def _settings(self) -> NeighbourSettings:
        check_weight(self.model)
        assert self.model.neighbours_ is not None
        return self.model.neighbours_

    def scores_of(self, cache: EmbeddingCache, progress: Progress | None = None) -> Iterator[tuple[slice, np.ndarray]]:
        """Scores with neighbours of every row of a cache, in blocks.

        Rows of the pile itself are left out of their own neighbours. Rows of another cache are not: one that
        equals a row of the pile has it as a neighbour.

        Parameters
        ----------
        cache : EmbeddingCache
        progress : Progress, optional

        Yields
        ------
        rows : slice
        scores : ndarray of float32, (b,)

        Raises
        ------
        ModelError
            The model is of another encoder.
        CacheError
            The cache is damaged, or holds embeddings that are not finite.
        """
        scorer = NeighbourScores(self.model, chosen_weight(self.model))
        margins = _margins(self.model, cache)
        with progress or Silent() as shown_progress:
            for rows, shares in self._shares_of(cache, shown_progress):
                yield rows, scorer.scores(margins[rows], shares)

    def _shares_of(self, cache: EmbeddingCache, progress: Progress) -> Iterator[tuple[slice, np.ndarray]]:
        """Weighted mean of the pile's probabilities over the neighbours of each row of a cache, in blocks."""
        if checksums_of(cache) == checksums_of(self.cache):
            yield slice(0, len(cache)), cached_graph(self.cache, progress=progress).weighted_means(self.p)
            return
        search = NeighbourSearch(self.cache)
        progress.start(len(cache), "finding neighbours")
        step = max(1, _VALUES_AT_ONCE // cache.encoder.dim)
        for start in range(0, len(cache), step):
            rows = np.arange(start, min(start + step, len(cache)))
            graph = search.nearest(cache.take(rows))
            yield slice(start, start + len(rows)), graph.weighted_means(self.p)
            progress.advance(len(rows))


def _margins(model: PULinearClassifier, cache: EmbeddingCache) -> np.ndarray:
    """Margins of all rows of a cache, float32 (n,)."""
    margins = np.empty(len(cache), np.float32)
    for rows, block in model.margins_of(cache):
        margins[rows] = block
    return margins


def check_weight(model: PULinearClassifier) -> None:
    """Raise `ModelError` where a model chose no weight for neighbours."""
    if not chosen_weight(model):
        raise ModelError(f"this model does not score with neighbours; leave neighbours out ({reason(model)})")
