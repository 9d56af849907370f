"""Tasks in the worker processes of a Ray cluster, which go on where a worker is killed."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Self

from threadpoolctl import threadpool_limits

from ..allocator import keep_freed_memory
from ..devices import limit_cores
from ..errors import EngineError, picklable_error
from ..threads import thread_defaults
from .cluster import as_one_line, check_nodes, count, joined, nodes, ray

log = logging.getLogger("pucache")

MAX_ATTEMPTS = 8  # for an item of `RayWorkers.map` whose worker dies
WARNING_SECONDS = 60.0  # between two warnings that nothing can run
Outcome = tuple[Any, Exception | None]


@dataclass(frozen=True)
class TaskRules:
    """How tasks run.

    Attributes
    ----------
    running, begun : int
        At most so many tasks are given to Ray, and at most so many are begun whose outcome is not taken yet.
    cores, gpus : int
        Of a task.
    attempts : int
        For an item whose worker dies.
    again : callable
        Maps such an item to the one that is tried next.
    on_done : callable
        Called when a task is done.
    """

    running: int
    begun: int
    cores: int = 1
    gpus: int = 0
    attempts: int = MAX_ATTEMPTS
    again: Callable[[Any], Any] = lambda item: item
    on_done: Callable[[], object] = lambda: None


class RayWorkers:
    """Worker processes of a Ray cluster; a context manager that joins the cluster and leaves it.

    Parameters
    ----------
    address : str, optional
        ``HOST:PORT`` of a running cluster, or ``auto`` for the cluster that this machine belongs to. By
        default the one in RAY_ADDRESS; without it Ray is started on this machine and stopped at the end.
    workers : int, optional
        Number of tasks that run at once; by default one per core of the cluster.

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
        """Check every node of the cluster, see `pucache.scaling.cluster.check_nodes`.

        Parameters
        ----------
        problem : callable
        packages : iterable of str
        """
        with as_one_line():
            check_nodes(problem, tuple(packages))

    def map(self, function: Callable[[Any, Any], Any], shared: Any, items: Iterable[Any]) -> Iterator[Any]:
        """Apply ``function(shared, item)`` to every item in worker processes; yield the results in order.

        An item whose worker dies is given to another worker. At most twice as many items as workers, and two, are
        begun before the result of the first of them is taken, so that results do not pile up.

        Parameters
        ----------
        function : callable
            At the top of a module of pucache.
        shared : object
            Sent to each worker process once.
        items : iterable
            Small; sent with each task.

        Yields
        ------
        object

        Raises
        ------
        EngineError
            Workers died again and again at one item, or the cluster has no CPU.
        Exception
            What the function raises for the first item that fails.
        """
        cores = _require("CPU", self._workers)
        workers = self._workers or cores
        # where the workers are all cores, tasks wait at them, so that none is idle between two
        running = workers if workers < cores else 2 * workers
        for result, error in self.outcomes(function, shared, items, TaskRules(running, begun=2 * workers + 2)):
            if error is not None:
                raise error
            yield result

    def outcomes(
        self, function: Callable[[Any, Any], Any], shared: Any, items: Iterable[Any], rules: TaskRules
    ) -> Iterator[Outcome]:
        """As `map`, by the rules; yield for each item its result, or the exception that it ended with.

        Parameters
        ----------
        function, shared, items
            As for `map`.
        rules : TaskRules

        Yields
        ------
        Outcome
        """
        with as_one_line():
            reference = ray.put(shared)
        run = ray.remote(num_cpus=rules.cores, num_gpus=rules.gpus, max_retries=0)(_apply)
        window = _Window(lambda item: run.remote(function, [reference], item, rules.cores), iter(items), rules)
        try:
            yield from window.outcomes()
        finally:
            window.cancel()


def cluster_device(requested: str) -> str:
    """Device on which encoders will run; ``auto`` is CUDA if the cluster has GPUs now, else the CPU."""
    automatic = "cuda" if count("GPU") else "cpu"
    return automatic if requested == "auto" else requested


