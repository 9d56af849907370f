"""Where the page of a session is served: the port, the token, and the socket that listens."""

from __future__ import annotations

import errno
import json
import socket
from pathlib import Path
from typing import NamedTuple

from ..errors import OutputError, one_line
from ..storage.atomic import replacing
from .session_folder import ADDRESS

PORTS = 100  # tried after the wanted one
TOKEN_BYTES = 32


class ServerAddress(NamedTuple):
    """Where a session's page is, and who may open it; kept in its folder: an open page goes on after a restart."""

    port: int
    token: str  # 256 random bits, URL-safe


def kept_address(folder: Path) -> ServerAddress | None:
    """The address of the last server of a session; None where there is none, or others could read it."""
    path = folder / ADDRESS
    try:
        if path.stat().st_mode & 0o077:
            return None
        values = json.loads(path.read_text(encoding="utf-8"))
        address = ServerAddress(values["port"], values["token"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    valid = type(address.port) is int and 0 < address.port < 65536 and isinstance(address.token, str)
    return address if valid and len(address.token) >= 4 * TOKEN_BYTES // 3 else None


def keep_address(folder: Path, address: ServerAddress) -> None:
    """Write the address, readable by its owner alone; raises `OutputError` where that fails."""
    with replacing(folder / ADDRESS, mode=0o600) as temporary:
        temporary.write_text(json.dumps(address._asdict()), encoding="utf-8")


def listening_socket(host: str, port: int) -> socket.socket:
    """Listen at a port, or at the next free one; 0: any free one.

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
