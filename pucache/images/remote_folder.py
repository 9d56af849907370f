"""Images in a remote folder, and reading of single remote images."""

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
        """List everything below the URL; a folder that may not be listed becomes a failure.

        Raises
        ------
        SourceError
            The URL does not exist, is a file, or cannot be listed.
        """
        builder = ListingBuilder()
        with source_errors(self.name):
            fs, root = open_filesystem(self._url, retry_each_request=True)
            infos = walk_files(fs, root, builder)
        if not infos and not builder.failures:
            raise SourceError(f"no such source: {self.name} (nothing is there)")
        if list(infos) == [root]:
            raise SourceError(f"{self.name} is a file; expected a folder, a manifest (.txt, .csv, .tsv) or .tar shards")
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
    """Download one image, with retries.

    Raises
    ------
    ImageError
        The object cannot be read, or is larger than `MAX_BYTES`.
    """
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
