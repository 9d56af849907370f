"""Copies of remote caches on this machine: how large they are, and removing those that no process uses."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import OutputError
from .working_folders import LOCK, READING, URL, parent_folder

_NAME = re.compile(rf"[0-9a-f]{{16}}({READING})?")  # of folders that `working_folder` makes; no other is touched
_IN_USE = "a process uses it"
# Caches, what is computed from a cache and kept beside it, tables of scores, and records of downloads. Nothing else
# is removed: a review of a remote cache keeps its decisions beside the copy.
_COPIED = re.compile(
    r".+\.(h5|h5\.neighbours|h5\.ivf|h5\.hnsw|h5\.ivfpq|csv|parquet)|\..+\.(copied|lease|lock|partial)", re.I | re.S
)


@dataclass(frozen=True)
class LocalCopy:
    """What this machine keeps of one URL.

    Attributes
    ----------
    url : str
        Without passwords and tokens; "" where an earlier version of pucache made the folder.
    folder : Path
    purpose : str
        "reading", or "writing" where the file of the URL was written on this machine.
    bytes : int
    unfinished_parts : int
        Parts of a cache that is not finished.
    in_use : bool
        A process that has opened it still runs.
    kept_because : str
        Why `cache_dir` did not remove it; "" where it was not asked to, or has removed it.
    """

    url: str
    folder: Path
    purpose: str
    bytes: int
    unfinished_parts: int
    in_use: bool
    kept_because: str = ""


@dataclass(frozen=True)
class LocalCopies:
    """Result of `cache_dir`.

    Attributes
    ----------
    folder : Path
        Parent of all copies.
    copies : tuple of LocalCopy
        Those that exist, sorted by URL.
    removed : tuple of LocalCopy
        Those that were removed by this call, sorted by URL.
    """

    folder: Path
    copies: tuple[LocalCopy, ...]
    removed: tuple[LocalCopy, ...] = ()

    @property
    def bytes(self) -> int:
        """Size of the copies that exist."""
        return sum(copy.bytes for copy in self.copies)


def cache_dir(*, clear: bool = False, work: str | Path | None = None) -> LocalCopies:
    """List the copies of remote caches on this machine, and remove them where asked to.

    A copy is removed unless a process that uses it still runs, or its folder holds what may be nowhere else: parts
    of an unfinished cache, or a review session. What is removed is downloaded again when it is needed.

    Parameters
    ----------
    clear : bool
        Remove copies.
    work : str or path, optional
        Parent of the copies; by default ``$PUCACHE_WORK``, else ``pucache`` below ``$XDG_CACHE_HOME`` or
        ``~/.cache``.

    Returns
    -------
    LocalCopies

    Raises
    ------
    OutputError
        The parent is not a folder, or cannot be read.
    """
    parent = parent_folder(work)
    copies: list[LocalCopy] = []
    removed: list[LocalCopy] = []
    for folder in _folders(parent):
        with _exclusive(folder, create=clear) as obstacle:
            copy = _describe(folder, in_use=obstacle == _IN_USE)
            reason = (obstacle or _irreplaceable(copy) or _remove(folder)) if clear else ""
        if copy.bytes:  # a folder without files is not worth a line
            (removed if clear and not reason else copies).append(replace(copy, kept_because=reason))
    return LocalCopies(parent, *(tuple(sorted(group, key=lambda copy: copy.url)) for group in (copies, removed)))


def _folders(parent: Path) -> list[Path]:
    try:
        entries = sorted(parent.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise OutputError(
            f"cannot list the copies in {parent}: {error.strerror}; name the folder of the copies in PUCACHE_WORK"
        ) from error
    return [entry for entry in entries if _NAME.fullmatch(entry.name) and entry.is_dir() and not entry.is_symlink()]


@contextmanager
def _exclusive(folder: Path, *, create: bool) -> Iterator[str]:
    """Lock a folder within the block; yields why that is impossible, or ""."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o666)
    except FileNotFoundError:  # made by an earlier version, and only listed
        yield ""
        return
    except OSError as error:
        yield f"it cannot be locked: {error.strerror}"
        return
    try:
        yield _lock(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> str:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _IN_USE
    except OSError as error:
        return f"it cannot be locked: {error.strerror}"
    return ""


def _describe(folder: Path, *, in_use: bool) -> LocalCopy:
    url = ""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        url = (folder / URL).read_text("utf-8")
    size = parts = 0
    for where, _, names in os.walk(folder):  # folders that vanish or cannot be read are left out
        for name in names:
            if name not in (LOCK, URL):
                with contextlib.suppress(OSError):
                    size += os.lstat(os.path.join(where, name)).st_size
                parts += where.endswith(".parts") and name.startswith("part-") and name.endswith(".h5")
    purpose = "reading" if folder.name.endswith(READING) else "writing"
    return LocalCopy(url, folder, purpose, bytes=size, unfinished_parts=parts, in_use=in_use)


def _irreplaceable(copy: LocalCopy) -> str:
    """Why a folder holds more than copies, or ""."""
    if copy.unfinished_parts:
        parts = f"{copy.unfinished_parts:,} {'part' if copy.unfinished_parts == 1 else 'parts'} of an unfinished cache"
        return f"it holds {parts}; finish it with the same command, or remove {copy.folder} by hand"
    other = _first_other_file(copy)
    return f"it holds {other}, which is no copy; move that to another folder first" if other else ""


def _first_other_file(copy: LocalCopy) -> Path | None:
    """First file or folder that is not as `_COPIED`, nor the file of the URL, nor a mark of the folder."""
    own = {LOCK, URL, copy.url.rstrip("/").rpartition("/")[2]}
    for where, folders, names in os.walk(copy.folder):
        for name in sorted([*folders, *names]):
            entry = Path(where, name)
            copied = not name.endswith(".review") if name in folders else name in own or _COPIED.fullmatch(name)
            if not copied or entry.is_symlink():
                return entry
    return None


def _remove(folder: Path) -> str:
    """Remove a locked folder, its lock last: whoever waits for the lock then makes a new folder."""
    try:
        for entry in folder.iterdir():
            if entry.name == LOCK:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        (folder / LOCK).unlink()
    except OSError as error:
        return f"it cannot be removed: {error.strerror}"
    with contextlib.suppress(OSError):  # another process has made a new lock in it
        folder.rmdir()
    return ""
