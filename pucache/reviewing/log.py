"""The decision log: an append-only SQLite file, the truth of a review session.

Every entry, a random draw or a decision, is on disk before it is acknowledged: one transaction for each call, in
SQLite's WAL mode with ``synchronous=FULL``. Triggers refuse changes of what was written. Entries carry the key and the
digest of their image, so that they can be matched with a cache that has changed. An epoch is a stretch of the log with
one cache and one pile.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import OutputError, SessionError
from ..storage.atomic import remove_partials, replacing
from ..version import __version__
from .log_file import (
    ACKNOWLEDGED,
    FORMAT,
    INSERT,
    REMEDY,
    TABLES,
    VERSION,
    acknowledge,
    acknowledged,
    check_whole,
    connect,
    connect_to_read,
    file_at,
    sqlite_errors,
    version_of,
)


class Choice(StrEnum):
    """What a reviewer decided about an image."""

    POSITIVE = "positive"
    NEGATIVE = "negative"
    SKIP = "skip"
    UNDONE = "undone"  # takes the decision back that it replaces


LABELS = (Choice.POSITIVE, Choice.NEGATIVE)  # choices that say what the image is


class Stream(StrEnum):
    """Why an image was shown."""

    RANKED = "ranked"  # high in the ranking
    AUDIT = "audit"  # drawn at random from all unknown rows
    ZONE = "zone"  # drawn at random from the unknown rows of the zone
    RECHECK = "recheck"  # a known positive, shown again to see whether it is recognised
    CONFLICT = "conflict"  # decided otherwise by another reader, and shown again: in logs of 0.4
    OTHER_READER = "other reader"  # in no log: what another reader says, taken in when it is read


AGAIN = (Stream.RECHECK, Stream.CONFLICT)  # streams of decided images, which look like new ones
NO_LOOKS = (*AGAIN, Stream.OTHER_READER)  # streams of images that nobody looks at for the first time
DRAWN = (Stream.AUDIT, Stream.ZONE)  # streams of rows that leave their urn when they are drawn


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A random draw, written before anybody sees its image, or a decision, written before it is acknowledged.

    A draw has no choice and no request.
    """

    serial: int  # position in the log; ascending from 1
    row: int  # of the cache
    group: int  # smallest row of the images that show the same picture; all of them get the label
    copies: int  # rows of the pile in that group
    stream: Stream
    unknown: int  # n_i: rows of the urn, or of the zone it is drawn from, neither decided nor drawn before
    time: float  # seconds since 1970
    positives: int = 0  # f_i: rows of the urn that were known as positive, as far as it was known then
    urn: int = 0  # number of the urn that the group is in
    zone: int = 0  # number of the part of the zone that the group is in, which had been fixed then; 0 outside
    choice: Choice | None = None
    request: str | None = None  # identifier that the client chose; it is written once, so requests can be repeated
    replaces: int = 0  # serial number of the decision on this group that was in force; 0: none
    restores: int = 0  # serial number of the decision that an undo brought back into force; 0: none
    model_version: int = 0  # serial number of the last entry that the model has seen; 0 without a model
    reviewer: str = ""
    key: str = ""  # of the image
    digest: bytes = b""  # sha256 of the image's bytes; 32 zeros where unknown
    epoch: int = field(default=0, compare=False, repr=False)  # assigned when it is written

    @property
    def is_draw(self) -> bool:
        """Whether it is a draw."""
        return self.choice is None

    @property
    def is_recheck_label(self) -> bool:
        """Whether it is an answer to a recheck: it measures the reviewer, and leaves the label as it was."""
        return self.stream is Stream.RECHECK and self.choice in LABELS

    @property
    def is_undo(self) -> bool:
        """Whether it takes back what it replaces."""
        return bool(self.restores) or self.choice is Choice.UNDONE


@dataclass(frozen=True)
class EpochFacts:
    """What an epoch begins with."""

    cache: str  # its name, for messages
    checksums: tuple[str, ...]  # of its files, sorted
    rows: int
    urns: tuple[int, ...]  # rows of each urn; together the pile, the rows neither labelled nor twins of labelled ones
    pile_checksum: str  # of which images are in the pile
    twins: float | None  # cosine from which on two images share their label; None: equal bytes only
    grouping: str  # how twins were found, see `pucache.reviewing.pile`
    continued: tuple[int, tuple[int, ...]] | None = None  # first epoch that it goes on with; groups of entries since

    @property
    def pile(self) -> tuple[object, ...]:
        """What two logs have in common that number groups alike, and draw from the same urns."""
        return self.checksums, self.twins, self.urns, self.pile_checksum


