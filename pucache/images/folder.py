"""Images in a local folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from ..errors import ImageError, SourceError
from ..storage.atomic import open_regular
from .listing import Listing, ListingBuilder, check_size


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
