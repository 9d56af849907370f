"""Ranking of the unlabelled rows of a folder of shards; the result is that of one machine on the CPU.

Each pass reads every shard once, in a Ray task for each. The first sums the rows and takes a sample, from which the
driver makes the whitening that one machine makes; a model needs no such pass. The second scores the shards and keeps
the best rows of each. The driver joins these, and `pucache.retrieval.retrieve.rank_unlabelled` does the rest:
duplicates, diversity, and another pass where too few rows are new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cache.embedding_cache import CacheLike, EmbeddingCache, open_cache
from ..cache.reader import rows_per_read
from ..labels.labels import TWIN_COSINE, Labels, open_labels
from ..neighbours.row_source import row_source
from ..neighbours.whitening import Whitening, block_sum, centred_units, sampled_rows
from ..progress import Progress, Silent
from ..retrieval.model_scorers import Fused, Margins
from ..retrieval.ranking import Ranking, Scores, top_rows
from ..retrieval.retrieve import choose_scorer, rank_unlabelled
from ..retrieval.similarity import Similarity
from ..training.sklearn_classifier import PULinearClassifier
from .shards import Shard, check_readable, shards_of

if TYPE_CHECKING:
    from .tasks import ShardTasks

ScoreShard = Callable[[EmbeddingCache], Scores]
# scores all rows of a shard; rows of the cache that are not unlabelled, ascending; best rows of a shard that are wanted
RankJob = tuple[ScoreShard, np.ndarray, int]
_TORCH_PAYS = 1 << 28  # values of a shard whose conversion by numpy takes longer than importing torch
_SPARE = 1 << 12  # rows of a shard beyond those wanted, as some may be duplicates of labelled ones


def rank_shards(
    cache: CacheLike,
    positives: str | Path | np.ndarray | Labels,
    model: str | Path | PULinearClassifier | None = None,
    *,
    k: int | None = 100,
    negatives: str | Path | None = None,
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

    scorer = choose_scorer(model, k, by=by, similarity=similarity, device="cpu")
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
        passes = ShardPasses(tasks, shards, scorer)
        return rank_unlabelled(
            cache, labels, k=k, scorer=passes, diverse=diverse, twins=twins, mean_of=passes.mean, progress=progress
        )


@dataclass(frozen=True)
class ShardPasses:
    """Scores the best rows of each shard as a scorer does on one machine; a `pucache.retrieval.ranking.Scorer`."""

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
        """Score the rows that are no worse than the best `count` unlabelled ones of any shard."""
        progress = progress or Silent()
        if isinstance(self.scorer, Margins):
            score: ScoreShard = partial(_margins, self.scorer)
        else:
            mean, sample = self._moments(cache, progress)
            whitening = Whitening.of_units(mean, centred_units(sample, mean))
            queries = self.scorer.queries(cache, labels, whitening)
            score = partial(self.scorer.compare, whitening=whitening, queries=queries)
        job = (score, np.flatnonzero(~labels.unlabelled), len(cache) if count is None else count + _SPARE)
        progress.start(len(cache), "scoring" if isinstance(self.scorer, Margins) else "comparing")
        values, highest_left_out, search_by = np.full(len(cache), -np.inf, np.float32), -np.inf, ""
        for shard, best in self._pass(_best_rows, job, progress):
            rows, scores, least, search_by = best
            values[shard.rows][rows] = scores
            highest_left_out = max(highest_left_out, least)
        values[values < highest_left_out] = -np.inf  # a shard may have others as good, which it did not send
        scores = self.scorer.scores(values) if isinstance(self.scorer, Margins) else Scores(values, search_by=search_by)
        return replace(scores, complete=highest_left_out == -np.inf)

    def mean(self, cache: EmbeddingCache) -> np.ndarray:
        """Mean of the rows of a cache, float32 (d,)."""
        return self._moments(cache, Silent())[0]

    def _moments(self, cache: EmbeddingCache, progress: Progress) -> tuple[np.ndarray, np.ndarray]:
        """Mean, float32 (d,), and sample as stored of `Whitening.estimate`."""
        step = rows_per_read(cache.encoder.dim * cache.files[0].dtype.itemsize)
        progress.start(len(cache), "reading")
        sums: dict[int, np.ndarray] = {}
        sample = []
        for _, (of_blocks, rows) in self._pass(_moments, (len(cache), step), progress):
            sums |= of_blocks
            sample.append(rows)
        total, source = np.zeros(cache.encoder.dim), row_source(cache)
        for start in range(0, len(cache), step):  # one by one, in the order in which one machine adds them
            block = slice(start, min(start + step, len(cache)))  # of several shards, where no task has summed it
            total += sums[start] if start in sums else block_sum(source, block, cache.matrix[block])
        return (total / len(cache)).astype(np.float32), np.concatenate(sample)

    def _pass(self, task: Callable[[Any, Shard], Any], job: Any, progress: Progress) -> Iterator[tuple[Shard, Any]]:
        """Yield each shard with the result of its task."""
        for shard, result in zip(self.shards, self.tasks.map(task, job, self.shards), strict=True):
            yield shard, result
            progress.advance(shard.rows.stop - shard.rows.start)


# --- the tasks -------------------------------------------------------------------------------------


def _moments(job: tuple[int, int], shard: Shard) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """First pass over a shard of a cache of n rows, which is read in blocks of `step` rows.

    Returns the sum, float64 (d,), of each block of the cache that lies in the shard as a whole, by its first row; and
    the rows of `sampled_rows` as stored. Raises `CacheError` for damage, or embeddings that are not finite.
    """
    (n, step), first = job, shard.rows.start
    cache, sums = shard.open(), {}
    sample = [cache.take(np.empty(0, np.int64))]
    source, waiting = row_source(cache), sample[0]
    for rows, X in cache.blocks(check=True):  # cut anew where the blocks of the whole cache end
        row = first + rows.start
        for block in np.split(X, range(-row % step or step, len(X), step)):
            sample.append(block[sampled_rows(row, len(block), n=n)].copy())
            waiting, row = np.concatenate([waiting, block]), row + len(block)
            if row % step == 0 or row == shard.rows.stop:
                start = row - len(waiting)
                total = block_sum(source, slice(start - first, row - first), waiting)
                if len(waiting) == step:
                    sums[start] = total
                waiting = waiting[:0]
    return sums, np.concatenate(sample)


def _best_rows(job: RankJob, shard: Shard) -> tuple[np.ndarray, np.ndarray, float, str]:
    """Unlabelled rows of a shard of the highest scores.

    Rows of the shard, int64 (m,), their scores, float32 (m,), the least of these (-inf where all unlabelled rows of the
    shard are here), and `Scores.search_by`.
    """
    score, labelled_rows, count = job
    cache = shard.open()
    if len(cache) * cache.encoder.dim > _TORCH_PAYS:
        import torch  # noqa: F401 - where it is loaded, it converts float16 values
    scores, unlabelled = score(cache), np.ones(len(cache), bool)
    labelled = labelled_rows - shard.rows.start
    unlabelled[labelled[(labelled >= 0) & (labelled < len(cache))]] = False
    candidates = np.flatnonzero(unlabelled)
    best = top_rows(scores.values, candidates, count)
    least = float(scores.values[best].min()) if len(best) < len(candidates) else -np.inf
    return best, scores.values[best], least, scores.search_by


def _margins(scorer: Margins, cache: EmbeddingCache) -> Scores:
    return replace(scorer(cache, None), posterior=None)
