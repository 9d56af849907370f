"""Whole files from a store to this machine and back."""

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

# an object appears there once all of it has arrived; elsewhere a file grows before its readers' eyes
OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "oci"}
MB = 1 << 20  # one step of progress
BLOCK_BYTES = 32 * MB  # of one request, so that a broken connection costs no more
THREADS = 8  # one connection to a store is slower than most networks
T = TypeVar("T")


def object_info(fs: Any, path: str) -> dict[str, Any] | None:
    """What a store says of a file or a folder by now; None where nothing is there."""
    fs.invalidate_cache()
    try:
        return with_retries(lambda: fs.info(path))
    except FileNotFoundError:
        return None


def folder_files(fs: Any, path: str, ending: str) -> dict[str, dict[str, Any]]:
    """Name to what the store says of each visible file of this ending in a folder; none where there is no folder."""
    fs.invalidate_cache()
    try:
        entries = with_retries(lambda: fs.ls(path, detail=True))
    except FileNotFoundError:
        return {}
    named = {entry["name"].rsplit("/", 1)[-1]: entry for entry in entries if entry["type"] == "file"}
    return {name: named[name] for name in sorted(named) if name.endswith(ending) and not name.startswith(".")}


def object_stamp(info: dict[str, Any]) -> str:
    """What differs once a file there is another one; it ends in a space where the store tells the size alone."""
    times = (info[name] for name in TIME_FIELDS if info.get(name))
    return f"{info.get('size')} {version_tag(info) or next(times, '')}"


def megabytes(info: dict[str, Any]) -> int:
    """Of progress, to fetch a file."""
    return -(-int(info["size"]) // MB)


def fetch_file(fs: Any, path: str, target: Path, progress: Progress | None = None) -> None:
    """Fetch a file unless it is here as it is there; what lies at `target` is always one whole version.

    Raises
    ------
    GaveUp, or the store's own error
        It cannot be read.
    OutputError
        It cannot be written here.
    """

    def attempt() -> None:
        before = fs.info(path)
        if is_copy(target, object_stamp(before)):
            return
        remove_partials(target)
        with replacing(target) as temporary:
            _fetch(fs, path, temporary, int(before["size"]), progress or Silent())
            fs.invalidate_cache()
            if object_stamp(_of_store(lambda: with_retries(lambda: fs.info(path)))) != object_stamp(before):
                raise _Replaced(f"{path} was replaced while it was fetched")
            here = local_stamp(temporary)  # by now: another process may put another version in its place
        record_copy(target, object_stamp(before), here)

    fs.invalidate_cache()
    with_retries(attempt, max_seconds=math.inf)


class _Replaced(Exception):
    """By its writer, who will not do it all the time."""


def _fetch(fs: Any, path: str, target: Path, size: int, progress: Progress) -> None:
    with target.open("r+b") as file, ThreadPoolExecutor(THREADS if fs.async_impl else 1) as pool:

        def piece(start: int) -> int:
            data = _of_store(lambda: read_range(fs, path, start, min(start + BLOCK_BYTES, size)))
            _write(file.fileno(), data, start)
            return -(-len(data) // MB)

        for done in pool.map(piece, range(0, size, BLOCK_BYTES)):
            progress.advance(done)


def _write(file: int, data: bytes, at: int) -> None:
    rest = memoryview(data)
    while rest:  # a disk that is almost full takes a part of it
        done = os.pwrite(file, rest, at)
        rest, at = rest[done:], at + done


def _of_store(action: Callable[[], T]) -> T:
    """Do something while a file is open here: a store's OSError must not pass for one of this machine's disk."""
    try:
        return action()
    except RetriesExhausted:
        raise
    except Exception as error:
        raise RetriesExhausted(error_text(error)) from error


def send_file(fs: Any, source: Path, path: str) -> None:
    """Put a file there, under its name only once it is whole.

    Raises
    ------
    GaveUp, or the store's own error
        It cannot be written; what was there before is untouched.
    """
    size = source.stat().st_size
    above, _, name = path.rpartition("/")
    aside = path if is_object_store(fs) else f"{above}/.{name}.partial"

    def attempt() -> None:
        if aside != path:
            fs.makedirs(above, exist_ok=True)
        fs.put_file(str(source), aside)
        fs.invalidate_cache()
        arrived = fs.info(aside)["size"]
        if arrived != size:
            raise OSError(f"{arrived} bytes of {size} arrived")
        if aside != path:
            fs.mv(aside, path)

    with_retries(attempt, max_seconds=math.inf)


def is_object_store(fs: Any) -> bool:
    """Whether what is put there appears at once when it is whole, and folders need not be made."""
    kinds = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    return bool(kinds & OBJECT_STORES)


def remove_files(fs: Any, paths: list[str]) -> None:
    """Remove files there that may be gone already."""

    def remove(path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            with_retries(lambda: fs.rm_file(path))

    with ThreadPoolExecutor(THREADS if fs.async_impl else 1) as pool:
        list(pool.map(remove, paths))


# --- what is known to be the same here and there -----------------------------------------------


def is_copy(file: Path, there: str) -> bool:
    """Whether a file of this machine is untouched since it was the same as what bears this stamp there."""
    if there.endswith(" "):  # another file may be as long
        return False
    try:
        return json.loads(_note(file).read_bytes()) == [there, *local_stamp(file)]
    except (OSError, ValueError):  # not fetched yet, or a note that is damaged
        return False


def record_copy(file: Path, there: str, here: list[int]) -> None:
    """Remember that what had this `local_stamp` here is the same as what bears this stamp there."""
    with replacing(_note(file)) as temporary:
        temporary.write_text(json.dumps([there, *here]))


def remove_copy(file: Path) -> None:
    """Remove a file of this machine, and what is known about it."""
    for path in (file, _note(file)):
        path.unlink(missing_ok=True)


def local_stamp(file: Path) -> list[int]:
    """What differs once a file of this machine is another one; a new name does not change it."""
    info = file.stat()
    return [info.st_size, info.st_mtime_ns, info.st_ino]


def _note(file: Path) -> Path:
    return file.with_name(f".{hashlib.sha256(os.fsencode(file.name)).hexdigest()[:16]}.copied")
