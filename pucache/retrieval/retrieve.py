"""Retrieval: ranks the unlabelled images by similarity to the positives, by a model, or by both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..cache.embedding_cache import EmbeddingCache, open_cache
from ..labels.labels import TWIN_COSINE, Labels, open_labels
from ..labels.near_duplicates import duplicates_of
from ..neighbours import whitening
from ..neighbours.row_source import row_source
from ..progress import Progress, Silent
from . import mmr
from .ranking import Ranking, in_order, top_rows
from .scorer import Scorer, Scores
from .scorer_choice import ScorerOptions, choose_scorer
from .similarity import Similarity

if TYPE_CHECKING:
    from ..training.sklearn_classifier import PULinearClassifier

_GROWTH = 4  # factor by which more rows are scored where too few of them are unlabelled and new
_SPARE = 1 << 12  # rows ranked beyond those wanted, as some may be duplicates of labelled ones


def retrieve_positives(
    cache: EmbeddingCache | str | Path | Sequence[str | Path],
    positives: str | Path | np.ndarray | Labels,
    model: str | Path | PULinearClassifier | None = None,
    *,
    k: int | None = 100,
    negatives: str | Path | None = None,
    by: str | None = None,
    similarity: str | None = None,
    index: str = "exact",
    diverse: float = 0.0,
    twins: float | None = TWIN_COSINE,
    device: str = "auto",
    progress: Progress | None = None,
) -> Ranking:
    """Find the k unlabelled images that are most likely positive.

    Labelled positives, known negatives and images that show the same pictures are left out. A cluster ranks by
    `pucache.rank_shards`.

    Parameters
    ----------
    cache : EmbeddingCache, path, or sequence of paths
    positives : path, str, ndarray of int8 (n,) or Labels
        A file of keys, a glob on keys, s itself (1 labelled positive, 0 unlabelled), or labels with a review.
    model : PULinearClassifier or path, optional
        Of the cache's encoder.
    k : int or None
        None for all unlabelled images.
    negatives : path or str, optional
        A file of keys or a glob on keys of known negatives.
    by : {"similarity", "classifier", "fused"}, optional
        Rank by similarity to the positives, by the model's margins, or by margins and the classes of the
        nearest images. With a model the default is ``fused`` where the model chose a weight for neighbours,
        else ``classifier``; without one it is ``similarity``. ``fused`` with a model that chose none gives
        neighbours the weight 1.
    similarity : {"whitened", "centroid", "topk", "max"}, optional
        See `pucache.retrieval.similarity`; ``whitened`` by default. Only without a model.
    index : str
        ``exact`` compares with every image; a factory string of faiss, such as ``IVF1024,SQ8``, searches an
        approximate index, which is kept beside the cache (see `pucache.neighbours.index`). Only without a model.
    diverse : float
        Weight in [0, 1] of the difference between the images selected against their rank, see
        `pucache.retrieval.mmr`.
    twins : float or None
        Cosine from which on an image shows the same picture as a labelled one; None: equal bytes only.
    device : str
    progress : Progress, optional

    Returns
    -------
    Ranking

    Raises
    ------
    LabelError
        As `Labels.read`; no labelled or no unlabelled row.
    ModelError
        The model cannot be read, or is of another encoder.
    CacheError
        The cache is damaged, or holds embeddings that are not finite.
    OutputError
        An index cannot be written.
    ValueError
        A parameter outside its domain, or parameters that exclude each other.
    """
    options = ScorerOptions(by=by, similarity=similarity, index=index, device=device)
    scorer = choose_scorer(options, model, k)
    cache = open_cache(cache)
    labels = open_labels(cache, positives, negatives)
    return rank_unlabelled(cache, labels, k=k, scorer=scorer, diverse=diverse, twins=twins, progress=progress)


def rank_unlabelled(
    cache: EmbeddingCache,
    labels: Labels | np.ndarray,
    *,
    k: int | None = 100,
    scorer: Scorer | None = None,
    diverse: float = 0.0,
    twins: float | None = TWIN_COSINE,
    mean_of: Callable[[EmbeddingCache], np.ndarray] = lambda cache: whitening.mean_of(row_source(cache)),
    progress: Progress | None = None,
) -> Ranking:
    """Rank unlabelled rows by a scorer; `retrieve_positives` on opened objects.

    Parameters
    ----------
    cache : EmbeddingCache
    labels : Labels, or s as ndarray of int8, (n,)
    k : int or None
    scorer : Scorer, optional
        Such as `Similarity` (the default), `IndexedSimilarity`, `Margins` or `Fused`.
    diverse, twins, progress
        As for `retrieve_positives`.
    mean_of : callable
        Mean of the rows of a cache, float32 (d,); for a diverse selection.

    Returns
    -------
    Ranking
    """
    labels = labels if isinstance(labels, Labels) else Labels.of(labels)
    wanted = _check(cache, labels, k, diverse, twins)
    cache.check("keys", "digests")
    scorer = scorer or Similarity()
    with progress or Silent() as progress:
        scores, rows = _best_rows(cache, labels, scorer, mmr.pool_size(wanted) if diverse else wanted, twins, progress)
    if diverse and len(rows):
        order = np.argsort(rows)
        Z = np.empty((len(rows), cache.encoder.dim), np.float32)  # in the order of `rows`
        Z[order] = whitening.centred_units(cache.take(rows[order]), mean_of(cache))
        rows = rows[mmr.select_diverse(Z, wanted, diverse)]
    return Ranking(
        rows=rows,
        keys=cache.keys[rows],
        scores=scores.values[rows],
        posterior=None if scores.posterior is None else scores.posterior(rows),
        scorer=scorer.name,
        note=scores.note,
        search=scores.search,
        search_by=scores.search_by,
    )


def _check(cache: EmbeddingCache, labels: Labels, k: int | None, diverse: float, twins: float | None) -> int:
    """Check the arguments; return how many rows are wanted."""
    if len(labels.s) != len(cache):
        raise ValueError(f"s has {len(labels.s)} labels, but {cache.name} has {len(cache)} rows")
    labels.check()
    if twins is not None and not twins > 0:
        raise ValueError(f"twins must be a cosine above 0, or None for equal bytes only; got {twins}")
    if k is not None and k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    wanted = len(cache) if k is None else min(k, len(cache))
    mmr.check(diverse, wanted)
    return wanted


def _best_rows(
    cache: EmbeddingCache, labels: Labels, scorer: Scorer, count: int, twins: float | None, progress: Progress
) -> tuple[Scores, np.ndarray]:
    """Scores, and the best `count` rows; asks a scorer for more where most of what it scored is labelled."""
    requested = count
    while True:
        scores = scorer(cache, labels, requested, progress)
        rows = _best_new_rows(cache, labels, scores, count, twins)
        if len(rows) >= count or scores.complete or requested >= len(cache):
            return scores, rows
        requested = min(_GROWTH * requested, len(cache))


def _best_new_rows(
    cache: EmbeddingCache, labels: Labels, scores: Scores, count: int, twins: float | None
) -> np.ndarray:
    """Rows of highest score that are no duplicates of labelled ones, best first; ties by row number."""
    labelled = np.flatnonzero(~labels.unlabelled)
    candidates = np.flatnonzero(labels.unlabelled & (scores.values > -np.inf))
    top = top_rows(scores.values, candidates, count + _SPARE)
    new = top[~duplicates_of(cache, top, labelled, twins)]
    if len(new) < count and len(top) < len(candidates):
        new = candidates[~duplicates_of(cache, candidates, labelled, twins)]
    return in_order(new, scores.values[new])[:count]
