"""One reader for every table that people give: labels, truth, concepts, manifests, keys; local or behind a URL.

What a file holds is told by its content, and by its ending where content does not tell.
"""

from __future__ import annotations

import gzip
import io
import logging
import os
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO

from ..errors import LabelError, one_line
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

_MEANINGS = {
    **dict.fromkeys(("1", "true", "yes", "positive"), 1),
    **dict.fromkeys(("0", "-1", "false", "no", "negative"), 0),
}
_BLANK = {"", "nan", "none", "null", "na", "n/a", "<na>", "#n/a"}  # as programs write a missing value
_PLAIN = {"1", "0", "", None}  # cells that need no explanation
_SHOWN, _SHOWN_LENGTH = 8, 40  # kinds of cells in a line, and their characters
_WORDS = {"1": "positive", "0": "negative", "": "undecided"}

log = logging.getLogger("pucache")


@dataclass(frozen=True)
class LabelTable:
    """A table of labels, and how it is to be read; stands wherever its path does.

    Attributes
    ----------
    path : str
        A path or a URL.
    key, label : str, optional
        Names of columns, in any case; by default the usual ones, such as key, path or file_name, and label.
    value : str, optional
        Cell of the column of labels that means 1, whatever its case and the spaces around it; any other that is not
        blank means 0. Blank, which is undecided, are an empty cell, nan, none, null and na.
    exact : bool
        Whether cells are compared with `value` exactly as they are written.
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
    value: str | None = None
    exact: bool = False
    encoding: str | None = None
    match_keys: str | None = None
    all_parts: bool = False

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __str__(self) -> str:
        return without_secrets(str(self.path))


def has_columns(path: str | os.PathLike[str]) -> bool:
    """Whether a file of labels is a table, by its ending or its first bytes, and no list of keys."""
    if table_ending(path) in TABLES or is_url(path):
        return table_ending(path) in TABLES
    try:
        with open_regular(path) as stream:
            head = stream.read(8)
    except (OSError, ValueError):  # whoever reads it says so
        return False
    return head.startswith((*_BOOKS, b"{", b"[")) or _arrow_format(head, "") != ""


def read_table(path: str | os.PathLike[str], columns: Wanted = LABEL_COLUMNS) -> list[Row]:
    """Read a table with a column of keys, or a text file with one key a line: a dict per row, column name to cell.

    `columns` are those that are wanted, by their meaning, and the names under which each may go. They are called by
    their meaning; names of others are in lower case, without spaces around them. Empty rows are left out. Raises
    `LabelError` where the file is missing or no table, a column or a key is missing, two columns may be the one that is
    wanted, or it cannot be read as text.
    """
    chosen = path if isinstance(path, LabelTable) else LabelTable(os.fspath(path))
    label = chosen.label or (columns.get("label") if chosen.value is not None else None)
    table = read_rows(chosen.path, columns, {"key": chosen.key, "label": label}, encoding=chosen.encoding)
    renamed = {column: meaning for meaning, column in table.found.items() if meaning != column}
    for row in table.rows if renamed else ():
        cells = [row.pop(column) for column in renamed]
        row.update(zip(renamed.values(), cells, strict=True))
    if empty := next((row for row in table.rows if not row["key"]), None):
        raise LabelError(f"{chosen} has a row without a key, {empty.line}; complete or remove it")
    if "label" in table.found:
        as_labels(table.rows, str(chosen), table.found["label"], chosen.value, exact=chosen.exact)
    return table.rows


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
        if meaning in NAMES:
            require_exact((row[column] for row in table.rows), f"the column {column!r} of {name}")
    for column in table.found.values():
        if column in table.unreadable:
            raise LabelError(
                f"{name} has the column {column!r} of {table.unreadable[column]}, which cannot be read as text; "
                "expected text, numbers, or true and false"
            )
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
        return formats.spreadsheet_table(data, name)
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


# --- cells of a column of labels -------------------------------------------------------------------


def is_blank(cell: str | None) -> bool:
    """Whether a cell says nothing: the row is undecided."""
    return cell is None or cell.strip().casefold() in _BLANK


def meaning(cell: str | None) -> int | None:
    """1 or 0, by the usual words and numbers; None for another cell."""
    word = (cell or "").strip().casefold()
    if word in _MEANINGS:
        return _MEANINGS[word]
    try:
        return _MEANINGS.get(f"{float(word):g}")  # 1.0
    except ValueError:
        return None


def as_labels(rows: Sequence[dict[str, Any]], name: str, column: str, value: str | None, *, exact: bool) -> None:
    """Turn the cells ``label`` of rows into 1, 0 and blank where a `value` means 1, and log the cells that were met.

    `name` and `column` are those of messages. Raises `LabelError` where no cell is the value.
    """
    met = Counter(row["label"] for row in rows)
    if value is None:
        meanings = {cell: "" if is_blank(cell) else str(meaning(cell)) for cell in met}
    else:
        meanings = _compared(met, f"{name} has no {value!r} in the column {column!r}", value, exact)
        for row in rows:
            row["label"] = meanings[row["label"]]
    if value is not None or not met.keys() <= _PLAIN:
        _log_once(f"labels in {name}: {_described(met, meanings)}")


def _compared(met: Counter[str | None], problem: str, value: str, exact: bool) -> dict[str | None, str]:
    """1, 0 or blank for each cell."""

    def form(cell: str) -> str:
        return cell if exact else cell.strip().casefold()

    positive = {cell for cell in met if cell is not None and form(cell) == form(value)}
    if met and not positive:
        cells = sorted({cell if exact else cell.strip() for cell in met if cell is not None and not is_blank(cell)})
        shown = ", ".join(map(repr, cells[:5])) or "blank cells alone"
        raise LabelError(f"{problem}; it has {shown}" + (", compared exactly" if exact else ""))
    return {cell: "1" if cell in positive else "" if is_blank(cell) else "0" for cell in met}


def _described(met: Counter[str | None], meanings: dict[str | None, str]) -> str:
    kinds = [
        f"{(cell or '')[:_SHOWN_LENGTH]!r} {number:,} ({_WORDS.get(meanings[cell], 'unknown')})"
        for cell, number in met.most_common(_SHOWN)
    ]
    return ", ".join(kinds) + (f" and {len(met) - _SHOWN:,} other kinds" if len(met) > _SHOWN else "")


@lru_cache(256)
def _log_once(text: str) -> None:
    """Log a line; once, as a file of positives and negatives is read twice."""
    log.info(text)
