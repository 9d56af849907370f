"""What runs in Ray's worker processes: a function of pucache, applied to one item at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import ray

from ..errors import picklable_error

Outcome = tuple[Any, Exception | None]


def apply(function: Callable[[Any, Any], Any], shared: list[ray.ObjectRef], item: Any) -> Outcome:
    """Apply ``function(shared value, item)``; returns its result, or its exception, which Ray would wrap."""
    _prepare_process()
    try:
        return function(_received(shared[0]), item), None
    except Exception as error:
        return None, picklable_error(error)


@lru_cache(1)
def _received(reference: ray.ObjectRef) -> Any:
    """The value that all items share; unpickled once in a process."""
    return ray.get(reference)


@lru_cache(1)
def _prepare_process() -> None:
    """Give the process one thread for numerical work, as Ray runs one task per core."""
    from threadpoolctl import threadpool_limits

    from ..allocator import keep_freed_memory

    keep_freed_memory()
    os.environ["OMP_NUM_THREADS"] = "1"  # read by torch and faiss when they are loaded
    threadpool_limits(1)
