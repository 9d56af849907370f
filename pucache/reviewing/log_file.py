"""The SQLite file of a decision log, its tables, and what tells whether it is whole: its ``-wal``, and a note.

A log is refused rather than continued with fewer entries than it had. A WAL of SQLite does not know its database: it
is applied to a copy from another time too, whose pages it was not written for.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from ..errors import SessionError, one_line
from ..version import __version__

LOG = "decisions.sqlite"  # in the folder of a session
ACKNOWLEDGED = "acknowledged.txt"  # number and time of the last entry; before the log in the order of names, as copied
REMEDY = (
    f"restore {LOG} together with {LOG}-wal and {LOG}-shm from one copy of the folder, or name another folder with "
    "--session"
)
FORMAT = "pucache review session"
VERSION = 4  # 1, of pucache 0.2, has one urn for each epoch; 2 has no zone; 3, of 0.3, no queries
TABLES = {
    "format": "name TEXT NOT NULL, version INTEGER NOT NULL",
    "epochs": (
        "number INTEGER PRIMARY KEY, begun REAL NOT NULL, pucache_version TEXT NOT NULL, cache TEXT NOT NULL, "
        "checksums TEXT NOT NULL, rows INTEGER NOT NULL, pile INTEGER NOT NULL, pile_checksum TEXT NOT NULL, "
        "twins REAL, grouping TEXT NOT NULL, urns TEXT, continued TEXT"
    ),
    "images": "epoch INTEGER NOT NULL, key TEXT NOT NULL, digest BLOB NOT NULL, label INTEGER, reviewed INTEGER",
    "zones": "epoch INTEGER NOT NULL, key TEXT NOT NULL",
    # what was asked, and after which entry; it ranks, and labels nothing
    "queries": "after INTEGER NOT NULL, time REAL NOT NULL, query TEXT NOT NULL",
    # of 0.4: who else decides on the same images, and in which folder
    "readers": "name TEXT NOT NULL, log TEXT NOT NULL, time REAL NOT NULL",
    "entries": (
        "serial INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, key TEXT NOT NULL, digest BLOB NOT NULL, "
        "request TEXT UNIQUE, row INTEGER NOT NULL, image_group INTEGER NOT NULL, copies INTEGER NOT NULL, "
        "stream TEXT NOT NULL, choice TEXT, replaces INTEGER, restores INTEGER, unknown INTEGER NOT NULL, "
        "positives INTEGER NOT NULL, model_version INTEGER NOT NULL, reviewer TEXT, "
        "time REAL NOT NULL, urn INTEGER NOT NULL DEFAULT 0, zone INTEGER NOT NULL DEFAULT 0"
    ),
}
_SINCE = {"zones": 3, "queries": 4, "readers": 4}  # version from which on a log has the table
_COLUMNS = {name: [part.split()[0] for part in columns.split(", ")] for name, columns in TABLES.items()}
INSERT = {
    name: f"INSERT INTO {name} ({', '.join(columns)}) VALUES (:{', :'.join(columns)})"  # noqa: S608
    for name, columns in _COLUMNS.items()
}
_WIDTH = 64  # bytes of `ACKNOWLEDGED`, written in place
_UNREADABLE = (sqlite3.Error, UnicodeError)  # its messages may quote what is no text
_HISTORY = ("SELECT number, begun FROM epochs", "SELECT serial, epoch, key, choice, request, time FROM entries")


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """Version of a log; raises `SessionError` unless it is an undamaged log of a version that is read."""
    with sqlite_errors(path, "read"):
        execute = connection.execute
        check = "integrity_check" if wal_of(path).exists() else "quick_check"  # with indices, after a kill
        found = " ".join(str(execute(f"PRAGMA {check}(1)").fetchone()[0]).split())[:160]
        if found == "ok":
            tables = {name for (name,) in execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            written = execute("SELECT name, version FROM format").fetchone() if "format" in tables else None
            if written is None or written[0] != FORMAT:
                raise SessionError(f"{path} is not the log of a review session; name another folder with --session")
            if written[1] > VERSION:
                raise SessionError(
                    f"{path} has version {written[1]} of the log; this pucache {__version__} reads versions up to "
                    f"{VERSION}: upgrade pucache, or name another folder with --session"
                )
            if written[1] >= 1 and tables >= {name for name in TABLES if _SINCE.get(name, 0) <= written[1]}:
                return int(written[1])
            found = f"version {written[1]} with the tables {', '.join(sorted(tables))}"
        raise SessionError(f"{path} is damaged ({found}); {REMEDY}")


@contextmanager
def sqlite_errors(path: Path, verb: str) -> Iterator[None]:
    """Turn errors of SQLite, and values that no log holds, into a `SessionError` of one line."""
    try:
        yield
    except sqlite3.Error as error:
        reason, name = one_line(error), getattr(error, "sqlite_errorname", "") or ""
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            raise SessionError(f"{path} is damaged ({reason}); {REMEDY}") from error
        remedy = REMEDY
        if name.startswith(("SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_READONLY")):
            remedy = "make its folder writable, or name another folder with --session"
        elif verb == "write":
            remedy = "nothing was kept of what was to be written: make room, and send it again"
        raise SessionError(f"cannot {verb} {path}: {reason}; {remedy}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise SessionError(f"{path} is damaged ({one_line(error)}); {REMEDY}") from error


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


def missing_or_empty(path: Path) -> str:
    """What is wrong with a log that is not there."""
    if path.is_symlink() and not path.exists():
        return "a link to no file"
    return "empty" if path.exists() else "missing"


def is_unwritten(path: Path) -> bool:
    """Whether no log is here, or a database without tables, as one that was emptied, or never written."""
    if not path.is_file() or path.stat().st_size < 2:  # SQLite takes a byte for none, and would delete the WAL
        return True
    try:
        with closing(connect_to_read(path)) as connection:
            return not connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except _UNREADABLE:
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
    except _UNREADABLE:  # a killed checkpoint leaves no whole log without the WAL; what is damaged is found later
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
