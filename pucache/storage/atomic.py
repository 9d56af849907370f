"""Atomic file writes: a file is either complete or absent; and opening files without being blocked by a pipe.

A file is written under a temporary name, fsynced and renamed. The writer holds a lock on its temporary
file, so that a later writer of the same output can tell the leftover of a killed process from a file
that is being written.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import logging
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import filelock

from ..errors import OutputError, PUCacheError, one_line
from .urls import path_or_url

log = logging.getLogger("pucache")

CACHE_FORMAT = "pucache-cache"
_HDF5 = b"\x89HDF\r\n\x1a\n"
_TENSOR_FILE = re.compile(rb'.{8}\{"__metadata__":\{"(pucache-[a-z]+)":', re.DOTALL)
PARTIAL_SUFFIX = ".partial"
LFS_POINTER = b"version https://git-lfs"
_POINTER_BYTES = 1024  # which none exceeds
NOT_FETCHED = "is the pointer of Git LFS to a file that was not fetched; run git lfs pull"
_STANDARD_OUTPUT = ("-", "/dev/stdout")
# What flock fails with where a file system has no locks: network disks differ.
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
_URL = re.compile(r"([a-z0-9]+::)*[A-Za-z][A-Za-z0-9+.-]+:/")  # `Path` reduces the two slashes of a URL to one


def is_standard_output(path: str | Path) -> bool:
    """Whether an output is the standard output: ``-`` or ``/dev/stdout``."""
    return path_or_url(path) in _STANDARD_OUTPUT


def check_writable(path: str | Path, *, is_table: bool = False) -> Path:
    """Check, before any work is done, that a file can be written, and return its path; else raise `OutputError`.

    Leftovers of killed writers are removed; nothing is created. Tables may also be written to the standard output.
    What may be replaced is decided in `pucache.storage.outputs`.
    """
    if is_standard_output(path):
        if is_table:
            return Path(path)
        raise OutputError(f"{path} is the standard output, which only tables are written to; name a file")
    if _URL.match(os.fspath(path)):
        raise OutputError(f"{path} is a URL; expected a file of this machine: write one, and copy it there")
    path = Path(path)
    try:
        if path.is_dir():
            raise OutputError(f"{path} is a directory; name a file to write instead")
        if os.path.lexists(path) and not path.is_file():  # a rename would replace a device such as /dev/null
            what = "a link to no file" if path.is_symlink() and not path.exists() else "not a regular file"
            raise OutputError(f"{path} is {what}; name a file to write instead")
        with tempfile.TemporaryFile(dir=_nearest_folder(path)):  # has no name, so that nothing of it remains
            remove_partials(path)
    except OSError as error:
        reason = error.strerror or error
        raise OutputError(f"cannot write {path}: {reason}; name another file, in a folder to write to") from error
    return path


def _nearest_folder(path: Path) -> Path:
    """The folder of a file, or the nearest one above it that exists."""
    folder = Path(os.path.realpath(path)).parent
    while not os.path.lexists(folder):
        folder = folder.parent
    return folder


def parent_folder() -> Path:
    """Parent of the working folders: ``$PUCACHE_WORK``, else ``pucache`` in the user's cache folder."""
    default = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "pucache")
    return Path(os.environ.get("PUCACHE_WORK") or default).absolute()


def make_folder(folder: Path) -> list[Path]:
    """Create a directory and its parents durably; returns those that were missing, the deepest first.

    Raises `OutputError` for a URL.
    """
    if _URL.match(str(folder)):
        raise OutputError(f"{folder} is a URL; expected a folder of this machine")
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
        fsync_directory(directory.parent)
    return missing


@contextmanager
def folder_for_output(folder: Path) -> Iterator[None]:
    """Create a directory and its parents; after an error those that were missing and are empty are removed."""
    made = make_folder(folder)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # not empty
            for directory in made:
                directory.rmdir()
        raise


