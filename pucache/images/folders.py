"""Images in a folder of this machine or behind a URL, and complete listings of remote folders and globs.

fsspec's own walk silently omits a folder that cannot be listed. Here such a folder becomes a failure of
the listing.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.utils import glob_translate

from ..errors import ImageError, SourceError
from ..storage.atomic import open_regular
from ..storage.filesystem import TIME_FIELDS, open_filesystem, protocols, read_object, source_errors, version_tag
from ..storage.retries import RetriesExhausted, error_text, with_retries
from ..storage.urls import without_secrets
from .listing import UNKNOWN, Listing, ListingBuilder, check_size, is_hidden


class _Directory(NamedTuple):
    path: str
    key_prefix: str
    ancestors: frozenset[tuple[int, int]]  # device and inode of each directory above it


class LocalFolder:
    """Every image file below a folder; symbolic links are followed, loops are not."""

    def __init__(self, root: str):
        self.name = root

    def scan(self) -> Listing:
        """Walk the folder; a directory that cannot be read becomes a failure, the folder itself a `SourceError`."""
        builder = ListingBuilder()
        pending = [_Directory(self.name, "", frozenset())]
        while pending:
            pending += self._list(pending.pop(), builder)
        return builder.build()

    def _list(self, directory: _Directory, builder: ListingBuilder) -> list[_Directory]:
        """Add the images of one directory, and return its subdirectories."""
        try:
            info = os.stat(directory.path)
            with os.scandir(directory.path) as iterator:
                entries = list(iterator)
        except OSError as error:
            if not directory.key_prefix:
                raise SourceError(f"cannot list {directory.path}: {error.strerror}") from error
            builder.add_failure(directory.key_prefix, f"directory cannot be listed: {error.strerror}")
            return []
        inode = (info.st_dev, info.st_ino)
        if inode in directory.ancestors:
            builder.add_failure(directory.key_prefix, "symbolic link back to a folder above it")
            return []
        subdirectories = []
        for entry in entries:
            if entry.name.startswith("."):
                continue
            key = directory.key_prefix + entry.name
            try:
                if entry.is_dir():
                    subdirectories.append(_Directory(entry.path, key + "/", directory.ancestors | {inode}))
                elif builder.accepts(key):
                    file_info = entry.stat()
                    builder.add(key, file_info.st_size, file_info.st_mtime_ns)
            except OSError as error:
                builder.add_failure(key, f"cannot be read: {error.strerror}")
        return subdirectories

    def read(self, key: str) -> bytes:
        """Read one file; raises `ImageError`."""
        return read_local(os.path.join(self.name, key))


def read_local(path: str | Path) -> bytes:
    """Read a file; raises `ImageError` where it is missing, not a regular file, or larger than `MAX_BYTES`."""
    try:
        with open_regular(path) as stream:
            check_size(os.fstat(stream.fileno()).st_size)
            data = stream.read()
        check_size(len(data))  # it may have grown
        return data
    except OSError as error:
        raise ImageError(f"cannot be read: {error.strerror}") from error


EXPECTED = "expected a folder, a manifest (.txt, .csv, .xlsx, .json), or .tar, .zip or .parquet files"
_Infos = dict[str, dict[str, Any]]  # path of a file to fsspec's info


class RemoteFolder:
    """Every image below an fsspec URL such as ``s3://bucket/folder``."""

    def __init__(self, url: str):
        self.name = without_secrets(url)
        self._url = url

    def scan(self) -> Listing:
        """List everything below the URL; a folder that may not be listed becomes a failure.

        Raises `SourceError` where the URL does not exist, is a file, or cannot be listed.
        """
        builder = ListingBuilder()
        with source_errors(self.name):
            fs, root = open_filesystem(self._url, retry_each_request=True)
            infos = _walk_files(fs, root, builder)
        if not infos and not builder.failures:
            raise SourceError(f"no such source: {self.name} (nothing is there)")
        if list(infos) == [root]:
            raise SourceError(f"{self.name} is a file; {EXPECTED}")
        prefix = _path_prefix(root)
        for path, info in infos.items():
            key = path[len(prefix) :] if prefix else path.removeprefix("/")
            if not is_hidden(key) and builder.accepts(key):
                builder.add(key, *size_mtime(info))
        return builder.build()

    def read(self, key: str) -> bytes:
        """Download one file; raises `ImageError`."""
        fs, root = open_filesystem(self._url)
        return read_image(fs, _path_prefix(root) + key)


