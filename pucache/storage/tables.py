"""Tables: CSV files and text files of keys that people write, and tables of many rows, which pyarrow writes."""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from ..errors import LabelError, one_line
from .atomic import open_regular

# endings of label tables, of which those of workbooks are refused; other files list keys, one a line
TABLES = (".csv", ".tsv", ".parquet", ".pq", ".xlsx", ".ods", ".xls")
_BLANK_LINES = r'(?:(?:[ \t,;]|"")*(?:\r\n?|\n))*'
# before the names of the columns: blank lines, and Excel's line of the separator, such as sep=;
_PREAMBLE = re.compile(rf'{_BLANK_LINES}(?:"?sep=([^\w"\r\n])"?[,;\t]*(?:\r\n?|\n){_BLANK_LINES})?', re.IGNORECASE)
_SPREADSHEETS = (b"PK\3\4", b"\xd0\xcf\x11\xe0")  # first bytes of .xlsx and .ods, and of .xls


@dataclass(frozen=True)
class LabelTable:
    """A table of labels, and the columns that stand for ``key`` and ``label``; stands wherever its path does.

    Attributes
    ----------
    path : str
    key, label : str
        Names of columns, in lower case.
    value : str, optional
        Cell of the column of labels that means 1; any other that is not blank means 0.
    """

    path: str
    key: str = "key"
    label: str = "label"
    value: str | None = None

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __str__(self) -> str:
        return str(self.path)


class Row(dict[str, str]):
    """Cells of a row by the name of the column; `line` is the number of its last line in the file, or of the row."""

    line = 0


def has_columns(path: str | os.PathLike[str]) -> bool:
    """Whether a file of labels is a table, by its ending, and no list of keys."""
    return os.path.splitext(path)[1].lower() in TABLES


def read_table(path: str | os.PathLike[str]) -> list[Row]:
    """Read a table with a column of keys, or a text file with one key a line.

    Parameters
    ----------
    path : path or LabelTable
        Its ending tells the form: ``.csv`` or ``.tsv`` (separated by commas, semicolons or tabs), ``.parquet``, or any
        other for a text file; UTF-8 or, with a byte order mark, UTF-16.

    Returns
    -------
    list of dict of str to str
        One dict per row, column name to cell; ``key`` and ``label`` are those that a `LabelTable` names. Names are in
        lower case, without spaces around them. Empty rows are left out.

    Raises
    ------
    LabelError
        The file is missing, not UTF-8 or not a table, or lacks a column or a key.
    """
    table = path if isinstance(path, LabelTable) else LabelTable(os.fspath(path))
    if not has_columns(table):
        text = _read_text(table.path)
        # unlike str.splitlines, StringIO does not break lines at U+2028 and its like, which a key may hold
        return [Row(key=line.rstrip("\n")) for line in io.StringIO(text, newline=None) if line.strip()]
    columns, rows = read_rows(table.path, expected=table.key)
    named = {table.key, *([table.label] if table.label != "label" or table.value is not None else [])}
    if any(columns.count(name) > 1 for name in (table.key, table.label)):
        raise LabelError(
            f"{path} has columns {', '.join(columns)}; expected one called {table.key!r}, and one {table.label!r} at "
            "most"
        )
    if missing := sorted(named - set(columns)):
        raise LabelError(
            f"{path} has columns {' '.join(', '.join(columns).split())}; expected one called {missing[0]!r}"
            + (": each row is one quoted cell, remove the quotes around rows" if "," in columns[0] else "")
        )
    if rows and all(None in row.values() and ";" in (row[table.key] or "") for row in rows):
        raise LabelError(
            f"the rows of {path} have one column for {len(columns)} names; columns are separated by semicolons there "
            "and by commas in the first line: save it again"
        )
    if empty := next((row for row in rows if not row[table.key]), None):
        raise LabelError(f"{path} has a row without a key, {empty.line}; complete or remove it")
    return _as_labels(table, rows)


def _as_labels(table: LabelTable, rows: list[Row]) -> list[Row]:
    """Rows with the columns ``key`` and ``label``; with a value, labels are 1 and 0."""
    found = {(row.get(table.label) or "").strip() for row in rows} if table.value is not None else set()
    if rows and table.value is not None and table.value.strip() not in found:
        values = ", ".join(map(repr, sorted(found - {""})[:5])) or "blank cells alone"
        raise LabelError(f"{table} has no {table.value!r} in the column {table.label!r}; it has {values}")
    for row in rows:
        row["key"] = row.pop(table.key)
        if table.label in row:
            cell = row.pop(table.label)
            is_blank = table.value is None or not (cell or "").strip()
            row["label"] = cell if is_blank else str(int(cell.strip() == (table.value or "").strip()))
    return rows


