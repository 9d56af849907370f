"""Tasks of whole shards on a Ray cluster, which is started on this machine or joined; each runs the local code.

A task whose worker dies is begun again by Ray, `RETRIES` times.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from threadpoolctl import threadpool_limits

from ..allocator import keep_freed_memory
from ..devices import cores, limit_cores
from ..errors import EngineError, MissingExtraError, PUCacheError, one_line, picklable_error
from ..threads import thread_defaults
from ..version import __version__

RETRIES = 3  # of a shard whose worker dies
# Ray reads these when it is imported: no usage reports, its processes write to log files only, and a task whose
# worker runs out of memory is begun again as often as one whose worker dies for another reason.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
os.environ.setdefault("RAY_task_oom_retries", str(RETRIES))
if "RAY_AUTH_TOKEN" in os.environ:  # a token that is set is meant to be used
    os.environ.setdefault("RAY_AUTH_MODE", "token")

try:
    import ray
    import ray._private.worker
    import ray._raylet
    import ray.exceptions
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as missing:
    raise MissingExtraError("a Ray cluster needs Ray; pip install -e '.[ray]', or leave out --ray") from missing

log = logging.getLogger("pucache")

WARNING_SECONDS = 60.0  # between two warnings that nothing can run
_CONNECT_SECONDS = 10
_ANSWER_SECONDS = 120  # the first task on a node starts a process there, and imports torch
Outcome = tuple[Any, Exception | None]


# --- the cluster -----------------------------------------------------------------------------------


@contextmanager
def joined(address: str | None) -> Iterator[None]:
    """Join the cluster at `address`, or start one on this machine that ends with the context.

    Raises `EngineError` where the cluster cannot be reached, or runs another version of Ray or Python.
    """
    settings: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
    logging.getLogger("ray").setLevel(logging.ERROR)
    if address is None:  # reachable from this machine alone
        settings.update(num_cpus=cores(), include_dashboard=False, _node_ip_address="127.0.0.1")
        # else Ray writes a token into the home folder, where other clusters would find it
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    elif address != "auto":
        _require_reachable(address)
    try:
        with _undisturbed():
            ray.init(address or "local", **settings)
    except Exception as error:  # Ray raises almost anything: ConnectionError, RuntimeError, ValueError, its own
        what = f"join the Ray cluster at {address}" if address else "start Ray on this machine"
        raise EngineError(f"cannot {what}: {one_line(error)}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _require_reachable(address: str) -> None:
    """Check the address before Ray does, which takes a minute and then ends the process."""
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():
        raise EngineError(
            f"the address of a Ray cluster is HOST:PORT, such as 10.0.0.1:6379, or auto, got {address}; "
            "run the command on a machine of the cluster"
        )
    client = getattr(ray._raylet, "GcsClient", None)  # private; without it `ray.init` finds out
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                _require_grpc(connection)
        with _undisturbed():
            if client is not None:  # refuses at once for lack of a token, where `ray.init` would try for minutes
                client(address=address)
    except ray.exceptions.AuthenticationError as error:
        raise EngineError(
            f"the Ray cluster at {address} asks for a token that this process does not show; set RAY_AUTH_MODE=token "
            "and RAY_AUTH_TOKEN as on its machines"
        ) from error
    except (OSError, OverflowError, ray.exceptions.RayError) as error:
        raise EngineError(
            f"no Ray cluster answers at {address} ({one_line(error)}); start one there with ray start --head, or leave "
            "the address out to use this machine alone"
        ) from error


def _require_grpc(connection: socket.socket) -> None:
    """Send the HTTP/2 preface (RFC 9113, 3.4) and require the settings frame that Ray must answer with."""
    connection.settimeout(_CONNECT_SECONDS)
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")  # with an empty settings frame
    if connection.recv(9)[3:4] != b"\4":  # the fourth byte of a frame is its type: settings
        raise OSError("what listens there is not Ray")


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep pucache's handlers of Ctrl-C and SIGTERM, and both streams free of messages that Ray's exceptions repeat.

    Ray's core writes to stderr. A thread that Ray starts prints to stdout that a worker has ended, where stdout may
    be JSON: `log_to_driver` does not cover it, and Ray has no public setting for it.
    """
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM) if is_main}
    listen = getattr(ray._private.worker, "listen_error_messages", None)
    stderr, devnull = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)
    ray._private.worker.listen_error_messages = lambda worker, stopped: None
    try:
        yield
    finally:
        ray._private.worker.listen_error_messages = listen
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(devnull)
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def as_one_line() -> Iterator[None]:
    """Turn what Ray raises into an `EngineError` of one line; errors of pucache pass."""
    try:
        yield
    except Exception as error:  # Ray raises almost anything, see `joined`
        if isinstance(error, PUCacheError) and not isinstance(error, ray.exceptions.RayError):
            raise
        raise EngineError(
            f"Ray gave up ({_last_line(error)}); what was finished is kept: run again to go on"
        ) from error