def read_image(fs: Any, path: str) -> bytes:
    """Download one image, with retries; raises `ImageError` where it cannot be read or is too large."""
    try:
        return read_object(fs, path, check_size)
    except ImageError:
        raise
    except Exception as error:  # every remote file system has exceptions of its own
        raise ImageError(f"cannot be read: {error_text(error)}") from error


def size_mtime(info: dict[str, Any]) -> tuple[int, int]:
    """Size and modification time of fsspec's info, in the terms of `Listing.size_mtime`."""
    size = int(info["size"]) if info.get("size") is not None else UNKNOWN
    for name in TIME_FIELDS:
        value: Any = info.get(name)
        if isinstance(value, int | float):
            return size, int(value * 1e9)
        if hasattr(value, "timestamp"):
            return size, int(value.timestamp() * 1e9)
    tag = version_tag(info)
    return size, int.from_bytes(hashlib.sha256(tag.encode()).digest()[:8], "big") >> 1 if tag else UNKNOWN


def _path_prefix(root: str) -> str:
    """What precedes every key in the paths below ``root``."""
    return root.rstrip("/") + "/" if root else ""  # an archive has an empty root


def _walk_files(fs: Any, root: str, builder: ListingBuilder) -> _Infos:
    """List every file below a remote folder: path to fsspec's info; where ``root`` is a file, that path alone.

    A folder below that may not be listed becomes a failure. Raises `RetriesExhausted` where a store does not
    answer, and the store's own error where ``root`` cannot be listed.
    """
    fs.invalidate_cache()
    # whether fsspec lists this store folder by folder, rather than all files below a prefix at once
    generic_async = getattr(type(fs), "_find", AsyncFileSystem._find) is AsyncFileSystem._find
    if not (generic_async and type(fs).find is AbstractFileSystem.find):
        return dict(with_retries(lambda: fs.find(root, detail=True)))
    files = _walk(fs, root, root, builder, lambda _: True)
    return files if files or not with_retries(lambda: fs.isfile(root)) else {root: {}}


def glob_files(fs: Any, pattern: str, builder: ListingBuilder) -> list[str]:
    """Sorted paths of the files that match a glob; failures and errors as of a folder."""
    parts = pattern.split("/")
    base = glob_base(fs, pattern)

    def matches(path: str, depth: int) -> bool:
        part = "/".join(parts[:depth])
        return re.match(glob_translate(part.replace("?", "[?]") if "http" in protocols(fs) else part), path) is not None

    def may_hold_matches(folder: str) -> bool:
        depth = folder.count("/") + 1
        return "**" in parts[:depth] or (depth < len(parts) and matches(folder, depth))

    files = _walk(fs, base or pattern[: pattern.startswith("/")], base, builder, may_hold_matches)
    return sorted(path for path in files if matches(path, len(parts)))


def is_glob(fs: Any, pattern: str) -> bool:
    """Whether a path has wildcards."""
    return any(c in pattern for c in _wildcards(fs))


def glob_base(fs: Any, pattern: str) -> str:
    """The folders of a glob before its first wildcard."""
    return pattern[: min(pattern.index(c) for c in _wildcards(fs) if c in pattern)].rpartition("/")[0]


def _wildcards(fs: Any) -> str:
    return "*[" if "http" in protocols(fs) else "*[?"  # in a URL of HTTP, "?" begins the query


def _walk(fs: Any, root: str, base: str, builder: ListingBuilder, enters: Callable[[str], bool]) -> _Infos:
    """List files folder by folder, entering those for which ``enters`` is true; ``base`` is cut off failed keys."""
    files: _Infos = {}
    seen, folders = {root.rstrip("/")}, [root]
    while folders:
        folder = folders.pop()
        try:
            infos = with_retries(lambda: fs.ls(folder, detail=True))  # noqa: B023  called before the next iteration
        except Exception as error:  # every file system has exceptions of its own
            if folder == root and isinstance(error, FileNotFoundError):
                return {}
            if folder == root or isinstance(error, RetriesExhausted):
                raise
            key = folder[len(base) :].lstrip("/") + "/"
            builder.add_failure(key, f"directory cannot be listed: {error_text(error)}")
            continue
        for info in infos:
            path = info["name"].rstrip("/")
            if info["type"] != "directory":
                files[info["name"]] = info
            elif path not in seen and enters(path):
                seen.add(path)
                folders.append(path)
    return files
