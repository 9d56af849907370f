"""Retrieval: ranks the unlabelled images by similarity to the positives, by a model, or by both: `retrieve_positives`.

1. `Query.of`: words or pictures that rank in place of positives.
2. `ConceptModels.open`, where a model ranks; `choose_scorer`.
3. `open_cache`; `open_labels`.
4. `Labels.map`, for the one list or for each concept: `rank_unlabelled`.
5. The scorer gives `Scores`; `_best_new_rows` leaves out what is known and its duplicates; `select_diverse`.
6. A `Ranking`, which `Ranking.save` or `save_concepts` writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ..cache.embedding_cache import CacheLike, EmbeddingCache, open_cache
from ..devices import choose_device, device_name
from ..labels.labels import TWIN_COSINE, Labels, PerConcept, PULabels
from ..labels.near_duplicates import duplicates_of
from ..labels.read_labels import open_labels
from ..labels.row_values import RowValues
from ..neighbours.whitening import cached_whitening, centred_units
from ..progress import Progress, Silent
from .query import LikeSource, Query, QueryScorer
from .ranking import Ranking, Scorer, Scores, check_diverse, in_order, pool_size, select_diverse, top_rows
from .scorers import SIMILARITIES, Fused, Margins, Similarity

if TYPE_CHECKING:
    from ..encoders.encoder import Encoder
    from ..training.concept_models import ConceptModels
    from ..training.sklearn_classifier import PULinearClassifier

SCORERS = (*SIMILARITIES, "classifier", "fused")
_SPARE = 1 << 12  # rows ranked beyond those wanted, as some may be duplicates of labelled ones


@overload
def retrieve_positives(
    cache: CacheLike, positives: str | Path | RowValues | PULabels | None = None, model: Any = None, **parameters: Any
) -> Ranking: ...


@overload
def retrieve_positives(
    cache: CacheLike, positives: Labels, model: Any = None, **parameters: Any
) -> Ranking | PerConcept[Ranking]: ...


def retrieve_positives(  # type: ignore[misc]  # the overloads name few parameters
    cache: CacheLike,
    positives: str | Path | RowValues | PULabels | Labels | None = None,
    model: str | Path | PULinearClassifier | ConceptModels | None = None,
    *,
    words: str | Sequence[str] = (),
    not_words: str | Sequence[str] = (),
    like: LikeSource | Sequence[LikeSource] = (),
    weights: str | Path | Encoder | None = None,
    k: int | None = 100,
    by: str | None = None,
    diverse: float = 0.0,
    twins: float | None = TWIN_COSINE,
    device: str = "auto",
    progress: Progress | None = None,
) -> Ranking | PerConcept[Ranking]:
    """Find the k unlabelled images that are most likely positive.

    Labelled positives, known negatives and images that show the same pictures are left out.

    Parameters
    ----------
    cache : EmbeddingCache, path, or sequence of paths
    positives : path, str, RowValues, PULabels or Labels, optional
        As for `pucache.train_pu`; `Labels` of several concepts give a ranking for each. Without any, `words` or
        `like` say what is looked for.
    model : PULinearClassifier or path, optional
        Of the cache's encoder.
    words, not_words : str or sequence of str
        Texts of what is looked for, any of them, and of what is not, for a cache of the bundled encoder.
        They rank in place of positives; those that are given as well are left out.
    like : str, path or array, or sequence of them
        Pictures from elsewhere that rank in place of positives: a source of images, a picture, or vectors of the
        cache's dimension, as an array (m, d) or (d,) or a ``.npy`` file of it.
    weights : path or Encoder, optional
        Of the cache's encoder, for the pictures of `like` or an image-text model's `words`, as for `pucache.embed`.
    k : int or None
        None for all unlabelled images.
    by : {"whitened", "topk", "classifier", "fused"}, optional
        Rank by a similarity to the positives (`pucache.retrieval.scorers`), by the model's margins, or by margins
        and the classes of the nearest images. With a model the default is ``fused`` where the model chose a weight for
        neighbours, else ``classifier``; without one it is ``whitened``. ``fused`` with a model that chose none gives
        neighbours the weight 1.
    diverse : float
        Weight in [0, 1] of the difference between the images selected against their rank, see
        `pucache.retrieval.ranking`.
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
        As `pucache.train_pu`; no labelled or no unlabelled row; vectors or pictures of `like` cannot be read.
    EncoderError, MissingExtraError
        The cache's encoder has no words, or no text encoder is there.
    ModelError
        The model cannot be read, or is of another encoder.
    CacheError
        The cache is damaged, or holds embeddings that are not finite.
    ValueError
        A parameter outside its domain, or parameters that exclude each other.
    """
    query = Query.of(words, not_words, like, weights=weights)
    if query and (model is not None or by):
        raise ValueError("words and pictures rank by themselves; leave out model and by")
    if not query and positives is None:
        raise ValueError("nothing says what is looked for; name positives, words, or pictures that it is like")
    models: ConceptModels | None = None
    if model is not None:
        from ..training.concept_models import ConceptModels

        models = ConceptModels.open(model)
    kind: dict[str, Any] = {"by": by, "device": device}
    choose_scorer(next(iter(models.values())) if models else None, **kind)  # wrong usage fails before any concept
    cache = open_cache(cache)
    none = Labels({"": PULabels.of(np.zeros(len(cache), np.int8))})
    labels = none if positives is None else open_labels(cache, positives)
    if query and not labels.is_one:
        raise ValueError("words and pictures rank one list; leave them out with the labels of concepts")
    shown = progress or Silent()

    def rank(name: str, one: PULabels) -> Ranking:
        scorer = QueryScorer(query, device) if query else choose_scorer(models.of(name) if models else None, **kind)
        if labels.is_one:
            return rank_unlabelled(cache, one, k=k, scorer=scorer, diverse=diverse, twins=twins, progress=progress)
        shown.advance(1)  # progress of concepts, not of the rows of each
        return rank_unlabelled(cache, one, k=k, scorer=scorer, diverse=diverse, twins=twins)

    if labels.is_one:
        return labels.map(rank)[""]
    with shown:
        shown.start(len(labels.columns), "ranking for concepts")
        return labels.map(rank)


def rank_unlabelled(
    cache: EmbeddingCache,
    labels: PULabels | np.ndarray,
    *,
    k: int | None = 100,
    scorer: Scorer | None = None,
    diverse: float = 0.0,
    twins: float | None = TWIN_COSINE,
    progress: Progress | None = None,
) -> Ranking:
    """Rank unlabelled rows by a scorer."""
    labels = labels if isinstance(labels, PULabels) else PULabels.of(labels)
    wanted = _check(cache, labels, k, diverse, twins)
    scorer = scorer or Similarity()
    labels.check(positives=not isinstance(scorer, QueryScorer))
    cache.check("keys", "digests")
    with progress or Silent() as progress:
        count = pool_size(wanted) if diverse else wanted
        scores = scorer(cache, labels, count, progress)
        rows = _best_new_rows(cache, labels, scores, count, twins)
    if diverse and len(rows):
        order = np.argsort(rows)
        Z = np.empty((len(rows), cache.encoder.dim), np.float32)  # in the order of `rows`
        Z[order] = centred_units(cache.take(rows[order]), cached_whitening(cache)[0].mean)
        rows = rows[select_diverse(Z, wanted, diverse)]
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


def _check(cache: EmbeddingCache, labels: PULabels, k: int | None, diverse: float, twins: float | None) -> int:
    """Check the arguments; return how many rows are wanted."""
    if len(labels.s) != len(cache):
        raise ValueError(f"s has {len(labels.s)} labels, but {cache.name} has {len(cache)} rows")
    if twins is not None and not twins > 0:
        raise ValueError(f"twins must be a cosine above 0, or None for equal bytes only; got {twins}")
    if k is not None and not (isinstance(k, Integral) and k >= 1):
        raise ValueError(f"k must be a whole number of at least 1, or None for all; got {k!r}")
    wanted = len(cache) if k is None else min(int(k), len(cache))
    check_diverse(diverse, wanted)
    return wanted


def _best_new_rows(
    cache: EmbeddingCache, labels: PULabels, scores: Scores, count: int, twins: float | None
) -> np.ndarray:
    """Rows of highest score that are no duplicates of labelled ones, best first; ties by row number."""
    labelled = np.flatnonzero(~labels.unlabelled)
    candidates = np.flatnonzero(labels.unlabelled)
    top = top_rows(scores.values, candidates, count + _SPARE)
    new = top[~duplicates_of(cache, top, labelled, twins)]
    if len(new) < count and len(top) < len(candidates):
        new = candidates[~duplicates_of(cache, candidates, labelled, twins)]
    return in_order(new, scores.values[new])[:count]


def choose_scorer(
    model: PULinearClassifier | None,
    *,
    by: str | None = None,
    device: str = "auto",
) -> Scorer:
    """Scorer by its name, as `retrieve_positives` takes it."""
    if by is not None and by not in SCORERS:
        raise ValueError(f"unknown way to rank {by!r}; use {', '.join(SCORERS)}")
    if by in ("classifier", "fused") and model is None:
        raise ValueError(f"ranking by {by} needs a model; train one with train-pu")
    if by in SIMILARITIES and model is not None:
        raise ValueError(f"ranking by {by} uses no model; leave one of the two out")
    if device_name(device) not in ("auto", "cpu"):  # refused where it is not there, even if it is not used
        choose_device(device)
    if model is None:
        return Similarity(by or "whitened", device)
    from ..scoring.neighbour_scores import chosen_weight, reason  # needs scipy

    if by == "fused" or (by is None and chosen_weight(model)):
        return Fused(model, device)
    return Margins(model, note="" if by else f"the classifier ranks alone; {reason(model)}")
