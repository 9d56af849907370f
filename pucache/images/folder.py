"""Images in a local folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

from ..errors import ImageError, SourceError
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
        """Walk the folder; a directory that cannot be read becomes a failure.

        Raises
        ------
        SourceError
            The folder itself cannot be read.
        """
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
    """Read a local file as encoded image bytes.

    Raises
    ------
    ImageError
        The file is missing, unreadable, not a regular file, or larger than `MAX_BYTES`.
    """
    try:
        # non-blocking, because opening a named pipe without a writer would block
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            info = os.fstat(descriptor)
            if not stat.S_ISREG(info.st_mode):
                raise ImageError("not a regular file")
            check_size(info.st_size)
            return _read_all(descriptor, info.st_size)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ImageError(f"cannot be read: {error.strerror}") from error


def _read_all(descriptor: int, size: int) -> bytes:
    """Read to the end of a file, in a single call where its size is ``size``."""
    parts, total = [os.read(descriptor, size + 1)], size
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
        total += len(part)
        check_size(total)
    return parts[0] if len(parts) == 1 else b"".join(parts)
