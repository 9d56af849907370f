"""Caches behind URLs, for reading: copies of one version each on this machine, or the header alone.

A cache is memory-mapped, which an object store cannot do, so it is copied. The path of a copy holds the version, so
that a copy that is open is never rewritten: a process that had mapped a file that was rewritten in place died of
SIGBUS. When a new version is fetched, copies of others lose their names; who has mapped them reads on.
"""

from __future__ import annotations

import hashlib
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import CacheError
from ..storage.filesystem import (
    OBJECT_STORES,
    DownloadLog,
    folder_files,
    get_file,
    object_info,
    object_stamp,
    open_filesystem,
    open_object,
    source_errors,
    store_errors,
    tells_versions,
)
from ..storage.retries import with_retries
from ..storage.urls import without_secrets
from .checksums import stream_reader
from .local_copies import READING, remove_copies, working_folder
from .reader import CacheHeader

_HEADER_BLOCK_BYTES = 1 << 16  # with fsspec's default, 54 MB were read for a header of 135 KB
_HEADERS_AT_ONCE = 8
RemoteFile = tuple[str, dict[str, Any]]  # path in the store, fsspec's info


def local_copies(url: str) -> list[Path]:
    """Copy a cache file, or the ``.h5`` files of a folder, to this machine, but for versions that are here already.

    Returns the copies, sorted by name. Raises `CacheError` where the URL does not exist or the store fails.
    """
    name, folder = without_secrets(url), working_folder(url, READING)
    with store_errors(CacheError, "fetch", name):
        fs, path = open_filesystem(url, retry_each_request=True)
        files, is_folder = _cache_files(fs, path, name)
        if is_folder:
            folder /= file_name(url.rstrip("/"))
        missing = [info for path, info in files if not _is_copy(copy_path(folder, path, info), info)]
        progress = DownloadLog(name, sum(int(info["size"]) for info in missing))
        copies = [_fetch(fs, path, folder, progress) for path, _ in files]
    remove_copies(folder, keep=copies)
    return copies


def copy_path(folder: Path, path: str, info: dict[str, Any] | None) -> Path:
    """Path of the copy of one version of an object, in the folder of its versions."""
    version = hashlib.sha256(object_stamp(info).encode()).hexdigest()[:16]
    return folder / version / path.rpartition("/")[2]


def _is_copy(copy: Path, info: dict[str, Any]) -> bool:
    return tells_versions(object_stamp(info)) and copy.exists() and copy.stat().st_size == info["size"]


def _fetch(fs: Any, path: str, folder: Path, progress: DownloadLog) -> Path:
    """Download an object, unless its current version is here."""

    def attempt() -> Path:
        fs.invalidate_cache()
        info = fs.info(path)
        copy = copy_path(folder, path, info)
        if not _is_copy(copy, info):
            get_file(fs, path, info, copy, progress)
        return copy

    return with_retries(attempt, max_seconds=math.inf)


def remote_headers(url: str) -> list[tuple[CacheHeader, dict[str, str]]]:
    """Read the header and the failures of each file of a remote cache, but not its rows."""
    name = without_secrets(url)
    with store_errors(CacheError, "read", name), ThreadPoolExecutor(_HEADERS_AT_ONCE) as pool:
        fs, path = open_filesystem(url)
        files, is_folder = _cache_files(fs, path, name)
        paths = [path for path, _ in files]
        names = [f"{name.rstrip('/')}/{path.rpartition('/')[2]}" for path in paths] if is_folder else [name]
        return list(pool.map(lambda path, name: _header(fs, path, name), paths, names))


def _header(fs: Any, path: str, name: str) -> tuple[CacheHeader, dict[str, str]]:
    def attempt() -> tuple[CacheHeader, dict[str, str]]:
        stamp = object_stamp(object_info(fs, path))
        with open_object(fs, path, _HEADER_BLOCK_BYTES) as stream:
            stream.read(1)  # raises an error of the store, which later would pass for damage
            stream.seek(0)
            try:
                header = CacheHeader.read(stream, name)
                return header, header.read_failures(stream_reader(stream))
            except CacheError:
                if object_stamp(object_info(fs, path)) == stamp:
                    raise
        raise OSError(f"{path} was replaced while it was read")

    return with_retries(attempt, max_seconds=math.inf)


def _cache_files(fs: Any, path: str, name: str) -> tuple[list[RemoteFile], bool]:
    """List the files of a remote cache, and say whether it is a folder; raises `CacheError` where there is none."""
    info = object_info(fs, path)
    if info is None:
        raise CacheError(f"no such cache: {name}; check the URL")
    if info["type"] == "file":
        return [(path, info)], False
    files = folder_files(fs, path, ".h5")
    if not files:
        raise CacheError(f"no cache in folder {name}; expected *.h5 files, as embed writes")
    return [(f"{path.rstrip('/')}/{file_name}", info) for file_name, info in files.items()], True


def is_remote_cache(url: str) -> bool:
    """Whether a URL is of a ``.h5`` file or a folder of these; raises `SourceError` where the store does not answer."""
    if url.endswith(".h5"):
        return True
    # an archive or a manifest, which some stores read to list it
    if PurePosixPath(without_secrets(url)).suffix and not url.endswith("/"):
        return False
    with source_errors(without_secrets(url)):
        fs, path = open_filesystem(url)
        info = object_info(fs, path)
        return info is not None and info["type"] == "directory" and bool(folder_files(fs, path, ".h5"))


def file_name(url: str) -> str:
    """Name of the file of a URL; raises `ValueError` where the URL names none."""
    scheme, _, rest = without_secrets(url).partition("://")
    folder, _, name = rest.rpartition("/")
    if not name or name in (".", "..") or (scheme in OBJECT_STORES and not folder):
        raise ValueError(f"{without_secrets(url)} names no file; expected a URL such as s3://bucket/folder/cache.h5")
    return name
