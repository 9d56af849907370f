"""Rows of the forms that tables come in: CSV, JSON, JSON Lines, spreadsheets, lists of keys; `arrow` has others.

Each form gives the names of the columns, and rows of text.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import count
from typing import Any

from ..errors import LabelError, one_line
from .file_kinds import BINARY, TEXT, kind_of_stream
from .limits import SHEET_BYTES, SHEET_CELLS, SHEET_SECONDS
from .spreadsheet import read_sheets
from .table_columns import plain_name

_BLANK_LINES = r'(?:(?:[ \t,;]|"")*(?:\r\n?|\n))*'
# before the names of the columns: blank lines, and Excel's line of the separator, such as sep=;
_PREAMBLE = re.compile(rf'{_BLANK_LINES}(?:"?sep=([^\w"\r\n])"?[,;\t]*(?:\r\n?|\n){_BLANK_LINES})?', re.IGNORECASE)
_MARKS = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # the longer ones first
_OLD = "cp1252"  # code page of most old tables
_NAMED = "--encoding of pucache labels, or of embed for a list of images"
_SEPARATORS = ",;\t|"

_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # of a character, as JSON may write one
COCO, MEGADETECTOR = "COCO annotations", "detections of MegaDetector"
_RESULTS = "COCO results, which have numbers in place of file names"
_BOXES_OF = "embed its boxes: pucache embed FILE parts.h5 --images PHOTOS"
_ANNOTATIONS = {  # names in an object of each kind, and what to do with it
    MEGADETECTOR: ({"images", "detection_categories"}, _BOXES_OF),
    COCO: ({"images", "annotations"}, _BOXES_OF),
    "an export of Label Studio": ({"data", "annotations"}, "export it as CSV there"),
    "an export of FiftyOne": ({"samples"}, "write its file paths and labels as CSV"),
    _RESULTS: (
        {"image_id", "category_id"},
        "put them as 'annotations' into the file that has their 'images', and name that",
    ),
}

log = logging.getLogger("pucache")


Finder = Callable[[Sequence[str]], dict[str, str]]  # columns by their meaning, among some names


class Row(dict[str, Any]):
    """Cells of a row by the name of the column; `line` is the number of its last line in the file, or of the row."""

    __slots__ = ("line",)
    line: int


@dataclass
class Table:
    """Names of columns in lower case, rows by these names, and types of columns whose cells were not read.

    `found` holds columns by their meaning.
    """

    columns: list[str]
    rows: list[Row]
    unreadable: dict[str, str] = field(default_factory=dict)
    found: dict[str, str] = field(default_factory=dict)


def new_row(columns: Sequence[str], cells: Sequence[str], line: int) -> Row:
    """A row of a table; cells that it lacks are None."""
    row = Row(zip(columns, cells, strict=False))
    row.line = line
    for missing in columns[len(cells) :]:
        row[missing] = None
    return row


def _table(columns: Iterable[object], rows: Iterable[Sequence[object]], lines: Iterable[int] = ()) -> Table:
    """A table of any cells; rows without any are left out."""
    names = list(map(plain_name, columns))
    texts = (list(map(as_text, row)) for row in rows)
    numbered = zip(texts, lines or count(1), strict=False)
    return Table(names, [new_row(names, cells, line) for cells, line in numbered if any(cells)])


class Rounded(str):
    """Text of a floating-point number so large that it stands for its neighbours too, such as an id of 17 digits."""

    __slots__ = ()


class Several(str):
    """Text of an array of labels in one cell, which are its `parts`."""

    __slots__ = ("parts",)
    parts: list[str]

    @classmethod
    def of(cls, values: Any) -> Any:
        """Cell of an array of texts, or of different whole numbers; anything else as it is."""
        kinds = set(map(type, values)) if isinstance(values, list) else {None}
        if kinds - {str} and (kinds != {int} or len({*values}) < len(values)):  # of 0 and 1 which ones apply?
            return values
        cell = cls("|".join(map(as_text, values)))
        cell.parts = list(map(as_text, values))
        return cell if len(values) > 1 else str(cell)


def require_exact(cells: Iterable[Any], where: str) -> None:
    """Raise `LabelError` where numbers that stand for names are rounded, and may be those of others."""
    if rounded := next((cell for cell in cells if type(cell) is Rounded), None):
        raise LabelError(
            f"{where} holds names as floating-point numbers, in which {rounded} and its neighbours are one; save them "
            "as text"
        )


def as_text(value: Any, exact: int = 1 << 53) -> str:
    """A cell as a person would write it: 1 in place of 1.0, and nothing for a missing value.

    From `exact` on a whole floating-point number is `Rounded`: the next ones are none of its type.
    """
    if isinstance(value, str):
        return value
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        whole = value.to_integral_value()
        return f"{whole if value == whole else value:f}"
    if isinstance(value, float) and value.is_integer():
        return str(int(value)) if abs(value) < exact else Rounded(int(value))
    return value.decode() if isinstance(value, bytes) else str(value)


# --- text ----------------------------------------------------------------------------------------


def decode(data: bytes, name: str, encoding: str | None) -> str:
    """Text of a file: in the encoding that is named, or as its byte order mark says, or UTF-8, or else cp1252.

    Raises `LabelError` where it is no text, and ValueError for an encoding that does not exist.
    """
    if data.count(b"\0") * 10 > len(data) and not data.startswith(_MARKS) and encoding is None:
        raise _not_text(name, data)
    taken = encoding or ("utf-32" if data.startswith(_MARKS[:2]) else "utf-16" if data.startswith(_MARKS) else "utf-8")
    try:
        return data.decode(taken).removeprefix("\ufeff")
    except LookupError as error:
        raise ValueError(f"encoding {encoding!r} is not known; name one such as utf-16, cp1252 or shift_jis") from error
    except UnicodeError as error:
        place = f"byte {error.start}" if isinstance(error, UnicodeDecodeError) else one_line(error)
        if taken == "utf-8" and encoding is None and b"\0" in data:
            raise _not_text(name, data) from error
        if encoding is not None or taken != "utf-8":
            raise LabelError(f"{name} is not {taken.upper()} text ({place}); name its encoding: {_NAMED}") from error
    try:
        text = data.decode(_OLD)
    except UnicodeDecodeError as error:
        raise LabelError(
            f"{name} is not UTF-8 text ({place}), nor {_OLD}; save it as UTF-8, or name its encoding, such as "
            f"shift_jis: {_NAMED}"
        ) from error
    log.warning("%s is not UTF-8 text (%s) and is read as %s; another encoding: %s", name, place, _OLD, _NAMED)
    return text


def _not_text(name: str, data: bytes) -> LabelError:
    """The error of a file that is neither a table nor text."""
    kind = kind_of_stream(io.BytesIO(data))
    what = "not a text file (it holds NUL bytes)" if kind in (BINARY, TEXT) else kind
    return LabelError(
        f"{name} is {what}; expected keys, one a line, or a table with a 'key' column: save it as CSV in UTF-8, or "
        f"name its encoding: {_NAMED}"
    )


def list_table(text: str) -> Table:
    """The lines of a text file, under ``key``."""
    # unlike str.splitlines, StringIO does not break lines at U+2028 and its like, which a key may hold
    lines = ((number, line.rstrip("\n")) for number, line in enumerate(io.StringIO(text, newline=None), 1))
    return Table(["key"], [new_row(["key"], [line], number) for number, line in lines if line.strip()])


def csv_table(text: str, name: str, find: Finder, *, tabs: bool) -> Table:
    """A table of separated values; the separator is the one by which the columns that are wanted are found."""
    preamble = _PREAMBLE.match(text)
    assert preamble is not None
    text, skipped = text[preamble.end() :], len(preamble[0].splitlines())
    mark = preamble[1] or _separator(text, find, "\t" + _SEPARATORS if tabs else _SEPARATORS)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
    rows: list[Row] = []
    try:
        columns = list(map(plain_name, next(reader, [])))
        for cells in reader:
            if any(cells[len(columns) :]):
                raise csv.Error(
                    f"{len(cells)} cells for {len(columns)} columns ({', '.join(columns)}); name every column in the "
                    f"first line, and put cells that hold {mark!r} in quotes"
                )
            if any(cells):  # spreadsheets leave rows of commas
                rows.append(new_row(columns, cells, skipped + reader.line_num))
    except csv.Error as error:
        raise LabelError(f"{name} line {skipped + reader.line_num}: {error}") from error
    if len(columns) > 1 and rows and all(row[columns[1]] is None and ";" in row[columns[0]] for row in rows):
        raise LabelError(
            f"the rows of {name} have one column for {len(columns)} names; columns are separated by semicolons there "
            "and by commas in the first line: save it again"
        )
    return Table(columns, rows)


def _separator(text: str, find: Finder, marks: str) -> str:
    """The first separator by which the wanted columns are found, or that divides the first line, or the first."""
    line = re.match(r"[^\r\n]*", text)
    assert line is not None
    names = {mark: _header(line[0], mark) for mark in marks}
    fitting = [mark for mark in marks if find(names[mark]).keys() & {"key", "path"}]
    return (fitting or [mark for mark in marks if len(names[mark]) > 1] or [*marks])[0]


def _header(line: str, mark: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=mark), [])
    except csv.Error:  # one cell longer than csv reads: it is another separator
        return []


# --- JSON ----------------------------------------------------------------------------------------


def json_table(text: str, name: str, find: Finder, *, must: bool) -> Table | None:
    """A table in JSON or JSON Lines; None where the text is neither, unless it `must` be.

    JSON is an array of objects or of keys, an object of columns or of rows as pandas writes them, or an object of
    labels by key. Raises `LabelError` where it is anything else.
    """
    content, lines = parse_json(text, name)
    if kind := annotation_kind(content):
        raise LabelError(f"{name} is {kind}, not a table of keys; {_ANNOTATIONS[kind][1]}")
    if isinstance(content, list) and (not lines or not isinstance(content[0], str)):
        table = _records(content, lines)
    else:
        table = _object(content, find) if isinstance(content, dict) else None
    if table is None and must:
        raise LabelError(f"{name} is not JSON of a table; expected an array or lines of objects, or an array of keys")
    if table is not None and _HALF.search(text):
        _require_whole(table, name)
    return table


def annotation_kind(content: Any) -> str:
    """What JSON of another program's annotations is, such as `COCO`; else ""."""
    first = content[0] if isinstance(content, list) and content else content
    names = first.keys() if isinstance(first, dict) else set()
    kind = next((kind for kind, (its, _) in _ANNOTATIONS.items() if its <= names), "")
    named = kind == _RESULTS and (not isinstance(first["image_id"], int) or "file_name" in names)
    return "" if named else kind


