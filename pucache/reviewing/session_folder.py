"""The folder of a review session: its files, and the lock that lets one server write it."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..errors import SessionError, SessionLockedError, one_line
from ..neighbours.paths import beside
from ..storage.atomic import exclusive_lock, make_folder
from .twins import keep_groups, kept_groups, twin_groups

LOG = "decisions.sqlite"
_LOCK = ".lock"


def session_folder(cache: EmbeddingCache, folder: str | Path | None = None) -> Path:
    """Folder of a session; by default ``CACHE.review`` beside the first file of the cache."""
    return beside(cache, "review") if folder is None else Path(folder)


def lock_folder(folder: Path, stack: ExitStack) -> None:
    """Create the folder, and keep other servers out of it until the stack closes.

    Raises
    ------
    SessionLockedError
        Another process runs the session.
    SessionError
        The folder cannot be written.
    """
    locked = SessionLockedError(
        f"{folder} is in use by another pucache review; open the address that it printed, or end it first"
    )
    try:
        make_folder(folder)
        stack.enter_context(exclusive_lock(folder / _LOCK, locked))
    except OSError as error:
        raise SessionError(
            f"cannot write the session {folder}: {one_line(error)}; name another folder with --session"
        ) from error


def groups_in(folder: Path, cache: EmbeddingCache, twins: float | None, *, keep: bool) -> np.ndarray:
    """Groups of twins of a cache, int64 (n,); computed once and kept in the folder.

    Parameters
    ----------
    folder : Path
    cache : EmbeddingCache
    twins : float or None
        As for `pucache.reviewing.twins.twin_groups`.
    keep : bool
        Write what was computed.
    """
    identity = "\0".join([repr(twins), *(file.checksum for file in cache.files)])
    path = folder / f"twins-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.npy"
    group = kept_groups(path, len(cache))
    if group is None:
        group = twin_groups(cache, twins)
        if keep:
            keep_groups(path, group)
            for other in folder.glob("twins-*.npy"):
                if other != path:
                    other.unlink(missing_ok=True)
    return group
