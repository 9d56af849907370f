"""Who may ask the server of a review for anything: token, cookie, Host, Origin, methods and headers.

A page of another site cannot ask: it has no cookie (``SameSite=Strict``), its Origin is another, and a name of its
own that resolves to this machine (DNS rebinding) is no loopback name. Another user of this machine has no token.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import ipaddress
import json
import re
import secrets
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import OutputError, one_line
from ..storage.atomic import replacing
from .session_folder import ADDRESS

READING = ("GET", "HEAD")
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
NOTHING = "there is nothing at this address"
NO_COOKIE = "this page opens with the address that pucache review printed; open that one"
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::([0-9]{1,5}))?", re.ASCII | re.IGNORECASE)
_PATH = re.compile(rb"/[A-Za-z0-9/._-]*")  # nothing encoded: the raw path is the path
_JSON = re.compile(r"application/json(?:;\s*charset=utf-8)?", re.IGNORECASE)
_PAGE_WITHOUT_COOKIE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>pucache review</title>'
    '<p>{}.</p><p>If you have just opened it: <a href="/">go on</a>.</p></html>'
)


class Access:
    """Guards an application that is bound to `host`; an ASGI middleware that stands before everything else."""

    def __init__(self, app: ASGIApp, token: str, host: str = "127.0.0.1"):
        self._app, self._token, self._host = app, token, host
        self._once: set[str] = set()
        mark = hashlib.sha256(token.encode()).hexdigest()
        self.cookie_name = f"pucache_{mark[:8]}"  # cookies do not tell ports apart, sessions must
        self.cookie = hmac.new(token.encode(), b"cookie", hashlib.sha256).hexdigest()

    def token_for_one_use(self) -> str:
        """Return a token that is void once it was exchanged, for a command line that other users can see."""
        token = secrets.token_urlsafe(32)
        self._once.add(token)
        return token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what is refused, and hand the rest on."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        refusal = self._refuse(scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = with_headers(message["headers"])
            await send(message)

        return await (refusal or self._app)(scope, receive, send_guarded)

    def _refuse(self, scope: Scope) -> Response | None:
        """The answer to a request that goes no further; None for one that does."""
        headers = Headers(raw=[(name.lower(), value) for name, value in scope["headers"]])
        host = _only(headers, "host")
        if host is None or not is_own_host(host, self._host):
            return refused(403, "the Host of this request is not this machine; open the address that pucache printed")
        if scope["method"] not in READING:
            if _only(headers, "origin") not in own_origins(host):
                return refused(403, "the Origin of this request is not this page")
            if not _JSON.fullmatch(_only(headers, "content-type") or ""):
                return refused(415, "expected application/json")
        if not _PATH.fullmatch(scope["raw_path"]):
            return refused(404, NOTHING)
        exchanged = self._exchange(scope)
        if exchanged is not None:
            return exchanged
        if not self._has_cookie(headers):
            return self._without_cookie(scope)
        return None

    def _exchange(self, scope: Scope) -> Response | None:
        """The answer to the printed address: the cookie, and the address without the token."""
        if scope["raw_path"] != b"/" or not scope["query_string"] or scope["method"] != "GET":
            return None
        tokens = parse_qs(scope["query_string"][:1000].decode("ascii", "replace")).get("token", [])
        if not tokens:
            return None
        if len(tokens) != 1 or not self._takes(tokens[0]):
            return self._without_cookie(scope)
        answer = RedirectResponse("/", status_code=303, headers={"cache-control": "no-store"})
        answer.set_cookie(self.cookie_name, self.cookie, httponly=True, samesite="strict", path="/")
        return answer

    def _takes(self, token: str) -> bool:
        if equal(token, self._token):
            return True
        used = [other for other in self._once if equal(token, other)]
        self._once.difference_update(used)
        return bool(used)

    def _has_cookie(self, headers: Headers) -> bool:
        cookies = map(cookie_parser, headers.getlist("cookie"))  # other programs of this machine may have set odd ones
        return any(equal(values.get(self.cookie_name, ""), self.cookie) for values in cookies)

    def _without_cookie(self, scope: Scope) -> Response:
        if scope["raw_path"] == b"/":
            return HTMLResponse(_PAGE_WITHOUT_COOKIE.format(NO_COOKIE), 403)
        return refused(403, NO_COOKIE)


def _only(headers: Headers, name: str) -> str | None:
    """The value of a header that stands there exactly once."""
    values = headers.getlist(name)
    return values[0].strip() if len(values) == 1 else None


def equal(first: str, second: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(first.encode("utf-8", "surrogatepass"), second.encode())


def refused(status: int, reason: str) -> JSONResponse:
    """Return an answer that says in one line why a request was not served."""
    return JSONResponse({"error": reason}, status, headers={"cache-control": "no-store"})


def with_headers(lines: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers of an answer, together with those that every answer has."""
    added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
    return [*((name, value) for name, value in lines if name.decode("latin-1").lower() not in HEADERS), *added]


def is_own_host(host: str, bound: str) -> bool:
    """Whether a Host header names this machine, with or without a port; any port, as a tunnel may have another.

    Loopback names are always taken; where the server is bound to another address, that one too; for 0.0.0.0 and ::
    every address, and this machine's name: none of them can be rebound.
    """
    match = _HOST.fullmatch(host)
    if match is None or int(match[2] or 0) > 65535:
        return False
    name = match[1].strip("[]").lower()
    address = _address(name)
    if address is None:
        return name == "localhost" or name == bound.lower() or (_is_any(bound) and name == socket.gethostname().lower())
    if (address.version == 6) != match[1].startswith("["):
        return False
    return address.is_loopback or address == _address(bound) or _is_any(bound)


def own_origins(host: str) -> list[str]:
    """Origins of the page that was loaded from this Host, which is this machine's: other ports are other programs."""
    match = _HOST.fullmatch(host)
    assert match is not None  # `is_own_host` has seen it
    name, port = match[1].lower(), int(match[2] or 80)
    return [f"http://{name}:{port}", *([f"http://{name}"] if port == 80 else [])]


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _is_any(bound: str) -> bool:
    address = _address(bound)
    return address is not None and address.is_unspecified


# --- the address --------------------------------------------------------------------------------


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

    Raises `ValueError` for no port, or no address of this machine, and `OutputError` where no port can be had.
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
