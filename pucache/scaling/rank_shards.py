"""Ranking of the unlabelled rows of a folder of shards; the result is that of one machine on the CPU.

Each pass reads every shard once, in a Ray task for each. The first sums the rows and takes a sample, from which the
driver makes the whitening that one machine makes; a model needs no such pass. The second scores the shards and keeps
the best rows of each. The driver joins these, and `pucache.retrieval.retrieve.rank_unlabelled` does the rest:
duplicates, diversity, and another pass where too few rows are new.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..cache.embedding_cache import CacheLike, EmbeddingCache, open_cache
from ..cache.reader import rows_per_read
from ..labels.labels import TWIN_COSINE, Labels, open_labels
from ..neighbours.row_source import row_source
from ..neighbours.whitening import Whitening, block_sum, centred_units, sampled_rows
from ..progress import Progress, Silent
from ..retrieval.model_scorers import Fused, Margins
from ..retrieval.query_comparison import QueryComparison
from ..retrieval.ranking import Ranking, top_rows
from ..retrieval.retrieve import rank_unlabelled
from ..retrieval.scorer import Scores
from ..retrieval.scorer_choice import ScorerOptions, choose_scorer
from ..retrieval.similarity import Similarity
from ..training.linear_model import PULinearModel
from .shards import Shard, check_readable, shards_of

if TYPE_CHECKING:
    from .tasks import ShardTasks

_SPARE = 1 << 12  # rows of a shard beyond those wanted, as some may be duplicates of labelled ones


def rank_shards(
    cache: CacheLike,
    positives: str | Path | np.ndarray | Labels,
    model: str | Path | PULinearModel | None = None,
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
        Of a running cluster, see `pucache.scaling.tasks.ShardTasks`; by default this machine alone.
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
    from .tasks import ShardTasks  # needs the extra ray

    scorer = choose_scorer(ScorerOptions(by=by, similarity=similarity, device="cpu"), model, k)
    if isinstance(scorer, Fused):
        raise ValueError(
            "neighbours are searched on one machine, not by the engine ray; rank by classifier, or use the engine local"
        )
    assert isinstance(scorer, Similarity | Margins)
    with ShardTasks(address, workers=workers) as tasks:
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
    """Scores the best rows of each shard as a scorer does on one machine; a `pucache.retrieval.scorer.Scorer`."""

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
        wanted = len(cache) if count is None else count + _SPARE
        if isinstance(self.scorer, Margins):
            job = RankJob(self.scorer.model, np.flatnonzero(~labels.unlabelled), wanted)
        else:
            mean, sample = self._moments(cache, progress)
            whitening = Whitening.of_units(mean, centred_units(sample, mean))
            queries = self.scorer.queries(cache, labels, whitening)
            job = RankJob(self.scorer, np.flatnonzero(~labels.unlabelled), wanted, whitening, queries)
        progress.start(len(cache), "scoring" if isinstance(self.scorer, Margins) else "comparing")
        values, least, search_by = np.full(len(cache), -np.inf, np.float32), -np.inf, ""
        for shard, best in zip(self.shards, self.tasks.map(_best_rows, job, self.shards), strict=True):
            values[shard.rows][best.rows] = best.scores
            least, search_by = max(least, best.least), search_by or best.search_by
            progress.advance(shard.rows.stop - shard.rows.start)
        values[values < least] = -np.inf  # a shard may have others as good, which it did not send
        if isinstance(self.scorer, Similarity):
            return Scores(values, complete=bool(least == -np.inf), search_by=search_by)
        tilt = self.scorer.model.tilt_
        return Scores(
            values,
            posterior=lambda rows: tilt.posterior(values[rows]),
            complete=bool(least == -np.inf),
            note=self.scorer.note,
        )

    def mean(self, cache: EmbeddingCache) -> np.ndarray:
        """Mean of the rows of a cache, float32 (d,)."""
        return self._moments(cache, Silent())[0]

    def _moments(self, cache: EmbeddingCache, progress: Progress) -> tuple[np.ndarray, np.ndarray]:
        """Mean, float32 (d,), and sample as stored of `Whitening.estimate`."""
        step = rows_per_read(cache.encoder.dim * cache.files[0].dtype.itemsize)
        progress.start(len(cache), "reading")
        total, waiting, sample, seen = np.zeros(cache.encoder.dim), [], [], 0
        for shard, moments in zip(self.shards, self.tasks.map(_moments, (len(cache), step), self.shards), strict=True):
            for piece in moments.pieces:  # one by one, in the order in which one machine adds them
                seen += step if piece.ndim == 1 else len(piece)
                waiting += [piece] if piece.ndim == 2 else []
                if piece.ndim == 2 and (seen % step == 0 or seen == len(cache)):
                    piece, waiting = np.concatenate(waiting).sum(0, dtype=np.float64), []
                total += piece if piece.ndim == 1 else 0
            sample.append(moments.sample)
            progress.advance(shard.rows.stop - shard.rows.start)
        return (total / len(cache)).astype(np.float32), np.concatenate(sample)


# --- the tasks -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moments:
    """Result of `_moments` for one shard.

    Attributes
    ----------
    pieces : list of ndarray
        In row order: the sum, float64 (d,), of a block of the cache that lies in the shard, or the rows as stored,
        (b, d), of a block of which other shards hold a part.
    sample : ndarray of float16 or float32, (m, d)
        Rows of the sample of `sampled_rows`, as stored.
    """

    pieces: list[np.ndarray]
    sample: np.ndarray


def _moments(job: tuple[int, int], shard: Shard) -> Moments:
    """Sum and sample the rows of a shard of a cache of n rows, in blocks of `step` rows of the cache."""
    n, step = job
    cache, row = shard.open(), 0
    source, pieces, sample = row_source(cache), [], [cache.take(np.empty(0, np.int64))]
    for block in _blocks_of_the_whole(cache, shard.rows.start, step):
        total = block_sum(source, slice(row, row + len(block)), block)  # damage raises `CacheError`
        pieces.append(total if len(block) == step else block)
        sample.append(block[sampled_rows(shard.rows.start + row, len(block), n=n)])
        row += len(block)
    return Moments(pieces, np.concatenate(sample))


def _blocks_of_the_whole(cache: EmbeddingCache, first: int, step: int) -> Iterator[np.ndarray]:
    """Rows of a shard that begins at a row of the whole cache, cut where the blocks of the whole end."""
    row, waiting = first, []
    for _, X in cache.blocks(check=True):
        for part in np.split(X, range(-row % step or step, len(X), step)):
            waiting.append(part.copy())
            row += len(part)
            if row % step == 0:
                yield np.concatenate(waiting)
                waiting = []
    if waiting:
        yield np.concatenate(waiting)


@dataclass(frozen=True)
class RankJob:
    """The pass that scores.

    Attributes
    ----------
    scorer : Similarity or PULinearModel
    labelled_rows : ndarray of int64, ascending
        Rows of the cache that are not unlabelled; they are left out.
    count : int
        Best rows of a shard that are wanted.
    whitening : Whitening or None
        None for a model, as `queries`.
    queries : ndarray of float32, (p, d), or None
        Of `Similarity.queries`.
    """

    scorer: Similarity | PULinearModel
    labelled_rows: np.ndarray
    count: int
    whitening: Whitening | None = None
    queries: np.ndarray | None = None

    def blocks(self, cache: EmbeddingCache) -> Iterator[tuple[slice, np.ndarray]]:
        """Scores of the rows of a shard, in blocks."""
        if isinstance(self.scorer, PULinearModel):
            yield from self.scorer.margins_of(cache)
            return
        assert self.whitening is not None
        for rows, X in cache.blocks():
            yield rows, self.comparison.scores(self.whitening.centred_units(X))

    @cached_property
    def comparison(self) -> QueryComparison:
        """Queries, ready to be compared with rows."""
        assert isinstance(self.scorer, Similarity) and self.queries is not None
        return QueryComparison(self.queries, self.scorer.neighbours, device="cpu")


@dataclass(frozen=True)
class BestRows:
    """The best unlabelled rows of a shard.

    Attributes
    ----------
    rows : ndarray of int64, (m,)
        Of the shard.
    scores : ndarray of float32, (m,)
    least : float
        Least of the scores; -inf where all unlabelled rows of the shard are here.
    search_by : str
        See `pucache.retrieval.scorer.Scores`.
    """

    rows: np.ndarray
    scores: np.ndarray
    least: float
    search_by: str


def _best_rows(job: RankJob, shard: Shard) -> BestRows:
    """Unlabelled rows of a shard of the highest scores."""
    cache = shard.open()
    scores, unlabelled = np.empty(len(cache), np.float32), np.ones(len(cache), bool)
    for rows, values in job.blocks(cache):
        scores[rows] = values
    inside = slice(*np.searchsorted(job.labelled_rows, (shard.rows.start, shard.rows.stop)))
    unlabelled[job.labelled_rows[inside] - shard.rows.start] = False
    candidates = np.flatnonzero(unlabelled)
    best = top_rows(scores, candidates, job.count)
    least = float(scores[best].min()) if len(best) < len(candidates) else -np.inf
    search_by = job.comparison.search_by if isinstance(job.scorer, Similarity) else ""
    return BestRows(best, scores[best], least, search_by)
