"""Scoring every image of a cache, or of a source of images, with a model."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit

from ..cache.destination import encoder_of_existing, open_destination
from ..cache.embedding_cache import CacheLike, EmbeddingCache, files_read, is_cache, open_cache
from ..cache.reader import CacheFile
from ..encoders.deferred import EncoderOptions
from ..encoders.spec import ROUNDING, EncoderSpec
from ..errors import LabelError, ModelError
from ..images.decoding import Decoding
from ..progress import Progress
from ..storage.prefetch import prefetch
from ..storage.urls import is_url, without_secrets
from ..training.concept_models import ConceptModels, ExclusiveKinds
from ..training.model_file import label_count
from ..training.sklearn_classifier import PULinearClassifier
from .growing_table import GrowingTable, cache_of_source, model_digest, one_writer
from .new_images import NewImages, check_new_images
from .score_tables import (
    BY_IMAGE_TYPES,
    TYPES,
    EarlierScores,
    ScoredRows,
    by_image,
    check_table,
    read_scores,
    wide_types,
    write_table,
)

if TYPE_CHECKING:
    from ..encoders.deferred import DeferredEncoder
    from ..encoders.encoder import Encoder
    from ..images.source import Source
    from .neighbour_scores import Pile

log = logging.getLogger("pucache")
_CHECKED = 1000  # images of an earlier table whose margins tell whether it is of the same model
_BLOCKS_AHEAD = 8  # about a row group of Parquet: computed while the one before is written
_ROUNDING = 1e-4  # of a posterior that follows from a margin of six digits
_LEAST_SHARE = 1e-4  # that decisions are made at


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
    concepts : dict of str to int, or None
        Rows above the threshold of each concept, where a folder of models scored; `positives` is their sum.
    new_images : NewImages or None
        Share of positives among the images that were not in the table before, and whether they differ from the pile.
    kept : int
        Images that kept posterior and label of the table that was there (`deploy_prior` ``auto``).
    share : float or None
        Share of positives that posterior and threshold are for; None where no image was new.
    """

    cache: EmbeddingCache
    rows: int
    positives: int
    failures: int
    neighbours: EmbeddingCache | None = None
    concepts: dict[str, int] | None = None
    new_images: NewImages | None = field(default=None, compare=False)
    kept: int = 0
    share: float | None = field(default=None, compare=False)


