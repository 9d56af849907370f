"""Scoring every image of a cache, or of a source of images, with a model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cache.destination import encoder_of_existing, open_destination
from ..cache.embedding_cache import CacheLike, EmbeddingCache, is_cache, open_cache
from ..cache.row_range import file_ranges
from ..encoders.spec import ROUNDING
from ..errors import ModelError
from ..progress import Progress
from ..storage.prefetch import prefetch
from ..training.sklearn_classifier import PULinearClassifier
from .score_parts import part_outputs, scored_rows, write_part, write_table
from .score_tables import ScoredRows, check_output

if TYPE_CHECKING:
    from ..cache.row_range import Workers
    from ..images.source import Source
    from .pile_scores import Pile


@dataclass(frozen=True)
class ScoreReport:
    """Result of `score`.

    Attributes
    ----------
    cache : EmbeddingCache
        The cache that was scored.
    rows : int
        Rows written.
    positives : int
        Rows with a score above the threshold.
    failures : int
        Images that could not be read and have no score.
    neighbours : EmbeddingCache or None
        The cache in which neighbours were searched.
    parts : int
        Tables written; 0 where one table holds all rows.
    """

    cache: EmbeddingCache
    rows: int
    positives: int
    failures: int
    neighbours: EmbeddingCache | None = None
    parts: int = 0


def score(
    model: str | Path | PULinearClassifier,
    images: str | Path | Sequence[str | Path] | EmbeddingCache | Source,
    out: str | Path = "scores.csv",
    *,
    cache: str | Path | None = None,
    neighbours: CacheLike | None = None,
    parts: str | None = None,
    engine: Workers | None = None,
    progress: Progress | None = None,
    **embedding: Any,
) -> ScoreReport:
    """Write key, margin, posterior and label of every image, in cache order.

    With `neighbours`, the margin column holds the score with neighbours (`pucache.scoring.neighbour_scores`), and
    posterior and label are by the tilt and the threshold that the model has for it. The share of positives is
    `PULinearClassifier.share_` in both cases. No label is needed. Images of the pile itself are left out of their own
    neighbours where `images` is the same cache.

    Parameters
    ----------
    model : PULinearClassifier, or path of a model
    images : EmbeddingCache, Source, str, path, or sequence of paths
        Caches, or a source of images, which are embedded first with the encoder of the model.
    out : path or URL
        ``.csv``, or ``.parquet``.
    cache : path or URL, optional
        Cache that images are embedded into; by default beside `out`, with the suffix ``.h5``.
    neighbours : EmbeddingCache, path, or sequence of paths, optional
        Pile of the model's encoder, such as the cache that it was trained on, in which the images' neighbours are
        searched. Only for a model that chose a weight for neighbours.
    parts : {"csv", "parquet"}, optional
        Only for caches: write a table of this format for each cache file, ``NAME.csv`` of ``NAME.h5``, into the
        folder `out`. Their rows, one table after the other, are those of the one table.
    engine : RayWorkers, optional
        Scores caches on a cluster, see `pucache.scaling.workers.RayWorkers`. The output is the same to the byte.
        Not with `neighbours`.
    progress : Progress, optional
        Of the embedding, and of the search for neighbours.
    **embedding
        Of `embed_for`: weights, device, precision, runtime, batch_size, shard, workers.

    Returns
    -------
    ScoreReport

    Raises
    ------
    ModelError
        The model is of another encoder, or its encoder cannot be loaded; `neighbours` for a model that chose no
        weight for them.
    CacheError
        A cache is damaged, or holds embeddings that are not finite.
    OutputError, MissingExtraError
        The output cannot be written.
    EngineError
        A machine of the engine cannot do the work, or workers died again and again.
    ValueError
        The output has another suffix; options of embedding where a cache is scored; a pile without rows;
        `parts` or an engine with `neighbours`.
    """
    if parts is None:
        check_output(out)
    if not isinstance(model, PULinearClassifier):
        model = PULinearClassifier.load(model)
    source = _source_of(images)
    pile = None if neighbours is None else _open_pile(model, neighbours)  # is checked before images are embedded
    if source is not None:
        if parts is not None:
            raise ValueError("parts are for caches, a table for each file, and images are given; leave parts out")
        if engine is not None:
            raise ValueError("an engine scores caches, and images are given; embed them first")
        cache = cache or os.path.splitext(out)[0] + ".h5"
        embedded = embed_for(model, source, cache, progress=progress, **embedding)
        return _score_cache(model, embedded, out, pile, progress)
    unused = [*(["cache"] if cache is not None else []), *embedding]
    if unused:
        raise ValueError(f"{', '.join(unused)} is for images that are to be embedded, and none are given; leave it out")
    if pile is not None and (parts is not None or engine is not None):
        raise ValueError("neighbours are searched on this machine, into one table; leave out parts and the engine ray")
    opened = open_cache(images)  # type: ignore[arg-type]
    if pile is None:
        return _score_by_model(model, opened, out, parts, engine)
    return _score_cache(model, opened, out, pile, progress)


def _source_of(images: str | Path | Sequence[str | Path] | EmbeddingCache | Source) -> str | Source | None:
    """The source of images to embed; None for caches."""
    if isinstance(images, EmbeddingCache):
        return None
    if isinstance(images, str | Path):
        return None if is_cache(images) else os.fspath(images)
    if not isinstance(images, Sequence):
        return images
    if all(map(is_cache, images)):
        return None
    if len(images) > 1:
        raise ValueError("give one source of images, or any number of caches")
    return os.fspath(images[0])


def _open_pile(model: PULinearClassifier, neighbours: CacheLike) -> Pile:
    from .pile_scores import Pile, check_weight

    check_weight(model)
    return Pile.of(model, open_cache(neighbours))


def _score_by_model(
    model: PULinearClassifier, cache: EmbeddingCache, out: str | Path, parts: str | None, workers: Workers | None
) -> ScoreReport:
    """Score a cache without neighbours."""
    model.check_fits(cache)  # before the folder of the tables is made
    tables = [] if parts is None else part_outputs(cache, out, parts, [file.path for file in cache.files])
    cache.check("keys")
    failures = len(cache.failures)  # damage is noticed before anything is written
    if workers is not None:
        from . import distributed_scores

        if tables:
            positives = distributed_scores.score_parts_with_workers(workers, model, cache, tables)
        else:
            positives = distributed_scores.score_with_workers(workers, model, cache, out)
    elif tables:
        files = zip(file_ranges(cache), tables, strict=True)
        positives = sum(write_part(model, rows.open(), table) for rows, table in files)
    else:
        positives = write_table(out, scored_rows(model, cache))
    return ScoreReport(cache, len(cache), positives, failures, parts=len(tables))


def _score_cache(
    model: PULinearClassifier, cache: EmbeddingCache, out: str | Path, pile: Pile | None, progress: Progress | None
) -> ScoreReport:
    if pile is None:
        return _score_by_model(model, cache, out, None, None)
    cache.check("keys")
    failures = len(cache.failures)
    positives = write_table(out, _rows_with_neighbours(pile, cache, progress))
    return ScoreReport(cache, len(cache), positives, failures, pile.cache)


def _rows_with_neighbours(pile: Pile, cache: EmbeddingCache, progress: Progress | None) -> Iterator[ScoredRows]:
    threshold = np.float32(pile.threshold)
    for rows, scores in prefetch(pile.scores_of(cache, progress)):
        labels = (scores > threshold).astype(np.int8)
        yield ScoredRows(cache.keys.encoded(rows), scores, pile.posterior(scores), labels)


def embed_for(
    model: PULinearClassifier,
    source: str | Path | Source,
    cache: str | Path,
    *,
    weights: str | Path | None = None,
    device: str = "auto",
    precision: str = "auto",
    runtime: str = "auto",
    batch_size: int | None = None,
    shard: tuple[int, int] = (1, 1),
    workers: int | None = None,
    progress: Progress | None = None,
) -> EmbeddingCache:
    """Embed images with the encoder that a model was trained on.

    Parameters
    ----------
    model : PULinearClassifier
    source : Source, or what `pucache.open_source` takes
    cache : path or URL
        Cache to write or to continue.
    weights, device, precision, runtime, batch_size
        Of `pucache.encoders.encoder.load_encoder`.
    shard, workers, progress
        Of `pucache.embedding.embed.embed`.

    Returns
    -------
    EmbeddingCache

    Raises
    ------
    ModelError
        The model has no encoder that pucache can load, or the encoder loaded differs from it.
    """
    from ..embedding.embed import EmbedOptions, run_embedding
    from ..encoders.deferred import EncoderOptions, open_encoder
    from ..images.source import open_source

    open_destination(cache).check_writable()
    if isinstance(source, str | Path):
        source = open_source(source)  # a missing source is reported before the encoder is loaded
    expected = model.encoder_
    if expected is None or expected.name.startswith("imported:"):
        raise ModelError(
            f"the model was trained on {expected or 'bare arrays'}, which pucache cannot make; score a cache"
        )
    encoder_options = EncoderOptions(
        name=expected.name,
        weights=weights,
        device=device,
        precision=precision,
        runtime=runtime,
        batch_size=batch_size,
    )
    encoder = open_encoder(encoder_options, like=encoder_of_existing(cache) or expected)
    differing = expected.differences(encoder.spec, ignoring=ROUNDING)
    if differing:
        raise ModelError(
            f"the model expects {expected}; the encoder at hand is {encoder.spec} (they differ in "
            f"{', '.join(differing)}): pass the weights it was trained with as --weights FILE"
        )
    report = run_embedding(
        source, cache, encoder, options=EmbedOptions(shard=shard), workers=workers, progress=progress
    )
    return EmbeddingCache(report.cache)
