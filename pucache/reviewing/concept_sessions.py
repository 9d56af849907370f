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
    failures, results, facts = dict[str, str](), dict[str, R](), dict[str, EpochFacts]()
    for name, path in concept_folders(folder).items():
        try:
            with open_log(path, read_only=True) as log:
                facts[name] = log.facts()
            results[name] = work(path)
        except PUCacheError as error:
            failures[name] = one_line(error)
    caches = {of.cache: set(of.checksums) for of in facts.values()}
    if len(caches) > 1 and not set.intersection(*caches.values()):
        named = ", ".join(f"{name} of {of.cache}" for name, of in facts.items())
        raise SessionError(f"{folder} holds sessions of different caches: {named}; name the folder of one of them")
    if not results:
        raise SessionError(next(iter(failures.values()), f"no review session at {folder}: {LOG} is missing"))
    return results, failures


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
