"""The audit of a session that is read from its folder."""

from __future__ import annotations

import math
from pathlib import Path

from ..errors import SessionError
from .audit import Audit
from .audit import audit as audit_entries
from .decision_log import DecisionLog
from .log_entries import Draw, Entry
from .session import Session
from .session_folder import LOG


def audit(session: str | Path | Session, *, level: float = 0.95) -> Audit:
    """How many positives are still hidden in the pile of a review session.

    Parameters
    ----------
    session : path or Session
        Folder of a session, also while `pucache review` runs it; or a session that is open.
    level : float
        Probability that the limits are right at every moment of the sitting at once.

    Returns
    -------
    Audit

    Raises
    ------
    SessionError
        There is no session, or its log is damaged.
    ValueError
        The level is not within (0, 1).
    """
    entries, pile = _read(session)
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be between 0 and 1; got {level}")
    try:
        return audit_entries(entries, pile, level=level)
    except ValueError as error:
        name = session.folder if isinstance(session, Session) else session
        raise SessionError(f"the log of {name} is damaged: {error}; restore it from a copy") from error


def model_estimate(session: str | Path | Session, audited: Audit) -> float | None:
    """Number of hidden positives by the model that ranked when the last random image was drawn; None without one."""
    draws = [entry for entry in _read(session)[0] if isinstance(entry, Draw) and not math.isnan(entry.expected)]
    return draws[-1].expected * audited.unknown if draws else None


def _read(session: str | Path | Session) -> tuple[list[Entry], int]:
    """Entries of the present epoch, and rows of its pile."""
    if isinstance(session, Session):
        return session.entries(), session.pile_size
    folder = Path(session)
    if folder.is_file():
        raise SessionError(f"{folder} is a file; expected the folder of a review session, such as cache.h5.review")
    log = DecisionLog.open(folder / LOG, read_only=True)
    try:
        return log.entries(), log.facts().pile
    finally:
        log.close()
