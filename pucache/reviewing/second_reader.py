"""A second reader: another log of the same session, in a folder of his own, and what both logs say together.

He begins with the labels and the pile of the first reader, sees none of his answers, and gets the same random images
where that is possible (`pucache.reviewing.shared_draws`). A picture on which they differ is shown again to both, once,
among new images: unmarked, since to say that it is one would tell the other's answer.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from ..cache.embedding_cache import CacheLike, EmbeddingCache
from ..errors import LabelError, SessionError
from ..labels.concepts import check_names
from .agreement import BOTH, Agreement, check_rule, conflicts, reviewers, second_says
from .log import Stream
from .log_file import LOG, REMEDY
from .pile import Twins
from .session import Session, read_session
from .session_folder import is_first_start, open_log
from .session_start import begin_beside, begin_or_resume, lock_folder

READERS = "readers"  # folder in that of a session


def file_name(name: str) -> str:
    """The folder of a reader: two spellings of a name that differ in case or signs are one reader.

    Raises `ValueError` where no file name is left.
    """
    plain = re.sub(r"\W+", "-", unicodedata.normalize("NFKC", name).casefold()).strip("-")
    try:
        check_names([plain], "")
    except LabelError:
        raise ValueError(
            f"--second-reader {name!r:.120} makes no file name; name the reader by letters or digits, at most 100"
        ) from None
    return plain


def open_second_reader(cache: EmbeddingCache, folder: Path, name: str, twins: float | None) -> Session:
    """Begin the log of a second reader, or go on with it; `folder` is that of the first reader's session.

    Raises
    ------
    SessionError
        The first reader has not begun, or is of the same name; there is another second reader; a log is lost, damaged,
        in use, of another cache, or cannot be written.
    ValueError
        The name makes no file name.
    """
    relative = f"{READERS}/{file_name(name)}"
    if is_first_start(folder):
        raise SessionError(
            f"no first reader has begun at {folder}: leave out --second-reader, or name another --session"
        )
    with open_log(folder, read_only=True) as log:
        known, first = log.reader(), reviewers(log.entries())
    if not first:
        raise SessionError(f"the first reader of {folder} has decided nothing yet; a second one begins after him")
    if file_name(name) in map(_safe, first):
        raise SessionError(f"{name} is the first reader of {folder}; name the second one otherwise")
    if known is not None and known[1] != relative:
        raise SessionError(f"{folder} has a second reader, {known[0]}; a session has two at most")
    own = folder / relative
    with ExitStack() as stack:
        lock_folder(own, stack)
        if is_first_start(own):
            if known is not None:
                raise SessionError(f"the decisions of {name} are lost: {own / LOG} is missing; {REMEDY}")
            begin_beside(folder, own, cache)
        if known is None:
            with open_log(folder) as log:
                log.add_reader(name, relative)
        return Session(cache, own, begin_or_resume(own, cache, None, Twins(cache, twins)), stack.pop_all(), folder)


def _safe(name: str) -> str:
    try:
        return file_name(name)
    except ValueError:
        return ""


def take_second_reader(session: Session, readers: str) -> Agreement | None:
    """Let a session that is read have the labels of both readers, unless those of the first are wanted.

    Returns how they agree; None where there is no second reader. Raises `SessionError`.
    """
    check_rule(readers)
    if session.second_reader is None:
        return None
    name, folder = session.second_reader
    with read_session(session.cache, folder) as second:
        theirs = second.history()
    mine = session.history()
    if readers == BOTH:
        session.take_second(second_says(mine, theirs))
    return Agreement.of(name, mine, theirs, readers)


def beside_other(session: Session, name: str) -> str:
    """Show a reader again what the other one has decided otherwise, each image once; returns whose log it is.

    "" where there is one reader. Raises `SessionError`, also where the first log is opened by the second reader.
    """
    other = session.second_reader if session.first_reader is None else ("", session.first_reader)
    if other is None:
        return ""
    if session.first_reader is None and _safe(name) == _safe(other[0]):
        raise SessionError(f"{name} is the second reader of {session.folder}; open his log with --second-reader")
    with read_session(session.cache, other[1]) as opened:
        mine, theirs = session.history(), opened.history()
    shown = {entry.group for entry in mine if entry.is_draw and entry.stream is Stream.CONFLICT}
    session.show_again([one.row for one, _ in conflicts(mine, theirs) if one.group not in shown])
    others = other[0] or next(iter(reviewers(theirs)), "") or "the first reader"
    return f"The limit and the random images are those of {name}'s own log. The answers of {others} are not shown."


def read_reader(cache: CacheLike, folder: str | Path | None, name: str | None) -> Session:
    """The session of a reader, to read it: of the first one without a name. Raises as `read_session`."""
    session = read_session(cache, folder)
    if name is None:
        return session
    with session:
        known = session.second_reader
    if known is None or _safe(name) != file_name(known[0]):
        raise SessionError(f"{session.folder} has no second reader {name}" + (f", but {known[0]}" if known else ""))
    return read_session(session.cache, known[1])


def check_alone(named: Mapping[str, object]) -> None:
    """Raise ValueError for what a second reader takes from the first."""
    if given := [f"--{name}" for name, value in named.items() if value is not None]:
        raise ValueError(f"a second reader has the labels of the first, and his own name; leave out {', '.join(given)}")
