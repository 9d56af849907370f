"""Queries: words, pictures from elsewhere, or vectors, by which a cache is ranked before anything is labelled.

A query ranks and is no label: what it finds is no fair sample of the positives, as with every ranking.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..cache.local_copies import parent_folder
from ..embedding.embed import run_embedding
from ..encoders.deferred import EncoderOptions
from ..encoders.spec import BUNDLED, ROUNDING, EncoderSpec
from ..errors import EncoderError, LabelError, one_line
from ..images.decoding import Decoding
from ..images.listing import is_image
from ..images.source import open_source
from ..labels.labels import PULabels
from ..progress import Progress, Silent
from ..storage.atomic import open_regular
from ..storage.urls import without_secrets
from ..threads import limited_threads, worker_threads
from .ranking import Scores
from .scorers import Similarity

if TYPE_CHECKING:
    from ..encoders.encoder import Encoder

LikeSource = str | Path | np.ndarray
_RANK_OFFSET = 60  # the usual one of reciprocal rank fusion
_TASK_ROWS = 1 << 12  # that one thread scores at once


@dataclass(frozen=True)
class Query:
    """What is looked for: words, what is like some pictures or vectors, or both; see `pucache.retrieve_positives`."""

    words: tuple[str, ...] = ()
    not_words: tuple[str, ...] = ()
    like: tuple[str, ...] = ()
    # folder of a sentence-transformers model, for words and the bundled encoder
    text_encoder: str | Path | None = field(default=None, compare=False)
    weights: str | Path | Encoder | None = field(default=None, compare=False)
    vectors: tuple[np.ndarray, ...] = field(default=(), compare=False)  # in memory, (m, d) or (d,) each

    def __post_init__(self) -> None:
        for text in (*self.words, *self.not_words):
            if not text.strip():
                raise ValueError("words are empty; say what is looked for, such as 'a dress'")
        for name in ("not_words", "text_encoder"):
            if getattr(self, name) and not self.words:
                raise ValueError(f"{name} goes with words; name some")
        if self.weights and not self:
            raise ValueError("weights are of the cache's encoder, for words or pictures; name some, or leave them out")

    def __bool__(self) -> bool:
        return bool(self.words or self.like or self.vectors)

    def __str__(self) -> str:
        words, not_words = (" or ".join(f"“{text}”" for text in texts) for texts in (self.words, self.not_words))
        sources = [*map(without_secrets, self.like), *["vectors"] * bool(self.vectors)]
        likeness = f"likeness to {', '.join(sources)}" if sources else ""
        if not words:
            return likeness
        return f"the words {words}" + (f", not {not_words}" if not_words else "") + (likeness and f", and {likeness}")

    @classmethod
    def of(
        cls,
        words: str | Iterable[str] = (),
        not_words: str | Iterable[str] = (),
        like: LikeSource | Iterable[LikeSource] = (),
        *,
        text_encoder: str | Path | None = None,
        weights: str | Path | Encoder | None = None,
    ) -> Query:
        """The query of arguments that are one or several of each; raises `ValueError` where they do not fit."""
        texts, others = ((given,) if isinstance(given, str) else tuple(given) for given in (words, not_words))
        sources = [like] if isinstance(like, str | os.PathLike) or _is_array(like) else list(like)  # type: ignore[arg-type]
        vectors = tuple(np.asarray(source) for source in sources if _is_array(source))
        named = tuple(str(source) for source in sources if not _is_array(source))
        return cls(texts, others, named, text_encoder, weights, vectors)

    def to_json(self) -> str:
        """What was asked, as a log records it; without the secrets of URLs."""
        asked = {each.name: getattr(self, each.name) for each in fields(self) if each.compare}
        return json.dumps({name: [without_secrets(text) for text in texts] for name, texts in asked.items() if texts})

    @classmethod
    def from_json(cls, text: str) -> Query:
        """Read what `to_json` wrote; raises `ValueError` or `TypeError` where it is none."""
        asked: dict[str, Any] = {name: tuple(map(str, texts)) for name, texts in json.loads(text).items()}
        return cls(**asked)


@dataclass(frozen=True)
class QueryScorer:
    """Scores rows by a query; labels do not matter."""

    query: Query
    device: str = "auto"

    @property
    def name(self) -> str:
        """Description for messages and pages."""
        return str(self.query)

    def __call__(
        self, cache: EmbeddingCache, labels: PULabels, count: int | None = None, progress: Progress | None = None
    ) -> Scores:
        """Score every row; by words and pictures together by the ranks that each gives it."""
        found, note = [], ""
        if self.query.words:
            score_rows, note = self._by_words(cache)
            found.append(Scores(_by_blocks(cache, score_rows, progress or Silent()), note=note))
        if self.query.like or self.query.vectors:
            given = [_fitting(vectors, "like", cache) for vectors in self.query.vectors]
            vectors = np.concatenate([*given, *(self._vectors(cache, source) for source in self.query.like)])
            found.append(Similarity(device=self.device).of_vectors(cache, vectors, progress))
        if len(found) == 1:
            return found[0]
        # reciprocal rank fusion: the sum of 1 / (60 + rank), whatever the scales of the scores
        ranks = [np.argsort(np.argsort(-each.values, kind="stable"), kind="stable") + 1 for each in found]
        return Scores(np.sum([1 / (_RANK_OFFSET + rank) for rank in ranks], 0).astype(np.float32), note=note)

    def _by_words(self, cache: EmbeddingCache) -> tuple[Callable[[np.ndarray], np.ndarray], str]:
        """Scores of embeddings by the words, and a line on what they stand for."""
        spec, query = cache.encoder, self.query
        if spec.name == BUNDLED and not spec.normalization and query.weights is None:
            from ..encoders.class_words import SAMPLE, score_by_classes  # imports torch and timm

            sample = cache.take(np.unique(np.linspace(0, len(cache) - 1, SAMPLE).astype(np.int64)))
            return score_by_classes(query.words, query.not_words, query.text_encoder, parent_folder(), sample)
        if spec.configuration and query.text_encoder is None:
            from ..encoders.image_text import score_by_text  # imports torch and timm

            score_rows, found = score_by_text(query.words, query.not_words, spec, query.weights)
            _require_encoder(cache, found)
            return score_rows, ""
        raise EncoderError(f"{cache.name} is of {spec}, {_without_words(query, spec)}")

    def _vectors(self, cache: EmbeddingCache, source: str) -> np.ndarray:
        """Embeddings of the pictures of a source, or vectors of a file, float32 (m, d)."""
        if source.lower().endswith(".npy"):
            return _read_vectors(source, cache)
        spec = cache.encoder
        if source.lower().endswith(".h5"):
            raise LabelError(f"{source} is a cache; give the pictures, or a .npy file of their vectors")
        if spec.name.startswith("imported:"):
            raise EncoderError(
                f"{cache.name} is of {spec}, which pucache cannot make of pictures; give a .npy file of their vectors"
            )
        with tempfile.TemporaryDirectory() as folder:
            pictures = open_source(_as_source(source, folder))  # a missing one is reported before the encoder is loaded
            report = run_embedding(pictures, Path(folder, "query.h5"), self._encoder(cache))
            if report.failures:
                key, reason = next(iter(report.failures.items()))
                raise LabelError(f"{len(report.failures):,} pictures cannot be read, such as {key}: {reason}")
            return np.asarray(EmbeddingCache(report.cache).take(np.arange(report.rows)), np.float32)

    def _encoder(self, cache: EmbeddingCache) -> Encoder:
        """The encoder that a cache was made with; raises `EncoderError` where the one at hand is another."""
        spec = cache.encoder
        options = EncoderOptions(spec.name, self.query.weights, self.device, decoding=Decoding.of(spec.decoder))
        options = replace(options, tiles=spec.tiles)
        encoder = options.load(like=spec)
        _require_encoder(cache, encoder.spec)
        if spec.tiles:  # a picture stands for a part, and is taken whole
            encoder.spec = replace(encoder.spec, tiles="1x1")
        return encoder


def _require_encoder(cache: EmbeddingCache, found: EncoderSpec) -> None:
    """Raise `EncoderError` where an encoder is not the one that a cache was made with."""
    differing = cache.encoder.differences(found, ignoring=ROUNDING)
    if differing:
        raise EncoderError(
            f"{cache.name} is of {cache.encoder}; the encoder at hand is {found} (they differ in "
            f"{', '.join(differing)}); name the weights that it was made with"
        )


def _without_words(query: Query, spec: EncoderSpec) -> str:
    """Why words cannot be asked of the embeddings of an encoder, and what to do."""
    if spec.configuration:
        return "which has words of its own; leave out the text encoder"
    if spec.name == BUNDLED and not spec.normalization:
        return "which has its own weights; leave out those of the text encoder"
    if spec.name.startswith("timm:") and "clip" in spec.name:
        return (
            "which has no words, as timm leaves out the projection that they are compared with; embed the images with "
            "--encoder open_clip:MODEL:TAG, or name pictures with --like instead"
        )
    return (
        "which has no words: the bundled encoder and those of open_clip have; name pictures with --like instead, or "
        "embed the images with one of them"
    )


def _as_source(source: str, folder: str) -> str:
    """The source itself, or for one picture a folder below `folder` that holds it."""
    if not (os.path.isfile(source) and is_image(source)):
        return source
    pictures = os.path.join(folder, "pictures")
    os.mkdir(pictures)
    shutil.copy(source, pictures)
    return pictures


def _read_vectors(path: str, cache: EmbeddingCache) -> np.ndarray:
    """Vectors of a ``.npy`` file, as `_fitting` has them."""
    try:
        with open_regular(path) as stream:
            vectors = np.load(stream, allow_pickle=False)
    except Exception as error:  # a damaged header makes numpy raise almost anything
        raise LabelError(f"cannot read the vectors of {path}: {one_line(error)}; {_expected(cache)}") from error
    return _fitting(vectors, path, cache)


def _fitting(vectors: np.ndarray, name: str, cache: EmbeddingCache) -> np.ndarray:
    """Vectors as float32 (m, d); raises `LabelError` where they do not fit the cache."""
    vectors = np.atleast_2d(vectors)
    fits = vectors.ndim == 2 and len(vectors) > 0 and vectors.shape[1] == cache.encoder.dim
    if not fits or vectors.dtype.kind not in "fiu":
        raise LabelError(f"{name} holds {vectors.dtype} of shape {vectors.shape}; {_expected(cache)}")
    with np.errstate(over="ignore"):
        numbers = vectors.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise LabelError(f"{name} holds NaN, infinity, or numbers too large for float32; {_expected(cache)}")
    return numbers


def _expected(cache: EmbeddingCache) -> str:
    return f"expected numbers of shape (m, {cache.encoder.dim}), as {cache.name} has them"


def _is_array(source: Any) -> bool:
    return hasattr(source, "__array__")


def _by_blocks(cache: EmbeddingCache, score_rows: Callable[[np.ndarray], np.ndarray], progress: Progress) -> np.ndarray:
    """Scores of all rows, float32 (n,), computed from groups of rows that the shape alone fixes, one thread each."""
    scores = np.empty(len(cache), np.float32)
    progress.start(len(cache), "comparing")
    with limited_threads(0) as threads, worker_threads(threads) as run_all:
        for rows, X in cache.blocks():
            starts: Sequence[int] = range(0, len(X), _TASK_ROWS)
            tasks = [partial(score_rows, X[start : start + _TASK_ROWS]) for start in starts]
            scores[rows] = np.concatenate(list(run_all(tasks)))
            if np.isnan(scores[rows]).any():
                raise cache.not_finite_error(rows.start + np.flatnonzero(np.isnan(scores[rows])))
            progress.advance(rows.stop - rows.start)
    return scores
