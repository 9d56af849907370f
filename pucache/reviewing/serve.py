"""`pucache review`: opens a session and serves its page until it is stopped."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import logging
import os
import resource
import secrets
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn

from ..cache.embedding_cache import CacheLike, EmbeddingCache, open_cache
from ..errors import PUCacheError, SessionError, one_line
from ..labels.groups import groups_of_images
from ..labels.labels import TWIN_COSINE, Labels
from ..labels.near_duplicates import joined_groups
from ..labels.read_labels import LabelSource, open_labels
from ..retrieval.query import Query
from .access import TOKEN_BYTES, ServerAddress, keep_address, kept_address, listening_socket, printed_url
from .app import Application
from .history import conflicts
from .log_file import LOG
from .pictures import Pictures
from .pile import Twins
from .query_start import FirstRanking, begin_with, positives_known, rank_by_query
from .queue import NextImages
from .service import ReviewService
from .session import Session, open_session, read_session
from .session_folder import keep_groups, kept_groups, lock_folder, session_folder
from .session_labels import train_commands
from .trainer import Trainer

SWITCH_SECONDS = 5e-4  # between threads: Python's 5 ms would be waited for at every step of a decision
FIRST_PORT = 8321
_ENDING = "every decision is on disk before the page goes on; Ctrl-C ends, and the same command goes on"
_FILES = 8  # that a session may hold open: its lock, its log and what SQLite keeps beside it, with some to spare
ENDING_SECONDS = 5  # for which answers under way are waited for


def review(
    cache: CacheLike,
    positives: LabelSource | None = None,
    *,
    words: str | Sequence[str] = (),
    not_words: str | Sequence[str] = (),
    like: str | Path | Sequence[str | Path] = (),
    weights: str | Path | None = None,
    session: str | Path | None = None,
    images: str | Path | None = None,
    reviewer: str | None = None,
    beside: str | Path | None = None,
    twins: float | None = TWIN_COSINE,
    port: int | None = None,
    host: str = "127.0.0.1",
    open_browser: bool = True,
    device: str = "auto",
    seed: int | None = None,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve a page on which to find the positives of a cache, until Ctrl-C.

    Parameters
    ----------
    cache : EmbeddingCache, path, or sequence of paths
    positives : path, str, RowValues, PULabels or Labels, optional
        Labels from before the review, as for `pucache.train_pu`. None: those that the session began with; a new
        session without positives begins with a selection that is spread over the pile. Of `Labels` of several concepts
        each has a session of its own in a folder of its name, and the first page lists them. Where `Labels` have
        groups, of the likely positives one of each group is shown before a second one, and the classifier holds out
        whole groups; the session keeps them. Parts of an image are one group by default.
    words, not_words, like, weights
        Of what is looked for, as for `pucache.retrieve_positives`: rank the images until ten positives are found.
    session : path, optional
        Folder of the session, or of those of the concepts. Default: ``CACHE.review`` beside the cache.
    images : str or path, optional
        Source of the images, where they have moved since the cache was made.
    reviewer : str, optional
        Name that is logged with each decision. Default: that of the user.
    beside : path, optional
        Folder of another reader's session on the same images. A new session begins with its labels, pile and query, and
        sees none of its answers. What both decided otherwise is offered among the decisions to look at again.
    twins : float or None
        Cosine from which on two images show the same picture. None: equal bytes only.
    port : int, optional
        Where it is in use, the next free one; 0: any. Default: that of the session's last server, or 8321.
    host : str
        Address to serve at. With another one than that of this machine alone, whoever has the printed address
        may review.
    open_browser : bool
    device : str
        Of the training: auto, cpu, cuda or cuda:N.
    seed : int, optional
        Of the random draws. Default: another one every time.
    announce : callable
        Takes each line for the user.

    Raises
    ------
    LabelError, CacheError, SessionError
        As `pucache.reviewing.session.open_session`.
    EncoderError, MissingExtraError, SourceError
        Nothing can be ranked by the words or pictures; `images` cannot be opened.
    ValueError
        Words or pictures are named beside the labels of concepts, or where ten positives are known; `beside` is named
        with those.
    OutputError
        No port is free.
    KeyboardInterrupt
        It was stopped; nothing is lost.
    """
    cache, query = open_cache(cache), Query.of(words, not_words, like, weights=weights)
    if query.vectors:
        raise ValueError(
            "a review keeps what it began with, and no arrays: numpy.save those of like, and name the file"
        )
    labels = None if positives is None else open_labels(cache, positives)
    concepts = None if labels is None or labels.is_one else labels
    if query and concepts is not None:
        raise ValueError("words and pictures begin a single review; leave them out with the labels of concepts")
    if beside is not None and concepts is not None:
        raise ValueError("--beside is for a single review; leave it out with the labels of concepts")
    ranking = rank_by_query(cache, query, device)
    with ExitStack() as stack:
        pictures = Pictures(cache, images)
        stack.callback(pictures.close)
        folder = session_folder(cache, session)
        last = kept_address(folder) or ServerAddress(FIRST_PORT, secrets.token_urlsafe(TOKEN_BYTES))
        wanted = last.port if port is None else port
        listener = stack.enter_context(listening_socket(host, wanted))  # refused before a folder is made
        if concepts is None:
            places: dict[str, Any] = {"folder": folder, "twins": twins, "beside": beside}
            opened = stack.enter_context(open_session(cache, labels, **places))
            sessions, failures = {"": opened}, dict[str, str]()
        else:
            sessions, failures = open_concept_sessions(cache, concepts, folder, twins, stack)
            opened = next(iter(sessions.values()))
        names = [name for name in sessions if name]
        clusters = _groups_of(cache, labels, folder, beside)
        reader = reviewer or user_name()
        differ = rows_in_conflict(opened, Path(beside)) if beside is not None else ()
        address = last._replace(port=listener.getsockname()[1])
        keep_address(folder, address)
        if wanted not in (0, address.port):
            announce(f"port {wanted} is in use; {address.port} is served instead")
        services = [
            ReviewService(
                one,
                NextImages(one, np.random.default_rng(seed), clusters),
                pictures,
                identifier=identifier(one, address.token, name),
                reviewer=reader,
                conflicts=differ,
            )
            for name, one in sessions.items()
        ]
        paths, takers = [file.path for file in cache.files], [service.take_ranking for service in services]
        groups_of_twins = opened.state.groups
        together = groups_of_twins if clusters is None else joined_groups(groups_of_twins, clusters)
        trainer = stack.enter_context(Trainer(paths, takers, services[0].report, groups=together, device=device))
        first, lost = (None, "") if names else begin_with(opened, ranking, services[0].identifier)
        for number, service in enumerate(services):
            stack.callback(service.close)
            service.begin(trainer, number, first)
        left_out = [f"{name} is left out: {why}" for name, why in failures.items()]
        warnings = [*_warnings(opened, pictures), *filter(None, [lost]), *left_out]
        shown = f": {first.query}" if first else ""
        title = f"Review of {cache.files[0].path.name}{shown}"
        application = Application(services, address.token, host=host, title=title, warnings=warnings, concepts=names)
        url = printed_url(host, address.port, address.token)
        opening = [f"{len(names):,} concepts in {folder}"] if names else list(_opening_lines(opened, first))
        if clusters is not None:
            opening.append(
                f"{len(np.unique(clusters)):,} groups: of the likely positives one image of each comes first"
            )
        for line in [*opening, *warnings, f"open {url}", _ENDING]:
            announce(line)
        server = Server(application)
        if open_browser:
            server.on_start = lambda: open_in_browser(application, host, address.port, announce)
        before = sys.getswitchinterval()
        stack.callback(sys.setswitchinterval, before)
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            server.run(sockets=[listener])
        finally:
            for name, one in sessions.items():
                for line in _closing_lines(one, name):
                    announce(line)