def parse_json(text: str, name: str) -> tuple[Any, list[int]]:
    """What the text says, and numbers of lines where each is a value; None where it is no JSON.

    Raises `LabelError` where a name stands twice in an object, with two values.
    """
    try:
        return _parsed(text)
    except _TwiceError as error:
        raise LabelError(f"{name} has the name {error} in one object; keep one") from error


def _parsed(text: str) -> tuple[Any, list[int]]:
    try:
        return json.loads(text, object_pairs_hook=_unique), []
    except (ValueError, RecursionError):
        pass
    numbered = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    try:
        values = [json.loads(line, object_pairs_hook=_unique) for _, line in numbered]
        return values, [number for number, _ in numbered]
    except (ValueError, RecursionError):
        return None, []


class _TwiceError(Exception):
    """A name stands twice in an object, with two values."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs, of which Python's reader would keep the last of each name."""
    found = dict(pairs)
    if len(found) < len(pairs):
        for name, value in pairs:
            if value != found[name]:
                raise _TwiceError(f"{name!r:.200} twice, with {value!r:.80} and {found[name]!r:.80}")
    return found


def _require_whole(table: Table, name: str) -> None:
    """Raise `LabelError` for a cell or a column with half of a character, which no file can hold."""
    for line, cells in [(0, table.columns), *((row.line, row.values()) for row in table.rows)]:
        for cell in cells:
            if cell and any("\ud800" <= character <= "\udfff" for character in cell):
                raise LabelError(f"{name} has half of a character (a lone surrogate) in row {line}: {cell!r:.80}")


