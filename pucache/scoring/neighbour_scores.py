r"""Scores of a model with neighbours: its log density ratio, and the classes of the nearest rows of a pile.

    f(x)  =  log f_P(x) / f_N(x)  +  weight * lg( sum_j w_j(x) p_j )

over the rows j of the pile that are nearest to x (`pucache.neighbours.graph`), with lg the clipped log odds of
`pucache.training.propagation`. p_j is 1 for a known positive, 0 for a known negative, and else the probability by the
model's log density ratio. The margin of a distilled head is a log density ratio; that of a linear one
becomes one by its tilt.

Retrieval ranks the rows of the pile by f (`pucache.retrieval.scorers`), and `pucache.score` scores new
images by it (`Pile`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..cache.embedding_cache import CacheLike, EmbeddingCache, open_cache
from ..errors import ModelError
from ..neighbours.graph import NeighbourSearch, cached_graph
from ..progress import Progress, Silent
from ..threads import prefetch
from ..training.neighbour_evidence import LEAST_POSITIVES, method_of
from ..training.propagation import neighbour_log_odds, probabilities
from .score_tables import Columns

if TYPE_CHECKING:
    from ..training.sklearn_classifier import PULinearClassifier

_VALUES_AT_ONCE = 1 << 25  # of new rows that are compared with the pile at once


def chosen_weight(model: PULinearClassifier) -> float:
    """Weight of the neighbours that a model has chosen; 0 where it chose none."""
    return 0.0 if model.neighbours_ is None else model.neighbours_.weight


def reason(model: PULinearClassifier) -> str:
    """Whether neighbours count in a model's scores, and why: the one sentence on it that commands print."""
    if model.neighbours_ is not None:
        return model.neighbours_.evidence.sentence()
    if method_of(model.method, model.loss, model.solver) == "linear":
        trained = "by method linear"
    elif model.n_labelled_ + model.n_confirmed_ < LEAST_POSITIVES:
        trained = f"with fewer than {LEAST_POSITIVES} positives"
    elif model.n_confirmed_:
        trained = "after a review that, as it estimates, left few positives hidden"
    else:
        trained = "with positives of too few groups, or by an earlier version"
    return f"nearest neighbours do not count: the model was trained {trained}"


def log_ratios(model: PULinearClassifier, margins: np.ndarray) -> np.ndarray:
    """Log density ratios of positives to negatives, float32 (n,)."""
    if model.method_ == "distilled":
        return np.asarray(margins, np.float32)
    return model.tilt_.log_ratio(margins).astype(np.float32)


def pile_probabilities(model: PULinearClassifier, margins: np.ndarray) -> np.ndarray:
    """Probability of being positive of each row of the pile, by the model alone; float32 (n,)."""
    is_distilled, settings = model.method_ == "distilled", model.neighbours_
    share = settings.share if is_distilled and settings is not None else model.tilt_.prior
    return probabilities(log_ratios(model, margins), share)


def fused_scores(model: PULinearClassifier, weight: float, margins: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Scores with neighbours of a weight, float32 (n,).

    `shares` (n,) are the weighted means of the probabilities of each row's neighbours.
    """
    return log_ratios(model, margins) + np.float32(weight) * neighbour_log_odds(shares.astype(np.float32))


@dataclass(frozen=True)
class Pile:
    """A cache whose rows are the neighbours of new images.

    `model` has chosen a weight for neighbours; `p`, float32 (n,), are probabilities of the rows by the model alone.
    """

    model: PULinearClassifier
    cache: EmbeddingCache
    p: np.ndarray

    @classmethod
    def of(cls, model: PULinearClassifier, neighbours: CacheLike) -> Pile:
        """Score the pile.

        Raises `ModelError` where the model chose no weight for neighbours or is of another encoder than the pile,
        `CacheError` for damage, and `ValueError` for a cache without rows.
        """
        if not chosen_weight(model):
            raise ModelError(f"this model does not score with neighbours; leave neighbours out ({reason(model)})")
        cache = open_cache(neighbours)
        if not len(cache):
            raise ValueError(f"{cache.name} has no rows, so nothing has neighbours in it; leave neighbours out")
        return cls(model=model, cache=cache, p=pile_probabilities(model, model.all_margins(cache)))

    def scored_rows(self, cache: EmbeddingCache, progress: Progress | None = None) -> Iterator[Columns]:
        """Score all rows of a cache with neighbours, in blocks."""
        settings, has_posterior = self.model.neighbours_, self.model.figures_.has_probabilities
        assert settings is not None
        for rows, scores in prefetch(self.scores_of(cache, progress)):
            posterior = settings.tilt.posterior(scores, self.model.share_) if has_posterior else None
            label = (scores > np.float32(settings.threshold)).astype(np.int8)
            yield {"key": cache.keys.encoded(rows), "margin": scores, "posterior": posterior, "label": label}

    def scores_of(self, cache: EmbeddingCache, progress: Progress | None = None) -> Iterator[tuple[slice, np.ndarray]]:
        """Scores with neighbours of every row of a cache, in blocks.

        Rows of the pile itself are left out of their own neighbours. Rows of another cache are not: one that
        equals a row of the pile has it as a neighbour.
        """
        weight, margins = chosen_weight(self.model), self.model.all_margins(cache)
        with progress or Silent() as shown_progress:
            for rows, shares in self._shares_of(cache, shown_progress):
                yield rows, fused_scores(self.model, weight, margins[rows], shares)

    def _shares_of(self, cache: EmbeddingCache, progress: Progress) -> Iterator[tuple[slice, np.ndarray]]:
        """Weighted mean of the pile's probabilities over the neighbours of each row of a cache, in blocks."""
        if cache.checksums == self.cache.checksums:
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
