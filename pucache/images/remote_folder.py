"""Images behind a URL: all below a folder, and the bytes of one."""

from __future__ import annotations

import hashlib
from typing import Any

from ..errors import ImageError, SourceError
from ..storage.filesystem import TIME_FIELDS, open_filesystem, read_object, source_errors, version_tag
from ..storage.retries import error_text
from ..storage.urls import without_secrets
from .listing import UNKNOWN, Listing, ListingBuilder, check_size, is_hidden
from .remote_walk import walk_files


class RemoteFolder:
    """Every image below an fsspec URL such as ``s3://bucket/folder``."""

    def __init__(self, url: str):
        self.name = without_secrets(url)
        self._url = url

    def scan(self) -> Listing:
        """List everything below the URL; a folder that may not be listed becomes a failure."""
        found = ListingBuilder()
        with source_errors(self.name):
            fs, root = open_filesystem(self._url, retry_each_request=True)
            entries = walk_files(fs, root, found)
        if not entries and not found.failures:
            raise SourceError(f"no such source: {self.name} (nothing is there)")
        if list(entries) == [root]:
            raise SourceError(f"{self.name} is a file; expected a folder, a manifest (.txt, .csv, .tsv) or .tar shards")
        above = _below(root)
        for path, info in entries.items():
            key = path[len(above) :] if above else path.removeprefix("/")
            if not is_hidden(key) and found.wants(key):
                found.add(key, *size_mtime(info))
        return found.listing()

    def read(self, key: str) -> bytes:
        """Fetch one object; raises `ImageError`."""
        fs, root = open_filesystem(self._url)
        return read_image(fs, _below(root) + key)


def read_image(fs: Any, path: str) -> bytes:
    """Fetch one object, tried again where that may help.

    Raises
    ------
    ImageError
        It cannot be read, or no image is as large.
    """
    try:
        return read_object(fs, path, check_size)
    except ImageError:
        raise
    except Exception as error:  # every remote file system has exceptions of its own
        raise ImageError(f"cannot be read: {error_text(error)}") from error


def size_mtime(info: dict[str, Any]) -> tuple[int, int]:
    """Size, and time in nanoseconds or what stands in for it, of what a store tells about an object."""
    size = int(info["size"]) if info.get("size") is not None else UNKNOWN
    for name in TIME_FIELDS:
        value: Any = info.get(name)
        if isinstance(value, int | float):
            return size, int(value * 1e9)
        if hasattr(value, "timestamp"):
            return size, int(value.timestamp() * 1e9)
    told = version_tag(info)
    return size, int.from_bytes(hashlib.sha256(told.encode()).digest()[:8], "big") >> 1 if told else UNKNOWN


def _below(root: str) -> str:
    return root.rstrip("/") + "/" if root else ""  # of an archive, in which names have nothing before them
