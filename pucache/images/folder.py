"""Images in a folder of this machine."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..errors import ImageError, SourceError
from .listing import Listing, ListingBuilder, check_size

_Directory = tuple[str, str, frozenset[tuple[int, int]]]  # path, prefix of its keys, directories above it


class LocalFolder:
    """Every image file below a folder; symbolic links are followed, loops are not."""

    def __init__(self, root: str):
        self.name = root

    def scan(self) -> Listing:
        """Walk the folder; a directory that cannot be read becomes a failure."""
        found = ListingBuilder()
        below: list[_Directory] = [(self.name, "", frozenset())]
        while below:
            below += self._list(*below.pop(), found)
        return found.listing()

    def _list(
        self, directory: str, prefix: str, above: frozenset[tuple[int, int]], found: ListingBuilder
    ) -> list[_Directory]:
        """Enter the images of one directory, and return the directories in it."""
        try:
            here = os.stat(directory)
            with os.scandir(directory) as entries:
                children = list(entries)
        except OSError as error:
            if not prefix:
                raise SourceError(f"cannot list {directory}: {error.strerror}") from error
            found.fail(prefix, f"directory cannot be listed: {error.strerror}")
            return []
        identity = (here.st_dev, here.st_ino)
        if identity in above:
            found.fail(prefix, "symbolic link back to a folder above it")
            return []
        below: list[_Directory] = []
        for entry in children:
            if entry.name.startswith("."):
                continue
            key = prefix + entry.name
            try:
                if entry.is_dir():
                    below.append((entry.path, key + "/", above | {identity}))
                elif found.wants(key):
                    info = entry.stat()
                    found.add(key, info.st_size, info.st_mtime_ns)
            except OSError as error:
                found.fail(key, f"cannot be read: {error.strerror}")
        return below

    def read(self, key: str) -> bytes:
        """Read one file; raises `ImageError`."""
        return read_local(os.path.join(self.name, key))


def read_local(path: str | Path) -> bytes:
    """Read one local file as encoded image bytes, refusing what no image can be.

    Raises
    ------
    ImageError
        Missing, unreadable, not a regular file, or above `MAX_BYTES`.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a named pipe without a writer would block
        try:
            info = os.fstat(file)
            if not stat.S_ISREG(info.st_mode):
                raise ImageError("not a regular file")
            check_size(info.st_size)
            return _read_all(file, info.st_size)
        finally:
            os.close(file)
    except OSError as error:
        raise ImageError(f"cannot be read: {error.strerror}") from error


def _read_all(file: int, size: int) -> bytes:
    """Read to the end, in one go where the size is as told."""
    pieces, total = [os.read(file, size + 1)], size
    while more := os.read(file, 1 << 20):
        pieces.append(more)
        total += len(more)
        check_size(total)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
