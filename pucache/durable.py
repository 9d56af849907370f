"""Files that are whole or absent: temporary name, fsync, rename."""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import OutputError

PARTIAL = ".partial"


def check_writable(path: str | Path, *, inputs: Iterable[str | Path] = ()) -> Path:
    """Make sure, before any work is done, that `path` can be written later.

    The parent directory is made when it is missing. `inputs` are files that must not be overwritten.

    Raises
    ------
    OutputError
        `path` is a directory, a device or an input, or its directory cannot be made or written to.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise OutputError(f"{path} is a directory; name a file to write instead")
        if path.exists() and not path.is_file():  # a rename would put a file in the place of /dev/null
            raise OutputError(f"{path} is not a regular file; name a file to write instead")
        if any(Path(other).exists() and path.exists() and path.samefile(other) for other in inputs):
            raise OutputError(f"{path} is also an input, which would be overwritten; name another file to write")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=_prefix(path), suffix=PARTIAL):
            pass
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; choose another path") from error
    return path


def fsync_directory(path: Path) -> None:
    """Make renames within the directory `path` survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it becomes `path` at once and durably.

    On any exception the temporary file is removed and `path` stays as it was.

    Raises
    ------
    OutputError
        The file system refused (full, read-only, no permission).
    """
    path = Path(path)
    temporary = None
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=_prefix(path), suffix=PARTIAL)
        os.close(descriptor)
        temporary = Path(name)
        yield temporary
        _publish(temporary, path)
        temporary = None
    except OSError as error:
        reason = error.strerror or error
        raise OutputError(f"cannot write {path}: {reason}; what was there before is untouched") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _publish(temporary: Path, path: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes private files; outputs follow the user's umask
    with open(temporary, "rb+") as stream:
        os.fsync(stream.fileno())
    os.replace(temporary, path)
    fsync_directory(path.parent)


def remove_partials(path: Path) -> None:
    """Remove what killed writers of `path` left behind; call it only under the writer's lock."""
    drawn = "?" * 8  # what tempfile draws; `*` would also match the partials of NAME.other
    for leftover in path.parent.glob(f"{glob.escape(_prefix(path))}{drawn}{PARTIAL}"):
        leftover.unlink(missing_ok=True)


def _prefix(path: Path) -> str:
    name = os.fsencode(path.name)[:200].decode("utf-8", "ignore")  # a file name holds at most 255 bytes
    return f".{name}."
