"""Records of the decision log: entries with their images, and rows of its table of entries."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from .log_entries import Choice, Decision, Draw, Entry, Stream

ENTRY_TABLE = (
    "serial INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, key TEXT NOT NULL, digest BLOB NOT NULL, "
    "request TEXT UNIQUE, row INTEGER NOT NULL, image_group INTEGER NOT NULL, copies INTEGER NOT NULL, "
    "stream TEXT NOT NULL, choice TEXT, replaces INTEGER, restores INTEGER, unknown INTEGER NOT NULL, "
    "positives INTEGER NOT NULL, expected REAL, model_version INTEGER NOT NULL, reviewer TEXT, time REAL NOT NULL"
)
ENTRY_COLUMNS = [part.split()[0] for part in ENTRY_TABLE.split(", ")]


@dataclass(frozen=True)
class SittingFacts:
    """What an epoch begins with.

    Attributes
    ----------
    cache : str
        Name of the cache, for messages.
    checksums : tuple of str
        Of its files, sorted.
    rows : int
        Of the cache.
    pile : int
        Rows that were neither labelled nor twins of labelled ones.
    pile_checksum : str
        Of which images are in the pile.
    twins : float or None
        Cosine from which on two images share their label; None: equal bytes only.
    grouping : str
        How twins were found, see `pucache.reviewing.twins`.
    """

    cache: str
    checksums: tuple[str, ...]
    rows: int
    pile: int
    pile_checksum: str
    twins: float | None
    grouping: str


@dataclass(frozen=True)
class LoggedImage:
    """An image of the cache when an epoch began.

    Attributes
    ----------
    key : str
    digest : bytes
        sha256 of the image's bytes; 32 zeros where unknown.
    label : int or None
        1 positive, 0 negative, None neither: listed only so that the cache can be recognised.
    reviewed : int or None
        1 where an earlier review gave the label.
    epoch : int
        Assigned when it is written.
    """

    key: str
    digest: bytes
    label: int | None = None
    reviewed: int | None = None
    epoch: int = 0


@dataclass(frozen=True)
class Record:
    """An entry with the image that it is about.

    Attributes
    ----------
    entry : Draw or Decision
    key : str
    digest : bytes
    restores : int
        Serial number of the earlier decision that came back into force when a later one was undone; 0: none.
    epoch : int
        Assigned when it is written.
    """

    entry: Entry
    key: str
    digest: bytes
    restores: int = 0
    epoch: int = 0


def row_of(record: Record, epoch: int) -> tuple[Any, ...]:
    """Values of a row of the table of entries, in the order of its columns."""
    entry = record.entry
    values = asdict(entry) | {
        "epoch": epoch,
        "key": record.key,
        "digest": record.digest,
        "restores": record.restores,
        "image_group": entry.group,
        "stream": str(entry.stream),
        "choice": str(entry.choice) if isinstance(entry, Decision) else None,
    }
    expected = values.get("expected")
    values["expected"] = None if expected is None or math.isnan(expected) else expected
    return tuple(values.get(name) for name in ENTRY_COLUMNS)


def record_of(values: dict[str, Any]) -> Record:
    """The record of a row of the table; raises ValueError or TypeError where it is none."""
    common: dict[str, Any] = {
        name: int(values[name]) for name in ("serial", "row", "copies", "unknown", "positives", "model_version")
    }
    common |= {"group": int(values["image_group"]), "stream": Stream(values["stream"]), "time": float(values["time"])}
    entry: Entry
    if values["request"] is None:
        expected = values["expected"]
        entry = Draw(**common, expected=math.nan if expected is None else float(expected))
    else:
        entry = Decision(
            **common,
            request=str(values["request"]),
            choice=Choice(values["choice"]),
            replaces=int(values["replaces"]),
            reviewer=str(values["reviewer"]),
        )
    return Record(entry, str(values["key"]), bytes(values["digest"]), int(values["restores"]), int(values["epoch"]))