def read_rows(path: str | os.PathLike[str], *, expected: str = "") -> tuple[list[str], list[Row]]:
    """Read a table of any columns: CSV with commas, semicolons or tabs, TSV or Parquet; see `read_table`.

    Parameters
    ----------
    path : path
    expected : str
        A column that the table should have, by which separators are told apart.

    Returns
    -------
    columns : list of str
    rows : list of Row
        Cells of Parquet are given as text; columns of lists, structs or bytes are left out.

    Raises
    ------
    LabelError
        The file is missing, not UTF-8, or not a table.
    """
    if os.path.splitext(path)[1].lower() in (".parquet", ".pq"):
        return _parquet_rows(path)
    text = _read_text(path)
    preamble = _PREAMBLE.match(text)
    assert preamble is not None
    text, skipped = text[preamble.end() :], len(preamble[0].splitlines())
    header = text.splitlines()[0] if text else ""
    marks = preamble[1] or ("\t,;" if _is_tsv(path) else ",;\t")
    names = {mark: _names(next(csv.reader([header], delimiter=mark), [])) for mark in marks}
    fitting = [mark for mark in names if expected in names[mark]] or [mark for mark in names if len(names[mark]) > 1]
    table = csv.DictReader(io.StringIO(text, newline=""), delimiter=(fitting or list(names))[0], strict=True)
    rows = []
    try:
        columns = table.fieldnames = _names(table.fieldnames or ["(none)"])
        for cells in table:
            if any(cells.values()):  # spreadsheets leave rows of commas
                rows.append(Row(cells))
                rows[-1].line = skipped + table.reader.line_num
    except csv.Error as error:
        raise LabelError(f"{path} line {skipped + table.reader.line_num}: {error}") from error
    return list(columns), rows


def _names(cells: Sequence[str]) -> list[str]:
    return [name.strip().lower() for name in cells]


def _is_tsv(path: str | os.PathLike[str]) -> bool:
    return os.path.splitext(path)[1].lower() == ".tsv"


def _parquet_rows(path: str | os.PathLike[str]) -> tuple[list[str], list[Row]]:
    from pyarrow import parquet, string, types

    try:
        with open_regular(path) as stream, parquet.ParquetFile(stream) as file:
            kinds = {field.name: getattr(field.type, "value_type", field.type) for field in file.schema_arrow}
            flat = [name for name, kind in kinds.items() if types.is_primitive(kind) or types.is_string(kind)]
            table = file.read(
                columns=[name for name in flat if not types.is_nested(file.schema_arrow.field(name).type)]
            )
            cells = [column.cast(string()).to_pylist() for column in table.columns]
    except Exception as error:  # damage makes pyarrow raise almost anything
        raise LabelError(f"cannot read {path} as Parquet: {one_line(error)}") from error
    columns = _names(table.column_names) or ["(none)"]
    rows = [Row(zip(columns, (cell or "" for cell in row), strict=True)) for row in zip(*cells, strict=True)]
    for number, row in enumerate(rows, 1):
        row.line = number
    return columns, rows


def _read_text(path: str | os.PathLike[str]) -> str:
    try:
        with open_regular(path) as stream:
            data = stream.read()
        if data.startswith(_SPREADSHEETS):
            raise LabelError(f"{path} is a spreadsheet (.xlsx, .ods or .xls); save its sheet as CSV in UTF-8")
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return data.decode("utf-16")
        if b"\0" in data:
            raise LabelError(
                f"{path} is not a text file (it holds NUL bytes); expected keys, one a line, or a CSV with a 'key' "
                "column: save it as CSV in UTF-8"
            )
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LabelError(
            f"{path} is not {error.encoding.upper()} text (byte {error.start}); save it as UTF-8"
        ) from error
    except OSError as error:
        raise LabelError(f"cannot read {path}: {error.strerror}") from error


def table_writer(stream: TextIO) -> Callable[[Sequence[object]], object]:
    r"""Return a function that writes one row of a CSV file, ended by ``\n``; open the stream with ``newline=""``."""
    minimal = csv.writer(stream, lineterminator="\n", quoting=csv.QUOTE_MINIMAL)
    quote_all = csv.writer(stream, lineterminator="\n", quoting=csv.QUOTE_ALL)

    def write_row(row: Sequence[object]) -> object:
        # csv quotes a lone carriage return only since Python 3.13
        has_return = any(isinstance(cell, str) and "\r" in cell for cell in row)
        return (quote_all if has_return else minimal).writerow(row)

    return write_row


# --- tables of many rows ---------------------------------------------------------------------------