def _object(content: dict[str, Any], find: Finder) -> Table | None:
    """Columns by name, rows by number or key, labels by key, or one row."""
    values, names = list(content.values()), list(content)
    if isinstance(content.get("data"), list) and content.keys() & {"columns", "schema"}:  # pandas: split, table
        columns = content.get("columns")
        return _cells(columns, content["data"]) if isinstance(columns, list) else _records(content["data"])
    if values and all(isinstance(value, list) for value in values) and find(names):
        return _cells(names, list(zip(*values, strict=True))) if len(set(map(len, values))) == 1 else None
    if values and all(isinstance(value, dict) for value in values):
        if find(names):  # pandas: the values of a column by the number of the row
            numbers = dict.fromkeys(number for value in values for number in value)
            return _cells(names, [[value.get(number) for value in values] for number in numbers])
        columns = dict.fromkeys(column for value in values for column in value)
        by_number = find(list(columns)).keys() & {"key", "path"}
        return _records(values if by_number else [{"key": key, **value} for key, value in content.items()])
    if find(names).keys() & {"key", "path"}:
        return _records([content])
    return None if any(isinstance(value, dict) for value in values) else _cells(["key", "label"], [*content.items()])


def _records(rows: list[Any], lines: Sequence[int] = ()) -> Table | None:
    if all(isinstance(row, dict) for row in rows):
        columns = list(dict.fromkeys(column for row in rows for column in row))
        return _cells(columns, [[row.get(column) for column in columns] for row in rows], lines)
    return _cells(["key"], [[row] for row in rows], lines) if all(isinstance(row, str) for row in rows) else None


