"""One reader for every table that people give: labels, truth, concepts, manifests, keys; local or behind a URL.

What a file holds is told by its content, and by its ending where content does not tell.
"""

from __future__ import annotations

import gzip
import io
import logging
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from ..errors import LabelError, MissingColumnError, one_line
from . import table_formats as formats
from .atomic import open_regular
from .filesystem import open_filesystem, store_errors
from .limits import TABLE_BYTES, UNPACKED_TIMES
from .retries import with_retries
from .table_columns import KEY_COLUMNS, LABEL_COLUMNS, Wanted, check_found, find_columns
from .table_formats import Row, Table, require_exact
from .urls import is_url, path_or_url, without_secrets

_PARQUET, _ARROW = (".parquet", ".pq"), (".feather", ".arrow", ".ipc")
_JSON = (".json", ".jsonl", ".ndjson")
_SPREADSHEETS = (".xlsx", ".xlsm", ".ods", ".xls")
# by their ending; other text files list keys
TABLES = (".csv", ".tsv", ".tab", *_JSON, *_SPREADSHEETS, *_ARROW, *_PARQUET)
_GZIP = b"\x1f\x8b"  # the first bytes of a table that is packed
_BOOKS = (b"PK\3\4", b"\xd0\xcf\x11\xe0")  # first bytes of .xlsx and .ods, and of .xls
_ARROW_FORMATS = {b"PAR1": "Parquet", b"ARROW1\0\0": "Arrow", b"\xff\xff\xff\xff": "an Arrow stream"}  # by these

NAMES = ("key", "path", "group", "concept")  # meanings of columns whose cells name something

log = logging.getLogger("pucache")


@dataclass(frozen=True)
class LabelTable:
    """A table of labels, and how it is to be read; stands wherever its path does.

    Attributes
    ----------
    path : str
        A path or a URL.
    key, label, concept, group : str, optional
        Names of columns, in any case; by default the usual ones, such as key, path or file_name, and label. Where the
        file name of an image stands in one column and its folder in another, the key is ``FOLDER+NAME``.
    needs_label : bool
        Whether there must be a column of labels.
    encoding : str, optional
        Encoding of a text file, such as shift_jis; by default UTF-8, or else cp1252, which a line says.
    match_keys : str, optional
        How keys that are spelled otherwise than in the cache are matched: rules of `pucache.labels.key_matching.RULES`,
        joined by ``+``, or ``auto``.
    all_parts : bool
        Whether the key of an image, or a glob that names images, labels all its parts in a cache of parts of images;
        else that is refused.
    """

    path: str
    key: str | None = None
    label: str | None = None
    concept: str | None = None
    group: str | None = None
    needs_label: bool = False
    encoding: str | None = None
    match_keys: str | None = None
    all_parts: bool = False

    @property
    def key_columns(self) -> dict[str, str | None]:
        """Names of the columns of keys and of their folders; None where they are the usual ones."""
        folder, _, name = (self.key or "").rpartition("+")
        return {"key": name or None, "folder": folder or None}

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __str__(self) -> str:
        return without_secrets(str(self.path))


def read_table(path: str | os.PathLike[str], columns: Wanted = LABEL_COLUMNS) -> list[Row]:
    """Read a table with a column of keys, or a text file with one key a line: a dict per row, column name to cell.

    `columns` are those that are wanted, by their meaning, and the names under which each may go. They are called by
    their meaning; names of others are in lower case, without spaces around them. Empty rows are left out. Raises
    `LabelError` where the file is missing or no table, a column is missing, two columns may be the one that is
    wanted, or it cannot be read as text.
    """
    chosen = path if isinstance(path, LabelTable) else LabelTable(os.fspath(path))
    label = chosen.label or (columns.get("label") if chosen.needs_label else None)
    named = {**chosen.key_columns, "label": label, "concept": chosen.concept, "group": chosen.group}
    table = read_rows(chosen.path, columns, named, encoding=chosen.encoding)
    renamed = {column: meaning for meaning, column in table.found.items() if meaning != column}
    for row in table.rows if renamed else ():
        cells = [row.pop(column) for column in renamed]
        row.update(zip(renamed.values(), cells, strict=True))
    for row in table.rows if "folder" in table.found else ():
        row["key"] = joined_key(row["folder"], row["key"]) if row["key"] else row["key"]
    return table.rows


def rows_with_keys(path: str | os.PathLike[str], columns: Wanted = LABEL_COLUMNS) -> list[Row]:
    """As `read_table`, without rows that have no key, of which a line tells; raises `LabelError` where none has one."""
    rows = read_table(path, columns)
    empty = [row.line for row in rows if not row["key"]]
    if empty and len(empty) == len(rows):
        raise LabelError(f"{path} has no row with a key")
    if empty:
        log.warning("%s: %s of %s rows have no key and are left out, first row %s",
                    path, len(empty), len(rows), empty[0])  # fmt: skip
    return [row for row in rows if row["key"]] if empty else rows


