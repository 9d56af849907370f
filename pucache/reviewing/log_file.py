"""The SQLite file of a decision log, and what tells whether it is whole: its ``-wal``, and what was acknowledged.

A log is refused rather than continued with fewer entries than it had. A WAL of SQLite does not know its database: it
is applied to a copy from another time too, whose pages it was not written for.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from ..errors import SessionError

LOG = "decisions.sqlite"  # in the folder of a session
ACKNOWLEDGED = "acknowledged.txt"  # number and time of the last entry; before the log in the order of names, as copied
REMEDY = (
    f"restore {LOG} together with {LOG}-wal and {LOG}-shm from one copy of the folder, or name another folder with "
    "--session"
)
_WIDTH = 64  # bytes of `ACKNOWLEDGED`, written in place
_HISTORY = ("SELECT number, begun FROM epochs", "SELECT serial, epoch, key, choice, request, time FROM entries")


def connect(path: Path) -> sqlite3.Connection:
    """Connection that writes."""
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Connection that writes nothing; on a medium that cannot be written, there is no WAL to be read either."""
    with contextlib.suppress(sqlite3.OperationalError):
        return _read_only(path)
    if wal_of(path).exists():
        return _read_only(path)  # for its error
    return _read_only(path, "&immutable=1")


def _read_only(path: Path, setting: str = "") -> sqlite3.Connection:
    address = f"file:{quote(str(path.resolve()))}?mode=ro{setting}"
    connection = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def file_at(path: Path) -> tuple[int, int] | None:
    """What file a path names; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def wal_of(path: Path) -> Path:
    """The WAL of a log; SQLite keeps it beside the file that a link leads to."""
    real = Path(os.path.realpath(path))
    return real.with_name(real.name + "-wal")


def is_empty(path: Path) -> bool:
    """Whether no log is here, or a file without a byte."""
    return not path.is_file() or not path.stat().st_size


def missing_or_empty(path: Path) -> str:
    """What is wrong with a log that is not there."""
    if path.is_symlink() and not path.exists():
        return "a link to no file"
    return "empty" if path.exists() else "missing"


def is_unwritten(path: Path) -> bool:
    """Whether no log is here, or a database without tables, as one that was emptied, or never written."""
    if is_empty(path):
        return True
    try:
        with closing(connect_to_read(path)) as connection:
            return not connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.Error:
        return False


def check_whole(path: Path) -> None:
    """Raise `SessionError` where a log ends within a page, or its WAL takes away or changes what it holds alone.

    The log is append-only, so all that it holds without its WAL it holds with it too.
    """
    wal = wal_of(path)
    if not wal.exists() or not wal.stat().st_size:
        page = 0
        with contextlib.suppress(OSError), path.open("rb") as stream:  # which SQLite reports
            page = int.from_bytes(stream.read(18)[16:], "big")
        if page > 1 and path.stat().st_size % page:  # SQLite would read zeros there
            raise SessionError(f"{path} is damaged (it ends within a page); {REMEDY}")
        return
    try:
        with closing(_read_only(path, "&immutable=1")) as alone:  # first, as another process may write meanwhile
            before = _history(alone)
        with closing(connect_to_read(path)) as both:
            lost = before - _history(both)
    except sqlite3.Error:  # a killed checkpoint leaves no whole log without the WAL; what is damaged is found later
        return
    if lost:
        raise SessionError(
            f"{wal} is of another state of {path.name}, {len(lost):,} entries of which it would take away: {REMEDY}"
        )


def _history(connection: sqlite3.Connection) -> set[tuple[object, ...]]:
    return {row for query in _HISTORY for row in connection.execute(query)}


def acknowledge(folder: Path, serial: int, time: float) -> None:
    """Note the last entry that is on disk; a note that cannot be written leaves the one before, which is right too."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder / ACKNOWLEDGED, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.pwrite(descriptor, f"{serial} {time!r}".ljust(_WIDTH - 1).encode() + b"\n", 0)
        finally:
            os.close(descriptor)


def acknowledged(folder: Path) -> tuple[int, float]:
    """Number and time of the last entry that was acknowledged; zeros where that is not noted, as before 0.4."""
    try:
        serial, time = (folder / ACKNOWLEDGED).read_bytes()[:_WIDTH].split()
        return int(serial), float(time)
    except (OSError, ValueError):
        return 0, 0.0
