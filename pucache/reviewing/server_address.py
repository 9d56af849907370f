"""Port and token of a session's server, kept in its folder, so that an open page goes on after a restart."""

from __future__ import annotations

import errno
import json
import os
import secrets
import socket
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import OutputError, one_line
from ..storage.atomic import fsync_directory

FILE = "server.json"
FIRST_PORT = 8321
PORTS = 100  # tried after the wanted one
_TOKEN_BYTES = 32


@dataclass(frozen=True)
class ServerAddress:
    """Where a session's page is, and who may open it.

    Attributes
    ----------
    port : int
    token : str
        256 random bits, URL-safe.
    """

    port: int
    token: str

    @classmethod
    def kept(cls, folder: Path) -> ServerAddress | None:
        """The address of the last server of a session; None where there is none, or others could read it."""
        path = folder / FILE
        try:
            if path.stat().st_mode & 0o077:
                return None
            values = json.loads(path.read_text(encoding="utf-8"))
            address = cls(values["port"], values["token"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        valid = type(address.port) is int and 0 < address.port < 65536 and isinstance(address.token, str)
        return address if valid and len(address.token) >= 4 * _TOKEN_BYTES // 3 else None

    @classmethod
    def new(cls) -> ServerAddress:
        """A new secret, and the usual port."""
        return cls(FIRST_PORT, secrets.token_urlsafe(_TOKEN_BYTES))

    def keep(self, folder: Path) -> None:
        """Write the address, readable by its owner alone.

        Raises
        ------
        OutputError
            It cannot be written.
        """
        try:
            descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=f".{FILE}.")  # with mode 0600
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                    json.dump(asdict(self), stream)
                    stream.flush()
                    os.fsync(stream.fileno())
                os.replace(temporary, folder / FILE)
            except BaseException:
                os.unlink(temporary)
                raise
            fsync_directory(folder)
        except OSError as error:
            raise OutputError(f"cannot write {folder / FILE}: {one_line(error)}; make room, or free it") from error


def listening_socket(host: str, port: int) -> socket.socket:
    """Listen at a port, or at the next free one.

    Parameters
    ----------
    host : str
        Address or name to bind to.
    port : int
        0: any free one.

    Returns
    -------
    socket
        Bound; its ``getsockname()[1]`` is the port.

    Raises
    ------
    ValueError
        `host` is no address of this machine, or the port is none.
    OutputError
        No port is free, or this user may not take it.
    """
    if not 0 <= port < 65536:
        raise ValueError(f"--port must be from 0 to 65535, got {port}")
    family, address = _resolved(host)
    for candidate in range(port, min(port + PORTS, 65536)) if port else [0]:
        # named, as asyncio sends answers at once only where it reads TCP here; else each takes 40 ms
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, candidate))
            listener.listen(128)  # now, as two sockets may be bound to a port that nobody listens at
            return listener
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRNOTAVAIL:
                raise ValueError(f"--host {host} is no address of this machine; leave it out for 127.0.0.1") from error
            if error.errno != errno.EADDRINUSE:
                raise OutputError(
                    f"cannot listen at {host}, port {candidate}: {one_line(error)}; name another --port"
                ) from error
        except BaseException:
            listener.close()
            raise
    raise OutputError(f"ports {port} to {port + PORTS - 1} are all in use; name a free one with --port, or 0 for any")


def _resolved(host: str) -> tuple[socket.AddressFamily, str]:
    try:
        family, *_, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise ValueError(f"--host {host} is no address of this machine: {one_line(error)}") from error
    return family, str(address[0])


def printed_url(host: str, port: int, token: str) -> str:
    """Address to open in a browser."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{shown}:{port}/?token={token}"
