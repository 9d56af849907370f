"""Ranking of the unlabelled rows by the worker processes of a cluster; the result is that of one process.

The rows are read twice. In the first pass workers sum them, for the mean, and copy the labelled ones and a sample;
the driver adds the sums in row order, so that the mean is the same to the last bit. In the second pass workers score
ranges of rows and send the best new ones of each; the driver keeps the best of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..cache.row_range import RowRange, Workers, check_workers, row_ranges
from ..labels.labels import Labels
from ..labels.near_duplicates import LabelledPictures
from ..neighbours.whitening import Whitening, centred_units
from ..progress import Progress
from . import mmr
from .model_scorers import Fused, Margins
from .range_tasks import BestRows, RankJob, Survey, SurveyJob, best_rows, survey
from .ranking import Ranking
from .scorer import Scorer
from .similarity import Similarity

_MERGED_ROWS = 1 << 16  # rows that wait to be merged


def check_device(device: str) -> None:
    """Raise `ValueError` for a device that workers do not rank on."""
    if device not in ("auto", "cpu"):
        raise ValueError(f"the engine ray ranks on processors; leave out device {device}, or use the engine local")


def rank_with_workers(
    workers: Workers,
    cache: EmbeddingCache,
    labels: Labels,
    scorer: Scorer,
    *,
    wanted: int,
    diverse: float,
    twins: float | None,
    progress: Progress,
) -> Ranking:
    """Rank the unlabelled rows; the same `Ranking` as `retrieve.rank_unlabelled`, on the CPU.

    Parameters
    ----------
    workers : Workers
    cache : EmbeddingCache
    labels : Labels
    scorer : Similarity or Margins
    wanted : int
        Rows of the ranking.
    diverse, twins
        As for `retrieve_positives`.
    progress : Progress

    Returns
    -------
    Ranking

    Raises
    ------
    ModelError, CacheError
        As `retrieve_positives`.
    EngineError
        A machine cannot do the work, or workers died again and again at one range.
    ValueError
        Another scorer.
    """
    scorer = _divisible(scorer)
    if isinstance(scorer, Margins):
        scorer.model.check_fits(cache)
    check_workers(workers, cache)
    ranges, labelled_rows = row_ranges(cache), np.flatnonzero(~labels.unlabelled)
    progress.start(len(cache), "reading")
    first_pass = SurveyJob(labelled_rows, len(cache), moments=bool(diverse) or isinstance(scorer, Similarity))
    pictures, mean, sample = _collected(
        _with_progress(workers.map(survey, first_pass, ranges), ranges, progress), first_pass
    )
    whitening = queries = None
    if isinstance(scorer, Similarity):
        whitening = Whitening.of_units(mean, centred_units(sample, mean))
        queries = scorer.queries_of(pictures.embeddings[labels.positive[labelled_rows]], whitening)
    job = RankJob(
        scorer=scorer if isinstance(scorer, Similarity) else scorer.model,
        whitening=whitening,
        queries=queries,
        labelled_rows=labelled_rows,
        labelled=pictures,
        twins=twins,
        count=mmr.pool_size(wanted) if diverse else wanted,
        n=len(cache),
    )
    progress.start(len(cache), "scoring" if whitening is None else "comparing")
    best = _best(_with_progress(workers.map(best_rows, job, ranges), ranges, progress), job.count)
    if diverse and len(best.rows):
        chosen = mmr.select_diverse(_units(workers, best.rows, mean, ranges), wanted, diverse)
        best = BestRows(best.rows[chosen], best.scores[chosen], best.search_by)
    return Ranking(
        rows=best.rows,
        keys=cache.keys[best.rows],
        scores=best.scores,
        posterior=None if isinstance(scorer, Similarity) else scorer.model.tilt_.posterior(best.scores),
        scorer=scorer.name,
        note="" if isinstance(scorer, Similarity) else scorer.note,
        search_by=best.search_by,
    )


def _divisible(scorer: Scorer) -> Similarity | Margins:
    if isinstance(scorer, Fused):
        raise ValueError(
            "neighbours are searched on one machine, not by the engine ray; rank by classifier, or use the engine local"
        )
    if not isinstance(scorer, Similarity | Margins):
        raise ValueError("an index is searched on one machine, not by the engine ray; leave out one of the two")
    return scorer


def _with_progress(results: Iterable[Any], ranges: list[RowRange], progress: Progress) -> Iterator[Any]:
    for rows, result in zip(ranges, results, strict=True):
        yield result
        progress.advance(len(rows))


def _collected(surveys: Iterable[Survey], job: SurveyJob) -> tuple[LabelledPictures, np.ndarray, np.ndarray]:
    """The rows of the job, the mean (float32 (d,)), and the sample as stored, of surveys in row order."""
    embeddings, digests, sample, total = [], [], [], 0.0
    for part in surveys:
        embeddings.append(part.embeddings)
        digests.append(part.digests)
        sample.append(part.sample)
        for block in part.block_sums:  # one by one, in the order in which `mean_of` adds them
            total = total + block
    pictures = LabelledPictures(np.concatenate(digests), np.concatenate(embeddings))
    return pictures, np.asarray(total / job.n, np.float32), np.concatenate(sample)


def _best(parts: Iterable[BestRows], count: int) -> BestRows:
    """The best `count` rows of all parts."""
    rows, scores, search_by = np.empty(0, np.int64), np.empty(0, np.float32), ""
    waiting: list[BestRows] = []

    def merged() -> tuple[np.ndarray, np.ndarray]:
        all_rows = np.concatenate([rows, *(part.rows for part in waiting)])
        all_scores = np.concatenate([scores, *(part.scores for part in waiting)])
        order = np.lexsort((all_rows, -all_scores))[:count]
        return all_rows[order], all_scores[order]

    for part in parts:
        waiting.append(part)
        search_by = search_by or part.search_by
        if sum(len(part.rows) for part in waiting) >= max(count, _MERGED_ROWS):
            rows, scores = merged()
            waiting.clear()
    return BestRows(*merged(), search_by)


def _units(workers: Workers, rows: np.ndarray, mean: np.ndarray, ranges: list[RowRange]) -> np.ndarray:
    """Centred unit rows, in the order of `rows`."""
    order = np.argsort(rows)
    job = SurveyJob(rows[order], len(rows), moments=False, check=False)
    Z = np.empty((len(rows), len(mean)), np.float32)
    Z[order] = centred_units(np.concatenate([part.embeddings for part in workers.map(survey, job, ranges)]), mean)
    return Z
