"""A second reader: another log of the same session, in a folder of his own, and what both logs say together.

He begins with the labels and the pile of the first reader, sees none of his answers, and gets the same random images
where that is possible (see `SharedDraws`). A picture on which they differ is shown again to both, once, among new
images: unmarked, since to say that it is one would tell the other's answer.
"""

from __future__ import annotations

import re
import unicodedata
from contextlib import ExitStack
from pathlib import Path

from ..cache.embedding_cache import EmbeddingCache
from ..errors import SessionError
from .agreement import BOTH, Agreement, check_rule, conflicts, reader_of, second_says
from .log import Stream
from .log_file import LOG, REMEDY
from .pile import Twins
from .session import Session, read_session
from .session_folder import is_first_start, open_log
from .session_start import begin_beside, begin_or_resume, lock_folder

READERS = "readers"  # folder in that of a session


def plain_name(name: str) -> str:
    """Folder of a reader; spellings of a name that differ in case or signs alone are one reader."""
    return re.sub(r"\W+", "-", unicodedata.normalize("NFKC", name).casefold()).strip("-")


def open_second_reader(cache: EmbeddingCache, folder: Path, name: str, twins: float | None) -> Session:
    """Begin the log of a second reader, or go on with it; `folder` is that of the first reader's session.

    Raises `ValueError` where the name makes no file name, and `SessionError` where the first reader has not begun, has
    the same name, or has another second reader; and as `open_session`.
    """
    plain = plain_name(name)
    relative = f"{READERS}/{plain}"
    if not 0 < len(plain.encode()) <= 100:
        raise ValueError(f"--second-reader {name!r:.120} makes no file name; use letters or digits, at most 100")
    if is_first_start(folder):
        raise SessionError(
            f"no first reader has begun at {folder}: leave out --second-reader, or name another --session"
        )
    with open_log(folder, read_only=True) as log:
        known, decisions = log.reader(), [entry for entry in log.entries() if not entry.is_draw]
    if not decisions:
        raise SessionError(f"the first reader of {folder} has decided nothing yet; a second one begins afterwards")
    if plain in {plain_name(decision.reviewer) for decision in decisions}:
        raise SessionError(f"{name} is the first reader of {folder}; another name is needed for the second")
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
    if session.first_reader is None and plain_name(name) == plain_name(other[0]):
        raise SessionError(f"{name} is the second reader of {session.folder}; open that log with --second-reader")
    with read_session(session.cache, other[1]) as opened:
        mine, theirs = session.history(), opened.history()
    shown = {entry.group for entry in mine if entry.is_draw and entry.stream is Stream.CONFLICT}
    session.show_again([one.row for one, _ in conflicts(mine, theirs) if one.group not in shown])
    others = other[0] or reader_of(theirs)
    return f"The limit and the random images are those of {name}'s own log. The answers of {others} are not shown."