def score(
    model: str | Path | PULinearClassifier | ConceptModels,
    images: str | Path | Sequence[str | Path] | EmbeddingCache | Source,
    out: str | Path = "scores.csv",
    *,
    cache: str | Path | None = None,
    neighbours: CacheLike | None = None,
    deploy_prior: float | str | None = None,
    exclusive: bool = False,
    append: bool = False,
    day: str | None = None,
    moved: bool = False,
    largest_part: bool = False,
    weights: str | Path | Encoder | None = None,
    device: str = "auto",
    precision: str = "auto",
    runtime: str = "auto",
    batch_size: int | None = None,
    shard: tuple[int, int] = (1, 1),
    force: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> ScoreReport:
    """Write key, margin, posterior and label of every image, in cache order.

    With `neighbours`, the margin column holds the score with neighbours (`pucache.scoring.neighbour_scores`), and
    posterior and label are by the tilt and the threshold that the model has for it. The posterior is empty where the
    model has fewer than 30 labelled positives. The share of positives is
    `PULinearClassifier.share_` in both cases. No label is needed. Images of the pile itself are left out of their own
    neighbours where `images` is the same cache. A cluster scores by `pucache.score_shards`.

    Parameters
    ----------
    model : PULinearClassifier, ConceptModels, or path of a model or of a folder of models
        A folder of models scores in one pass into one wide table: key, and for each concept CONCEPT_margin,
        CONCEPT_posterior and CONCEPT_label.
    images : EmbeddingCache, Source, str, path, or sequence of paths
        Caches, or a source of images, which are embedded first with the encoder of the model.
    out : path or URL
        ``.csv``, or ``.parquet``.
    cache : path or URL, optional
        Cache that images are embedded into; by default beside `out`, with the suffix ``.h5``.
    neighbours : EmbeddingCache, path, or sequence of paths, optional
        Pile of the model's encoder, such as the cache that it was trained on, in which the images' neighbours are
        searched. Only for a model that chose a weight for neighbours.
    deploy_prior : float or "auto", optional
        Share of positives that posterior and threshold are for, in place of that of the model. ``auto`` estimates it
        from the new images (`pucache.check_new_images`); images that a table at `out` holds with the same margin are
        not new then, and keep posterior and label.
    exclusive : bool
        Only for a folder of models: an image has one of the concepts at most. Posteriors then sum to at most one, one
        label is 1 at most, and a column ``kind`` names the concept (`pucache.training.concept_models.ExclusiveKinds`).
    append : bool
        Keep the rows of other sources that the table at `out` holds, and those of this source whose images are not
        scored now. It then has the columns source, day and model too, and by default `cache` is a file for each source,
        ``OUT.SOURCE.h5``.
    day : str, optional
        Only with `append`: ISO date of rows that are new, which is never taken from the clock.
    moved : bool
        Only for images: see `pucache.embed`. With `append`, rows of the source take its new name.
    largest_part : bool
        Only for a model of parts of images: write a row for each image, the scores of its part with the largest margin,
        and in the column part where that lies.
    weights, device, precision, runtime, batch_size
        Only for images: of the encoder, see `pucache.load_encoder`; as weights also the encoder itself, of
        `pucache.Encoder.of`.
    shard, workers
        Only for images: see `pucache.embed`.
    force : bool
        Replace a file at `out` that is no table of scores of this format; never a file that is read.
    progress : Progress, optional
        Of the embedding, and of the search for neighbours.

    Returns
    -------
    ScoreReport

    Raises
    ------
    ModelError
        The model is of another encoder, or its encoder cannot be loaded; `neighbours` for a model that chose no
        weight for them; `deploy_prior` ``auto`` where no share can be estimated, or for a model of before 0.3.
    CacheError
        A cache is damaged, or holds embeddings that are not finite.
    OutputError, MissingExtraError
        The output cannot be written.
    ValueError
        The output has another suffix; options of embedding where a cache is scored; a pile without rows;
        `deploy_prior` with `neighbours`; a `deploy_prior` outside (0, 1); `append` for caches of several sources; a
        `day` before one in the table.
    LabelError
        The table that is to grow cannot be read, or holds scores of another model.
    CacheLockedError
        Another `score` grows the table.
    """
    check_table(out, inputs=files_read(model, images, neighbours), force=force)
    model, pile = open_model(model), None
    if isinstance(model, ConceptModels):
        for name, value in {"neighbours": neighbours, "deploy_prior": deploy_prior}.items():
            if value is not None:
                raise ValueError(f"{name} is for one model; leave it out with a folder of models")
    else:
        if exclusive:
            raise ValueError("exclusive is for the concepts of a folder of models; leave it out with one model")
        if neighbours is not None and deploy_prior is not None:
            raise ValueError("neighbours have a threshold of their own; leave out deploy_prior, or neighbours")
        model = at_given_share(model, deploy_prior)
        if neighbours is not None:  # is checked before images are embedded
            from .neighbour_scores import Pile  # imports torch

            pile = Pile.of(model, neighbours)
    if largest_part:
        _check_parts(model, append=append)
    if day is not None and not append:
        raise ValueError("a day is for a table that grows; add append, or leave it out")
    encoder = EncoderOptions(
        weights=weights, device=device, precision=precision, runtime=runtime, batch_size=batch_size
    )
    with one_writer(out) if append else nullcontext():
        # the growing table is checked before images are embedded
        growing = _growing(model, out, day, pile, exclusive) if append else None
        source = _source_of(images)
        if source is None:
            _refuse({"cache": cache, "workers": workers, "moved": moved or None}, shard, encoder)
            opened = open_cache(images)  # type: ignore[arg-type]
        else:
            options = {"shard": shard, "moved": moved}
            run: dict[str, Any] = {"workers": workers, "progress": progress}
            opened = _embedded(model, source, out, cache, encoder, growing, options, **run)
        report = planned(model, opened)
        if isinstance(model, ConceptModels):
            return _score_concepts(model, report, out, growing, exclusive)
        earlier = earlier_scores(model, opened, out, growing) if deploy_prior == "auto" else None
        new = None if earlier is None else np.flatnonzero(~earlier.known)
        model, report = with_new_images(model, report, deploy_prior, new)
        rows = scored_rows(model, opened) if pile is None else pile.scored_rows(opened, progress)
        rows = rows if earlier is None else earlier.kept(rows)
        if largest_part:
            of_images = by_image(rows)
            sums = write_table(out, BY_IMAGE_TYPES, [of_images])
            report = replace(report, rows=len(of_images["key"]))
        else:
            sums = _write(opened, out, TYPES, rows, growing)
        return replace(report, positives=sums["label"], neighbours=None if pile is None else pile.cache)


def _embedded(
    model: PULinearClassifier | ConceptModels,
    images: str | Source,
    out: str | Path,
    cache: str | Path | None,
    encoder: EncoderOptions,
    growing: GrowingTable | None,
    options: dict[str, Any],
    **run: Any,
) -> EmbeddingCache:
    """The cache of the embeddings of a source of images by the model's encoder, which is written or updated."""
    from ..embedding.embed import EmbedOptions, run_embedding
    from ..images.source import open_source

    if cache is None:
        name = images if isinstance(images, str) else images.name
        cache = os.path.splitext(out)[0] + ".h5" if growing is None else cache_of_source(out, name)
    moved = options["moved"] and not is_url(cache) and Path(cache).is_file()
    before = CacheFile(Path(cache)).source if moved else None
    open_destination(cache).check()
    source = open_source(images) if isinstance(images, str) else images  # missing? before the encoder is loaded
    opened = encoder_of(model, encoder, encoder_of_existing(cache))
    report = run_embedding(source, cache, opened, options=EmbedOptions(**options), **run)
    if report.range_note:
        log.warning("%s", report.range_note)
    embedded = EmbeddingCache(report.cache)
    if growing is not None and before:
        growing.rename(before, _one_source(embedded))
    return embedded


def _check_parts(model: PULinearClassifier | ConceptModels, *, append: bool) -> None:
    """Raise ValueError where the largest part of each image is asked for and there are no parts, or no one table."""
    if append or isinstance(model, ConceptModels):
        raise ValueError("scores by image are of one model, in one table that is written anew; leave out by image")
    if model.encoder_ is None or not model.encoder_.tiles:
        raise ValueError(f"the model was trained on whole images ({model.encoder_}); leave out by image")


def _score_concepts(
    models: ConceptModels, report: ScoreReport, out: str | Path, growing: GrowingTable | None, exclusive: bool
) -> ScoreReport:
    """Write a wide table."""
    rows = prefetch(_wide_rows(models, report.cache, exclusive), ahead=_BLOCKS_AHEAD)
    sums = _write(report.cache, out, wide_types(models, exclusive=exclusive), rows, growing)
    counts = {name: sums[f"{name}_label"] for name in models}
    return replace(report, positives=sum(counts.values()), concepts=counts)


def _write(
    cache: EmbeddingCache,
    table: str | Path,
    types: Mapping[str, str],
    rows: Iterable[ScoredRows],
    growing: GrowingTable | None,
) -> dict[str, int]:
    """Write the rows of a cache as a table, or into one that grows; returns the sum of each column of labels."""
    return write_table(table, types, rows) if growing is None else growing.write(_one_source(cache), rows)


def _growing(
    model: PULinearClassifier | ConceptModels, out: str | Path, day: str | None, pile: Pile | None, exclusive: bool
) -> GrowingTable:
    """The table that grows, after a check that it holds scores of this model."""
    types = wide_types(model, exclusive=exclusive) if isinstance(model, ConceptModels) else TYPES
    of_pile = "" if pile is None else f"{pile.cache.checksums}"
    growing = GrowingTable(out, types, model_digest(model, of_pile), day)

    def fits(columns: dict[str, Any]) -> bool:
        if exclusive:
            raise LabelError(f"{out} names no model, as it was written without --append; name another table")
        models = model if isinstance(model, ConceptModels) else {"": model}
        return pile is None and all(_gives(one, columns, f"{name}_" * bool(name)) for name, one in models.items())

    growing.check_unnamed(fits)
    return growing


def _gives(model: PULinearClassifier, columns: dict[str, Any], prefix: str) -> bool:
    """Whether posteriors and labels in a table are those that a model gives to the margins, up to their rounding."""
    margin, posterior, label = (columns[prefix + name] for name in ("margin", "posterior", "label"))
    expected = with_posterior(model, columns["key"], margin)
    near = np.abs(margin - model.threshold_) <= _ROUNDING * (1 + abs(model.threshold_))
    if expected["posterior"] is None:
        return bool(np.isnan(posterior).all() and (near | (label == expected["label"])).all())
    same = np.isclose(posterior, expected["posterior"], rtol=_ROUNDING, atol=_ROUNDING)
    return bool((same & (near | (label == expected["label"]))).all())


def _one_source(cache: EmbeddingCache) -> str:
    """Name of the source of a cache's images, or of the cache where that is not known."""
    sources = {CacheFile(file.path).source for file in cache.files}
    if len(sources) > 1:
        raise ValueError(f"{cache.name} holds images of {len(sources)} sources; append them one at a time")
    return sources.pop() or without_secrets(cache.name)


def open_model(
    model: str | Path | PULinearClassifier | ConceptModels,
) -> PULinearClassifier | ConceptModels:
    """The model itself, or what is read from its file, or from a folder of models."""
    if isinstance(model, PULinearClassifier | ConceptModels):
        return model
    return ConceptModels.load(model) if os.path.isdir(model) else PULinearClassifier.load(model)


def _wide_rows(models: ConceptModels, cache: EmbeddingCache, exclusive: bool) -> Iterator[dict[str, Any]]:
    """Keys of all rows, in blocks, and margin, posterior and label by each model; the bytes read are verified."""
    has_points = {name: label_count(model).has_points for name, model in models.items()}
    names = np.array([*(name.encode() for name in models), b""])
    exclusive_kinds = ExclusiveKinds(models.values()) if exclusive else None
    for rows, margins in models.margins_of(cache):
        columns: dict[str, Any] = {"key": cache.keys.encoded(rows)}
        of_models = np.ascontiguousarray(margins.T)
        if exclusive_kinds is not None:
            posteriors, kinds = exclusive_kinds.of(margins)
            posteriors, labels = posteriors.T, kinds == np.arange(len(models))[:, None]
            columns["kind"] = names[kinds]
        else:
            posteriors, labels = _one_by_one(models, of_models)
        for name, margin, posterior, label in zip(models, of_models, posteriors, labels, strict=True):
            columns |= {f"{name}_margin": margin, f"{name}_posterior": posterior if has_points[name] else None}
            columns[f"{name}_label"] = label.astype(np.int8)
        yield columns


def _one_by_one(models: ConceptModels, margins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Posteriors and labels, (K, b) each, of concepts that do not exclude each other, given their margins (K, b)."""
    thresholds = np.array([[model.threshold_] for model in models.values()], np.float32)
    slopes = np.array([[model.tilt_.slope] for model in models.values()], np.float32)
    offsets = np.array([[model.tilt_.offset(model.share_)] for model in models.values()], np.float32)
    return expit(slopes * margins + offsets), margins > thresholds


def at_given_share(model: PULinearClassifier, deploy_prior: float | str | None) -> PULinearClassifier:
    """The model for a share of positives that is given as a number; as it is for None and ``auto``."""
    if isinstance(deploy_prior, str) and deploy_prior != "auto":
        raise ValueError(f"deploy_prior must lie strictly between 0 and 1, or be auto; got {deploy_prior!r}")
    return model if deploy_prior is None or isinstance(deploy_prior, str) else model.at_share(float(deploy_prior))


def with_new_images(
    model: PULinearClassifier, report: ScoreReport, deploy_prior: float | str | None, rows: np.ndarray | None = None
) -> tuple[PULinearClassifier, ScoreReport]:
    """Look at the new rows, all by default; return the model, for their share where that is ``auto``, and the report.

    Raises `ModelError` where it is ``auto`` and no share can be estimated.
    """
    kept = 0 if rows is None else report.rows - len(rows)
    new = None if kept and kept == report.rows else check_new_images(model, report.cache, rows=rows)
    if deploy_prior == "auto" and new is not None:
        if new.share is None or new.share.prior is None:
            raise ModelError(f"no share of positives to decide at: {new.note}; give a number as deploy prior, or none")
        model = model.at_share(float(np.clip(new.share.prior, _LEAST_SHARE, 1 - _LEAST_SHARE)))
    return model, replace(report, new_images=new, kept=kept, share=None if new is None else model.share_)


def earlier_scores(
    model: PULinearClassifier, cache: EmbeddingCache, table: str | Path, growing: GrowingTable | None = None
) -> EarlierScores | None:
    """Scores that an earlier run of this model left at `table`; None where there are none, or of another model."""
    if is_url(table) or not Path(table).is_file():
        return None
    try:
        scores = read_scores(table) if growing is None else growing.of_source(_one_source(cache))
        earlier = EarlierScores(scores, cache.keys.encoded(slice(None)))
    except LabelError:  # whatever it is, it is written anew
        return None
    rows = np.flatnonzero(earlier.known)
    rows = rows[:: max(1, len(rows) // _CHECKED)]
    return earlier if len(rows) and earlier.same_margin(rows, model.margins(cache.take(rows))).all() else None


def planned(model: PULinearClassifier | ConceptModels, cache: EmbeddingCache) -> ScoreReport:
    """Check everything before work; return the report but for the positives."""
    model.check_fits(cache)
    cache.check("keys")
    return ScoreReport(cache, len(cache), 0, len(cache.failures))  # damage is noticed before anything is written


def scored_rows(model: PULinearClassifier, cache: EmbeddingCache) -> Iterator[ScoredRows]:
    """Score all rows with a model, in blocks; the bytes read are verified."""
    for rows, margins in prefetch(model.margins_of(cache)):
        yield with_posterior(model, cache.keys.encoded(rows), margins)


def with_posterior(model: PULinearClassifier, key: np.ndarray, margins: np.ndarray) -> ScoredRows:
    """Scored rows of a model, given their keys and margins."""
    labels = (margins > np.float32(model.threshold_)).astype(np.int8)
    posterior = model.posterior(margins) if label_count(model).has_points else None
    return {"key": key, "margin": margins, "posterior": posterior, "label": labels}


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


def encoder_of(
    model: PULinearClassifier | ConceptModels, options: EncoderOptions, existing: EncoderSpec | None = None
) -> Encoder | DeferredEncoder:
    """Open the encoder that a model was trained on, as in an `existing` cache; raises `ModelError` for another one."""
    from ..encoders.deferred import open_encoder

    expected = model.encoder_
    if expected is None or expected.name.startswith("imported:"):
        raise ModelError(
            f"the model was trained on {expected or 'bare arrays'}, which pucache cannot make; score a cache"
        )
    options = replace(options, name=expected.name, decoding=Decoding.of(expected.decoder), tiles=expected.tiles)
    opened = options.load(like=expected) if existing is None else open_encoder(options, like=existing)
    differing = expected.differences(opened.spec, ignoring=ROUNDING)
    if differing:
        raise ModelError(
            f"the model expects {expected}; the encoder at hand is {opened.spec} (they differ in "
            f"{', '.join(differing)}): pass the weights it was trained with as --weights FILE"
        )
    return opened
