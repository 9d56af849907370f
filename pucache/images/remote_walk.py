"""What lies below a place of a file system, where nothing may be missing that is there.

fsspec's own walk leaves out a folder whose listing fails, as if nothing were in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.utils import glob_translate

from ..storage.retries import RetriesExhausted, error_text, with_retries
from .listing import ListingBuilder

_Infos = dict[str, dict[str, Any]]


def walk_files(fs: Any, root: str, found: ListingBuilder) -> _Infos:
    """Path to what the store says of every file below a folder; a folder that may not be listed becomes a failure.

    Raises
    ------
    GaveUp
        The store failed to list one of them.
    Exception
        The store's own, where the first folder is there and cannot be listed.
    """
    fs.invalidate_cache()
    if not _walks(fs):
        return dict(with_retries(lambda: fs.find(root, detail=True)))
    files = _walk(fs, root, root, found, lambda _: True)
    return files if files or not with_retries(lambda: fs.isfile(root)) else {root: {}}


def glob_files(fs: Any, pattern: str, found: ListingBuilder) -> list[str]:
    """Sorted paths of the files that match a glob; raises as `walk_files` does."""
    parts = pattern.split("/")
    fixed = glob_base(fs, pattern)

    def matches(path: str, count: int) -> bool:
        return re.match(_translated(fs, "/".join(parts[:count])), path) is not None

    def leads_on(folder: str) -> bool:
        count = folder.count("/") + 1
        return "**" in parts[:count] or (count < len(parts) and matches(folder, count))

    files = _walk(fs, fixed or pattern[: pattern.startswith("/")], fixed, found, leads_on)
    return sorted(path for path in files if matches(path, len(parts)))


def is_glob(fs: Any, pattern: str) -> bool:
    """Whether a path has wildcards."""
    return any(c in pattern for c in _wildcards(fs))


def glob_base(fs: Any, pattern: str) -> str:
    """The folders of a glob before its first wildcard."""
    return pattern[: min(pattern.index(c) for c in _wildcards(fs) if c in pattern)].rpartition("/")[0]


def _wildcards(fs: Any) -> str:
    return "*[" if _has_queries(fs) else "*[?"


def _translated(fs: Any, pattern: str) -> str:
    return str(glob_translate(pattern.replace("?", "[?]") if _has_queries(fs) else pattern))


def _has_queries(fs: Any) -> bool:
    return "http" in ([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol)


def _walks(fs: Any) -> bool:
    """Whether this kind of store is listed folder by folder."""
    one_by_one = getattr(type(fs), "_find", AsyncFileSystem._find) is AsyncFileSystem._find
    return one_by_one and type(fs).find is AbstractFileSystem.find


def _walk(fs: Any, root: str, above: str, found: ListingBuilder, leads_on: Callable[[str], bool]) -> _Infos:
    files: _Infos = {}
    seen, folders = {root.rstrip("/")}, [root]
    while folders:
        folder = folders.pop()
        try:
            infos = with_retries(lambda: fs.ls(folder, detail=True))  # noqa: B023  asked before the next one
        except Exception as error:  # every file system has exceptions of its own
            if folder == root and isinstance(error, FileNotFoundError):
                return {}
            if folder == root or isinstance(error, RetriesExhausted):
                raise
            found.fail(folder[len(above) :].lstrip("/") + "/", f"directory cannot be listed: {error_text(error)}")
            continue
        for info in infos:
            path = info["name"].rstrip("/")
            if info["type"] != "directory":
                files[info["name"]] = info
            elif path not in seen and leads_on(path):
                seen.add(path)
                folders.append(path)
    return files
