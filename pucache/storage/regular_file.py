"""Opening files for reading without being blocked by a pipe or a device, and telling pucache's own files apart."""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import BinaryIO

CACHE_FORMAT = "pucache-cache"
_HDF5 = b"\x89HDF\r\n\x1a\n"
_TENSOR_FILE = re.compile(rb'.{8}\{"__metadata__":\{"(pucache-[a-z]+)":', re.DOTALL)


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading; a folder, a device, or a pipe, whose opening may block for ever, raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    number, reason = (errno.EISDIR, "is a directory") if stat.S_ISDIR(mode) else (errno.EINVAL, "is not a regular file")
    raise OSError(number, reason, str(path))


def format_of(path: str | os.PathLike[str]) -> str:
    """Format of a file of pucache by its first bytes, unverified: ``pucache-cache`` for HDF5; "" for any other file."""
    try:
        with open_regular(path) as stream:
            beginning = stream.read(64)
    except (OSError, ValueError):  # whoever reads the file reports it
        return ""
    if beginning.startswith(_HDF5):
        return CACHE_FORMAT
    match = _TENSOR_FILE.match(beginning)
    return match[1].decode() if match else ""