def rules_to_share(tasks: int, workers: int | None, *, gpu: bool) -> TaskRules:
    """Rules by which so many tasks share out the cluster: a GPU for each, or as many cores as all can have."""
    _require("GPU" if gpu else "CPU", workers)
    at_once, resources = workers or tasks, [node["Resources"] for node in nodes()]
    if gpu:
        shares = [int(node["CPU"] // node["GPU"]) for node in resources if node.get("GPU")]
        return TaskRules(at_once, begun=tasks, cores=min(shares, default=1), gpus=1)
    return TaskRules(at_once, begun=tasks, cores=cores_per_task([int(node["CPU"]) for node in resources], at_once))


def _require(kind: str, workers: int | None) -> int:
    """How many CPUs or GPUs the cluster has now; raises an error where none, unless `workers` expects some."""
    with as_one_line():
        found = count(kind)
    if not (found or workers):
        raise EngineError(
            f"the cluster has no {kind} now; use another --device, or say with --workers how many tasks it shall run "
            "at once"
        )
    return found


def cores_per_task(cores: list[int], tasks: int) -> int:
    """Most cores that each of so many tasks can have at once on nodes of these cores; 1 where they are too many."""
    fitting = (size for size in range(1, max(cores, default=0) + 1) if sum(have // size for have in cores) >= tasks)
    return max(fitting, default=1)


@dataclass
class _Task:
    item: Any
    reference: ray.ObjectRef | None  # None once its outcome is here
    attempts: int = 1
    outcome: Outcome | None = None


class _Window:
    """The tasks that are begun and not yielded, of consecutive items."""

    def __init__(self, submit: Callable[[Any], ray.ObjectRef], items: Iterator[Any], rules: TaskRules):
        self._submit, self._items, self._rules, self._tasks = submit, items, rules, deque[_Task]()

    def outcomes(self) -> Iterator[Outcome]:
        """Yield the outcomes in order."""
        while True:
            with as_one_line():
                self._begin()
                while self._tasks and self._tasks[0].outcome is None:
                    self._collect()
                    self._begin()
            if not self._tasks:
                return
            yield self._tasks.popleft().outcome  # type: ignore[misc]

    def _running(self) -> dict[ray.ObjectRef, _Task]:
        return {task.reference: task for task in self._tasks if task.reference is not None}

    def _begin(self) -> None:
        room = min(self._rules.running - len(self._running()), self._rules.begun - len(self._tasks))
        for item in islice(self._items, max(0, room)):
            self._tasks.append(_Task(item, self._submit(item)))

    def _collect(self) -> None:
        """Wait until a task ends; take its outcome, or begin it again where its worker has died."""
        running = self._running()
        ended, _ = ray.wait(list(running), num_returns=1, timeout=WARNING_SECONDS)
        resource = "GPU" if self._rules.gpus else "CPU"
        if not ended and not count(resource):  # Ray itself waits in silence
            log.warning(
                "the Ray cluster has no %s now; waiting for a machine to join (ray start --address). To stop, press "
                "Ctrl-C",
                resource,
            )
        for reference in ended:
            self._take(running[reference], reference)

    def _take(self, task: _Task, reference: ray.ObjectRef) -> None:
        try:
            task.outcome = ray.get(reference)
        except _DEATHS:
            if task.attempts < self._rules.attempts:
                task.item, task.attempts = self._rules.again(task.item), task.attempts + 1
                task.reference = self._submit(task.item)
                return
            task.outcome = (
                None,
                EngineError(
                    f"a worker died {task.attempts} times at {task.item} (killed, or out of memory); run again, with "
                    "more memory for each worker"
                ),
            )
        task.reference = None
        self._rules.on_done()

    def cancel(self) -> None:
        """Stop the tasks whose results nobody takes."""
        for reference in self._running():
            with contextlib.suppress(Exception):
                ray.cancel(reference)


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
