"""Tables: CSV files and text files of keys that people write, and tables of many rows, which pyarrow writes."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from ..errors import LabelError
from .regular_file import open_regular


def read_table(path: str | Path) -> list[dict[str, str]]:
    """Read a CSV file with a ``key`` column, or a text file with one key a line.

    Parameters
    ----------
    path : str or Path
        A name that ends in ``.csv`` stands for a CSV file, any other for a text file; UTF-8, with or
        without a byte order mark.

    Returns
    -------
    list of dict of str to str
        One dict per row, column name to cell. Empty rows are left out.

    Raises
    ------
    LabelError
        The file is missing, not UTF-8 or not a CSV file, or has no ``key`` column or a row without a key.
    """
    path = Path(path)
    try:
        with open_regular(path) as stream:
            text = stream.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LabelError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except OSError as error:
        raise LabelError(f"cannot read {path}: {error.strerror}") from error
    if path.suffix.lower() != ".csv":
        # unlike str.splitlines, StringIO does not break lines at U+2028 and its like, which a key may hold
        return [{"key": line.rstrip("\n")} for line in io.StringIO(text, newline=None) if line.strip()]
    return _parse_csv(path, text)


def _parse_csv(path: Path, text: str) -> list[dict[str, str]]:
    table = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = table.fieldnames or ["(none)"]
        rows = [row for row in table if any(row.values())]  # spreadsheets leave rows of commas
    except csv.Error as error:
        raise LabelError(f"{path} line {table.reader.line_num}: {error}") from error
    if "key" not in columns:
        raise LabelError(f"{path} has columns {' '.join(', '.join(columns).split())}; expected one called 'key'")
    if not all(row["key"] for row in rows):
        raise LabelError(f"{path} has a row without a key; complete or remove it")
    return rows


def table_writer(stream: TextIO) -> Callable[[Sequence[object]], object]:
    r"""Return a function that writes one row of a CSV file.

    Parameters
    ----------
    stream : text file
        Opened with ``newline=""``; rows end in ``\n``.

    Returns
    -------
    callable
        Takes the cells of a row.
    """
    minimal = csv.writer(stream, lineterminator="\n", quoting=csv.QUOTE_MINIMAL)
    quote_all = csv.writer(stream, lineterminator="\n", quoting=csv.QUOTE_ALL)

    def write_row(row: Sequence[object]) -> object:
        # csv quotes a lone carriage return only since Python 3.13
        has_return = any(isinstance(cell, str) and "\r" in cell for cell in row)
        return (quote_all if has_return else minimal).writerow(row)

    return write_row


# --- tables of many rows ---------------------------------------------------------------------------

Columns = Mapping[str, Any]  # name to values: an array, or texts without NUL as a list or as UTF-8 of dtype S
_ROW_GROUP = 1 << 16  # rows per row group of a Parquet file
_LEAST = 1e-17  # from here up to `_MOST`, a number times a power of ten, exact up to 10^22, has six digits before the
_MOST = 1e5  # point
_TIE = 1e-6  # nearer than this to a tie the scaled number, rounded itself, decides nothing: Python rounds the exact one
_POWERS = np.array([float(f"1e{power}") for power in range(23)])


@contextmanager
def open_table(path: Path, types: Mapping[str, str], *, parquet: bool) -> Iterator[Callable[[Columns], None]]:
    """Open a new table and yield a function that appends rows; the file does not depend on how rows are divided.

    In CSV floating-point numbers are rounded as by `six_digits`, and texts are quoted.

    Parameters
    ----------
    path : Path
    types : dict of str to str
        Arrow's name of the type of each column, such as "string" and "float32".
    parquet : bool
        Parquet, or else CSV.
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
            rounded = {name: six_digits(values) if name in numbers else values for name, values in columns.items()}
            writer.write_table(_arrow_table(rounded, wide))

        yield write


def _arrow_table(columns: Columns, schema: Any) -> Any:
    """Arrow's table of columns, made of buffers: `pyarrow.array` imports pandas where that is installed."""
    import pyarrow as arrow

    arrays = []
    for field in schema:
        values, buffers = columns[field.name], [None]
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
