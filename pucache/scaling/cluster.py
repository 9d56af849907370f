"""Starting Ray on this machine or joining a cluster, and checks of its nodes."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ..devices import cores
from ..errors import EngineError, MissingExtraError, PUCacheError, one_line
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

_CONNECT_SECONDS = 10
_ANSWER_SECONDS = 120  # the first task on a node starts a process there, and imports torch


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
