"""Folders of this machine for what lies behind URLs, and what `cache_dir` shows and removes of them.

Below ``PUCACHE_WORK`` each URL has two folders, named by its hash::

    HASH/NAME                      the file of a URL while it is written, with its lock and its parts
    HASH-read/VERSION/NAME         a copy for reading; VERSION is a hash of what the store tells of the object
    HASH-read/FOLDER/VERSION/NAME  likewise of a file of a folder
    HASH-read/NAME.review, ...     what belongs to a copy in every version (`sidecar_base`)

Only files directly in folders of versions are ever removed: they can be fetched again. A process that has mapped one
reads it to the end.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import OutputError, one_line
from ..storage.atomic import PARTIAL_SUFFIX, make_folder, parent_folder, replacing
from ..storage.urls import without_password, without_secrets

READING = "-read"  # ending of the folders with copies for reading
_URL = ".url"  # file of each folder: its URL without passwords and tokens
_FOLDER = re.compile(rf"[0-9a-f]{{16}}({READING})?")  # of folders that `working_folder` makes; no other is touched
_VERSION = re.compile("[0-9a-f]{16}")


# --- folders -----------------------------------------------------------------------------------


def working_folder(url: str, suffix: str = "") -> Path:
    """Create the folder for a URL, whatever its password: with `READING` for its copies, else for the file written."""
    parent = parent_folder()
    folder = parent / (hashlib.sha256(without_password(url).rstrip("/").encode()).hexdigest()[:16] + suffix)
    try:
        make_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
        if not (folder / _URL).exists():
            with replacing(folder / _URL) as temporary:
                temporary.write_text(without_secrets(url), "utf-8")
        return folder
    except OSError as error:
        reason = f"cannot keep what belongs to {without_secrets(url)} in {parent}: {one_line(error)}"
        raise OutputError(f"{reason}; name another folder in PUCACHE_WORK") from error


def _url(folder: Path) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return (folder / _URL).read_text("utf-8")
    return ""


def _working_folder_of(path: Path) -> Path | None:
    """Working folder that holds a copy for reading; None for any other file."""
    if _VERSION.fullmatch(path.parent.name):
        for folder in path.parents[1:3]:
            if _FOLDER.fullmatch(folder.name) and folder.name.endswith(READING):
                return folder
    return None


def sidecar_base(path: Path) -> Path:
    """Path beside which files of a cache lie, such as its review session: for a copy the same in every version."""
    return path.parent.parent / path.name if _working_folder_of(path) else path


def url_of_copy(path: Path) -> str:
    """URL, without passwords and tokens, that a file was fetched from for reading; "" for any other file."""
    folder = _working_folder_of(path)
    url = _url(folder).rstrip("/") if folder else ""
    return f"{url}/{path.name}" if url and folder != path.parent.parent else url


def folder_of(path: Path) -> str:
    """Folder of a cache file; of a copy for reading, the URL of the folder it was fetched from."""
    url = url_of_copy(path)
    return url.rpartition("/")[0] if url else str(path.parent)


def remove_copies(folder: Path, *, keep: Iterable[Path] = (), unfinished: bool = False) -> None:
    """Remove a folder's copies but those to keep, and unfinished downloads if asked; what `embed` set aside stays."""
    kept = (".damaged",) if unfinished else (".damaged", PARTIAL_SUFFIX)
    for where, _, names in os.walk(folder):
        for path in {Path(where, name) for name in names} - set(keep):
            if _working_folder_of(path) and path.suffix not in kept:
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    raise OutputError(f"cannot remove {path}: {error.strerror}; remove it by hand") from error
        if _VERSION.fullmatch(Path(where).name):
            with contextlib.suppress(OSError):  # not empty
                os.rmdir(where)


# --- listing and removing ----------------------------------------------------------------------


@dataclass(frozen=True)
class LocalCopy:
    """What this machine keeps of one URL.

    Attributes
    ----------
    url : str
        Without passwords and tokens.
    folder : Path
    purpose : str
        "reading", or "writing" where the file of the URL was written on this machine.
    bytes : int
    unfinished_parts : int
        Parts of a cache that is not finished.
    """

    url: str
    folder: Path
    purpose: str
    bytes: int
    unfinished_parts: int


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
        Those that this call removed, sorted by URL; ``bytes`` is what it removed.
    """

    folder: Path
    copies: tuple[LocalCopy, ...]
    removed: tuple[LocalCopy, ...] = ()

    @property
    def bytes(self) -> int:
        """Size of the copies that exist."""
        return sum(copy.bytes for copy in self.copies)


def cache_dir(*, clear: bool = False) -> LocalCopies:
    """List the copies of remote caches on this machine, and remove those for reading where asked to.

    They lie below ``$PUCACHE_WORK``, else ``pucache`` below ``$XDG_CACHE_HOME`` or ``~/.cache``. What is removed is
    downloaded again when it is needed; a process that reads a copy keeps what it has mapped. Files that are written
    here, parts of unfinished caches, review sessions and other files beside the copies stay.

    Parameters
    ----------
    clear : bool
        Remove copies.

    Returns
    -------
    LocalCopies

    Raises
    ------
    OutputError
        The parent is not a folder, or cannot be read, or a copy cannot be removed.
    """
    parent = parent_folder()
    before = [_describe(folder) for folder in _folders(parent)]
    copies, removed = before, []
    if clear:
        for copy in before:
            remove_copies(copy.folder, unfinished=True)
        copies = [_describe(copy.folder) for copy in before]
        removed = [replace(old, bytes=old.bytes - new.bytes) for old, new in zip(before, copies, strict=True)]
    return LocalCopies(parent, _sorted(copies), _sorted(removed))


def _sorted(copies: list[LocalCopy]) -> tuple[LocalCopy, ...]:
    return tuple(sorted((copy for copy in copies if copy.bytes), key=lambda copy: copy.url))


def _folders(parent: Path) -> list[Path]:
    try:
        entries = sorted(parent.iterdir()) if parent.exists() else []
    except OSError as error:
        remedy = "name the folder of the copies in PUCACHE_WORK"
        raise OutputError(f"cannot list the copies in {parent}: {error.strerror}; {remedy}") from error
    return [path for path in entries if _FOLDER.fullmatch(path.name) and _url(path) and not path.is_symlink()]


def _describe(folder: Path) -> LocalCopy:
    size = parts = 0
    for where, _, names in os.walk(folder):  # folders that vanish or cannot be read are left out
        for name in set(names) - {_URL}:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(where, name)).st_size
            parts += where.endswith(".parts") and name.startswith("part-") and name.endswith(".h5")
    purpose = "reading" if folder.name.endswith(READING) else "writing"
    return LocalCopy(_url(folder), folder, purpose, bytes=size, unfinished_parts=parts)
