"""What a worker process does with a range of rows of a cache: sums for the mean, and the best new rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..cache.row_range import RangeRows, RowRange
from ..neighbours.whitening import Whitening, block_sum, sampled_rows
from ..training.sklearn_classifier import PULinearClassifier
from .known_duplicates import LabelledPictures
from .query_comparison import QueryComparison
from .ranking import in_order, top_rows
from .similarity import Similarity

_SPARE = 64  # rows beyond those wanted that are compared with the labelled ones at first
_GROWTH = 4  # factor by which more are, where too many are duplicates


@dataclass(frozen=True)
class SurveyJob:
    """A first pass over the rows.

    Attributes
    ----------
    rows : ndarray of int64, ascending
        Rows of the cache to copy.
    n : int
        Rows of the cache.
    moments : bool
        Whether sums of all rows and a sample are needed too.
    check : bool
        Whether keys and digests are compared with their checksums.
    """

    rows: np.ndarray
    n: int
    moments: bool
    check: bool = True


@dataclass(frozen=True)
class Survey:
    """Result of `survey` for one range.

    Attributes
    ----------
    embeddings : ndarray of float16 or float32, (r, d)
        As stored, of the job's rows within the range.
    digests : ndarray of uint8, (r, 32)
    block_sums : ndarray of float64, (b, d)
        Sum of the rows of each block; no blocks without moments.
    sample : ndarray of float16 or float32, (m, d)
        Rows of the range that belong to the sample of `sampled_rows`, as stored.
    """

    embeddings: np.ndarray
    digests: np.ndarray
    block_sums: np.ndarray
    sample: np.ndarray


def survey(job: SurveyJob, rows: RowRange) -> Survey:
    """First pass over a range; raises `CacheError` for damage, or embeddings that are not finite."""
    opened = rows.open()
    if job.check:
        opened.check("keys", "digests")
    inside = job.rows[slice(*np.searchsorted(job.rows, (rows.start, rows.start + len(rows))))] - rows.start
    embeddings = opened.take(inside)
    sums, sample = [np.empty((0, opened.d))], [embeddings[:0]]
    if job.moments:
        _import_torch_for(job.n * opened.d)
        for part, X in opened.blocks(check=True):
            sums.append(block_sum(opened, part, X)[None])
            sample.append(X[sampled_rows(rows.start + part.start, len(X), n=job.n)].copy())
    return Survey(embeddings, opened.take_digests(inside), np.concatenate(sums), np.concatenate(sample))


@dataclass(frozen=True)
class RankJob:
    """The pass that scores.

    Attributes
    ----------
    scorer : Similarity or PULinearClassifier
    whitening : Whitening or None
        None for a model.
    queries : ndarray of float32, (p, d), or None
        Of `Similarity.queries`.
    labelled_rows : ndarray of int64, ascending
        Rows that are not unlabelled; they are left out.
    labelled : LabelledPictures
    twins : float or None
        See `known_duplicates.duplicates_of`.
    count : int
        Best rows that are wanted.
    n : int
        Rows of the cache.
    """

    scorer: Similarity | PULinearClassifier
    whitening: Whitening | None
    queries: np.ndarray | None
    labelled_rows: np.ndarray
    labelled: LabelledPictures
    twins: float | None
    count: int
    n: int

    @cached_property
    def comparison(self) -> QueryComparison:
        """Queries, ready to be compared with rows."""
        assert isinstance(self.scorer, Similarity) and self.queries is not None
        return QueryComparison(self.queries, self.scorer.neighbours, device="cpu")

    def scores(self, rows: RangeRows) -> np.ndarray:
        """Scores of the rows of a range, float32 (n,)."""
        _import_torch_for(self.n * rows.d)
        scores = np.empty(len(rows), np.float32)
        for part, values in self._blocks(rows):
            scores[part] = values
        return scores

    def _blocks(self, rows: RangeRows) -> Iterator[tuple[slice, np.ndarray]]:
        if isinstance(self.scorer, PULinearClassifier):
            yield from self.scorer.margins_of(rows)  # type: ignore[arg-type]
            return
        assert self.whitening is not None
        for part, X in rows.blocks():
            yield part, self.comparison.scores(self.whitening.centred_units(X))


@dataclass(frozen=True)
class BestRows:
    """The best new rows of a range, best first.

    Attributes
    ----------
    rows : ndarray of int64, (m,)
        Of the cache.
    scores : ndarray of float32, (m,)
    search_by : str
        See `pucache.retrieval.scorer.Scores`.
    """

    rows: np.ndarray
    scores: np.ndarray
    search_by: str = ""


def best_rows(job: RankJob, rows: RowRange) -> BestRows:
    """Rows of a range of the highest scores that are unlabelled, and no duplicates of labelled ones."""
    opened = rows.open()
    scores = job.scores(opened)
    unlabelled = np.ones(len(scores), bool)
    labelled = job.labelled_rows
    unlabelled[labelled[slice(*np.searchsorted(labelled, (rows.start, rows.start + len(rows))))] - rows.start] = False
    candidates = np.flatnonzero(unlabelled)
    new, compared = candidates[:0], 0
    size = job.count + _SPARE
    while len(new) < job.count and compared < len(candidates):
        top = top_rows(scores, candidates, size)
        new, compared, size = top[~_duplicates(job, opened, top)], len(top), _GROWTH * size
    new = in_order(new, scores[new])[: job.count]
    search_by = "" if isinstance(job.scorer, PULinearClassifier) else job.comparison.search_by
    return BestRows(new + rows.start, scores[new], search_by)


def _duplicates(job: RankJob, rows: RangeRows, top: np.ndarray) -> np.ndarray:
    duplicates = job.labelled.have_digests(rows.take_digests(top))
    if job.twins is not None and job.twins <= 1:
        duplicates |= job.labelled.are_close(rows.take(top), job.twins)
    return duplicates


def _import_torch_for(values: int) -> None:
    """Import torch where it converts the values of a cache faster than numpy, as `Whitening.estimate` does."""
    if values > 1 << 28:
        import torch  # noqa: F401
