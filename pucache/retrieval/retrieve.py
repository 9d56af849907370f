"""Ranks the unlabelled images: by similarity to the known positives, by a model, or by both."""

from __future__ import annotations

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..progress import Progress, Silent
from ..pu.data import TWIN_COSINE
from ..pu.labels import Labels
from . import mmr as selection
from .known_duplicates import twins_of
from .ranking import Ranking
from .scorer import Scorer, Scores
from .similarity import Similarity
from .whitening import Space

_MORE = 4  # times as many, where too few were reached
_SPARE = 1 << 12  # rows ranked beyond those wanted, as some may be twins of known ones


def retrieve(
    cache: EmbeddingCache,
    labels: Labels | np.ndarray,
    *,
    k: int | None = 100,
    by: Scorer | None = None,
    diverse: float = 0.0,
    twins: float | None = TWIN_COSINE,
    progress: Progress | None = None,
) -> Ranking:
    """Find the `k` unlabelled images that are most likely positive.

    Known positives, known negatives and their twins are left out.

    Parameters
    ----------
    cache : EmbeddingCache
    labels : Labels, or ndarray of int8, (n,)
        Or s: 1 labelled positive, 0 unlabelled.
    k : int or None
        None for all; what exceeds the unlabelled rows is cut to them.
    by : Scorer, optional
        Such as `Similarity`, `Margins`, `Fused` or `IndexedSimilarity`; similarity by default.
    diverse : float
        In [0, 1]: how much more it counts that those found differ from each other than that they rank
        high, see `pucache.retrieval.mmr`.
    twins : float or None
        Cosine from which on an image is the same picture as a known one; None: equal bytes only.
    progress : Progress, optional

    Returns
    -------
    Ranking

    Raises
    ------
    ModelError
        A model is of another encoder.
    CacheError
        The cache is damaged, or holds embeddings that are not finite.
    OutputError
        An index cannot be written.
    LabelError
        No known positive, or no unlabelled row.
    ValueError
        k < 1, `diverse` or `twins` outside its domain, labels of another length.
    """
    labels = labels if isinstance(labels, Labels) else Labels.of(labels)
    if len(labels.s) != len(cache):
        raise ValueError(f"s has {len(labels.s)} labels, but {cache.name} has {len(cache)} rows")
    labels.check()
    if twins is not None and not twins > 0:
        raise ValueError(f"twins must be a cosine above 0, or None for equal bytes only; got {twins}")
    if k is not None and k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    wanted = len(cache) if k is None else min(k, len(cache))
    selection.check(diverse, wanted)
    cache.check("keys", "digests")
    count = selection.pool_of(wanted) if diverse else wanted
    with progress or Silent() as shown:
        scores, rows = _scored(cache, labels, by or Similarity(), count, twins, shown)
    if diverse and len(rows):
        rows = rows[selection.spread_out(_units(cache, rows), wanted, diverse)]
    posterior = None if scores.posterior is None else scores.posterior(rows)
    return Ranking(rows, cache.keys[rows], scores.values[rows], posterior)


def _scored(
    cache: EmbeddingCache, labels: Labels, by: Scorer, count: int, twins: float | None, progress: Progress
) -> tuple[Scores, np.ndarray]:
    """Scores, and the best rows; asks for more where those that a scorer reached were mostly known, or their twins."""
    asked = count
    while True:
        scores = by(cache, labels, asked, progress)
        rows = _best(cache, labels, scores, count, twins)
        if len(rows) >= count or scores.complete or asked >= len(cache):
            return scores, rows
        asked = min(_MORE * asked, len(cache))


def _best(cache: EmbeddingCache, labels: Labels, scores: Scores, count: int, twins: float | None) -> np.ndarray:
    """The rows of highest score that are not known in any form, best first; of equal scores the earlier row."""
    known = np.flatnonzero(~labels.unlabelled)
    candidates = np.flatnonzero(labels.unlabelled & (scores.values > -np.inf))
    top = _top(scores.values, candidates, count + _SPARE)
    new = top[~twins_of(cache, top, known, twins)]
    if len(new) < count and len(top) < len(candidates):
        new = candidates[~twins_of(cache, candidates, known, twins)]
    return new[np.lexsort((new, -scores.values[new]))][:count]


def _top(values: np.ndarray, rows: np.ndarray, count: int) -> np.ndarray:
    """The rows of the highest values, rising, and all that equal the last of them."""
    if count >= len(rows):
        return rows
    return rows[values[rows] >= np.partition(values[rows], len(rows) - count)[len(rows) - count]]


def _units(cache: EmbeddingCache, rows: np.ndarray) -> np.ndarray:
    """Rows in the space of similarity, in the order given."""
    order = np.argsort(rows)
    Z = np.empty((len(rows), cache.encoder.dim), np.float32)
    Z[order] = Space.of(cache).unit(cache.take(rows[order]))
    return Z
