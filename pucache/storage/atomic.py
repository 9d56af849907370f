"""Files that are whole or absent: temporary name, fsync, rename.

A writer holds a lock on its temporary file, so that the next writer of the same output can tell what
a killed one left behind from what another is writing just now.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

from ..errors import OutputError, PUCacheError, one_line

PARTIAL_SUFFIX = ".partial"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # of two slashes a `Path` keeps one


def check_writable(path: str | Path, *, inputs: Iterable[str | Path] = ()) -> Path:
    """Make sure, before any work is done, that `path` can be written later.

    The parent directory is made when it is missing, and what killed writers of `path` left behind is
    removed. `inputs` are files that must not be overwritten.

    Raises
    ------
    OutputError
        `path` is a URL, a directory, a device or an input, or its directory cannot be made or written to.
    """
    if _URL.match(os.fspath(path)):
        shown = re.sub("/[^/@]*@", "/", str(path).partition("?")[0])  # without what only its owner may know
        raise OutputError(f"{shown} is a URL; expected a file of this machine: write one, and copy it there")
    path = Path(path)
    try:
        if path.is_dir():
            raise OutputError(f"{path} is a directory; name a file to write instead")
        if path.exists() and not path.is_file():  # a rename would put a file in the place of /dev/null
            raise OutputError(f"{path} is not a regular file; name a file to write instead")
        if any(
            os.path.exists(other) and path.exists() and path.samefile(other) for other in inputs
        ):  # a glob may be long
            raise OutputError(f"{path} is also an input, which would be overwritten; name another file to write")
        make_folder(path.parent)
        with tempfile.TemporaryFile(dir=path.parent):  # nameless: nothing of it stays, whatever happens
            remove_partials(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; choose another path") from error
    return path


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, that survive a power loss; does nothing where it is there.

    Raises
    ------
    OSError
        The file system refused.
    """
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for made in reversed(missing):
        made.mkdir(exist_ok=True)
        fsync_directory(made.parent)


def fsync_directory(path: Path) -> None:
    """Make renames within the directory `path` survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def exclusive_lock(lock: Path, taken: PUCacheError) -> Iterator[None]:
    """Keep a second writer away; the lock dies with the process that holds it.

    Parameters
    ----------
    lock : Path
        File to lock.
    taken : PUCacheError
        Raised where another process holds it.

    Raises
    ------
    OutputError
        It cannot be locked.
    """
    held = filelock.FileLock(lock)
    try:
        held.acquire(timeout=0)
    except filelock.Timeout as error:
        raise taken from error
    except (OSError, NotImplementedError) as error:
        raise OutputError(f"cannot lock {lock}: {one_line(error)}; write to another folder") from error
    try:
        yield
    finally:
        held.release()


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it becomes `path` at once and durably.

    The folder is made when it is missing. On any exception the temporary file is removed and `path` stays as it was.

    Raises
    ------
    OutputError
        The file system refused (full, read-only, no permission).
    """
    path = Path(path)
    try:
        make_folder(path.parent)
        with _temporary(path) as temporary:
            yield temporary
            _publish(temporary, path)
    except OSError as error:
        reason = error.strerror or error
        raise OutputError(f"cannot write {path}: {reason}; what was there before is untouched") from error


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """A new empty file beside `path`, locked as long as it is in use; removed unless it was renamed."""
    descriptor, name = _locked_file(path)
    try:
        yield Path(name)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        os.close(descriptor)


def _locked_file(path: Path) -> tuple[int, str]:
    while True:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=_prefix(path), suffix=PARTIAL_SUFFIX)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken = os.fstat(descriptor).st_nlink == 0
        except BlockingIOError:
            taken = True  # by `remove_partials`, for a leftover
        except OSError:
            taken = False  # no locks on this file system: nothing is taken for a leftover either
        if not taken:
            return descriptor, name
        os.close(descriptor)


def _publish(temporary: Path, path: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes private files; outputs follow the user's umask
    with open(temporary, "rb+") as stream:
        os.fsync(stream.fileno())
    os.replace(temporary, path)
    fsync_directory(path.parent)


def remove_partials(path: Path) -> None:
    """Remove what killed writers of `path` left behind, and nothing that is being written."""
    drawn = "?" * 8  # what tempfile draws; `*` would also match the partials of NAME.other
    for leftover in path.parent.glob(f"{glob.escape(_prefix(path))}{drawn}{PARTIAL_SUFFIX}"):
        with contextlib.suppress(OSError):  # locked by its writer, gone, or somebody else's
            descriptor = os.open(leftover, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(leftover)
            finally:
                os.close(descriptor)


def _prefix(path: Path) -> str:
    name = os.fsencode(path.name)[:200].decode("utf-8", "ignore")  # a file name holds at most 255 bytes
    return f".{name}."