def _groups_of(
    cache: EmbeddingCache, labels: Labels | None, folder: Path, beside: str | Path | None
) -> np.ndarray | None:
    """Groups of the images, int64 (n,), which the session keeps; None where they are independent."""
    group = None if labels is None else labels.group
    if group is not None:
        keep_groups(folder, cache, group)
    for kept in (folder, beside):
        if group is None and kept is not None and (group := kept_groups(Path(kept), cache)) is not None:
            keep_groups(folder, cache, group)
    group = groups_of_images(cache) if group is None else group
    return None if group is None or Labels({}, group=group).are_independent else group


def open_concept_sessions(
    cache: EmbeddingCache, labels: Labels, folder: Path, twins: float | None, stack: ExitStack
) -> tuple[dict[str, Session], dict[str, str]]:
    """Sessions of concepts, each in a folder of its name, and why others cannot be opened.

    Raises `SessionError` where none can be opened, or `folder` is that of a single review.
    """
    if (folder / LOG).exists():
        raise SessionError(f"{folder} is the session of a single review; name another folder with --session")
    lock_folder(folder, stack)
    _allow_files(_FILES * len(labels.columns))
    sessions, failures = {}, dict(labels.failures)
    shared = Twins(cache, twins)
    for name, of_concept in labels.columns.items():
        try:
            sessions[name] = stack.enter_context(open_session(cache, of_concept, folder=folder / name, twins=shared))
        except PUCacheError as error:
            failures[name] = one_line(error)
    if not sessions:
        raise SessionError(next(iter(failures.values())))
    return sessions, failures


