"""The decision log: an append-only SQLite file, the truth of a review session.

Every entry, a random draw or a decision, is on disk before it is acknowledged: one transaction for each call, in
SQLite's WAL mode with ``synchronous=FULL``. Triggers refuse changes of what was written. Entries carry the key and the
digest of their image, so that they can be matched with a cache that has changed. An epoch is a stretch of the log with
one cache and one pile.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..errors import SessionError, one_line
from ..storage.atomic import fsync_directory
from ..version import __version__

LOG = "decisions.sqlite"  # in the folder of a session
FORMAT = "pucache review session"
VERSION = 1
_ENTRIES = (
    "serial INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, key TEXT NOT NULL, digest BLOB NOT NULL, "
    "request TEXT UNIQUE, row INTEGER NOT NULL, image_group INTEGER NOT NULL, copies INTEGER NOT NULL, "
    "stream TEXT NOT NULL, choice TEXT, replaces INTEGER, restores INTEGER, unknown INTEGER NOT NULL, "
    "positives INTEGER NOT NULL, expected REAL, model_version INTEGER NOT NULL, reviewer TEXT, time REAL NOT NULL"
)
_TABLES = {
    "format": "name TEXT NOT NULL, version INTEGER NOT NULL",
    "epochs": (
        "number INTEGER PRIMARY KEY, begun REAL NOT NULL, pucache_version TEXT NOT NULL, cache TEXT NOT NULL, "
        "checksums TEXT NOT NULL, rows INTEGER NOT NULL, pile INTEGER NOT NULL, pile_checksum TEXT NOT NULL, "
        "twins REAL, grouping TEXT NOT NULL"
    ),
    "images": "epoch INTEGER NOT NULL, key TEXT NOT NULL, digest BLOB NOT NULL, label INTEGER, reviewed INTEGER",
    "entries": _ENTRIES,
}
_COLUMNS = [part.split()[0] for part in _ENTRIES.split(", ")]
_INSERT_ENTRY = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_REMEDY = "restore it from a copy, or name another folder with --session"


class Choice(StrEnum):
    """What a reviewer decided about an image."""

    POSITIVE = "positive"
    NEGATIVE = "negative"
    SKIP = "skip"
    UNDONE = "undone"  # takes the decision back that it replaces

    @property
    def is_label(self) -> bool:
        """Whether it says what the image is."""
        return self in (Choice.POSITIVE, Choice.NEGATIVE)


class Stream(StrEnum):
    """Why an image was shown."""

    RANKED = "ranked"  # high in the ranking
    AUDIT = "audit"  # drawn at random from all unknown rows
    RECHECK = "recheck"  # a known positive, shown again to see whether it is recognised


@dataclass(frozen=True)
class Draw:
    """A random draw, written before anybody sees the image."""

    serial: int  # position in the log, which draws and decisions share; ascending from 1
    row: int  # of the cache
    group: int  # smallest row of the images that show the same picture and share their label
    copies: int  # rows of the pile in that group
    stream: Stream  # AUDIT or RECHECK
    unknown: int  # n_i: rows of the pile neither decided nor drawn before; the draw was uniform over these
    positives: int  # f_i: rows of the pile that were known as positive, as far as it was known then
    expected: float  # share of positives among the unknown rows by the model; NaN without a model
    model_version: int  # serial number of the last entry that the model has seen; 0 without a model
    time: float  # seconds since 1970
    key: str = ""  # of the image
    digest: bytes = b""  # sha256 of the image's bytes; 32 zeros where unknown
    epoch: int = field(default=0, compare=False, repr=False)  # assigned when it is written


@dataclass(frozen=True)
class Decision:
    """A decision of a reviewer, written before it is acknowledged. Fields that `Draw` has too mean the same."""

    serial: int
    request: str  # identifier that the client chose; a second entry with it is refused, so requests can be repeated
    row: int
    group: int  # all of its rows get the label
    copies: int
    choice: Choice
    stream: Stream
    replaces: int  # serial number of the decision on this group that was in force; 0: none
    unknown: int
    positives: int
    model_version: int  # of the ranking that showed the image
    reviewer: str
    time: float
    restores: int = 0  # serial number of the decision that an undo brought back into force; 0: none
    key: str = ""
    digest: bytes = b""
    epoch: int = field(default=0, compare=False, repr=False)

    @property
    def is_undo(self) -> bool:
        """Whether it takes back what it replaces."""
        return bool(self.restores) or self.choice is Choice.UNDONE


Entry = Draw | Decision


@dataclass(frozen=True)
class EpochFacts:
    """What an epoch begins with."""

    cache: str  # its name, for messages
    checksums: tuple[str, ...]  # of its files, sorted
    rows: int
    pile: int  # rows that were neither labelled nor twins of labelled ones
    pile_checksum: str  # of which images are in the pile
    twins: float | None  # cosine from which on two images share their label; None: equal bytes only
    grouping: str  # how twins were found, see `pucache.reviewing.twins`


@dataclass(frozen=True)
class LoggedImage:
    """An image of the cache when an epoch began."""

    key: str
    digest: bytes
    label: int | None = None  # 1 positive, 0 negative, None: listed only so that the cache can be recognised
    reviewed: int | None = None  # 1 where an earlier review gave the label
    epoch: int = 0  # assigned when it is written


class DecisionLog:
    """Log of one session. Not thread-safe: its owner holds a lock. See `create` and `open`.

    `epoch` is the number of the present epoch, from 1; `last` the serial number of the last entry, 0 before the first.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, *, read_only: bool = False):
        self.path, self.read_only, self._connection = path, read_only, connection
        self.epoch, self.last = 0, 0
        self._file = _file_at(path)
        self._count()

    def _count(self) -> None:
        with _errors(self.path, "read"):
            query = "SELECT (SELECT max(number) FROM epochs), (SELECT max(serial) FROM entries)"
            self.epoch, self.last = (int(greatest or 0) for greatest in self._connection.execute(query).fetchone())

    @classmethod
    def create(cls, path: Path, facts: EpochFacts, images: Sequence[LoggedImage] = ()) -> DecisionLog:
        """Create a log with its first epoch; raises `SessionError` where the file cannot be written."""
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
        """Open a log; to read it alone also while another process writes it. Raises `SessionError`, naming the file."""
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

    def begin_epoch(self, facts: EpochFacts, images: Sequence[LoggedImage] = ()) -> None:
        """Begin another epoch, durably."""
        with self._transaction():
            _insert_epoch(self._connection, self.epoch + 1, facts, images)
        self.epoch += 1

    def append(self, entries: Sequence[Entry]) -> None:
        """Write entries in one transaction: all are on disk when this returns; none where it raises `SessionError`."""
        rows = [_values(entry, self.epoch) for entry in entries]
        with self._transaction():
            self._connection.executemany(_INSERT_ENTRY, rows)
        self.last += len(entries)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _transaction(self._connection, self.path):
            yield
            if self._file is None or _file_at(self.path) != self._file:  # SQLite would write the file that is gone
                raise SessionError(
                    f"{self.path} was moved, deleted or replaced while it was open; nothing was kept of what was to be "
                    "written: put its folder back, and send it again; or end the review and begin it anew"
                )

    def facts(self) -> EpochFacts:
        """Facts of the present epoch."""
        with _errors(self.path, "read"):
            _, _, _, cache, checksums, *rest = self._connection.execute(
                "SELECT * FROM epochs WHERE number = ?", (self.epoch,)
            ).fetchone()
            return EpochFacts(cache, tuple(json.loads(checksums)), *rest)

    def images(self) -> list[LoggedImage]:
        """Images listed at the beginning of each epoch."""
        with _errors(self.path, "read"):
            query = "SELECT key, digest, label, reviewed, epoch FROM images ORDER BY rowid"
            return [LoggedImage(*values) for values in self._connection.execute(query)]

    def entries(self) -> list[Entry]:
        """All entries of all epochs, in order; `last` is then that of the file."""
        self._count()
        with _errors(self.path, "read"):
            rows = self._connection.execute("SELECT * FROM entries ORDER BY serial")
            entries = [_entry(dict(zip(_COLUMNS, values, strict=True))) for values in rows]
        for number, entry in enumerate(entries, 1):
            if entry.serial != number:
                raise SessionError(f"{self.path} is damaged: entry {number:,} is missing; {_REMEDY}")
        return entries


