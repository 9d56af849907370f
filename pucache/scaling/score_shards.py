"""Scores of a folder of shards, each scored by one Ray task; the tables are those of one machine, byte for byte.

With `parts` a task writes the table of its shard; for one table it sends the margins, and the driver writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..cache.cache_sources import files_read
from ..cache.embedding_cache import CacheLike, open_cache
from ..scoring.score import ScoreReport, at_given_share, planned, scored_rows, with_new_images, with_posterior
from ..scoring.score_tables import ScoredRows, check_table, write_scores
from ..storage.atomic import check_writable
from ..storage.urls import is_url
from ..training.sklearn_classifier import PULinearClassifier
from .shards import Shard, absolute, check_readable, probe_file, shards_of

_ROWS_PER_BLOCK = 1 << 16  # whose keys are in memory at once


def score_shards(
    model: str | Path | PULinearClassifier,
    cache: CacheLike,
    out: str | Path = "scores.csv",
    *,
    parts: str | None = None,
    deploy_prior: float | str | None = None,
    force: bool = False,
    workers: int | None = None,
    address: str | None = None,
) -> ScoreReport:
    """Write key, margin, posterior and label of every row of a cache; a Ray task scores each of its files.

    Parameters
    ----------
    model : PULinearClassifier, or path of a model
    cache : EmbeddingCache, path, or sequence of paths
        Files that every node sees at the same path, or URLs.
    out, parts
        See `pucache.score`; with `parts` every node must see the folder `out`, unless it is a URL.
    deploy_prior : float or "auto", optional
        As of `pucache.score`; with ``auto`` all images are new.
    force : bool
        As of `pucache.score`.
    workers : int, optional
        Tasks that run at once; by default all that have a core.
    address : str, optional
        Of a running cluster, see `pucache.scaling.tasks.cluster_tasks`; by default this machine alone.

    Returns
    -------
    ScoreReport

    Raises
    ------
    EngineError
        The cluster cannot be reached, a node cannot do the work, or workers died again and again at one file.
    PUCacheError, ValueError
        As `pucache.score`.
    """
    from .tasks import cluster_tasks  # needs the extra ray

    if parts is None:
        check_table(out, inputs=files_read(model, cache), force=force)
    if not isinstance(model, PULinearClassifier):
        model = PULinearClassifier.load(model)
    model = at_given_share(model, deploy_prior)
    with cluster_tasks(address, workers) as tasks, ExitStack() as stack:
        cache = open_cache(cache)
        report, tables = planned(model, cache, out, parts, force=force)
        model, report = with_new_images(model, report, deploy_prior)
        shards = shards_of(cache)
        check_readable(tasks, shards, stack.enter_context(probe_file(out)) if parts else "")
        if parts:
            paths = {str(shard): absolute(table) for shard, table in zip(shards, tables, strict=True)}
            return replace(report, positives=sum(tasks.map(_write_table, (model, paths), shards)))

        def rows() -> Iterator[ScoredRows]:
            for shard, margins in zip(shards, tasks.map(_margins, model, shards), strict=True):
                for start in range(0, len(margins), _ROWS_PER_BLOCK):
                    part = margins[start : start + _ROWS_PER_BLOCK]
                    first = shard.rows.start + start
                    yield with_posterior(model, cache.keys.encoded(slice(first, first + len(part))), part)

        return replace(report, positives=write_scores(out, rows()))


def _write_table(job: tuple[PULinearClassifier, dict[str, str]], shard: Shard) -> int:
    """Write the table of a shard; returns the number of positives."""
    model, paths = job
    out = paths[str(shard)]
    if not is_url(out):
        check_writable(out)  # removes what a killed worker has left
    return write_scores(out, scored_rows(model, shard.open()))


def _margins(model: PULinearClassifier, shard: Shard) -> np.ndarray:
    """Margins of a shard, float32 (n,)."""
    return model.all_margins(shard.open())