def rows_in_conflict(session: Session, beside: Path) -> list[int]:
    """Rows that another reader has decided otherwise; none before one of both has begun. Raises `SessionError`."""
    with read_session(session.cache, beside) as other:
        return [one.row for one, _ in conflicts(session.state.history, other.state.history)]


def _allow_files(count: int) -> None:
    """Let this process open so many more files than by default, as far as the system lets it."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 1024
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    with contextlib.suppress(OSError, ValueError):
        allowed = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))


def identifier(session: Session, token: str, concept: str = "") -> str:
    """Identifier of a session and of its cache, 16 hexadecimal digits; it survives a restart of the server."""
    parts = [token, *([concept] if concept else []), *session.cache.checksums]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def user_name() -> str:
    """Name of the user; "" where it has none, as in a container."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


class Server(uvicorn.Server):
    """Serves an application on sockets that are bound already; `on_start` is called once requests are served."""

    def __init__(self, application: Application):
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # hide errors about malformed requests
        config = uvicorn.Config(
            application.access,
            http="h11",
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=1 << 16,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=ENDING_SECONDS,
        )
        super().__init__(config)
        self._application = application
        self.on_start: Callable[[], None] = lambda: None

    async def startup(self, sockets: list[Any] | None = None) -> None:
        """Begin to serve."""
        await super().startup(sockets)
        self.on_start()

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        """Let waiting requests go, finish the requests under way, and stop."""
        self._application.end()
        await super().shutdown(sockets)


def open_in_browser(application: Application, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Open the page in a browser, in a thread, with a token that is void afterwards: others may see command lines."""

    def start() -> None:
        url = printed_url(host, port, application.access.token_for_one_use())
        with contextlib.suppress(webbrowser.Error, OSError):
            if _has_display() and webbrowser.open(url):
                return
        announce("no browser could be started here; open the address in one")

    threading.Thread(target=start, name="browser", daemon=True).start()


def _closing_lines(session: Session, name: str) -> Iterator[str]:
    """What a review has found; nothing about a concept without a decision."""
    try:
        if not name or session.last_change is not None:
            statement = session.limits().sentence
            yield f"{name}: {statement}" if name else statement
            yield from (f"train on it: {command}" for command in train_commands(session))
    except SessionError as error:  # it has closed
        yield str(error)


def _has_display() -> bool:
    """Whether a browser has a screen; without one, `webbrowser` would start one of text in this terminal."""
    names = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME")
    return sys.platform != "linux" or any(os.environ.get(name) for name in names)


def _warnings(session: Session, pictures: Pictures) -> Iterator[str]:
    if session.pile.note:
        yield session.pile.note
    problem = pictures.common_problem()
    if problem:
        yield f"the images cannot be shown ({problem}): end with Ctrl-C, and name their place with --images SOURCE"


def _opening_lines(session: Session, first: FirstRanking | None) -> Iterator[str]:
    counts, labels = session.state.progress(), session.pile.before
    before = f"{int(labels.positive.sum()):,} labelled positive, {int(labels.negative.sum()):,} negative before"
    yield f"{session.cache.name}: {len(session.cache):,} images, {before}; {counts.untaken:,} to search"
    done = f"goes on with {counts.decided:,} decided, {counts.positives:,} of them positive"
    if first is not None:
        yield first.sentence(positives_known(session))
    yield f"session {session.folder} {done if counts.decided or counts.skipped else 'begins'}"
