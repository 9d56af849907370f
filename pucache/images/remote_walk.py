"""Complete listings of remote folders and globs.

fsspec's own walk silently omits a folder that cannot be listed. Here such a folder becomes a failure of
the listing.
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

_Infos = dict[str, dict[str, Any]]  # path of a file to fsspec's info


def walk_files(fs: Any, root: str, builder: ListingBuilder) -> _Infos:
    """List every file below a remote folder.

    Parameters
    ----------
    fs : fsspec.AbstractFileSystem
    root : str
    builder : ListingBuilder
        Receives a failure for each folder that may not be listed.

    Returns
    -------
    dict of str to dict
        Path to fsspec's info. Where ``root`` is a file, its path to an empty dict.

    Raises
    ------
    RetriesExhausted
        A folder could not be listed at any attempt.
    Exception
        The store's own error, where ``root`` exists and cannot be listed.
    """
    fs.invalidate_cache()
    if not _lists_by_folder(fs):
        return dict(with_retries(lambda: fs.find(root, detail=True)))
    files = _walk(fs, root, root, builder, lambda _: True)
    return files if files or not with_retries(lambda: fs.isfile(root)) else {root: {}}


def glob_files(fs: Any, pattern: str, builder: ListingBuilder) -> list[str]:
    """Sorted paths of the files that match a glob; parameters and errors as of `walk_files`."""
    parts = pattern.split("/")
    base = glob_base(fs, pattern)

    def matches(path: str, depth: int) -> bool:
        return re.match(_glob_regex(fs, "/".join(parts[:depth])), path) is not None

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
    return "*[" if _is_http(fs) else "*[?"  # in a URL of HTTP, "?" begins the query


def _glob_regex(fs: Any, pattern: str) -> str:
    return str(glob_translate(pattern.replace("?", "[?]") if _is_http(fs) else pattern))


def _is_http(fs: Any) -> bool:
    return "http" in ([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol)


def _lists_by_folder(fs: Any) -> bool:
    """Whether fsspec lists this store folder by folder, rather than all files below a prefix at once."""
    generic_async = getattr(type(fs), "_find", AsyncFileSystem._find) is AsyncFileSystem._find
    return generic_async and type(fs).find is AbstractFileSystem.find


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