def _values(entry: Entry, epoch: int) -> tuple[Any, ...]:
    """Values of an entry in the order of the columns."""
    values = {"restores": 0} | vars(entry) | {"epoch": epoch, "image_group": entry.group}
    return tuple(values.get(name) for name in _COLUMNS)  # SQLite keeps NaN as NULL


def _entry(values: dict[str, Any]) -> Entry:
    """The entry of a row of the table; raises ValueError or TypeError where it is none."""
    names = ("serial", "row", "copies", "unknown", "positives", "model_version", "epoch")
    common: dict[str, Any] = {name: int(values[name]) for name in names}
    common |= {"group": int(values["image_group"]), "stream": Stream(values["stream"]), "time": float(values["time"])}
    common |= {"key": str(values["key"]), "digest": bytes(values["digest"])}
    if values["request"] is None:
        return Draw(**common, expected=math.nan if values["expected"] is None else float(values["expected"]))
    return Decision(
        **common,
        request=str(values["request"]),
        choice=Choice(values["choice"]),
        replaces=int(values["replaces"]),
        restores=int(values["restores"]),
        reviewer=str(values["reviewer"]),
    )


def _file_at(path: Path) -> tuple[int, int] | None:
    """What file a path names; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


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
    connection: sqlite3.Connection, number: int, facts: EpochFacts, images: Sequence[LoggedImage]
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
