"""Scores of a folder of shards: a Ray task sends the margins of each, and the driver writes the table.

It is that of one machine, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..cache.embedding_cache import CacheLike, files_read, open_cache
from ..scoring.score import ScoreReport, at_given_share, planned, with_new_images, with_posterior
from ..scoring.score_tables import TYPES, ScoredRows, check_table, write_table
from ..training.sklearn_classifier import PULinearClassifier
from .shards import Shard, check_readable, shards_of

_ROWS_PER_BLOCK = 1 << 16  # whose keys are in memory at once


def score_shards(
    model: str | Path | PULinearClassifier,
    cache: CacheLike,
    out: str | Path = "scores.csv",
    *,
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
    out : path or URL
        As of `pucache.score`.
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

    check_table(out, inputs=files_read(model, cache), force=force)
    if not isinstance(model, PULinearClassifier):
        model = PULinearClassifier.load(model)
    model = at_given_share(model, deploy_prior)
    with cluster_tasks(address, workers) as tasks:
        cache = open_cache(cache)
        model, report = with_new_images(model, planned(model, cache), deploy_prior)
        shards = shards_of(cache)
        check_readable(tasks, shards)

        def rows() -> Iterator[ScoredRows]:
            for shard, margins in zip(shards, tasks.map(_margins, model, shards), strict=True):
                for start in range(0, len(margins), _ROWS_PER_BLOCK):
                    part = margins[start : start + _ROWS_PER_BLOCK]
                    first = shard.rows.start + start
                    yield with_posterior(model, cache.keys.encoded(slice(first, first + len(part))), part)

        return replace(report, positives=write_table(out, TYPES, rows())["label"])


def _margins(model: PULinearClassifier, shard: Shard) -> np.ndarray:
    """Margins of a shard, float32 (n,)."""
    return model.all_margins(shard.open())
