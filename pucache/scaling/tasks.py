"""Tasks of whole shards in the worker processes of a Ray cluster: the mechanism of embedding, scoring and ranking.

Where a worker dies its item is begun again here, not by Ray: Ray begins one without end whose worker runs out of
memory, and cannot change the item (`pucache.scaling.embed_shards` then reads images so that the deadly one is named).
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import lru_cache
from typing import Any, Self

from threadpoolctl import threadpool_limits

from ..allocator import keep_freed_memory
from ..devices import limit_cores
from ..errors import EngineError, picklable_error
from ..threads import thread_defaults
from .cluster import as_one_line, check_nodes, count, joined, nodes, ray

log = logging.getLogger("pucache")

ATTEMPTS = 4  # for an item whose worker dies
WARNING_SECONDS = 60.0  # between two warnings that nothing can run
Outcome = tuple[Any, Exception | None]


def _same(item: Any) -> Any:
    return item


class ShardTasks:
    """Tasks on a Ray cluster; a context manager that joins the cluster and leaves it.

    Parameters
    ----------
    address : str, optional
        ``HOST:PORT`` of a running cluster, or ``auto`` for the cluster that this machine belongs to. By
        default the one in RAY_ADDRESS; without it Ray is started on this machine and stopped at the end.
    workers : int, optional
        Number of tasks that run at once; by default all that have a core or a GPU.

    Raises
    ------
    EngineError
        The cluster cannot be reached, or runs another version of Ray or Python.
    ValueError
        Fewer than one worker, or an address although this process has joined a cluster already.
    """

    def __init__(self, address: str | None = None, *, workers: int | None = None):
        if workers is not None and workers < 1:
            raise ValueError(f"the engine ray needs at least 1 worker, got {workers}")
        self._requested_address = address
        self._address = address or os.environ.get("RAY_ADDRESS") or None
        self._workers = workers
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if not ray.is_initialized():
            self._stack.enter_context(joined(self._address))
        elif self._requested_address is not None:
            raise ValueError(
                f"this process has joined a Ray cluster already, and cannot join {self._requested_address}; leave "
                "out the address, or call ray.shutdown() first"
            )
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def check(self, problem: Callable[[], str], packages: Iterable[str]) -> None:
        """Check every node of the cluster.

        Parameters
        ----------
        problem : callable
            Called on each node: returns the reason why the node cannot do the work, "" where it can.
        packages : iterable of str
            Packages whose versions can change the last bits of the results.

        Raises
        ------
        EngineError
            A node lacks pucache or a package, has another version, has a problem, or does not answer.
        """
        with as_one_line():
            check_nodes(problem, tuple(packages))

    def map(self, function: Callable[[Any, Any], Any], shared: Any, items: Sequence[Any]) -> Iterator[Any]:
        """Apply a function to items in worker processes; raise what the first item that fails raises.

        Parameters
        ----------
        function, shared, items
            As for `outcomes`.

        Yields
        ------
        object
            ``function(shared, item)`` of each item, in order.
        """
        for result, error in self.outcomes(function, shared, items):
            if error is not None:
                raise error
            yield result

    def outcomes(
        self,
        function: Callable[[Any, Any], Any],
        shared: Any,
        items: Sequence[Any],
        *,
        gpu: bool = False,
        again: Callable[[Any], Any] = _same,
        on_done: Callable[[], object] = lambda: None,
    ) -> Iterator[Outcome]:
        """Apply a function to items in worker processes; yield for each, in order, its result or its exception.

        Parameters
        ----------
        function : callable
            At the top of a module of pucache; called with `shared` and an item.
        shared : object
            Sent to each worker process once.
        items : sequence
            Small; their texts name them in errors.
        gpu : bool
            Whether each task has a GPU.
        again : callable
            Maps an item whose worker has died to the one that is tried next.
        on_done : callable
            Called when an item is done.

        Yields
        ------
        result : object or None
        error : Exception or None
        """
        with as_one_line():
            cores = _cores_per_task(len(items), self._workers, gpu=gpu)
            reference = ray.put(shared)
        task = ray.remote(num_cpus=cores, num_gpus=int(gpu), max_retries=0)(_apply)
        waiting = deque((number, item, 1) for number, item in enumerate(items))
        running: dict[ray.ObjectRef, tuple[int, Any, int]] = {}
        done: dict[int, Outcome] = {}
        try:
            for wanted in range(len(items)):
                while wanted not in done:
                    with as_one_line():
                        while waiting and len(running) < (self._workers or len(items)):
                            number, item, attempt = waiting.popleft()
                            running[task.remote(function, [reference], item, cores)] = (number, item, attempt)
                        for ended in _ended(list(running), "GPU" if gpu else "CPU"):
                            number, item, attempt = running.pop(ended)
                            outcome = _outcome(ended, item, attempt)
                            if outcome is None:
                                waiting.appendleft((number, again(item), attempt + 1))
                            else:
                                done[number] = outcome
                                on_done()
                yield done.pop(wanted)
        finally:
            for reference in running:
                with contextlib.suppress(Exception):
                    ray.cancel(reference)


def cluster_device(requested: str) -> str:
    """Device on which encoders will run; ``auto`` is CUDA if the cluster has GPUs now, else the CPU."""
    automatic = "cuda" if count("GPU") else "cpu"
    return automatic if requested == "auto" else requested


def cores_per_task(cores: list[int], tasks: int) -> int:
    """Most cores that each of so many tasks can have at once on nodes of these cores; 1 where they are too many."""
    fitting = (size for size in range(1, max(cores, default=0) + 1) if sum(have // size for have in cores) >= tasks)
    return max(fitting, default=1)


def _cores_per_task(tasks: int, workers: int | None, *, gpu: bool) -> int:
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


def _outcome(reference: ray.ObjectRef, item: Any, attempt: int) -> Outcome | None:
    """What a task ended with; None where its worker has died, and the item is to be begun again."""
    try:
        return ray.get(reference)
    except _DEATHS:
        if attempt < ATTEMPTS:
            return None
        return None, EngineError(
            f"a worker died {attempt} times at {item} (killed, or out of memory); run again, with more memory for each "
            "worker"
        )


_DEATHS = (
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.LocalRayletDiedError,
    ray.exceptions.ObjectLostError,
)


# --- in the worker processes ---------------------------------------------------------------------------


def _apply(function: Callable[[Any, Any], Any], shared: list[ray.ObjectRef], item: Any, cores: int) -> Outcome:
    """Apply ``function(shared value, item)``; returns its result, or its exception, which Ray would wrap."""
    _keep_to(cores)
    try:
        return function(_received(shared[0]), item), None
    except Exception as error:
        return None, picklable_error(error)


@lru_cache(1)
def _received(reference: ray.ObjectRef) -> Any:
    """The value that all items share; unpickled once in a process."""
    return ray.get(reference)


def _keep_to(cores: int) -> None:
    """Keep this process, which sees the whole node, to the cores of its task."""
    keep_freed_memory()
    limit_cores(max(1, cores))
    os.environ.update(thread_defaults())  # for libraries that are loaded later
    threadpool_limits(1, "blas")
    threadpool_limits(max(1, cores), "openmp")
