"""How many positives of the pile are still hidden, from the log of a review alone; see `pucache.estimates.limits`.

A second reader's review begins with the labels, the pile and the query of the first, and sees no answer of it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import SessionError
from ..estimates.agreement import Agreement
from ..estimates.limits import Limits
from ..storage.urls import path_or_url
from .history import History, agreement, joined
from .log import AuditedEntries, DecisionLog
from .session_folder import another_readers, doubted_numbers, open_log, over_sessions

if TYPE_CHECKING:
    from .session import Session


def audit(session: str | Path | Session, *, level: float = 0.95, beside: str | Path | None = None) -> Limits:
    """How many positives are still hidden in the pile of a review session.

    Parameters
    ----------
    session : path or Session
        Folder of a session, also while `pucache review` runs it; or a session that is open.
    level : float
        Probability that the limits are right at every moment of the review at once.
    beside : path, optional
        Folder of a second reader's session on the same images. The labels are then those of both, or of the one who
        alone has decided; where they differ there is none.

    Returns
    -------
    Limits

    Raises
    ------
    SessionError
        There is no session, its log is damaged, or that of `beside` is not of the same images in the same state.
    ValueError
        The level is not within (0, 1).
    """
    if hasattr(session, "limits"):
        return session.limits(level)
    folder, agreed = Path(path_or_url(session)), None
    try:
        with open_log(folder, read_only=True) as log:
            present = log.audited_entries()
            if beside is not None:
                present, agreed = _audited_beside(log, present, another_readers(beside, folder))
        history = History(present.urns, present.entries, present.carried)
    except ValueError as error:
        raise SessionError(f"the log of {folder} is damaged: {error}; restore it from a copy") from error
    doubted = len(history.doubted(doubted_numbers(folder)))
    limits = history.limits(level=level, zone=present.zone, since=present.since, doubted=doubted)
    return replace(limits, agreement=agreed, restarted=present.restarted)


def _audited_beside(log: DecisionLog, present: AuditedEntries, beside: Path) -> tuple[AuditedEntries, Agreement]:
    """What the audit of both readers is computed from, and how they agree.

    Raises `SessionError` where the logs are not of the same images in the same state.
    """
    with open_log(beside, read_only=True) as other:
        theirs, same = other.audited_entries(), other.facts().pile == log.facts().pile
    if not same:
        raise SessionError(
            f"{log.path.parent} and {beside} are no reviews of the same images in the same state: begin the second "
            "with --beside, and go on with each once after the cache has changed"
        )
    mine, others = (History(of.urns, of.entries, of.carried) for of in (present, theirs))
    said = [replace(one, zone=present.zone.parts.get(one.key, 0)) for one in joined(mine, others)]
    return present._replace(entries=[*present.entries, *said]), agreement(mine, others)


def audit_concepts(
    folder: str | Path, *, level: float = 0.95, beside: str | Path | None = None
) -> tuple[dict[str, Limits], dict[str, str]]:
    """`pucache.audit` of the session of each concept.

    Parameters
    ----------
    folder : path
        Of the sessions, also while `pucache review` runs them.
    level : float
        As for `pucache.audit`; it holds for each concept, not for all at once.
    beside : path, optional
        Folder of the sessions of a second reader.

    Returns
    -------
    audits : dict of str to Limits
    failures : dict of str to str
        Concepts whose session cannot be read, and why, in one line.

    Raises
    ------
    SessionError
        The folder holds no session that can be read, or sessions of different caches.
    """
    other = None if beside is None else Path(path_or_url(beside))
    return over_sessions(folder, lambda path: audit(path, level=level, beside=other and other / path.name))
