"""Scoring every image of a cache, or of a source of images, with a model or with each model of a folder: `score`.

1. `check_table`: the table can be written, and is no input.
2. `ConceptModels.open`: one model is {"": model}.
3. `Pile.of` where neighbours are searched.
4. `open_cache`; or `_embedded`: images are embedded with the encoder of the model.
5. `check_fits`; `check_same_images`: the table that is there is of the same images.
6. `check_new_images`: the share of positives, and whether the images differ from those of the training. `_decided`:
   the share that posterior and threshold are for, given, of the images, or of the model.
7. `scored_rows`, or `Pile.scored_rows`; `best_parts` for a row an image.
8. `write_table` with the columns of `columns_of`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit

from ..cache.destination import encoder_of_existing, open_destination
from ..cache.embedding_cache import CacheLike, EmbeddingCache, files_read, is_cache, open_cache
from ..cache.importing import are_rows, cache_of_rows
from ..encoders.deferred import EncoderOptions, open_encoder
from ..encoders.spec import ROUNDING, EncoderSpec
from ..errors import ModelError
from ..estimates.thresholds import parse_rule
from ..images.decoding import Decoding
from ..progress import Progress
from ..storage.atomic import format_of
from ..storage.urls import is_url, without_secrets
from ..threads import prefetch
from ..training.concept_models import ConceptModels
from ..training.model_file import FORMAT as MODEL_FORMAT
from ..training.sklearn_classifier import PULinearClassifier
from .neighbour_scores import Pile
from .new_images import NewImages, check_new_images, percent
from .score_tables import (
    Columns,
    best_parts,
    check_same_images,
    check_table,
    columns_of,
    write_table,
)

if TYPE_CHECKING:
    from ..encoders.deferred import DeferredEncoder
    from ..encoders.encoder import Encoder
    from ..images.source import Source

log = logging.getLogger("pucache")
_BLOCKS_AHEAD = 8  # about a row group of Parquet: computed while the one before is written
_ARCHIVES = (".tar", ".zip", ".parquet", ".csv", ".txt")
_SCORES = ".scores"  # before the suffix of a table that is named after its images
AUTO, OWN = "auto", "model"  # shares to decide at, besides numbers


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
        Share of positives among the images, and whether they differ from the pile; None for a folder of models.
    share : float or None
        Share of positives that posterior and threshold are for; None for a folder of models.
    decided : str
        This share, whose it is, and why, in words; "" for a folder of models.
    """

    cache: EmbeddingCache
    rows: int
    positives: int
    failures: int
    neighbours: EmbeddingCache | None = None
    concepts: dict[str, int] | None = None
    new_images: NewImages | None = field(default=None, compare=False)
    share: float | None = field(default=None, compare=False)
    decided: str = field(default="", compare=False)

    def __repr__(self) -> str:
        return f"ScoreReport({self.rows:,} rows, {self.positives:,} above the threshold; {self.decided})"