def nodes() -> list[dict[str, Any]]:
    """Live nodes that run tasks, as Ray describes them."""
    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]


@as_one_line()
def check_nodes(problem: Callable[[], str], packages: Iterable[str]) -> None:
    """Check pucache, packages and access to the data on every node.

    `problem` returns, on each node, the reason why it cannot do the work, or ""; `packages` are those whose versions
    can change the last bits of results. Raises `EngineError` for a node that lacks pucache or a package, has another
    version of pucache, has a problem, or does not answer; other versions of packages are a warning.
    """
    here, answers = _versions(packages), {}
    for node in nodes():
        on_node = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        task = ray.remote(num_cpus=0, max_retries=RETRIES, scheduling_strategy=on_node)(_examine)
        name = f"node {node['NodeManagerAddress']} ({node['NodeManagerHostname']}, {node['NodeID'][:8]})"
        answers[name] = task.remote(problem, list(packages))
    for name, answer in answers.items():
        try:
            there, reason = ray.get(answer, timeout=_ANSWER_SECONDS)
        except ray.exceptions.GetTimeoutError as error:
            raise EngineError(
                f"{name} has not answered for {_ANSWER_SECONDS} s; is it alive, or overloaded?"
            ) from error
        except ray.exceptions.RayError as error:
            raise EngineError(
                f"{name} cannot run pucache {__version__} ({_last_line(error)}); install the same version on every node"
            ) from error
        differing = [package for package in here if there[package] != here[package]]
        versions = ", ".join(f"{package} {there[package]} (here {here[package]})" for package in differing)
        if "pucache" in differing or "none" in [there[package] for package in differing]:
            raise EngineError(f"{name} has {versions}; install the same versions on every node")
        if differing:
            log.warning("%s has %s: its results may differ in their last bits", name, versions)
        if reason:
            raise EngineError(f"{name} {reason}")


def _examine(problem: Callable[[], str], packages: Iterable[str]) -> tuple[dict[str, str], str]:
    return _versions(packages), problem()


def _versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of pucache and of the packages; "none" where one is not installed."""
    versions = {"pucache": __version__, **dict.fromkeys(packages, "none")}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


def _last_line(error: BaseException) -> str:
    """Last line of an error of Ray, below the tracebacks in its text."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1].strip()[:300]


# --- tasks -----------------------------------------------------------------------------------------


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


class ShardTasks:
    """Runs a function on items in the worker processes of the cluster, at most so many at once.

    Leaving the cluster ends what runs there. Only where this process stays are tasks cancelled: Ray ends the process
    that cancels a task at the moment at which the task ends ("Tried to complete task that was not pending").
    """

    check = staticmethod(check_nodes)

    def __init__(self, workers: int | None, *, cancels: bool):
        self._workers, self._cancels = workers, cancels

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
                each = _cores_available(len(items), self._workers, gpu=gpu)
                reference = ray.put(shared)
                task = ray.remote(num_cpus=each, num_gpus=int(gpu), max_retries=RETRIES)(_apply)
                waiting = list(enumerate(items))[::-1]
                while waiting or running:
                    while waiting and len(running) < (self._workers or len(items)):
                        number, item = waiting.pop()
                        running[task.remote(function, reference, item, each)] = number
                    for ended in _ended(list(running), "GPU" if gpu else "CPU"):
                        number = running.pop(ended)
                        yield number, *_outcome(ended, items[number])
        finally:
            for started in running if self._cancels else ():
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
