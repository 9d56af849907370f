"""Tables that are written: CSV files row by row, and CSV or Parquet of many rows, which pyarrow writes."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np

# name to values: an array, NaN for an empty cell, or texts without NUL as a list or as UTF-8 of dtype S, or None for
# empty cells
Columns = Mapping[str, Any]
_ROW_GROUP = 1 << 16  # rows per row group of a Parquet file
_LEAST = 1e-17  # from here up to `_MOST`, a number times a power of ten, exact up to 10^22, has six digits before the
_MOST = 1e5  # point
_TIE = 1e-6  # nearer than this to a tie the scaled number, rounded itself, decides nothing: Python rounds the exact one
_POWERS = np.array([float(f"1e{power}") for power in range(23)])


def table_writer(stream: TextIO) -> Callable[[Sequence[object]], object]:
    r"""Return a function that writes one row of a CSV file, ended by ``\n``; open the stream with ``newline=""``."""
    minimal = csv.writer(stream, lineterminator="\n", quoting=csv.QUOTE_MINIMAL)
    quote_all = csv.writer(stream, lineterminator="\n", quoting=csv.QUOTE_ALL)

    def write_row(row: Sequence[object]) -> object:
        # csv quotes a lone carriage return only since Python 3.13
        has_return = any(isinstance(cell, str) and "\r" in cell for cell in row)
        return (quote_all if has_return else minimal).writerow(row)

    return write_row


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
            if values.dtype.kind == "f" and (empty := np.isnan(values)).any():
                buffers = [arrow.py_buffer(np.packbits(~empty, bitorder="little"))]
            buffers.append(arrow.py_buffer(np.ascontiguousarray(values, field.type.to_pandas_dtype())))
        arrays.append(arrow.Array.from_buffers(field.type, len(values), buffers))
    return arrow.Table.from_arrays(arrays, schema=schema)


@contextmanager
def _parquet_writer(stream: Any, schema: Any) -> Iterator[Callable[[Columns], None]]:
    from pyarrow import concat_tables, parquet

    waiting = schema.empty_table()
    with parquet.ParquetWriter(stream, schema, use_dictionary=False) as writer:  # keys are unique

        def write(columns: Columns) -> None:
            """Write the row groups that are complete."""
            nonlocal waiting
            waiting = concat_tables([waiting, _arrow_table(columns, schema)])
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