def score(
    model: str | Path | PULinearClassifier | ConceptModels,
    images: str | Path | Sequence[str | Path] | EmbeddingCache | Source,
    out: str | Path | None = None,
    *,
    cache: str | Path | None = None,
    neighbours: CacheLike | None = None,
    deploy_prior: float | str = AUTO,
    by_image: bool = False,
    weights: str | Path | Encoder | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> ScoreReport:
    """Write key, margin, posterior and label of every image, in cache order.

    Images are first embedded into a cache with the encoder of the model. No label is needed.

    Parameters
    ----------
    model : PULinearClassifier, ConceptModels, or path of a model or of a folder of models
        A folder of models scores in one pass into one wide table: key, and for each concept CONCEPT_margin,
        CONCEPT_posterior and CONCEPT_label. The margins of two concepts may be compared where each has some forty
        labels; the largest then names the kind.
    images : EmbeddingCache, Source, str, path, sequence of paths, or rows in memory
        Caches, or a source of images. Or embeddings by the encoder of the model: an array, a tensor or a DataFrame,
        whose index has the keys, unless it is 0 to n - 1; keys are the numbers of the rows then.
    out : path or URL, optional
        Table to write, ``.csv`` or ``.parquet``; by default NAME.scores.csv, after the cache or source.
    cache : path or URL, optional
        Cache that images are embedded into; by default beside `out`, with the suffix ``.h5``.
    neighbours : EmbeddingCache, path, or sequence of paths, optional
        Pile of the model's encoder, such as the cache that it was trained on, in which the images' neighbours are
        searched. Only for a model that chose a weight for neighbours: margin, posterior and label then follow the
        image and its neighbours.
    deploy_prior : float, "auto" or "model"
        Share of positives that posterior and threshold are for. ``auto`` is the share that is estimated among these
        images (`pucache.check_new_images`), where they are at least 1,000 and do not differ from those of the training,
        the model has at least 40 labelled positives, and the interval excludes the model's own share; otherwise, for
        images that it was trained on, with `neighbours`, for a folder of models, and for one that was trained with a
        `deploy_prior`, it is the model's own.
        ``model`` is the model's own.
    by_image : bool
        Of a model of parts of images, a row for each image: the scores of its part with the largest margin, and in the
        column part where that lies.
    weights : path or Encoder, optional
        Of the encoder, where they are not found; or the encoder itself, of `pucache.Encoder.of`.
    device : str
        Of the encoder: auto, cpu, cuda or cuda:N.
    progress : Progress, optional

    Returns
    -------
    ScoreReport

    Raises
    ------
    ModelError
        The model cannot be read, or is of another encoder.
    SourceError, CacheError
        The images cannot be listed; the cache is damaged, or of another encoder or source.
    OutputError
        The table cannot be written, or is one of another source.
    ValueError
        Arguments that do not go together.
    """
    if are_rows(images):
        if out is None:
            raise ValueError("rows in memory have no name: give the table to write, score(model, X, 'scores.csv')")
        images = cache_of_rows(images, ConceptModels.open(model).encoder_)
    source = _source_of(images)
    out = default_out(images) if out is None else out
    check_table(out, inputs=files_read(model, images, neighbours))
    models = ConceptModels.open(model)
    given = _given_share(deploy_prior)
    _check_request(models, neighbours=neighbours, deploy_prior=given, by_image=by_image or None)
    own = models[""] if models.is_one else None
    at_given = own.at_share(given) if own is not None and given is not None else None
    pile = None
    if neighbours is not None:  # is checked before images are embedded
        pile = Pile.of(models[""], neighbours)
    if source is None:
        unused = {"cache": cache, "weights": weights, "device": None if device == "auto" else device}
        if named := ", ".join(name for name, value in unused.items() if value is not None):
            raise ValueError(f"{named} is for images that are to be embedded, and none are given; leave it out")
        opened = open_cache(images)  # type: ignore[arg-type]
    else:
        cache = os.path.splitext(out)[0].removesuffix(_SCORES) + ".h5" if cache is None else cache
        opened = _embedded(models, source, cache, EncoderOptions(weights=weights, device=device), progress)
    models.check_fits(opened)
    opened.check("keys")  # damage is noticed before anything is written
    check_same_images(out, opened.keys)
    new = None if own is None else check_new_images(own, opened)
    decided = ""
    if own is not None and new is not None:
        share, decided = _decided(own, new, deploy_prior, with_neighbours=pile is not None)
        models = ConceptModels({"": at_given or (own if share is None else own.at_share(share))})
    rows = scored_rows(models, opened) if pile is None else pile.scored_rows(opened, progress)
    blocks = [best_parts(rows)] if by_image else rows
    written, sums = write_table(out, columns_of(models, by_image=by_image), blocks)
    counts = {name: sums[f"{name}_label" if name else "label"] for name in models}
    return ScoreReport(
        cache=opened,
        rows=written,
        positives=sum(counts.values()),
        failures=len(opened.failures),
        neighbours=None if pile is None else pile.cache,
        concepts=None if models.is_one else counts,
        new_images=new,
        share=models[""].share_ if models.is_one else None,
        decided=decided,
    )


def _check_request(models: ConceptModels, **asked: Any) -> None:
    """Raise ValueError for arguments that do not go together."""
    for name, value in asked.items() if not models.is_one else ():
        if value is not None:
            raise ValueError(f"{name} is for one model; leave it out with a folder of models")
    if asked["neighbours"] is not None and asked["deploy_prior"] is not None:
        raise ValueError("neighbours have a threshold of their own; leave out deploy_prior, or neighbours")
    if asked["by_image"] and (models.encoder_ is None or not models.encoder_.tiles):
        raise ValueError(f"the model was trained on whole images ({models.encoder_}); leave out by image")


def _given_share(deploy_prior: float | str) -> float | None:
    """The share that is given as a number; None for `AUTO` and `OWN`."""
    if deploy_prior in (AUTO, OWN):
        return None
    if not isinstance(deploy_prior, Real) or not 0 < deploy_prior < 1:
        raise ValueError(
            f"deploy_prior must be {AUTO}, {OWN}, or lie strictly between 0 and 1; got {deploy_prior!r:.40}"
        )
    return float(deploy_prior)


def _decided(
    model: PULinearClassifier, new: NewImages, deploy_prior: float | str, *, with_neighbours: bool
) -> tuple[float | None, str]:
    """The share to decide at, None for that of the model, and in words which share it is and why."""
    of = "threshold for"
    if parse_rule(model.threshold)[0] == "margin":
        of = "threshold as given, a margin; posterior for"
    if deploy_prior not in (AUTO, OWN):
        return float(deploy_prior), f"{of} {percent(float(deploy_prior))} positives, as given"
    own, share, why = "the share of the model", None, ""
    if model.prior_ is not None or model.deploy_prior is not None:  # else it is an interval, or assumed
        own = f"{percent(model.share_)}, {own}"
    if deploy_prior == AUTO:
        if with_neighbours:
            why = ": the threshold with neighbours is for it"
        elif model.deploy_prior is not None:
            why = ": it was trained with it as deploy prior"
        else:
            share, why = new.share_to_decide_at, f": {new.why_own_share}"
    if share is None:
        return None, f"{of} {own}{why}"
    return share, f"{of} {percent(share)} positives, the share among the new images (not {own})"


def scored_rows(models: ConceptModels, cache: EmbeddingCache) -> Iterator[Columns]:
    """Keys of all rows, in blocks, and margin, posterior and label by each model; the bytes read are verified."""
    blocks = (
        {"key": cache.keys.encoded(rows), **_scores(models, np.ascontiguousarray(margins.T))}
        for rows, margins in models.margins_of(cache)
    )
    return prefetch(blocks, ahead=_BLOCKS_AHEAD)


def _scores(models: ConceptModels, margins: np.ndarray) -> Columns:
    """Columns of scores by margins (K, b)."""
    if models.is_one:
        (margin,), model = margins, models[""]
        label = (margin > np.float32(model.threshold_)).astype(np.int8)
        return {"margin": margin, "posterior": model.stated_posterior(margin), "label": label}
    fields = [(one.threshold_, one.tilt_.slope, one.tilt_.offset(one.share_)) for one in models.values()]
    thresholds, slopes, offsets = np.array(fields, np.float32).T[:, :, None]
    posteriors, labels = expit(slopes * margins + offsets), (margins > thresholds).astype(np.int8)
    columns: Columns = {}
    for name, margin, posterior, label in zip(models, margins, posteriors, labels, strict=True):
        stated = posterior if models[name].figures_.has_probabilities else None
        columns |= {f"{name}_margin": margin, f"{name}_posterior": stated, f"{name}_label": label}
    return columns


# --- images that are embedded first ------------------------------------------------------------------


def _embedded(
    models: ConceptModels,
    images: str | Source,
    cache: str | Path,
    encoder: EncoderOptions,
    progress: Progress | None,
) -> EmbeddingCache:
    """The cache of the embeddings of a source of images by the model's encoder, which is written or updated."""
    from ..embedding.embed import EmbedOptions, run_embedding
    from ..images.source import open_source

    open_destination(cache).check()
    source = open_source(images)  # missing? before the encoder is loaded
    opened = encoder_of(models.encoder_, encoder, encoder_of_existing(cache))
    report = run_embedding(source, cache, opened, options=EmbedOptions(), progress=progress)
    if report.range_note:
        log.warning("%s", report.range_note)
    return EmbeddingCache(report.cache)


def default_out(images: Any) -> str:
    """Name of the table of scores of some images: NAME.scores.csv."""
    first = images[0] if isinstance(images, list | tuple) and images else images
    name = without_secrets(str(getattr(first, "name", first))).partition("?")[0].rstrip("/")
    stem = os.path.basename(os.path.abspath(name) if not is_url(name) else name)
    stem = os.path.splitext(stem)[0] if stem.endswith((".h5", *_ARCHIVES)) else stem
    return re.sub(r"[^\w.-]", "_", stem) + _SCORES + ".csv"


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


def encoder_of_model(name: str | Path) -> EncoderSpec | None:
    """Encoder that a model of `train_pu` was trained on, where `name` is its file."""
    return _made_here(ConceptModels.open(name).encoder_) if format_of(name) == MODEL_FORMAT else None


def _made_here(expected: EncoderSpec | None) -> EncoderSpec:
    if expected is None or expected.name.startswith("imported:"):
        raise ModelError(
            f"the model was trained on {expected or 'bare arrays'}, which pucache cannot make; score a cache"
        )
    return expected


def encoder_of(
    expected: EncoderSpec | None, options: EncoderOptions, existing: EncoderSpec | None = None
) -> Encoder | DeferredEncoder:
    """Open the encoder that a model was trained on, as in an `existing` cache; raises `ModelError` for another one."""
    expected = _made_here(expected)
    options = replace(options, name=expected.name, decoding=Decoding.of(expected.decoder), tiles=expected.tiles)
    opened = options.load(like=expected) if existing is None else open_encoder(options, like=existing)
    differing = expected.differences(opened.spec, ignoring=ROUNDING)
    if differing:
        raise ModelError(
            f"the model expects {expected}; the encoder at hand is {opened.spec} (they differ in "
            f"{', '.join(differing)}): PUCACHE_WEIGHTS may name the folder of those that it was trained "
            "with, in Python weights="
        )
    return opened