def joined_key(folder: str | None, name: str) -> str:
    """Key of an image whose folder stands in a column of its own."""
    return "/".join(filter(None, [(folder or "").replace("\\", "/").strip("/"), name]))


def read_rows(
    path: str | os.PathLike[str],
    columns: Wanted = KEY_COLUMNS,
    named: Mapping[str, str | Sequence[str] | None] | None = None,
    *,
    encoding: str | None = None,
) -> Table:
    """Read a table of any form, a path or a URL; its `found` tells which column has which meaning.

    `columns` and errors are as for `read_table`, but that keys may be missing. `named` are the columns that must be
    there, by their meaning: the one that the user has named, or the first of several; `encoding` is as in `LabelTable`.
    """
    given = {
        meaning: (column,) if isinstance(column, str) else column
        for meaning, column in (named or {}).items()
        if column is not None
    }
    wanted, name = (
        {**given, **{each: columns[each] for each in columns if each not in given}},
        without_secrets(os.fspath(path)),
    )

    def find(offered: Sequence[str]) -> dict[str, str]:
        return find_columns(offered, wanted, name)

    try:
        with open_table(path, name) as stream:
            table = _read(stream, path, name, find, encoding)
    except OSError as error:
        raise LabelError(f"cannot read {name}: {error.strerror or error}") from error
    table.found = table.found or find(table.columns)
    check_found(table.found, table.columns, columns, given, name)
    for meaning, column in table.found.items():
        is_name = meaning in NAMES and column not in table.unreadable
        if is_name and any(type(row[column]) is formats.Several for row in table.rows):
            table.unreadable[column] = "arrays"
        if column in table.unreadable:
            raise (MissingColumnError if meaning in NAMES else LabelError)(
                f"{name} has the column {column!r} of {table.unreadable[column]}, which cannot be read as text; "
                "expected text, numbers, or true and false"
            )
    for meaning, column in table.found.items():
        if meaning in NAMES:
            require_exact((row[column] for row in table.rows), f"the column {column!r} of {name}")
    return table


def open_table(path: str | os.PathLike[str], name: str) -> BinaryIO:
    """Open a file that a user names, or all bytes behind a URL; ``name`` holds no secrets."""
    where = path_or_url(path)
    if not is_url(where):
        return open_regular(where)
    with store_errors(LabelError, "read", name):
        fs, remote_path = open_filesystem(where, retry_each_request=True)
        return io.BytesIO(with_retries(lambda: fs.cat_file(remote_path)))


def _read(
    stream: BinaryIO, path: str | os.PathLike[str], name: str, find: formats.Finder, encoding: str | None
) -> Table:
    head, ending = stream.read(8), table_ending(path)
    stream.seek(0)
    if head.startswith(_GZIP):
        stream = io.BytesIO(_unpacked(stream, name))
        head = stream.getvalue()[:8]
    if kind := _arrow_format(head, ending):
        from .arrow import arrow_table

        return arrow_table(stream, name, kind, find)
    data = stream.read()
    if data.startswith(_BOOKS):
        return formats.spreadsheet_table(data, name, find)
    text = formats.decode(data, name, encoding)
    if ending in _JSON or text.lstrip()[:1] in ("{", "["):
        table = formats.json_table(text, name, find, must=ending in _JSON)
        if table is not None:
            return table
    if ending in TABLES:
        return formats.csv_table(text, name, find, tabs=ending in (".tsv", ".tab"))
    return formats.list_table(text)


def _unpacked(stream: BinaryIO, name: str) -> bytes:
    most = min(TABLE_BYTES, UNPACKED_TIMES * stream.seek(0, io.SEEK_END))
    stream.seek(0)
    try:
        data = gzip.GzipFile(fileobj=stream).read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise LabelError(f"{name} is a gzip archive that cannot be read: {one_line(error)}") from error
    if len(data) > most:
        raise LabelError(
            f"{name} unpacks to more than {most:,} bytes (at most {UNPACKED_TIMES} times its size, and "
            f"{TABLE_BYTES:,}); unpack it, and name the table"
        )
    return data


def _arrow_format(head: bytes, ending: str) -> str:
    """Which of Arrow's formats a file has, by its first eight bytes; else ""."""
    kind = next((kind for magic, kind in _ARROW_FORMATS.items() if head.startswith(magic)), "")
    # after its name Parquet has a control character, and a key that begins so has none
    return "" if kind == "Parquet" and ending not in _PARQUET and head[4:5] != b"\x15" else kind


def table_ending(path: str | os.PathLike[str]) -> str:
    """Ending of a path or a URL in lower case; of ``labels.csv.gz`` that of the table, ``.csv``."""
    name = os.fspath(path)
    return os.path.splitext((without_secrets(name) if is_url(name) else name).lower().removesuffix(".gz"))[1]