# name to values: an array, or texts without NUL as a list or as UTF-8 of dtype S, or None for empty cells
Columns = Mapping[str, Any]
_ROW_GROUP = 1 << 16  # rows per row group of a Parquet file
_LEAST = 1e-17  # from here up to `_MOST`, a number times a power of ten, exact up to 10^22, has six digits before the
_MOST = 1e5  # point
_TIE = 1e-6  # nearer than this to a tie the scaled number, rounded itself, decides nothing: Python rounds the exact one
_POWERS = np.array([float(f"1e{power}") for power in range(23)])


@contextmanager
def open_table(path: Path, types: Mapping[str, str], *, parquet: bool) -> Iterator[Callable[[Columns], None]]:
    """Open a new table and yield a function that appends rows; the file does not depend on how rows are divided.

    `types` are Arrow's names of the type of each column, such as "string" and "float32". In CSV floating-point numbers
    are rounded as by `six_digits`, and texts are quoted.
    """
    import pyarrow as arrow  # not for commands that write no table

    schema = arrow.schema([(name, arrow.type_for_alias(alias)) for name, alias in types.items()])
    with path.open("wb") as stream, (_parquet_writer if parquet else _csv_writer)(stream, schema) as write:
        yield lambda columns: write(columns)


@contextmanager
def _csv_writer(stream: Any, schema: Any) -> Iterator[Callable[[Columns], None]]:
    import pyarrow as arrow
    from pyarrow import csv as arrow_csv

    numbers = {field.name for field in schema if arrow.types.is_floating(field.type)}
    wide = arrow.schema([(field.name, arrow.float64() if field.name in numbers else field.type) for field in schema])
    stream.write((",".join(schema.names) + "\n").encode())
    with arrow_csv.CSVWriter(stream, wide, write_options=arrow_csv.WriteOptions(include_header=False)) as writer:

        def write(columns: Columns) -> None:
            rounded = {
                name: six_digits(values) if name in numbers and values is not None else values
                for name, values in columns.items()
            }
            writer.write_table(_arrow_table(rounded, wide))

        yield write


def _arrow_table(columns: Columns, schema: Any) -> Any:
    """Arrow's table of columns, made of buffers: `pyarrow.array` imports pandas where that is installed."""
    import pyarrow as arrow

    arrays: list[Any] = []
    for field in schema:
        values, buffers = columns[field.name], [None]
        if values is None:
            arrays.append(arrow.nulls(len(arrays[0]), field.type))
            continue
        if arrow.types.is_string(field.type):
            values = values if isinstance(values, np.ndarray) else np.array([text.encode() for text in values], "S")
            characters = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.itemsize)
            used = characters != 0
            buffers.append(arrow.py_buffer(np.concatenate([[0], used.sum(1).cumsum()]).astype(np.int32)))
            buffers.append(arrow.py_buffer(characters[used]))
        else:
            buffers.append(arrow.py_buffer(np.ascontiguousarray(values, field.type.to_pandas_dtype())))
        arrays.append(arrow.Array.from_buffers(field.type, len(values), buffers))
    return arrow.Table.from_arrays(arrays, schema=schema)


@contextmanager
def _parquet_writer(stream: Any, schema: Any) -> Iterator[Callable[[Columns], None]]:
    import pyarrow as arrow
    from pyarrow import parquet

    waiting = schema.empty_table()
    with parquet.ParquetWriter(stream, schema, use_dictionary=False) as writer:  # keys are unique

        def write(columns: Columns) -> None:
            """Write the row groups that are complete."""
            nonlocal waiting
            waiting = arrow.concat_tables([waiting, _arrow_table(columns, schema)])
            while len(waiting) >= _ROW_GROUP:
                writer.write_table(waiting.slice(0, _ROW_GROUP).combine_chunks())
                waiting = waiting.slice(_ROW_GROUP)

        yield write
        if len(waiting):
            writer.write_table(waiting.combine_chunks())


def six_digits(values: np.ndarray) -> np.ndarray:
    """Round to the numbers that ``%.6g`` writes, float64 (n,)."""
    values = np.asarray(values, np.float64)
    magnitude = np.abs(values)
    ordinary = (magnitude >= _LEAST) & (magnitude < _MOST)
    exponent = np.floor(np.log10(np.where(ordinary, magnitude, 1.0))).astype(np.int64)
    power = _POWERS[5 - exponent]
    scaled = np.where(ordinary, values, 0.0) * power
    digits = np.rint(scaled)
    rounded = digits / power  # the number nearest to the decimal one: both are exact
    tied = np.abs(np.abs(scaled - digits) - 0.5) < _TIE
    for row in np.flatnonzero(tied | ~(ordinary | (magnitude == 0))).tolist():
        rounded[row] = float(f"{values[row]:.6g}")
    return rounded
