"""The folder of a session: its files, whether its log is the one that they belong to, and groups that it keeps.

Sessions of concepts lie in folders of a folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..errors import PUCacheError, SessionError, SessionLockedError, one_line
from ..labels.groups import group_of_each, numbered
from ..labels.listing import EXPORT
from ..neighbours.graph_file import sidecar_path
from ..storage.atomic import locked_folder
from ..storage.table_writer import write_rows
from ..storage.tables import read_table
from ..storage.urls import path_or_url
from .log import DecisionLog, EpochFacts
from .log_file import ACKNOWLEDGED, LOG, REMEDY, is_unwritten, missing_or_empty, wal_of

RANKING = "ranking.npz"  # the last ranking, see `pucache.reviewing.trainer.keep_ranking`
ADDRESS = "server.json"  # see `pucache.reviewing.access.keep_address`
DOUBTED = "doubted.json"  # numbers of the decisions that the model doubts, see `doubted_numbers`
_NO_SESSION = f"no review session at {{}}: {LOG} is missing; expected the folder that review writes, CACHE.review"
_FILES = (EXPORT, ACKNOWLEDGED, RANKING, ADDRESS, "pile-*.npz")  # that only a session leaves
_LOCK = ".lock"
R = TypeVar("R")


def session_folder(cache: EmbeddingCache, folder: str | Path | None = None) -> Path:
    """Folder of a session; by default ``CACHE.review`` beside the first file of the cache."""
    return sidecar_path(cache, "review") if folder is None else Path(path_or_url(folder))


def another_readers(beside: str | Path, folder: Path) -> Path:
    """The folder of another reader's session; raises `SessionError` where it is the session's own `folder`."""
    other = Path(path_or_url(beside))
    if other.resolve() == folder.resolve():
        raise SessionError(f"{beside} is the review that it would stand beside; name that of another reader")
    return other


def lock_folder(folder: Path, stack: ExitStack) -> None:
    """Create the folder, and keep other servers out of it until the stack closes.

    Raises `SessionLockedError` where another process runs the session, `SessionError` where it cannot be written.
    """
    if folder.is_file():
        raise SessionError(f"{folder} is a file; expected the folder of a review session, such as cache.h5.review")
    locked = SessionLockedError(
        f"{folder} is in use by another pucache review; open the address that it printed, or end it first"
    )
    try:
        stack.enter_context(locked_folder(folder, _LOCK, locked))
    except OSError as error:
        raise SessionError(
            f"cannot write the session {folder}: {one_line(error)}; name another folder with --session"
        ) from error


def is_review(folder: Path) -> bool:
    """Whether a folder holds a session, or what one has left, or the sessions of concepts."""
    return any((folder / name).exists() for name in (LOG, ACKNOWLEDGED)) or bool(concept_folders(folder))


def is_first_start(folder: Path) -> bool:
    """Whether no review has begun in a folder.

    Raises `SessionError` where the log is missing or empty and other files say that one has: it is lost, and another
    one would take the place of what it held.
    """
    log = folder / LOG
    if not is_unwritten(log):
        return False
    left = sorted(path.name for pattern in _FILES for path in folder.glob(pattern))
    left += [wal_of(log).name] if wal_of(log).exists() and wal_of(log).stat().st_size else []
    concepts = sorted(path.parent.name for path in folder.glob(f"*/{LOG}"))
    if left and concepts:
        raise SessionError(
            f"{folder} holds the sessions of {len(concepts):,} concepts ({', '.join(concepts[:3])}); pass their "
            "labels, or name one of them, or another folder, with --session"
        )
    if left or log.is_symlink():
        beside = f", and {', '.join(left)} {'is' if len(left) == 1 else 'are'} there" if left else ""
        raise SessionError(f"the decisions of {folder} are lost: {LOG} is {missing_or_empty(log)}{beside}; {REMEDY}")
    return True


def open_log(folder: Path, *, read_only: bool = False) -> DecisionLog:
    """Open the log in a folder; raises `SessionError`."""
    if is_first_start(folder):
        raise SessionError(_NO_SESSION.format(folder))
    return DecisionLog.open(folder / LOG, read_only=read_only)


def doubted_numbers(folder: Path) -> list[int]:
    """Numbers of the decisions that the last rankings doubted, worst first; none where the file is damaged."""
    try:
        numbers = json.loads((folder / DOUBTED).read_text())
    except (OSError, ValueError):
        return []
    return [one for one in numbers if type(one) is int] if isinstance(numbers, list) else []


# --- sessions of concepts -----------------------------------------------------------------------


def concept_folders(folder: str | Path) -> dict[str, Path]:
    """Folder of each session by concept; none where the folder is that of a single review."""
    folder = Path(path_or_url(folder))
    return {} if (folder / LOG).exists() else {log.parent.name: log.parent for log in sorted(folder.glob(f"*/{LOG}"))}


def over_sessions(folder: str | Path, work: Callable[[Path], R]) -> tuple[dict[str, R], dict[str, str]]:
    """Do some work with the session of each concept in a folder: the results, and why others failed, by concept.

    Raises `SessionError` where there is no session, where they are of different caches, or where all work failed.
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
        raise SessionError(next(iter(failures.values()), _NO_SESSION.format(folder)))
    return results, failures


# --- groups -------------------------------------------------------------------------------------


KEPT_GROUPS = "groups.csv"
_COLUMNS = {"key": ("key",), "group": ("group",)}


def keep_groups(folder: Path, cache: EmbeddingCache, group: np.ndarray) -> None:
    """Write the group of each row, int64 (n,), by key; a table without rows says that all are independent."""
    several = np.flatnonzero(np.bincount(group, minlength=len(group))[group] > 1)
    rows = zip(cache.keys[several], cache.keys[group[several]], strict=True)
    write_rows(folder / KEPT_GROUPS, [list(_COLUMNS), *map(list, rows)])


def kept_groups(folder: Path, cache: EmbeddingCache) -> np.ndarray | None:
    """First row of each row's group, int64 (n,), as they were kept; None where nobody has said anything of groups."""
    path = folder / KEPT_GROUPS
    if not path.exists():
        return None
    table = read_table(path, _COLUMNS)
    there = cache.keys.rows([row["key"] for row in table]) >= 0
    pairs = [(row["key"], row["group"]) for row, known in zip(table, there, strict=True) if known]
    return numbered(group_of_each(cache, pairs, str(path)))