class LoggedImage(NamedTuple):
    """An image of the cache when an epoch began."""

    key: str
    digest: bytes
    label: int | None = None  # 1 positive, 0 negative, None: listed only so that the cache can be recognised
    reviewed: int | None = None  # 1 where an earlier review gave the label
    epoch: int = 0  # assigned when it is written


class Zone(NamedTuple):
    """The likeliest images of a pile, in parts: each was fixed for the urns that no part before is of."""

    parts: dict[str, int]  # number of the part, from 1, by key
    urns: int  # urns that it is of; 0 before it is fixed

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of each part."""
        return tuple(Counter(self.parts.values()).values())

    def came_since(self, urns: Sequence[int]) -> int:
        """Rows, of urns of so many, that came after it was fixed; 0 before that."""
        return sum(urns[self.urns :]) if self.urns else 0


NO_ZONE = Zone({}, 0)  # before it is fixed


class AuditedEntries(NamedTuple):
    """What an audit is computed from."""

    entries: list[Entry]  # of the present epoch and those that it goes on with
    urns: tuple[int, ...]  # rows of each
    zone: Zone
    since: int  # serial number of the last entry before the present epoch, where it goes on with another; else 0
    restarted: bool  # whether a change of the cache began the pile anew
    carried: list[Entry]  # decisions in force when it began


class DecisionLog:
    """Log of one session. Not thread-safe: its owner holds a lock. See `create` and `open`.

    `epoch` is the number of the present epoch, from 1; `last` the serial number of the last entry, 0 before the first.
    """

    def __init__(self, path: Path, *, read_only: bool = False):
        self.path, self.read_only = path, read_only
        self.epoch, self.last = 0, 0
        with sqlite_errors(self.path, "open"):
            self._connection = connect_to_read(path) if read_only else connect(path)
        self._file: tuple[int, int] | None = None

    @classmethod
    def create(cls, path: Path, facts: EpochFacts, images: Sequence[LoggedImage] = ()) -> DecisionLog:
        """Create a log with its first epoch, whole or not at all; `SessionError` where the file cannot be written."""
        try:
            remove_partials(path)
            with replacing(path) as temporary, closing(cls(temporary)) as log, sqlite_errors(path, "write"):
                log._connection.execute("PRAGMA journal_mode = MEMORY")
                log._connection.execute("BEGIN IMMEDIATE")
                for name in TABLES:
                    log._create_table(name)
                log._insert_epoch(facts, images)
                log._connection.execute("COMMIT")
        except OutputError as error:
            raise SessionError(str(error)) from error
        return cls.open(path)

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> DecisionLog:
        """Open a log; to read it alone also while another process writes it. Raises `SessionError`, naming the file.

        A log that lacks what was acknowledged is refused, and so is one that its ``-wal`` does not belong to.
        """
        check_whole(path)
        with ExitStack() as stack:
            log = cls(path, read_only=True)  # a writer would put the -wal into the file before it is checked
            stack.callback(log.close)
            version = version_of(log._connection, path)
            log._count()
            log._check_acknowledged()
            if not read_only:
                stack.close()
                log = cls(path)
                stack.callback(log.close)
                log._make_durable()
                if version < VERSION:
                    log._upgrade()
                log._count()
                log._acknowledge_all()
            stack.pop_all()
        return log

    def close(self) -> None:
        """Close the file; closing twice is allowed."""
        self._connection.close()

    def __enter__(self) -> DecisionLog:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def begin_epoch(self, facts: EpochFacts, images: Sequence[LoggedImage] = ()) -> None:
        """Begin another epoch, durably."""
        with self._transaction():
            self._insert_epoch(facts, images)

    def fix_zone(self, keys: Sequence[str]) -> None:
        """Write which images are a part of the zone, durably."""
        with self._transaction():
            self._connection.executemany(INSERT["zones"], ({"epoch": self.epoch, "key": key} for key in keys))

    def zone(self, first: int) -> Zone:
        """The zone of the epochs from `first` on, of which each has an urn."""
        fixed = [row for row in self._rows("zones") if row["epoch"] >= first]
        numbers = {epoch: number for number, epoch in enumerate(sorted({row["epoch"] for row in fixed}), 1)}
        parts = {str(row["key"]): numbers[row["epoch"]] for row in fixed}
        return Zone(parts, 1 + max(numbers) - first if numbers else 0)

    def ask(self, query: str) -> None:
        """Write what is asked, the JSON of a query, durably."""
        with self._transaction():
            values = {"after": self.last, "time": time.time(), "query": query}
            self._connection.execute(INSERT["queries"], values)

    def asked(self) -> str:
        """JSON of the query that was asked last; "" where none was."""
        found = self._rows("queries")
        return str(found[-1]["query"]) if found else ""

    def append(self, entries: Sequence[Entry]) -> None:
        """Write entries in one transaction: all are on disk when this returns; none where it raises `SessionError`."""
        with self._transaction():  # SQLite keeps None as NULL
            if [entry.serial for entry in entries] != list(range(self.last + 1, self.last + 1 + len(entries))):
                raise SessionError(
                    f"entries for {self.path} do not follow its last one, {self.last:,}; send them again"
                )
            rows = (vars(entry) | {"epoch": self.epoch, "image_group": entry.group} for entry in entries)
            self._connection.executemany(INSERT["entries"], rows)
        self.last += len(entries)
        acknowledge(self.path.parent, self.last, entries[-1].time)

    def facts(self) -> EpochFacts:
        """Facts of the present epoch."""
        with sqlite_errors(self.path, "read"):
            (values,) = self._select("SELECT * FROM epochs WHERE number = ?", self.epoch)
            urns = json.loads(values["urns"]) if values.get("urns") else [values["pile"]]
            continued = json.loads(values.get("continued") or "null")
            values |= {"urns": tuple(map(int, urns)), "checksums": tuple(json.loads(values["checksums"]))}
            values["continued"] = None if continued is None else (int(continued[0]), tuple(map(int, continued[1])))
            return EpochFacts(**{field.name: values[field.name] for field in fields(EpochFacts)})

    def images(self) -> list[LoggedImage]:
        """Images listed at the beginning of each epoch."""
        with sqlite_errors(self.path, "read"):
            query = "SELECT key, digest, label, reviewed, epoch FROM images ORDER BY rowid"
            return [LoggedImage(**values) for values in self._select(query)]

    def entries(self) -> list[Entry]:
        """All entries of all epochs, in order; `last` is then that of the file."""
        self._count()
        with sqlite_errors(self.path, "read"):
            entries = [_entry(values) for values in self._select("SELECT * FROM entries ORDER BY serial")]
        for number, entry in enumerate(entries, 1):
            if entry.serial != number:
                raise SessionError(f"{self.path} is damaged: entry {number:,} is missing; {REMEDY}")
        return entries

    def audited_entries(self) -> AuditedEntries:
        """Entries that the audit of the present epoch is computed from, with its groups."""
        facts = self.facts()
        first, groups = facts.continued or (self.epoch, ())
        logged = self.entries()
        entries = [entry for entry in logged if entry.epoch >= first]
        carried = _carried([entry for entry in logged if entry.epoch < first], entries)
        for number, group in enumerate(groups):
            entries[number] = replace(entries[number], group=group)
        return AuditedEntries(entries, facts.urns, self.zone(first), self.since(entries), first > 1, carried)

    def since(self, entries: Sequence[Entry]) -> int:
        """Serial number of the last of some entries that is of an earlier epoch; 0 where none is."""
        return max((entry.serial for entry in entries if 0 < entry.epoch < self.epoch), default=0)

    def _acknowledge_all(self) -> None:
        """Note the last entry, as a log of before 0.4 has not."""
        if self.last and not any(acknowledged(self.path.parent)):
            acknowledge(self.path.parent, self.last, self.entries()[-1].time)

    def _check_acknowledged(self) -> None:
        """Refuse a log that lacks the last acknowledged entry, or has another one in its place."""
        serial, time_of = acknowledged(self.path.parent)
        with sqlite_errors(self.path, "read"):
            found = self._select("SELECT time FROM entries WHERE serial = ?", serial)
        if serial and (not found or float(found[0]["time"]) != time_of):
            held = f"{self.last:,} entries" if self.last < serial else "the entries of another review"
            raise SessionError(
                f"{self.path} holds {held}; {ACKNOWLEDGED} says that {serial:,} were acknowledged: {REMEDY}"
            )

    def _count(self) -> None:
        with sqlite_errors(self.path, "read"):
            query = "SELECT max(number), count(*), (SELECT max(serial) FROM entries) FROM epochs"
            self.epoch, epochs, self.last = (int(found or 0) for found in self._connection.execute(query).fetchone())
            if self.epoch != epochs:
                raise ValueError("an epoch is missing")

    def _select(self, query: str, *values: int) -> list[dict[str, Any]]:
        cursor = self._connection.execute(query, values)
        names = [name for name, *_ in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def _rows(self, table: str) -> list[dict[str, Any]]:
        """Rows of a table, in order; none where an earlier version has not got it."""
        with sqlite_errors(self.path, "read"):
            there = self._select(f"SELECT 1 FROM sqlite_master WHERE name = '{table}'")  # noqa: S608
            return self._select(f"SELECT * FROM {table} ORDER BY rowid") if there else []  # noqa: S608

    def _make_durable(self) -> None:
        """Sync every transaction to disk, and let others read meanwhile."""
        with sqlite_errors(self.path, "open"):
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
        self._file = file_at(self.path)

    def _create_table(self, name: str) -> None:
        self._connection.execute(f"CREATE TABLE {name} ({TABLES[name]})")
        for action in ("UPDATE", "DELETE"):
            self._connection.execute(
                f"CREATE TRIGGER {name}_no_{action.lower()} BEFORE {action} ON {name} "
                "BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END"
            )
        if name == "format":
            self._connection.execute("INSERT INTO format VALUES (?, ?)", (FORMAT, VERSION))

    def _upgrade(self) -> None:
        """Let a log of an earlier version take what this one writes; what it holds stays."""
        with self._transaction():
            for table in ("entries", "epochs"):
                present = {column["name"] for column in self._select(f"PRAGMA table_info({table})")}
                for column in TABLES[table].split(", "):
                    if column.split()[0] not in present:
                        self._connection.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
            there = {table["name"] for table in self._select("SELECT name FROM sqlite_master WHERE type = 'table'")}
            for table in TABLES.keys() - there:
                self._create_table(table)
            self._connection.execute("DROP TABLE format")
            self._create_table("format")

    def _insert_epoch(self, facts: EpochFacts, images: Sequence[LoggedImage]) -> None:
        self.epoch += 1
        values = {"number": self.epoch, "begun": time.time(), "pucache_version": __version__} | vars(facts)
        values |= {"pile": sum(facts.urns)}
        values |= {name: json.dumps(values[name]) for name in ("urns", "checksums", "continued")}
        self._connection.execute(INSERT["epochs"], values)
        rows = (image._replace(epoch=self.epoch)._asdict() for image in images)
        self._connection.executemany(INSERT["images"], rows)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Write all within the block, or nothing; on disk when it ends."""
        with sqlite_errors(self.path, "write"):
            self._connection.execute("BEGIN IMMEDIATE")
            epoch = self.epoch
            try:
                yield
                if self._file is None or file_at(self.path) != self._file:  # SQLite would write the file that is gone
                    raise SessionError(
                        f"{self.path} was moved, deleted or replaced while it was open; nothing was kept of what was "
                        "to be written: put its folder back, and send it again; or end the review and begin it anew"
                    )
                self._connection.execute("COMMIT")
            except BaseException:
                self.epoch = epoch
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