def fsync_directory(path: Path) -> None:
    """Flush a directory to disk, so that renames within it survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def exclusive_lock(path: Path, error_if_held: PUCacheError) -> Iterator[None]:
    """Hold an exclusive lock within the block, or raise `error_if_held`; the end of the process releases it.

    Where the file system has no locks, as some network disks, a file that names the process stands in. It is removed
    if that process of this machine has ended.
    """
    try:
        lock = filelock.FileLock(path) if _has_locks(path.parent) else _lock_file(path)
        lock.acquire(timeout=0)
    except filelock.Timeout as error:
        raise error_if_held from error
    except (OSError, NotImplementedError) as error:
        raise OutputError(f"cannot lock {path}: {one_line(error)}; write to another folder") from error
    try:
        yield
    finally:
        lock.release()


def _has_locks(folder: Path) -> bool:
    with tempfile.TemporaryFile(dir=folder) as probe:
        try:
            fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            raise
    return True


def _lock_file(path: Path) -> filelock.SoftFileLock:
    soft = path.with_name(f"{path.name.removesuffix('.lock')}.soft.lock")
    log.info("%s has no file locks; %s keeps other writers out (remove it if its machine was lost)", path.parent, soft)
    return filelock.SoftFileLock(soft)


@contextmanager
def locked_folder(folder: Path, lock: str, error_if_held: PUCacheError) -> Iterator[None]:
    """Hold the lock file of a folder within the block; a new folder that then holds nothing but it is removed again."""
    with folder_for_output(folder), exclusive_lock(folder / lock, error_if_held):
        try:
            yield
        except BaseException:
            if all(path.name == lock for path in folder.glob("*")):
                (folder / lock).unlink(missing_ok=True)
            raise


@contextmanager
def replacing(path: str | Path, mode: int = 0o666) -> Iterator[Path]:
    """Write a file atomically: yields a temporary path beside it, which is renamed on success.

    The parent directory is created where it is missing. On any exception the temporary file is removed and ``path`` is
    unchanged. A symbolic link stays, and the file that it leads to is replaced. What is written to the standard output
    is sent there on success. ``mode`` are the permissions, less what the user's umask takes. Raises `OutputError`.
    """
    try:
        if is_standard_output(path):
            with tempfile.TemporaryDirectory() as folder:
                yield Path(folder, "table")
                _send_to_standard_output(Path(folder, "table"))
            return
        target = Path(os.path.realpath(path))
        with folder_for_output(target.parent), temporary_file(target, mode) as temporary:
            yield temporary
            _publish(temporary, target)
    except OSError as error:
        reason = error.strerror or error
        raise OutputError(f"cannot write {path}: {reason}; what was there before is untouched") from error


def _send_to_standard_output(table: Path) -> None:
    if sys.stdout is None:  # closed by who started the program
        raise OSError(errno.EBADF, "the standard output is closed")
    with open(table, "rb") as stream:
        shutil.copyfileobj(stream, sys.stdout.buffer)
    sys.stdout.buffer.flush()


@contextmanager
def temporary_file(path: Path, mode: int = 0o600) -> Iterator[Path]:
    """Create an empty file beside ``path``, locked within the block; removed at its end unless it was renamed."""
    descriptor, name = _locked_file(path, mode)
    try:
        yield Path(name)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        os.close(descriptor)


def _locked_file(path: Path, mode: int) -> tuple[int, str]:
    """Create and lock a temporary file; returns its descriptor and name.

    The system takes the umask from `mode`; asking for the umask would set it, for every thread. Repeated where the name
    is taken, and where `remove_partials` of another process takes the new file for a leftover before it is locked.
    """
    while True:
        name = str(path.parent / f"{_prefix(path)}{secrets.token_hex(4)}{PARTIAL_SUFFIX}")
        try:
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        except FileExistsError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lost = os.fstat(descriptor).st_nlink == 0
        except BlockingIOError:
            lost = True
        except OSError:  # a file system without locks, where `remove_partials` removes nothing either
            lost = False
        if not lost:
            return descriptor, name
        os.close(descriptor)


def _publish(temporary: Path, path: Path) -> None:
    """Give the temporary file its final name, durably."""
    with open(temporary, "rb+") as stream:
        os.fsync(stream.fileno())
    os.replace(temporary, path)
    fsync_directory(path.parent)


def remove_partials(path: Path) -> None:
    """Remove temporary files that killed writers of ``path`` left behind; those in use are locked and stay."""
    path = Path(os.path.realpath(path))
    random_part = "?" * 8  # `*` would also match the temporary files of NAME.other
    for leftover in path.parent.glob(f"{glob.escape(_prefix(path))}{random_part}{PARTIAL_SUFFIX}"):
        with contextlib.suppress(OSError):  # locked by its writer, gone, or another user's
            descriptor = os.open(leftover, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(leftover)
            finally:
                os.close(descriptor)


def _prefix(path: Path) -> str:
    name = os.fsencode(path.name)[:200].decode("utf-8", "ignore")  # a file name has at most 255 bytes
    return f".{name}."


# --- opening -------------------------------------------------------------------------------------


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file that a user names, for reading; everything else that is opened by a name goes through here first.

    A folder, a device, a pipe, whose opening may block for ever, and the pointer that Git LFS leaves in the place of a
    file raise OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        number, reason = errno.EISDIR, "is a directory"
    elif not stat.S_ISREG(status.st_mode):
        number, reason = errno.EINVAL, "is not a regular file"
    elif status.st_size < _POINTER_BYTES and os.pread(descriptor, len(LFS_POINTER), 0) == LFS_POINTER:
        number, reason = errno.EINVAL, NOT_FETCHED
    else:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(number, reason, str(path))


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """All bytes of a file; raises OSError as `open_regular`."""
    with open_regular(path) as stream:
        return stream.read()


def check_regular(path: str | os.PathLike[str]) -> os.stat_result:
    """Status of a file that a library opens by its name; raises OSError as `open_regular`."""
    with open_regular(path) as stream:
        return os.fstat(stream.fileno())


def format_of(path: str | os.PathLike[str]) -> str:
    """Format of a file of pucache by its first bytes, unverified: ``pucache-cache`` for HDF5; "" for any other file."""
    try:
        with open_regular(path) as stream:
            beginning = stream.read(64)
    except (OSError, ValueError):  # whoever reads the file reports it
        return ""
    return format_in(beginning)


def format_in(beginning: bytes) -> str:
    """As `format_of`, of the first 64 bytes of a file."""
    if beginning.startswith(_HDF5):
        return CACHE_FORMAT
    match = _TENSOR_FILE.match(beginning)
    return match[1].decode() if match else ""
