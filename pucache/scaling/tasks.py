"""Tasks of whole shards on a Ray cluster: embedding, scoring and ranking run the local code on each shard.

A task whose worker dies is begun again by Ray, `RETRIES` times.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from threadpoolctl import threadpool_limits

from ..allocator import keep_freed_memory
from ..devices import limit_cores
from ..errors import EngineError, picklable_error
from ..threads import thread_defaults
from .cluster import RETRIES, as_one_line, check_nodes, joined, nodes, ray

log = logging.getLogger("pucache")

WARNING_SECONDS = 60.0  # between two warnings that nothing can run
Outcome = tuple[Any, Exception | None]


@contextmanager
def cluster_tasks(address: str | None = None, workers: int | None = None) -> Iterator[ShardTasks]:
    """Join a cluster and leave it at the end; a cluster that this process has joined already stays joined.

    `address` is ``HOST:PORT`` of a running cluster, or ``auto`` for the cluster that this machine belongs to. By
    default it is the one in RAY_ADDRESS; without it Ray is started on this machine and stopped at the end. `workers`
    tasks run at once; by default all that have a core or a GPU. Raises `EngineError` where the cluster cannot be
    reached, or runs another version of Ray or Python, and `ValueError` for fewer than one worker, or an address where
    this process has joined a cluster already.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"a Ray cluster needs at least 1 worker, got {workers}")
    has_joined = ray.is_initialized()
    if has_joined and address is not None:
        raise ValueError(
            f"this process has joined a Ray cluster already, and cannot join {address}; leave out the address, or call "
            "ray.shutdown() first"
        )
    with contextlib.nullcontext() if has_joined else joined(address or os.environ.get("RAY_ADDRESS") or None):
        yield ShardTasks(workers, cancels=has_joined)


@dataclass(frozen=True)
class ShardTasks:
    """Runs a function on items in the worker processes of the cluster, at most so many at once.

    Leaving the cluster ends what runs there. Only where this process stays are tasks cancelled: Ray ends the process
    that cancels a task at the moment at which the task ends ("Tried to complete task that was not pending").
    """

    workers: int | None = None
    cancels: bool = False

    check = staticmethod(check_nodes)

    def outcomes(
        self, function: Callable[[Any, Any], Any], shared: Any, items: Sequence[Any], *, gpu: bool = False
    ) -> Iterator[tuple[int, Any, Exception | None]]:
        """Yield for each item, as it ends, its number, and ``function(shared, item)``, or None and what it raised.

        The function is at the top of a module of pucache. With `gpu` each task has a GPU. The texts of items name them
        in errors.
        """
        running: dict[ray.ObjectRef, int] = {}
        try:
            with as_one_line():
                cores = _cores_available(len(items), self.workers, gpu=gpu)
                reference = ray.put(shared)
                task = ray.remote(num_cpus=cores, num_gpus=int(gpu), max_retries=RETRIES)(_apply)
                waiting = list(enumerate(items))[::-1]
                while waiting or running:
                    while waiting and len(running) < (self.workers or len(items)):
                        number, item = waiting.pop()
                        running[task.remote(function, reference, item, cores)] = number
                    for ended in _ended(list(running), "GPU" if gpu else "CPU"):
                        number = running.pop(ended)
                        yield number, *_outcome(ended, items[number])
        finally:
            for started in running if self.cancels else ():
                with contextlib.suppress(Exception):
                    ray.cancel(started)


def count(resource: str) -> int:
    """How many of a resource, CPU or GPU, the cluster has now."""
    return int(ray.cluster_resources().get(resource, 0))


def cores_per_task(cores: list[int], tasks: int) -> int:
    """Most cores that each of so many tasks can have at once on nodes of these cores; 1 where they are too many."""
    fitting = (size for size in range(1, max(cores, default=0) + 1) if sum(have // size for have in cores) >= tasks)
    return max(fitting, default=1)


def _cores_available(tasks: int, workers: int | None, *, gpu: bool) -> int:
    """Cores of each task: those of its GPU, or as many as all can have."""
    kind = "GPU" if gpu else "CPU"
    if not (count(kind) or workers):
        raise EngineError(
            f"the cluster has no {kind} now; use another --device, or say with --workers how many tasks it shall run "
            "at once"
        )
    resources = [node["Resources"] for node in nodes()]
    if gpu:
        return min((int(node["CPU"] // node["GPU"]) for node in resources if node.get("GPU")), default=1)
    return cores_per_task([int(node["CPU"]) for node in resources], workers or tasks)


def _ended(running: list[ray.ObjectRef], resource: str) -> list[ray.ObjectRef]:
    """Wait until a task ends, or until it is time to say that none can; Ray itself waits in silence."""
    ended, _ = ray.wait(running, num_returns=1, timeout=WARNING_SECONDS)
    if not ended and not count(resource):
        log.warning(
            "the Ray cluster has no %s now; waiting for a machine to join (ray start --address). To stop, press Ctrl-C",
            resource,
        )
    return ended


_DEATHS = (
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.LocalRayletDiedError,
    ray.exceptions.ObjectLostError,
)


def _outcome(reference: ray.ObjectRef, item: Any) -> Outcome:
    """What a task ended with."""
    try:
        return ray.get(reference)
    except _DEATHS:
        return None, EngineError(
            f"a worker died {RETRIES + 1} times at {item} (killed, or out of memory); run again, with more memory for "
            "each worker"
        )


# --- in the worker processes ---------------------------------------------------------------------------


def _apply(function: Callable[[Any, Any], Any], shared: Any, item: Any, cores: int) -> Outcome:
    """Apply ``function(shared, item)`` in a worker process, limited to the cores of its task.

    Returns its result, or its exception, which Ray would wrap.
    """
    keep_freed_memory()
    limit_cores(max(1, cores))
    os.environ.update(thread_defaults())  # for libraries that are loaded later
    threadpool_limits(1, "blas")
    threadpool_limits(max(1, cores), "openmp")
    try:
        return function(shared, item), None
    except Exception as error:
        return None, picklable_error(error)


def is_retry() -> bool:
    """Whether the worker of an earlier attempt at this task has died; Ray has no public name for it."""
    attempt = getattr(ray._private.worker.global_worker.core_worker, "get_current_task_attempt_number", None)
    return attempt is not None and attempt() > 0
