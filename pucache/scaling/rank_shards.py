"""Ranking of the unlabelled rows of a folder of shards; the result is that of one machine on the CPU.

A Ray task scores each shard, and the driver ranks the scores as one machine does. For a similarity the driver first
makes the whitening of all rows, which it reads for that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..cache.embedding_cache import CacheLike, EmbeddingCache, open_cache
from ..labels.labels import TWIN_COSINE, Labels, open_labels
from ..labels.row_values import RowValues
from ..neighbours.whitening import Whitening
from ..progress import Progress, Silent
from ..retrieval.model_scorers import Fused, Margins
from ..retrieval.ranking import Ranking, Scores
from ..retrieval.retrieve import choose_scorer, rank_unlabelled
from ..retrieval.similarity import Similarity
from ..training.sklearn_classifier import PULinearClassifier
from .shards import Shard, check_readable, shards_of

if TYPE_CHECKING:
    from .tasks import ShardTasks

_TORCH_PAYS = 1 << 28  # values of a shard whose conversion by numpy takes longer than importing torch


def rank_shards(
    cache: CacheLike,
    positives: str | Path | RowValues | Labels,
    model: str | Path | PULinearClassifier | None = None,
    *,
    k: int | None = 100,
    negatives: str | Path | RowValues | None = None,
    by: str | None = None,
    similarity: str | None = None,
    diverse: float = 0.0,
    twins: float | None = TWIN_COSINE,
    workers: int | None = None,
    address: str | None = None,
    progress: Progress | None = None,
) -> Ranking:
    """Find the k unlabelled images that are most likely positive; Ray tasks read the files of the cache.

    Parameters
    ----------
    cache : EmbeddingCache, path, or sequence of paths
        Files that every node sees at the same path, or URLs.
    positives, model, k, negatives, by, similarity, diverse, twins
        See `pucache.retrieve_positives`; not by ``fused``.
    workers : int, optional
        Tasks that run at once; by default all that have a core.
    address : str, optional
        Of a running cluster, see `pucache.scaling.tasks.cluster_tasks`; by default this machine alone.
    progress : Progress, optional

    Returns
    -------
    Ranking

    Raises
    ------
    EngineError
        The cluster cannot be reached, a node cannot do the work, or workers died again and again at one file.
    PUCacheError, ValueError
        As `pucache.retrieve_positives`; also for a model that ranks by neighbours, which one machine searches.
    """
    from .tasks import cluster_tasks  # needs the extra ray

    scorer = choose_scorer(model, by=by, similarity=similarity, device="cpu")
    if isinstance(scorer, Fused):
        raise ValueError(
            "neighbours are searched on one machine, not by the engine ray; rank by classifier, or use the engine local"
        )
    assert isinstance(scorer, Similarity | Margins)
    with cluster_tasks(address, workers) as tasks:
        cache = open_cache(cache)
        labels = open_labels(cache, positives, negatives)
        if isinstance(scorer, Margins):
            scorer.model.check_fits(cache)
        shards = shards_of(cache)
        check_readable(tasks, shards)
        in_tasks = ShardScorer(tasks, shards, scorer)
        return rank_unlabelled(cache, labels, k=k, scorer=in_tasks, diverse=diverse, twins=twins, progress=progress)


@dataclass(frozen=True)
class ShardScorer:
    """Scores each shard in a task, as a scorer does on one machine; a `pucache.retrieval.ranking.Scorer`."""

    tasks: ShardTasks
    shards: list[Shard]
    scorer: Similarity | Margins

    @property
    def name(self) -> str:
        """As on one machine."""
        return self.scorer.name

    def __call__(
        self, cache: EmbeddingCache, labels: Labels, count: int | None = None, progress: Progress | None = None
    ) -> Scores:
        """Score every row."""
        progress = progress or Silent()
        if isinstance(self.scorer, Margins):
            score: Callable[[EmbeddingCache], Scores] = partial(self.scorer, labels=None)
        else:
            whitening = Whitening.estimate(cache)
            queries = self.scorer.queries(cache.take(np.flatnonzero(labels.positive)), whitening)
            score = partial(self.scorer.compare, whitening=whitening, queries=queries)
        progress.start(len(cache), "scoring" if isinstance(self.scorer, Margins) else "comparing")
        values, search_by = np.empty(len(cache), np.float32), ""
        for shard, scored in zip(self.shards, self.tasks.map(_score, score, self.shards), strict=True):
            values[shard.rows], search_by = scored
            progress.advance(shard.rows.stop - shard.rows.start)
        return self.scorer.scores(values) if isinstance(self.scorer, Margins) else Scores(values, search_by=search_by)


def _score(score: Callable[[EmbeddingCache], Scores], shard: Shard) -> tuple[np.ndarray, str]:
    """Scores of all rows of a shard, float32 (m,), and `Scores.search_by`; the work of a task."""
    cache = shard.open()
    if len(cache) * cache.encoder.dim > _TORCH_PAYS:
        import torch  # noqa: F401 - where it is loaded, it converts float16 values
    scores = score(cache)
    return scores.values, scores.search_by
