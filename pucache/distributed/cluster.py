"""Starting Ray on this machine, or joining a cluster; errors of Ray become one line."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
import ray._private.worker
import ray._raylet
import ray.exceptions

from ..devices import cores
from ..errors import EngineError, PUCacheError, one_line

_CONNECT_SECONDS = 10


@contextmanager
def joined(address: str | None) -> Iterator[None]:
    """Join the cluster at `address`, or start one on this machine that ends with the context.

    Raises
    ------
    EngineError
        The cluster cannot be reached, or runs another version of Ray or Python.
    """
    settings: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
    logging.getLogger("ray").setLevel(logging.ERROR)
    if address is None:  # reachable from this machine alone
        settings.update(num_cpus=cores(), include_dashboard=False, _node_ip_address="127.0.0.1")
        # else Ray writes a token into the home folder, where other clusters would find it
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    elif address != "auto":
        _require_reachable(address)
    what = f"join the Ray cluster at {address}" if address else "start Ray on this machine"
    with _own_signals(), _cannot(what), _silenced_stderr(), _without_error_messages():
        ray.init(address or "local", **settings)
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
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                _require_grpc(connection)
        with _silenced_stderr():
            _connect(address)
    except ray.exceptions.AuthenticationError as error:
        raise EngineError(
            f"the Ray cluster at {address} asks for a token that this process does not show; set RAY_AUTH_MODE=token "
            "and RAY_AUTH_TOKEN as on its machines"
        ) from error
    except (OSError, OverflowError, ray.exceptions.RayError) as error:
        raise EngineError(
            f"no Ray cluster answers at {address} ({one_line(error)}); start one there with ray start --head, or leave "
            "out --address to use this machine alone"
        ) from error


def _require_grpc(connection: socket.socket) -> None:
    """Send the HTTP/2 preface (RFC 9113, 3.4) and require the settings frame that Ray must answer with."""
    empty, settings = b"\0\0\0\4\0\0\0\0\0", 4  # an empty settings frame; the fourth byte of a frame is its type
    connection.settimeout(_CONNECT_SECONDS)
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + empty)
    answer = connection.recv(9)
    if answer[3:4] != bytes([settings]):
        raise OSError("what listens there is not Ray")


def _connect(address: str) -> None:
    """Connect once: a cluster that wants a token refuses at once, while `ray.init` would try for minutes."""
    client = getattr(ray._raylet, "GcsClient", None)  # private; without it `ray.init` finds out
    if client is not None:
        client(address=address)


@contextmanager
def _silenced_stderr() -> Iterator[None]:
    """Discard what Ray's core writes to stderr; it repeats what its exceptions say."""
    stderr, devnull = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(devnull)


@contextmanager
def _without_error_messages() -> Iterator[None]:
    """Let no thread of Ray print to stdout that an actor has ended, which our exceptions say; stdout may be JSON.

    `log_to_driver` does not cover these messages, and Ray has no public setting for them.
    """
    listen = getattr(ray._private.worker, "listen_error_messages", None)
    if listen is None:
        yield
        return
    ray._private.worker.listen_error_messages = lambda worker, stopped: None
    try:
        yield
    finally:
        ray._private.worker.listen_error_messages = listen


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep pucache's handlers of Ctrl-C and SIGTERM, which Ray would replace."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _cannot(what: str) -> Iterator[None]:
    try:
        yield
    except PUCacheError:
        raise
    except Exception as error:  # Ray raises almost anything: ConnectionError, RuntimeError, ValueError, its own
        raise EngineError(f"cannot {what}: {one_line(error)}") from error
