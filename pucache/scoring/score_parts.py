"""Scored rows of a cache by a model, and the tables that hold them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from ..cache.destination import atomic_output
from ..cache.embedding_cache import EmbeddingCache
from ..cache.keys import Keys
from ..errors import CacheError
from ..storage.atomic import check_writable
from ..storage.prefetch import prefetch
from ..storage.urls import is_url, path_or_url, without_secrets
from ..training.sklearn_classifier import PULinearClassifier
from .score_tables import FORMATS, ScoredRows, check_output, open_table
from .surplus_tables import refuse_surplus_tables


class CacheRows(Protocol):
    """A cache, or consecutive rows of one (`pucache.cache.row_range.RangeRows`)."""

    @property
    def keys(self) -> Keys:
        """Keys in row order."""

    def __len__(self) -> int: ...

    def blocks(self, *, check: bool = False) -> Iterator[tuple[slice, np.ndarray]]:
        """As `EmbeddingCache.blocks`."""

    def not_finite_error(self, rows: np.ndarray) -> CacheError:
        """As `EmbeddingCache.not_finite_error`."""


def scored_rows(model: PULinearClassifier, cache: CacheRows) -> Iterator[ScoredRows]:
    """Score all rows with a model, in blocks; the bytes read are verified.

    Parameters
    ----------
    model : PULinearClassifier
    cache : CacheRows

    Yields
    ------
    ScoredRows
    """
    for rows, margins in prefetch(model.margins_of(cache)):  # type: ignore[arg-type]
        yield with_posterior(model, cache.keys.encoded(rows), margins)


def with_posterior(model: PULinearClassifier, key: np.ndarray, margins: np.ndarray) -> ScoredRows:
    """Scored rows of a model, given their keys and margins."""
    labels = (margins > np.float32(model.threshold_)).astype(np.int8)
    return ScoredRows(key, margins, model.posterior(margins), labels)


def write_table(out: str | Path, blocks: Iterable[ScoredRows]) -> int:
    """Write a table of scores as a whole, or not at all; returns the number of rows above the threshold.

    Raises
    ------
    OutputError
        It cannot be written.
    """
    positives = 0
    with atomic_output(out) as temporary, open_table(temporary, out) as write:
        for rows in blocks:
            positives += int(rows.label.sum())
            write(rows)
    return positives


def part_outputs(cache: EmbeddingCache, folder: str | Path, suffix: str, inputs: Iterable[str | Path]) -> list[str]:
    """Tables of the files of a cache, in their order; checked to be writable before any work.

    Parameters
    ----------
    cache : EmbeddingCache
    folder : path or URL
    suffix : {"csv", "parquet"}
    inputs : iterable of str or path
        Files that must not be overwritten.

    Returns
    -------
    list of str
        ``FOLDER/NAME.csv`` of the cache file ``NAME.h5``.

    Raises
    ------
    ValueError
        Another suffix; two files have one name; or `folder` has the name of a table.
    OutputError, MissingExtraError
        A table cannot be written; or `folder` holds tables of shards that are gone.
    """
    folder, inputs = path_or_url(folder), list(inputs)
    if suffix not in FORMATS:
        raise ValueError(f"parts are tables of {' or '.join(FORMATS)}, got {suffix!r}")
    if os.path.splitext(folder)[1].lower().lstrip(".") in FORMATS:
        raise ValueError(
            f"parts are written to a folder, a table for each cache file, and {without_secrets(folder)} is the name of "
            "a table; name a folder as out"
        )
    stems = [file.path.stem for file in cache.files]
    twice = next((stem for stem in stems if stems.count(stem) > 1), None) if len(set(stems)) < len(stems) else None
    if twice is not None:
        raise ValueError(
            f"two cache files are called {twice}.h5, and their parts would be one; rename one, or score each"
        )
    parts = [f"{folder.rstrip('/') or '/'}/{stem}.{suffix}" for stem in stems]
    refuse_surplus_tables(folder, parts, [file.path for file in cache.files])
    for part in parts[:1] if is_url(folder) else parts:  # one request tells whether a store can be written to
        check_output(part, inputs=inputs)
    return parts


def write_part(model: PULinearClassifier, rows: CacheRows, out: str) -> int:
    """Score the rows of one cache file into its table; returns the number of rows above the threshold."""
    if not is_url(out):
        check_writable(out)  # removes what a killed worker has left
    return write_table(out, scored_rows(model, rows))
