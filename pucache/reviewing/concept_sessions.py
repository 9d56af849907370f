"""A folder of sessions, one for each concept, as ``pucache review --concepts`` writes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ..errors import PUCacheError, SessionError, one_line
from .audit import Audit, audit
from .log import EpochFacts
from .log_file import LOG
from .session_folder import open_log

R = TypeVar("R")


def concept_folders(folder: str | Path) -> dict[str, Path]:
    """Folder of each session by concept; none where the folder is that of a single review."""
    if Path(folder, LOG).exists():
        return {}
    return {log.parent.name: log.parent for log in sorted(Path(folder).glob(f"*/{LOG}"))}


def over_sessions(folder: str | Path, work: Callable[[Path], R]) -> tuple[dict[str, R], dict[str, str]]:
    """Do some work with the session of each concept in a folder; one that fails stops no other.

    Returns the results, and why others failed, by concept.

    Raises
    ------
    SessionError
        The folder holds no session, or sessions of different caches; the work failed for each.
    """
    sessions, failures = concept_folders(folder), dict[str, str]()
    facts, results = dict[str, EpochFacts](), dict[str, R]()
    for name, path in sessions.items():
        try:
            with open_log(path, read_only=True) as log:
                facts[name] = log.facts()
        except SessionError as error:
            failures[name] = one_line(error)
    _check_one_cache(folder, facts)
    for name in facts:
        try:
            results[name] = work(sessions[name])
        except PUCacheError as error:
            failures[name] = one_line(error)
    if not results:
        name, reason = next(iter(failures.items()), ("", f"no review session at {folder}: {LOG} is missing"))
        raise SessionError(f"none of the sessions in {folder} can be used; {name}: {reason}" if name else reason)
    return results, failures


def _check_one_cache(folder: str | Path, facts: dict[str, EpochFacts]) -> None:
    """Raise `SessionError` where two sessions are of caches that share neither name nor checksum."""
    first = next(iter(facts), "")
    for name, of in facts.items():
        if of.cache != facts[first].cache and not set(of.checksums) & set(facts[first].checksums):
            raise SessionError(
                f"{folder} holds sessions of different caches: {first} of {facts[first].cache}, {name} of {of.cache}; "
                "name the folder of one of them"
            )


def audit_concepts(
    folder: str | Path, *, level: float = 0.95, readers: str = "both"
) -> tuple[dict[str, Audit], dict[str, str]]:
    """`pucache.audit` of the session of each concept.

    Parameters
    ----------
    folder : path
        Of the sessions, also while `pucache review` runs them.
    level : float
        As for `pucache.audit`; it holds for each concept, not for all at once.
    readers : str
        As for `pucache.audit`.

    Returns
    -------
    audits : dict of str to Audit
    failures : dict of str to str
        Concepts whose session cannot be read, and why, in one line.

    Raises
    ------
    SessionError
        The folder holds no session that can be read, or sessions of different caches.
    """
    return over_sessions(folder, lambda path: audit(path, level=level, readers=readers))
