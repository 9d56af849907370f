"""Starting Ray on this machine, or joining a cluster; what Ray raises becomes one line."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
import ray.exceptions

from pucache.devices import cores
from pucache.errors import EngineError, PUCacheError, one_line

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
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise EngineError(
            f"no Ray cluster answers at {address} ({one_line(error)}); start one there with ray start --head, or leave "
            "out --address to use this machine alone"
        ) from error


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
