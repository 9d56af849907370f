"""Folders of this machine for what lies behind URLs: one for writing and one for reading of each URL.

A process holds a shared lock on the folders that it uses until it ends, and `pucache.cache.local_copies` removes only
folders that nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import threading
from pathlib import Path

from ..errors import OutputError, one_line
from ..storage.atomic import make_folder, replacing
from ..storage.urls import without_password, without_secrets

LOCK, URL = ".in-use", ".url"  # files of each folder: its lock, and the URL without passwords and tokens
READING = "-read"  # ending of the folders with copies for reading
_held: dict[Path, int] = {}  # folder to the descriptor of its lock
_holding = threading.Lock()


def parent_folder(work: str | Path | None = None) -> Path:
    """Parent of the working folders: `work`, else ``$PUCACHE_WORK``, else ``pucache`` in the user's cache folder."""
    default = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "pucache")
    return Path(work or os.environ.get("PUCACHE_WORK") or default).absolute()


def working_folder(url: str, work: str | Path | None = None, suffix: str = "") -> Path:
    """Create the folder of this machine for a URL, and hold it until this process ends.

    The folder does not depend on a password in the URL.

    Parameters
    ----------
    url : str
    work : str or path, optional
        See `parent_folder`.
    suffix : str
        `READING`, or nothing for the folder in which the file of the URL is written.

    Returns
    -------
    Path

    Raises
    ------
    OutputError
        The folder cannot be created or written to.
    """
    parent = parent_folder(work)
    folder = parent / (hashlib.sha256(without_password(url).rstrip("/").encode()).hexdigest()[:16] + suffix)
    try:
        _hold(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
        if not (folder / URL).exists():
            with replacing(folder / URL) as temporary:
                temporary.write_text(without_secrets(url), "utf-8")
        return folder
    except OSError as error:
        reason = f"cannot keep what belongs to {without_secrets(url)} in {parent}: {one_line(error)}"
        raise OutputError(f"{reason}; name another folder in PUCACHE_WORK") from error


def url_of_copy(path: Path) -> str:
    """URL, without passwords and tokens, that a file was fetched from for reading; "" for any other file."""
    for folder, name in (
        (path.parent, ""),
        (path.parent.parent, f"/{path.name}"),
    ):  # of a file, or of a folder of files
        if folder.name.endswith(READING):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                return (folder / URL).read_text("utf-8").rstrip("/") + name
    return ""


def _hold(folder: Path) -> None:
    """Create a folder and lock it against removal until this process ends."""
    with _holding:
        if folder in _held:
            if os.fstat(_held[folder]).st_nlink:
                return
            os.close(_held.pop(folder))  # somebody has removed the folder by hand
        while True:
            make_folder(folder)
            with contextlib.suppress(FileNotFoundError):  # another process has just removed the folder
                descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                with contextlib.suppress(OSError):  # a file system without locks, where nothing is removed either
                    fcntl.flock(descriptor, fcntl.LOCK_SH)
                if os.fstat(descriptor).st_nlink:
                    _held[folder] = descriptor
                    return
                os.close(descriptor)