def _cells(columns: list[Any], rows: list[Any], lines: Sequence[int] = ()) -> Table | None:
    """A table of JSON's values; those of a column with objects or arrays are not read, but for boxes."""
    if not all(isinstance(row, list | tuple) and len(row) <= len(columns) for row in rows):
        return None
    rows = [[str(cell) if _is_box(cell) else Several.of(cell) for cell in row] for row in rows]
    nested = {number for row in rows for number, cell in enumerate(row) if isinstance(cell, dict | list)}
    texts = (["" if number in nested else cell for number, cell in enumerate(row)] for row in rows)
    table = _table(columns, texts, lines)
    table.unreadable = {table.columns[number]: "arrays or objects" for number in nested if number < len(columns)}
    return table


def _is_box(cell: Any) -> bool:
    """Whether a value of JSON is four numbers in an array."""
    return isinstance(cell, list) and [type(number) in (int, float) for number in cell] == [True] * 4


# --- spreadsheets --------------------------------------------------------------------------------


def spreadsheet_table(data: bytes, name: str, find: Finder) -> Table:
    """The first sheet of .xlsx, .ods or .xls in which the wanted columns are found, or else that has rows."""
    try:
        sheets, without_value = read_sheets(data, SHEET_CELLS, SHEET_BYTES, SHEET_SECONDS)
    except ValueError as error:
        raise LabelError(
            f"{name} is a spreadsheet (.xlsx, .ods or .xls) or a ZIP archive that cannot be read: {one_line(error)}; "
            "save its sheet as CSV, or unpack it"
        ) from error
    if without_value:
        log.warning(
            "%s: %s cells have an error, or a formula whose value was not saved, and count as blank; correct them, and "
            "save it by a spreadsheet program",
            name,
            f"{without_value:,}",
        )
    filled = {title: rows for title, rows in sheets.items() if rows}
    if not filled:
        return Table([], [])
    fitting = (title for title, rows in filled.items() if find([*map(plain_name, rows[0][1])]).keys() & {"key", "path"})
    title = next(fitting, next(iter(filled)))
    rows = filled.pop(title)
    if filled:
        more = ", ".join(map(repr, filled))
        log.warning("%s: the sheet %r is read; %s, which has rows too, is not", name, title, more)
    (_, columns), *cells = rows
    return _table(columns, [row for _, row in cells], [line for line, _ in cells])
