"""Transfer of whole files between a remote store and this machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from ..progress import Progress, Silent
from .atomic import remove_partials, replacing
from .filesystem import TIME_FIELDS, read_range, version_tag
from .retries import RetriesExhausted, error_text, with_retries

# protocols of stores where an object appears once it is complete; with others a file grows visibly while it is written
OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "oci"}
MB = 1 << 20  # one step of progress
BLOCK_BYTES = 32 * MB  # bytes per request; a broken connection costs at most these
THREADS = 8  # one connection to a store is slower than most networks
T = TypeVar("T")


def object_info(fs: Any, path: str) -> dict[str, Any] | None:
    """Return fsspec's uncached info of a remote file or folder; None where it does not exist."""
    fs.invalidate_cache()
    try:
        return with_retries(lambda: fs.info(path))
    except FileNotFoundError:
        return None


def folder_files(fs: Any, path: str, ending: str) -> dict[str, dict[str, Any]]:
    """List the visible files of a remote folder.

    Parameters
    ----------
    fs : fsspec.AbstractFileSystem
    path : str
    ending : str
        Only names with this ending are listed.

    Returns
    -------
    dict of str to dict
        File name to fsspec's info, sorted by name; empty where the folder does not exist.
    """
    fs.invalidate_cache()
    try:
        entries = with_retries(lambda: fs.ls(path, detail=True))
    except FileNotFoundError:
        return {}
    infos = {entry["name"].rsplit("/", 1)[-1]: entry for entry in entries if entry["type"] == "file"}
    return {name: infos[name] for name in sorted(infos) if name.endswith(ending) and not name.startswith(".")}


def object_stamp(info: dict[str, Any]) -> str:
    """Text that differs between versions of a remote file; ends in a space where a store gives the size alone."""
    times = (info[name] for name in TIME_FIELDS if info.get(name))
    return f"{info.get('size')} {version_tag(info) or next(times, '')}"


def megabytes(info: dict[str, Any]) -> int:
    """Size of a remote file in MiB, rounded up: the steps of progress that `fetch_file` makes."""
    return -(-int(info["size"]) // MB)


# --- download ----------------------------------------------------------------------------------


def fetch_file(fs: Any, path: str, target: Path, progress: Progress | None = None) -> None:
    """Download a file, unless ``target`` is a copy of its current version.

    ``target`` is replaced atomically: it always holds one complete version.

    Parameters
    ----------
    fs : fsspec.AbstractFileSystem
    path : str
    target : Path
    progress : Progress, optional

    Raises
    ------
    RetriesExhausted, or the store's own error
        The file cannot be read.
    OutputError
        ``target`` cannot be written.
    """

    def attempt() -> None:
        before = fs.info(path)
        if is_copy(target, object_stamp(before)):
            return
        remove_partials(target)
        with replacing(target) as temporary:
            _download(fs, path, temporary, int(before["size"]), progress or Silent())
            fs.invalidate_cache()
            if object_stamp(_store_call(lambda: with_retries(lambda: fs.info(path)))) != object_stamp(before):
                raise _ReplacedError(f"{path} was replaced while it was fetched")
            stamp = local_stamp(temporary)  # before the rename, after which another process may replace the file
        record_copy(target, object_stamp(before), stamp)

    fs.invalidate_cache()
    with_retries(attempt, max_seconds=math.inf)


class _ReplacedError(Exception):
    """The remote file was replaced during the download; a temporary error, so the download is repeated."""


def _download(fs: Any, path: str, target: Path, size: int, progress: Progress) -> None:
    with target.open("r+b") as file, ThreadPoolExecutor(_threads(fs)) as pool:

        def copy_block(start: int) -> int:
            data = _store_call(lambda: read_range(fs, path, start, min(start + BLOCK_BYTES, size)))
            _write_all(file.fileno(), data, start)
            return -(-len(data) // MB)

        for steps in pool.map(copy_block, range(0, size, BLOCK_BYTES)):
            progress.advance(steps)


def _threads(fs: Any) -> int:
    return THREADS if fs.async_impl else 1


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    rest = memoryview(data)
    while rest:  # a disk that is almost full accepts a part of the bytes
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def _store_call(action: Callable[[], T]) -> T:
    """Call ``action`` while a local file is open, where an OSError of the store must not pass for one of the disk."""
    try:
        return action()
    except RetriesExhausted:
        raise
    except Exception as error:
        raise RetriesExhausted(error_text(error)) from error


# --- upload ------------------------------------------------------------------------------------


def send_file(fs: Any, source: Path, path: str) -> None:
    """Upload a file; it gets its name only once it is complete.

    Parameters
    ----------
    fs : fsspec.AbstractFileSystem
    source : Path
        Local file.
    path : str
        Remote file.

    Raises
    ------
    RetriesExhausted, or the store's own error
        The file cannot be written; an existing remote file is unchanged.
    """
    size = source.stat().st_size
    folder, _, name = path.rpartition("/")
    temporary = path if is_object_store(fs) else f"{folder}/.{name}.partial"

    def attempt() -> None:
        if temporary != path:
            fs.makedirs(folder, exist_ok=True)
        fs.put_file(str(source), temporary)
        fs.invalidate_cache()
        arrived = fs.info(temporary)["size"]
        if arrived != size:
            raise OSError(f"{arrived} bytes of {size} arrived")
        if temporary != path:
            fs.mv(temporary, path)

    with_retries(attempt, max_seconds=math.inf)


def is_object_store(fs: Any) -> bool:
    """Whether objects of this store appear only once complete, and folders need not be created."""
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    return bool(protocols & OBJECT_STORES)


def remove_files(fs: Any, paths: list[str]) -> None:
    """Remove remote files; those that do not exist are ignored."""

    def remove(path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            with_retries(lambda: fs.rm_file(path))

    with ThreadPoolExecutor(_threads(fs)) as pool:
        list(pool.map(remove, paths))


# --- records of copies -------------------------------------------------------------------------


def is_copy(file: Path, remote_stamp: str) -> bool:
    """Whether a local file is an unchanged copy of the remote file with this `object_stamp`."""
    if remote_stamp.endswith(" "):  # the size alone: another version may have the same
        return False
    try:
        return json.loads(_record_path(file).read_bytes()) == [remote_stamp, *local_stamp(file)]
    except (OSError, ValueError):  # not fetched yet, or a damaged record
        return False


def record_copy(file: Path, remote_stamp: str, stamp: list[int]) -> None:
    """Record that the file with this `local_stamp` is a copy of the remote file with this `object_stamp`."""
    with replacing(_record_path(file)) as temporary:
        temporary.write_text(json.dumps([remote_stamp, *stamp]))


def remove_copy(file: Path) -> None:
    """Remove a local copy and its record."""
    for path in (file, _record_path(file)):
        path.unlink(missing_ok=True)


def local_stamp(file: Path) -> list[int]:
    """Size, modification time and inode of a local file: they differ between versions and survive a rename."""
    info = file.stat()
    return [info.st_size, info.st_mtime_ns, info.st_ino]


def _record_path(file: Path) -> Path:
    return file.with_name(f".{hashlib.sha256(os.fsencode(file.name)).hexdigest()[:16]}.copied")
