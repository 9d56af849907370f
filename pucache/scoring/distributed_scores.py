"""Scoring of a cache by the worker processes of a cluster; the tables are those of one process, to the byte.

A task scores about 64 MB of embeddings, or one cache file where each file has a table of its own. For one CSV table
workers send rows as text, for one Parquet table they send margins; the driver writes them in row order. Tables of
files are written by the workers where they see the output's folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..cache.destination import atomic_output
from ..cache.embedding_cache import EmbeddingCache
from ..cache.row_range import RowRange, Workers, check_workers, file_ranges, row_ranges
from ..errors import OutputError
from ..storage.atomic import temporary_file
from ..storage.urls import is_url
from ..training.sklearn_classifier import PULinearClassifier
from .score_csv import csv_rows
from .score_parts import scored_rows, with_posterior, write_part, write_table
from .score_tables import CSV_HEADER, ScoredRows, is_parquet

_WORTH_TORCH = 1 << 31  # values of a cache from which on `PULinearClassifier.margins_of` imports torch


@dataclass(frozen=True)
class ScoreJob:
    """What every worker process receives once.

    Attributes
    ----------
    model : PULinearClassifier
    with_torch : bool
        Whether torch converts float16 values, which pays for large caches.
    probe : str
        A file in the output's folder, by which a worker knows that it sees the folder; "" for a URL.
    """

    model: PULinearClassifier
    with_torch: bool = False
    probe: str = ""

    @classmethod
    def of(cls, model: PULinearClassifier, cache: EmbeddingCache, probe: str = "") -> ScoreJob:
        """Job for a cache."""
        return cls(model, len(cache) * cache.encoder.dim >= _WORTH_TORCH, probe)

    def prepare(self) -> None:
        """Import torch where it is used."""
        if self.with_torch:
            import torch  # noqa: F401


@dataclass(frozen=True)
class ScoredText:
    """Rows of a CSV table: their bytes as an array, which travels without a copy, and how many are positive."""

    text: np.ndarray
    positives: int


def csv_text(job: ScoreJob, rows: RowRange) -> ScoredText:
    """Score a range; a task of `score_with_workers`."""
    job.prepare()
    text, positives = bytearray(), 0
    for block in scored_rows(job.model, rows.open()):
        positives += int(block.label.sum())
        for piece in csv_rows(block.key, margin=block.margin, posterior=block.posterior, label=block.label):
            text += piece
    return ScoredText(np.frombuffer(text, np.uint8), positives)


def range_margins(job: ScoreJob, rows: RowRange) -> np.ndarray:
    """Margins of a range, float32 (n,); a task of `score_with_workers`."""
    job.prepare()
    opened = rows.open()
    margins = np.empty(len(opened), np.float32)
    for inside, block in job.model.margins_of(opened):  # type: ignore[arg-type]
        margins[inside] = block
    return margins


@dataclass(frozen=True)
class FileTable:
    """The rows of one file, and where their table is written; errors name the rows."""

    rows: RowRange
    out: str

    def __str__(self) -> str:
        return str(self.rows)


def file_table(job: ScoreJob, table: FileTable) -> int | None:
    """Write the table of one file; returns the number of positives, or None where the folder is not seen."""
    if job.probe and not os.path.exists(job.probe):
        return None
    job.prepare()
    return write_part(job.model, table.rows.open(), table.out)


def score_with_workers(workers: Workers, model: PULinearClassifier, cache: EmbeddingCache, out: str | Path) -> int:
    """Write one table of all rows; returns the number of rows above the threshold.

    Raises
    ------
    ModelError, CacheError, OutputError, MissingExtraError
        As `pucache.scoring.score.score`.
    EngineError
        A machine cannot do the work, or workers died again and again at one range.
    """
    model.check_fits(cache)
    check_workers(workers, cache)
    return _write(workers, ScoreJob.of(model, cache), cache.keys, row_ranges(cache), out)


def _write(workers: Workers, job: ScoreJob, keys: Any, ranges: list[RowRange], out: str | Path) -> int:
    if is_parquet(out):
        return write_table(out, _scored_ranges(workers, job, keys, ranges))
    positives = 0
    with atomic_output(out) as temporary, temporary.open("wb") as stream:
        stream.write(CSV_HEADER)
        for scored in workers.map(csv_text, job, ranges):
            stream.write(scored.text.data)
            positives += scored.positives
    return positives


def _scored_ranges(workers: Workers, job: ScoreJob, keys: Any, ranges: list[RowRange]) -> Iterator[ScoredRows]:
    for rows, margins in zip(ranges, workers.map(range_margins, job, ranges), strict=True):
        yield with_posterior(job.model, keys.encoded(slice(rows.start, rows.start + len(rows))), margins)


def score_parts_with_workers(
    workers: Workers, model: PULinearClassifier, cache: EmbeddingCache, parts: list[str]
) -> int:
    """Write a table of each file; returns the number of rows above the threshold.

    Workers that do not see the folder send their rows to the driver, which writes them.

    Parameters
    ----------
    workers : Workers
    model : PULinearClassifier
    cache : EmbeddingCache
    parts : list of str
        Of `pucache.scoring.score_parts.part_outputs`.
    """
    model.check_fits(cache)
    check_workers(workers, cache)
    files = file_ranges(cache)
    with _probe(parts[0]) as probe:
        job = ScoreJob.of(model, cache, probe)
        absolute = parts if not probe else list(map(os.path.abspath, parts))
        counts = list(workers.map(file_table, job, map(FileTable, files, absolute)))
    for number, positives in enumerate(counts):
        if positives is None:
            part = EmbeddingCache(cache.files[number].path)
            counts[number] = _write(workers, job, part.keys, row_ranges(part), parts[number])
    return sum(counts)


@contextmanager
def _probe(out: str) -> Iterator[str]:
    """Path of a file beside `out` that exists within the block; "" where `out` is a URL."""
    if is_url(out):
        yield ""
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(temporary_file(Path(out).absolute()))
        except OSError as error:
            raise OutputError(f"cannot write beside {out}: {error.strerror or error}; choose another folder") from error
        yield str(file)
