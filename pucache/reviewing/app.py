"""The HTTP interface of a review: a page, its assets, images, and a small JSON API.

Reading and deciding run in threads of their own, so that a decision waits neither for pictures nor for an audit.
`pucache.reviewing.access` refuses before any of this what does not come from the review's own page.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from ..errors import OutputError, PUCacheError, SessionError, one_line
from ..pages.html import read_asset, template, visible
from .access import NOTHING, Access, refused
from .log import Choice
from .service import ReviewService
from .session_labels import export_session
from .state import Proposal

MAX_BODY = 1 << 20  # bytes of a request
MAX_DECISIONS = 500  # of a request
MAX_COUNT = 500  # images of a request
PAST = 60  # decisions that are listed at once
MAX_ROW = 1 << 40
PICTURE_SECONDS = 60.0  # for which a request waits for its picture
PICTURE_THREADS = 20  # in which requests wait so; decisions have others
_ANOTHER = "this page is of another review, or the cache has changed"
_STYLES = ("base.css", "cards.css", "review.css")
_OVERVIEW_STYLES = ("base.css", "concepts.css")
# in the order in which they run
_SCRIPTS = ("cards.js", "server.js", "panel.js", "review.js")
# nothing is inline, so that the content security policy holds
ASSETS = (*_STYLES, "concepts.css", *_SCRIPTS, "icon.svg")
_MEDIA_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ROW = re.compile(r"0|[1-9][0-9]{0,11}", re.ASCII)
_WORDS = {"positive": "accepted", "negative": "rejected", "skip": "skipped"}  # of decisions, on the page
Body = dict[str, Any]


class Application:
    """The routes of a review; `access`, which guards them, is the ASGI application.

    There is a service for each session. Requests name theirs by its identifier: ``?session=`` or the field of the body;
    what is read without a name is of the first one. `concepts` are the names of the sessions where they are those of
    concepts: the first page then lists them. `warnings` are lines at the top of the page.
    """

    def __init__(
        self,
        services: Sequence[ReviewService],
        token: str,
        *,
        host: str = "127.0.0.1",
        title: str = "Review",
        warnings: Sequence[str] = (),
        concepts: Sequence[str] = (),
    ):
        self._concepts = dict(zip((service.identifier for service in services), concepts, strict=False))
        self._services = {service.identifier: service for service in services}
        self._title, self._warnings = title, list(warnings)
        self._waiting = ThreadPoolExecutor(PICTURE_THREADS, "waits-for-picture")
        self.routes = [
            Route("/", self._get(self._page)),
            Route("/assets/{name}", self._asset),
            Route("/api/state", self._get(self._state)),
            Route("/api/card/{row}", self._get(self._card)),
            Route("/api/past/{row}", self._get(self._past)),
            Route("/api/image/{row}", self._get(self._image)),
            *(
                Route(f"/api/{name}", self._post(handler), methods=["POST"])
                for name, handler in (
                    ("next", _next),
                    ("decide", _decide),
                    ("release", _release),
                    ("closing-audit", _closing_audit),
                    ("export", lambda _, service: export_session(service.session)),
                )
            ),
        ]
        inner = Starlette(routes=self.routes, exception_handlers={HTTPException: _answer_error, Exception: _answer_bug})
        inner.router.redirect_slashes = False  # it would rebuild an address from Host
        self.access = Access(inner, token, host)

    def end(self) -> None:
        """End what does not end by itself."""
        for service in self._services.values():
            service.end_waiting()

    # --- reading -------------------------------------------------------------------------------------

    def _get(self, handler: Callable[[Request, ReviewService], Awaitable[Response]]) -> Callable[..., Any]:
        """Route of a GET about the session that it names."""

        async def answer(request: Request) -> Response:
            service = self._services.get(request.query_params.get("session", next(iter(self._services))))
            if service is None:
                return refused(409, _ANOTHER) if handler != self._page else RedirectResponse("/")
            try:
                return await handler(request, service)
            except SessionError as error:  # the session has closed
                return refused(507, one_line(error))

        return answer

    async def _page(self, request: Request, service: ReviewService) -> Response:
        if self._concepts and "session" not in request.query_params:
            rows = await run_in_threadpool(
                lambda: [overview_row(self._concepts[i], s) for i, s in self._services.items()]
            )
            shown = {"title": self._title, "warnings": self._warnings, "rows": rows}
            html = template("concepts").render(shown, styles=_OVERVIEW_STYLES, scripts=())
            return HTMLResponse(html, headers={"cache-control": "no-store"})
        service.prefer()
        state = await run_in_threadpool(_state, service, "")
        page: Body = {
            "title": self._concepts.get(service.identifier, self._title),
            "warnings": list(dict.fromkeys([*self._warnings, *filter(None, [state["epoch_note"]])])),
            "overview": bool(self._concepts),
        }
        return HTMLResponse(review_page(state, **page), headers={"cache-control": "no-store"})

    async def _asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in ASSETS:
            return refused(404, NOTHING)
        media_type = _MEDIA_TYPES[name.rpartition(".")[2]]
        return Response(read_asset(name), media_type=media_type, headers={"cache-control": "no-cache"})

    async def _state(self, request: Request, service: ReviewService) -> Response:
        return _json(await run_in_threadpool(_state, service, request.query_params.get("tab", "")))

    async def _card(self, request: Request, service: ReviewService) -> Response:
        row = _row(request)
        card = None if row is None else await run_in_threadpool(service.card, row)
        return refused(404, NOTHING) if card is None else _json(card)

    async def _past(self, request: Request, service: ReviewService) -> Response:
        before = _row(request)
        if before is None:
            return refused(404, NOTHING)
        decisions = await run_in_threadpool(service.past, before, PAST)
        shown = [one | {"shown": visible(one["key"])} for one in decisions]
        named: Body = {"decisions": shown, "session": service.identifier, "words": _WORDS}
        return _json({"html": template("past").render(named).strip()})

    async def _image(self, request: Request, service: ReviewService) -> Response:
        row, size = _row(request), request.query_params.get("size", "card")
        if row is None:
            return refused(404, NOTHING)
        get = partial(service.pictures.get, row, size, timeout=PICTURE_SECONDS)
        picture = await asyncio.get_running_loop().run_in_executor(self._waiting, get)
        if picture is None or not picture.data:
            return refused(404, NOTHING)
        lasting = request.query_params.get("v") == service.identifier
        control = "private, max-age=86400, immutable" if lasting else "no-store"
        return Response(picture.data, media_type=picture.media_type, headers={"cache-control": control})

    # --- changing ------------------------------------------------------------------------------------

    def _post(self, handler: Callable[[Body, ReviewService], Body]) -> Callable[..., Awaitable[Response]]:
        """Route of a POST: reads the body, which names its session, and answers errors in one line."""

        async def answer(request: Request) -> Response:
            try:
                body = await _read(request)
                service = self._services.get(str(body.get("session")))
                if service is None:
                    return refused(409, _ANOTHER)
                return _json(
                    await run_in_threadpool(
                        lambda: handler(body, service) | {"state": _state(service, body.get("tab"))}
                    )
                )
            except _BadRequestError as error:
                return refused(error.status, str(error))
            except ClientDisconnect:
                return refused(400, "the request was not sent to its end")
            except (SessionError, OutputError) as error:
                return refused(507, one_line(error))
            except (PUCacheError, ValueError) as error:
                return refused(400, one_line(error))

        return answer


def _next(body: Body, service: ReviewService) -> Body:
    tab, count = _name(body, "tab"), _number(body, "count", MAX_COUNT)
    keep = [_existing(service, row) for row in _list(body, "keep", 10 * MAX_COUNT)]
    only = body.get("only", "")
    if only not in ("", "random", "doubted"):
        raise _BadRequestError("only must be random or doubted, or left out")
    return {"images": service.next(tab, count, keep, only=only)}


def _decide(body: Body, service: ReviewService) -> Body:
    tab = _name(body, "tab")
    accepted, stale = service.decide(
        tab, [_proposal(service, item) for item in _list(body, "decisions", MAX_DECISIONS)]
    )
    return {"accepted": accepted, "stale": stale}


def _release(body: Body, service: ReviewService) -> Body:
    service.queue.release(_name(body, "tab"))
    return {}


def _closing_audit(body: Body, service: ReviewService) -> Body:
    if not isinstance(body.get("on"), bool):
        raise _BadRequestError("on must be true or false")
    if body.get("zone", "all") not in ("all", "likeliest"):
        raise _BadRequestError("zone must be all or likeliest")
    service.set_closing_audit(body["on"], likeliest=body.get("zone") == "likeliest")
    return {}


def _state(service: ReviewService, tab: Any) -> Body:
    """How the review stands for a tab, with the panel of its page."""
    state = service.state(tab if isinstance(tab, str) and _NAME.fullmatch(tab) else "")
    return state | {"panel": template("panel").render(state.pop("audited")).strip()}


def review_page(state: Body, **shown: Any) -> str:
    """HTML of the page of a review, as it stands; it sends the identifier of the `session` with every request.

    `title`, `warnings`, lines at its top, and whether an `overview` of other reviews is the first page.
    """
    examples = [one | {"key": visible(one["key"])} for one in state["examples"]]
    named: Body = {"session": state["session"], "panel": state["panel"], "examples": examples}
    return template("review").render(named | shown, styles=_STYLES, scripts=_SCRIPTS)


def overview_row(name: str, service: ReviewService) -> dict[str, Any]:
    """What the overview says about the session of a concept."""
    try:
        state, changed = service.state(), service.session.last_change
    except SessionError:  # its page says why
        return {"session": service.identifier, "name": name, "changed": "closed"}
    return {
        "session": service.identifier,
        "name": name,
        "labelled": f"{int(service.session.pile.before.positive.sum()):,}",
        "found": f"{state['found']:,}",
        "decided": f"{state['decided']:,}",
        "hidden": "" if state["hidden"] is None else f"{state['hidden']['high']:,}",
        "changed": "" if changed is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(changed)),
    }


class _BadRequestError(Exception):
    """A request that is not as the interface wants it."""

    def __init__(self, reason: str, status: int = 400):
        super().__init__(reason)
        self.status = status


async def _read(request: Request) -> Body:
    """The JSON object of a request."""
    too_large = _BadRequestError(f"a request has at most {MAX_BODY:,} bytes", 413)
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > MAX_BODY:
        raise too_large
    parts, total = [], 0
    async for part in request.stream():
        total += len(part)
        if total > MAX_BODY:
            raise too_large
        parts.append(part)
    try:
        body = json.loads(b"".join(parts))
    except (ValueError, RecursionError) as error:
        raise _BadRequestError("the body is not JSON") from error
    if not isinstance(body, dict):
        raise _BadRequestError("the body must be a JSON object")
    return body


def _row(request: Request) -> int | None:
    text = request.path_params["row"]
    return int(text) if _ROW.fullmatch(text) else None


def _name(body: Body, field: str) -> str:
    value = body.get(field)
    if not (isinstance(value, str) and _NAME.fullmatch(value)):
        raise _BadRequestError(f"{field} must be 1 to 64 letters, digits, - or _")
    return value


def _number(body: Body, field: str, greatest: int) -> int:
    value = body.get(field)
    if type(value) is not int or not 0 <= value <= greatest:
        raise _BadRequestError(f"{field} must be a whole number from 0 to {greatest:,}")
    return value


def _list(body: Body, field: str, longest: int) -> list[Any]:
    value = body.get(field, [])
    if not isinstance(value, list):
        raise _BadRequestError(f"{field} must be a list")
    if len(value) > longest:
        raise _BadRequestError(f"{field} has {len(value):,} entries; at most {longest:,} in a request", 413)
    return value


def _existing(service: ReviewService, row: Any) -> int:
    if type(row) is not int or not 0 <= row < len(service.session.cache):
        raise _BadRequestError("row must be a row of the cache")
    return row


def _proposal(service: ReviewService, item: Any) -> Proposal:
    if not isinstance(item, dict):
        raise _BadRequestError("a decision is an object")
    try:
        choice = Choice(str(item.get("choice")))
    except ValueError as error:
        raise _BadRequestError(f"choice must be one of {', '.join(Choice)}") from error
    return Proposal(
        request=_name(item, "request"),
        row=_existing(service, item.get("row")),
        choice=choice,
        replaces=_number(item, "replaces", MAX_ROW),
        reviewer=service.reviewer,
        model_version=_number({"shown_version": 0} | item, "shown_version", MAX_ROW),
        correction=item.get("correction") is True,
    )


def _json(body: Body) -> Response:
    text = json.dumps(body, allow_nan=False)  # ASCII: a key may hold bytes that are not UTF-8
    return Response(text, media_type="application/json", headers={"cache-control": "no-store"})


async def _answer_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 405:
        return refused(405, f"{request.method} is not a method of this address")
    return refused(status, NOTHING)


async def _answer_bug(request: Request, error: Exception) -> Response:
    return refused(500, "an error of pucache, which its terminal shows; what was decided before is kept")
