"""The decision log: an append-only SQLite file, the truth of a review session.

Every entry is on disk before it is acknowledged: one transaction for each call, in SQLite's WAL mode with
``synchronous=FULL``. Triggers refuse changes of what was written. Entries carry the key and the digest of
their image, so that they can be matched with a cache that has changed. An epoch is a stretch of the log with
one cache and one pile.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from ..errors import SessionError, one_line
from ..storage.atomic import fsync_directory
from ..version import __version__
from .log_entries import Entry
from .log_records import ENTRY_COLUMNS, ENTRY_TABLE, LoggedImage, Record, SittingFacts, record_of, row_of

FORMAT = "pucache review session"
VERSION = 1
_TABLES = {
    "format": "name TEXT NOT NULL, version INTEGER NOT NULL",
    "epochs": (
        "number INTEGER PRIMARY KEY, begun REAL NOT NULL, pucache_version TEXT NOT NULL, cache TEXT NOT NULL, "
        "checksums TEXT NOT NULL, rows INTEGER NOT NULL, pile INTEGER NOT NULL, pile_checksum TEXT NOT NULL, "
        "twins REAL, grouping TEXT NOT NULL"
    ),
    "images": "epoch INTEGER NOT NULL, key TEXT NOT NULL, digest BLOB NOT NULL, label INTEGER, reviewed INTEGER",
    "entries": ENTRY_TABLE,
}
_REMEDY = "restore it from a copy, or name another folder with --session"


class DecisionLog:
    """Log of one session. Not thread-safe: its owner holds a lock.

    Parameters
    ----------
    path : Path
    connection : sqlite3.Connection
        See `create` and `open`.
    read_only : bool

    Attributes
    ----------
    epoch : int
        Number of the present epoch, from 1.
    last : int
        Serial number of the last entry; 0 before the first.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, *, read_only: bool = False):
        self.path, self.read_only, self._connection = path, read_only, connection
        self.epoch, self.last = 0, 0
        self._count()

    def _count(self) -> None:
        with _errors(self.path, "read"):
            query = "SELECT (SELECT max(number) FROM epochs), (SELECT max(serial) FROM entries)"
            self.epoch, self.last = (int(greatest or 0) for greatest in self._connection.execute(query).fetchone())

    @classmethod
    def create(cls, path: Path, facts: SittingFacts, images: Sequence[LoggedImage] = ()) -> DecisionLog:
        """Create a log with its first epoch.

        Raises
        ------
        SessionError
            The file cannot be written.
        """
        connection = _connect(path)
        try:
            _make_durable(connection, path)
            with _transaction(connection, path):
                for name, columns in _TABLES.items():
                    connection.execute(f"CREATE TABLE {name} ({columns})")
                    for action in ("UPDATE", "DELETE"):
                        connection.execute(
                            f"CREATE TRIGGER {name}_no_{action.lower()} BEFORE {action} ON {name} "
                            "BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END"
                        )
                connection.execute("INSERT INTO format VALUES (?, ?)", (FORMAT, VERSION))
                _insert_epoch(connection, 1, facts, images)
            fsync_directory(path.parent)
            return cls(path, connection)
        except BaseException:
            connection.close()
            raise

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> DecisionLog:
        """Open a log.

        Parameters
        ----------
        path : Path
        read_only : bool
            Also possible while another process writes the log.

        Raises
        ------
        SessionError
            Missing, damaged, not a log, or of another version.
        """
        if not path.is_file():
            raise SessionError(f"no review session at {path.parent}: {path.name} is missing")
        connection = _connect(path, read_only=read_only)
        try:
            _check(connection, path)
            if not read_only:
                _make_durable(connection, path)
            return cls(path, connection, read_only=read_only)
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Close the file; closing twice is allowed."""
        self._connection.close()

    def begin_epoch(self, facts: SittingFacts, images: Sequence[LoggedImage] = ()) -> None:
        """Begin another epoch, durably.

        Raises
        ------
        SessionError
            It cannot be written.
        """
        with _transaction(self._connection, self.path):
            _insert_epoch(self._connection, self.epoch + 1, facts, images)
        self.epoch += 1

    def append(self, records: Sequence[Record]) -> None:
        """Write entries in one transaction; they are on disk when this returns.

        Parameters
        ----------
        records : sequence of Record
            Their serial numbers follow `last`.

        Raises
        ------
        SessionError
            None of them was written.
        """
        rows = [row_of(record, self.epoch) for record in records]
        with _transaction(self._connection, self.path):
            self._connection.executemany(_INSERT_ENTRY, rows)
        self.last += len(records)

    def facts(self) -> SittingFacts:
        """Facts of the present epoch."""
        with _errors(self.path, "read"):
            _, _, _, cache, checksums, *rest = self._connection.execute(
                "SELECT * FROM epochs WHERE number = ?", (self.epoch,)
            ).fetchone()
            return SittingFacts(cache, tuple(json.loads(checksums)), *rest)

    def images(self) -> list[LoggedImage]:
        """Images listed at the beginning of each epoch."""
        with _errors(self.path, "read"):
            query = "SELECT key, digest, label, reviewed, epoch FROM images ORDER BY rowid"
            return [LoggedImage(*values) for values in self._connection.execute(query)]

    def records(self) -> list[Record]:
        """All entries of all epochs, in order; `last` is then that of the file."""
        self._count()
        with _errors(self.path, "read"):
            rows = self._connection.execute("SELECT * FROM entries ORDER BY serial")
            records = [record_of(dict(zip(ENTRY_COLUMNS, values, strict=True))) for values in rows]
        for number, record in enumerate(records, 1):
            if record.entry.serial != number:
                raise SessionError(f"{self.path} is damaged: entry {number:,} is missing; {_REMEDY}")
        return records

    def entries(self, after: int = 0) -> list[Entry]:
        """Entries of the present epoch whose serial number is greater than ``after``."""
        return [record.entry for record in self.records() if record.epoch == self.epoch and record.entry.serial > after]


_INSERT_ENTRY = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


def _connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    with _errors(path, "open"):
        if read_only:
            return _connect_to_read(path)
        return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


def _make_durable(connection: sqlite3.Connection, path: Path) -> None:
    """Sync every transaction to disk, and let others read meanwhile."""
    with _errors(path, "open"):
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")


def _connect_to_read(path: Path) -> sqlite3.Connection:
    """Connection that writes nothing; on a medium that cannot be written, there is no WAL to be read either."""
    for suffix in ("", "&immutable=1"):
        address = f"file:{quote(str(path.resolve()))}?mode=ro{suffix}"
        connection = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master")
            return connection
        except sqlite3.OperationalError:
            connection.close()
            if suffix or path.with_name(path.name + "-wal").exists():
                raise
    raise AssertionError


@contextmanager
def _transaction(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    """Write all within the block, or nothing; on disk when it ends."""
    with _errors(path, "write"):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


@contextmanager
def _errors(path: Path, verb: str) -> Iterator[None]:
    """Turn errors of SQLite, and values that no log holds, into a `SessionError` of one line."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "") or ""
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            raise SessionError(f"{path} is damaged ({one_line(error)}); {_REMEDY}") from error
        if name.startswith(("SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_READONLY")):
            raise SessionError(
                f"cannot {verb} {path}: {one_line(error)}; make its folder writable, or name another folder with "
                "--session"
            ) from error
        if verb == "write":
            raise SessionError(
                f"cannot write {path}: {one_line(error)}; nothing was kept of what was to be written: make room, and "
                "send it again"
            ) from error
        raise SessionError(f"cannot {verb} {path}: {one_line(error)}; {_REMEDY}") from error
    except (TypeError, ValueError) as error:
        raise SessionError(f"{path} is damaged ({one_line(error)}); {_REMEDY}") from error


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise `SessionError` unless this is an undamaged log of this version."""
    with _errors(path, "read"):
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        written = connection.execute("SELECT name, version FROM format").fetchone() if "format" in tables else None
        if written is None or written[0] != FORMAT:
            raise SessionError(f"{path} is not the log of a review session; name another folder with --session")
        if written[1] != VERSION:
            raise SessionError(
                f"{path} has version {written[1]} of the log; this pucache {__version__} reads version {VERSION}: "
                "upgrade pucache, or name another folder with --session"
            )
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok" or not tables >= set(_TABLES):
            raise SessionError(f"{path} is damaged ({' '.join(str(found).split())[:160]}); {_REMEDY}")


def is_unwritten(path: Path) -> bool:
    """Whether no log is here yet; also where its writer was killed before the first transaction."""
    if not path.exists() or not path.stat().st_size:
        return True
    try:
        connection = _connect(path)
    except SessionError:
        return False
    try:
        return connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    except sqlite3.Error:
        return False
    finally:
        connection.close()


def _insert_epoch(
    connection: sqlite3.Connection, number: int, facts: SittingFacts, images: Sequence[LoggedImage]
) -> None:
    values = (facts.cache, json.dumps(facts.checksums), facts.rows, facts.pile, facts.pile_checksum)
    connection.execute(
        "INSERT INTO epochs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (number, time.time(), __version__, *values, facts.twins, facts.grouping),
    )
    connection.executemany(
        "INSERT INTO images VALUES (?, ?, ?, ?, ?)",
        ((number, image.key, image.digest, image.label, image.reviewed) for image in images),
    )
