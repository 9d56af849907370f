"""Scoring every image of a cache, or of a source of images, with a model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..cache.destination import encoder_of_existing, open_destination
from ..cache.embedding_cache import CacheLike, EmbeddingCache, is_cache, open_cache
from ..encoders.deferred import EncoderOptions
from ..encoders.spec import ROUNDING
from ..errors import ModelError
from ..progress import Progress
from ..storage.prefetch import prefetch
from ..training.sklearn_classifier import PULinearClassifier
from .score_parts import part_outputs
from .score_tables import ScoredRows, check_output, write_scores

if TYPE_CHECKING:
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
    weights: str | Path | None = None,
    device: str = "auto",
    precision: str = "auto",
    runtime: str = "auto",
    batch_size: int | None = None,
    shard: tuple[int, int] = (1, 1),
    workers: int | None = None,
    progress: Progress | None = None,
) -> ScoreReport:
    """Write key, margin, posterior and label of every image, in cache order.

    With `neighbours`, the margin column holds the score with neighbours (`pucache.scoring.neighbour_scores`), and
    posterior and label are by the tilt and the threshold that the model has for it. The share of positives is
    `PULinearClassifier.share_` in both cases. No label is needed. Images of the pile itself are left out of their own
    neighbours where `images` is the same cache. A cluster scores by `pucache.score_shards`.

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
    weights, device, precision, runtime, batch_size
        Only for images: of the encoder, see `pucache.load_encoder`.
    shard, workers
        Only for images: see `pucache.embed`.
    progress : Progress, optional
        Of the embedding, and of the search for neighbours.

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
    ValueError
        The output has another suffix; options of embedding where a cache is scored; a pile without rows;
        `parts` with `neighbours`.
    """
    if parts is None:
        check_output(out)
    if not isinstance(model, PULinearClassifier):
        model = PULinearClassifier.load(model)
    source = _source_of(images)
    pile = None if neighbours is None else _open_pile(model, neighbours)  # is checked before images are embedded
    encoder = EncoderOptions(
        weights=weights, device=device, precision=precision, runtime=runtime, batch_size=batch_size
    )
    if source is not None:
        if parts is not None:
            raise ValueError("parts are for caches, a table for each file, and images are given; leave parts out")
        cache = cache or os.path.splitext(out)[0] + ".h5"
        opened = embed_for(model, source, cache, encoder, shard=shard, workers=workers, progress=progress)
    else:
        _refuse({"cache": cache, "workers": workers}, shard, encoder)
        opened = open_cache(images)  # type: ignore[arg-type]
    if pile is not None:
        if parts is not None:
            raise ValueError("neighbours are searched into one table; leave out parts")
        opened.check("keys")
        failures = len(opened.failures)
        positives = write_scores(out, _rows_with_neighbours(pile, opened, progress))
        return ScoreReport(opened, len(opened), positives, failures, pile.cache)
    report, tables = planned(model, opened, out, parts)
    caches = [EmbeddingCache(file) for file in opened.files] if parts else [opened]
    for part, table in zip(caches, tables, strict=True):
        report = replace(report, positives=report.positives + write_scores(table, scored_rows(model, part)))
    return report


def planned(
    model: PULinearClassifier, cache: EmbeddingCache, out: str | Path, parts: str | None
) -> tuple[ScoreReport, Sequence[str | Path]]:
    """Check everything before work; return the report but for the positives, and the tables to write."""
    model.check_fits(cache)  # before the folder of the tables is made
    tables: Sequence[str | Path] = [out] if parts is None else part_outputs(cache, out, parts)
    cache.check("keys")
    failures = len(cache.failures)  # damage is noticed before anything is written
    return ScoreReport(cache, len(cache), 0, failures, parts=0 if parts is None else len(tables)), tables


def scored_rows(model: PULinearClassifier, cache: EmbeddingCache) -> Iterator[ScoredRows]:
    """Score all rows with a model, in blocks; the bytes read are verified."""
    for rows, margins in prefetch(model.margins_of(cache)):
        yield with_posterior(model, cache.keys.encoded(rows), margins)


def with_posterior(model: PULinearClassifier, key: np.ndarray, margins: np.ndarray) -> ScoredRows:
    """Scored rows of a model, given their keys and margins."""
    labels = (margins > np.float32(model.threshold_)).astype(np.int8)
    return ScoredRows(key, margins, model.posterior(margins), labels)


def _rows_with_neighbours(pile: Pile, cache: EmbeddingCache, progress: Progress | None) -> Iterator[ScoredRows]:
    threshold = np.float32(pile.threshold)
    for rows, scores in prefetch(pile.scores_of(cache, progress)):
        yield ScoredRows(cache.keys.encoded(rows), scores, pile.posterior(scores), (scores > threshold).astype(np.int8))


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


def _refuse(values: dict[str, object], shard: tuple[int, int], encoder: EncoderOptions) -> None:
    """Raise ValueError where an option of embedding is set, and caches are scored."""
    unused = [name for name, value in values.items() if value is not None]
    unused += [name for name, value in vars(encoder).items() if value != getattr(EncoderOptions, name)]
    unused += ["shard"] if shard != (1, 1) else []
    if unused:
        raise ValueError(f"{', '.join(unused)} is for images that are to be embedded, and none are given; leave it out")


def _open_pile(model: PULinearClassifier, neighbours: CacheLike) -> Pile:
    from .pile_scores import Pile, check_weight  # imports torch

    check_weight(model)
    return Pile.of(model, open_cache(neighbours))


def embed_for(
    model: PULinearClassifier,
    source: str | Path | Source,
    cache: str | Path,
    encoder: EncoderOptions | None = None,
    *,
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
    encoder : EncoderOptions, optional
        How the encoder runs; its name is the model's.
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
    from ..encoders.deferred import open_encoder
    from ..images.source import open_source

    open_destination(cache).check_writable()
    if isinstance(source, str | Path):
        source = open_source(source)  # a missing source is reported before the encoder is loaded
    expected = model.encoder_
    if expected is None or expected.name.startswith("imported:"):
        raise ModelError(
            f"the model was trained on {expected or 'bare arrays'}, which pucache cannot make; score a cache"
        )
    options = replace(encoder or EncoderOptions(), name=expected.name)
    opened = open_encoder(options, like=encoder_of_existing(cache) or expected)
    differing = expected.differences(opened.spec, ignoring=ROUNDING)
    if differing:
        raise ModelError(
            f"the model expects {expected}; the encoder at hand is {opened.spec} (they differ in "
            f"{', '.join(differing)}): pass the weights it was trained with as --weights FILE"
        )
    report = run_embedding(source, cache, opened, options=EmbedOptions(shard=shard), workers=workers, progress=progress)
    return EmbeddingCache(report.cache)