def labelling_decisions(entries: Iterable[Entry]) -> list[Entry]:
    """The decision that says what each group is, after entries in the order of the log, without groups of which it was
    taken back; in that order too. See `is_recheck_label`."""
    labelling: dict[int, Entry] = {}
    checked: dict[int, Entry] = {}  # without answers to rechecks
    for entry in entries:
        if entry.is_draw:
            continue
        if entry.stream is not Stream.RECHECK:
            checked[entry.group] = entry
        kept = checked.get(entry.group) if entry.is_recheck_label else None
        labelling[entry.group] = kept if kept is not None and kept.choice in LABELS else entry
    return sorted((one for one in labelling.values() if one.choice is not Choice.UNDONE), key=lambda one: one.serial)


def _carried(earlier: Sequence[Entry], entries: Sequence[Entry]) -> list[Entry]:
    """Decisions in force after `earlier` entries, in the groups of those that follow; an image that none of these is
    about has a group of its own, the same in the logs of two readers."""
    by_key = (replace(entry, group=-1 - int.from_bytes(sha256(entry.key.encode()).digest()[:7])) for entry in earlier)
    places = {entry.key: entry for entry in entries} | {entry.replaces: entry for entry in entries}
    found = ((one, places.get(one.serial) or places.get(one.key)) for one in labelling_decisions(by_key))
    return [
        replace(one, group=at.group, copies=at.copies, urn=at.urn) if at else replace(one, copies=0, urn=0)
        for one, at in found
    ]


def _entry(values: dict[str, Any]) -> Entry:
    """The entry of a row of the table; raises ValueError or TypeError where it is none."""
    integers = ("serial", "row", "copies", "unknown", "positives", "model_version", "epoch")
    if (values["choice"] is None) != (values["request"] is None):
        raise ValueError("a decision has a choice and a request")
    return Entry(
        **{name: int(values[name]) for name in integers},
        **{name: int(values.get(name) or 0) for name in ("replaces", "restores", "urn", "zone")},
        group=int(values["image_group"]),
        stream=Stream(values["stream"]),
        time=float(values["time"]),
        choice=None if values["choice"] is None else Choice(values["choice"]),
        request=None if values["request"] is None else str(values["request"]),
        reviewer=str(values["reviewer"] or ""),
        key=str(values["key"]),
        digest=bytes(values["digest"]),
    )
