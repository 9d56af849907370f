"""The worker processes of a Ray cluster, which apply a function to many items."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

import ray
import ray.exceptions

from ..errors import EngineError
from .cluster import joined
from .failures import as_one_line
from .tasks import Outcome, apply

log = logging.getLogger("pucache")

MAX_ATTEMPTS = 8  # for an item whose worker dies
WARNING_SECONDS = 60.0  # between two warnings that nothing can run


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
        """Check every node of the cluster, see `pucache.distributed.nodes.check_nodes`."""
        from .nodes import check_nodes

        with as_one_line():
            check_nodes(problem, tuple(packages), results="results")

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

        Raises
        ------
        EngineError
            Workers died again and again at one item, or the cluster has no CPU.
        Exception
            What the function raises for the first item that fails.
        """
        with as_one_line():
            reference, cores = ray.put(shared), count("CPU")
        workers = self._workers or cores
        if not workers:
            raise EngineError("the cluster has no CPU now; say with --workers how many tasks it shall run at once")
        run = ray.remote(num_cpus=1, max_retries=0)(apply)
        window = _Window(
            lambda item: run.remote(function, [reference], item),
            iter(items),
            # where the workers are all cores, tasks wait at them, so that none is idle between two
            running=workers if workers < cores else 2 * workers,
            begun=2 * workers + 2,
        )
        try:
            with warnings_without("CPU"):
                yield from window.results()
        finally:
            window.cancel()


@dataclass
class _Task:
    item: Any
    reference: ray.ObjectRef | None  # None once its outcome is here
    attempts: int = 1
    outcome: Outcome | None = None


class _Window:
    """Tasks of consecutive items: at most so many are running, and at most so many are begun but not yielded."""

    def __init__(
        self, submit: Callable[[Any], ray.ObjectRef], items: Iterator[Any], *, running: int, begun: int
    ) -> None:
        self._submit, self._items, self._tasks = submit, items, deque[_Task]()
        self._max_running, self._max_begun = running, begun

    def results(self) -> Iterator[Any]:
        """Yield the results in order."""
        while True:
            with as_one_line():
                self._begin()
            if not self._tasks:
                return
            if self._tasks[0].outcome is None:
                with as_one_line():
                    self._collect()
                continue
            result, error = self._tasks.popleft().outcome  # type: ignore[misc]
            if error is not None:
                raise error
            yield result

    def _running(self) -> dict[ray.ObjectRef, _Task]:
        return {task.reference: task for task in self._tasks if task.reference is not None}

    def _begin(self) -> None:
        room = min(self._max_running - len(self._running()), self._max_begun - len(self._tasks))
        for item in islice(self._items, max(0, room)):
            self._tasks.append(_Task(item, self._submit(item)))

    def _collect(self) -> None:
        """Wait until a task ends; take its outcome, or begin it again where its worker has died."""
        running = self._running()
        for ended in ray.wait(list(running), num_returns=1)[0]:
            task = running[ended]
            try:
                task.outcome, task.reference = ray.get(ended), None
            except _DEATHS as error:
                if task.attempts == MAX_ATTEMPTS:
                    raise EngineError(
                        f"a worker died {MAX_ATTEMPTS} times at {task.item} (killed, or out of memory); run again, "
                        "with more memory for each worker"
                    ) from error
                task.reference, task.attempts = self._submit(task.item), task.attempts + 1

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


def count(resource: str) -> int:
    """How many of a resource, CPU or GPU, the cluster has now."""
    return int(ray.cluster_resources().get(resource, 0))


@contextmanager
def warnings_without(resource: str) -> Iterator[None]:
    """Warn once a minute within the block while the cluster has none of a resource; Ray itself waits in silence.

    Parameters
    ----------
    resource : {"CPU", "GPU"}
    """
    ended = threading.Event()
    thread = threading.Thread(target=_warn_without, args=(resource, ended), name="pucache-resources", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _warn_without(resource: str, ended: threading.Event) -> None:
    while not ended.wait(WARNING_SECONDS):
        with contextlib.suppress(Exception):  # a cluster that does not answer is an error of the command itself
            if not count(resource):
                log.warning(
                    "the Ray cluster has no %s now; waiting for a machine to join (ray start --address). To stop, "
                    "press Ctrl-C",
                    resource,
                )
