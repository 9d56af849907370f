"""The interface to worker processes that read ranges of a cache, wherever they run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Protocol

from .embedding_cache import EmbeddingCache
from .row_range import file_ranges, reading_problem


class Workers(Protocol):
    """Worker processes, such as `pucache.distributed.workers.RayWorkers`."""

    def check(self, problem: Callable[[], str], packages: Iterable[str]) -> None:
        """Check every machine; raises `EngineError` where `problem` is not empty there."""

    def map(self, function: Callable[[Any, Any], Any], shared: Any, items: Iterable[Any]) -> Iterator[Any]:
        """Yield function(shared, item) of every item, in order."""


def check_workers(workers: Workers, cache: EmbeddingCache) -> None:
    """Check that every machine has this pucache, and can read the cache's first file.

    Raises
    ------
    EngineError
        One has not, or cannot.
    """
    workers.check(partial(reading_problem, file_ranges(cache)[0]), ("numpy",))
