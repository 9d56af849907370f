"""Starting Ray on this machine, or joining a cluster; what Ray raises becomes one line."""

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
import ray._raylet
import ray.exceptions

from ...devices import cores
from ...errors import EngineError, PUCacheError, one_line

_CONNECT_SECONDS = 10


@contextmanager
def joined(address: str | None) -> Iterator[None]:
    """Be part of the cluster at `address`, or of one started on this machine, which ends with it.

    Raises
    ------
    EngineError
        It cannot be reached, or is of another version of Ray or Python.
    """
    settings: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
    logging.getLogger("ray").setLevel(logging.ERROR)
    if address is None:  # nobody else on the network reaches it
        settings.update(num_cpus=cores(), include_dashboard=False, _node_ip_address="127.0.0.1")
        # else Ray writes one into the home, where other clusters would find it, if the home can be written to at all
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    elif address != "auto":
        _require_reachable(address)
    what = f"join the Ray cluster at {address}" if address else "start Ray on this machine"
    with _own_signals(), _cannot(what), _hushed():
        ray.init(address or "local", **settings)
    try:
        yield
    finally:
        ray.shutdown()


def _require_reachable(address: str) -> None:
    """Ask first: Ray itself takes a minute, and then ends the process."""
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():
        raise EngineError(
            f"the address of a Ray cluster is HOST:PORT, such as 10.0.0.1:6379, or auto, got {address}; "
            "run the command on a machine of the cluster"
        )
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS) as asked:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                _require_grpc(asked)
        with _hushed():
            _ask(address)
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


def _require_grpc(asked: socket.socket) -> None:
    """Greet as HTTP/2 does (RFC 9113, 3.4), which Ray speaks, and wait for the settings that must come back."""
    empty, settings = b"\0\0\0\4\0\0\0\0\0", 4  # a frame of settings; the fourth byte of a frame is its type
    asked.settimeout(_CONNECT_SECONDS)
    asked.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + empty)
    answer = asked.recv(9)
    if answer[3:4] != bytes([settings]):
        raise OSError("what listens there is not Ray")


def last_line(error: BaseException) -> str:
    """What an error of Ray's says, below the tracebacks that are in its text."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1].strip()[:300]


def _ask(address: str) -> None:
    """Ask the cluster for anything: one that wants a token refuses at once, and `ray.init` asks for minutes."""
    client = getattr(ray._raylet, "GcsClient", None)  # private: where Ray no longer has it, `ray.init` finds out
    if client is not None:
        client(address=address)


@contextmanager
def _hushed() -> Iterator[None]:
    """Let what Ray's core writes to the standard error go: it says again what its exceptions say."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep our own handling of Ctrl-C and SIGTERM, which Ray would replace."""
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
    except Exception as error:  # it raises almost anything: ConnectionError, RuntimeError, ValueError, its own
        raise EngineError(f"cannot {what}: {one_line(error)}") from error
