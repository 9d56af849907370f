"""Tables through pyarrow: what its types hold; reading Parquet, Feather and Arrow IPC; writing CSV and Parquet.

Commands that read and write no such table import none of this.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
import pyarrow
from pyarrow import csv, ipc, parquet, types

from ..errors import LabelError, one_line
from .limits import FOOTER_BYTES, UNPACKED_TIMES
from .table_columns import plain_name
from .table_formats import Finder, Several, Table, as_text, new_row
from .table_writer import Columns, six_digits

_CONTENTS = ("image", "img", "file")  # columns of these names that hold bytes hold no text
_ROW_GROUP = 1 << 16  # rows per row group of a Parquet file that is written


# --- types ---------------------------------------------------------------------------------------


def open_parquet(source: Any) -> Any:
    """Open a file or stream to read it page by page: with pre-buffering, or without a buffer, whole columns stay."""
    return parquet.ParquetFile(
        source,
        pre_buffer=False,
        buffer_size=1 << 20,
        page_checksum_verification=True,  # of pages that have a checksum
        thrift_string_size_limit=FOOTER_BYTES,
    )


def plain_type(kind: Any) -> Any:
    """The type of the values, of a dictionary, of runs, or of an extension."""
    while True:
        if isinstance(kind, pyarrow.BaseExtensionType):
            kind = kind.storage_type
        elif types.is_dictionary(kind) or types.is_run_end_encoded(kind):
            kind = kind.value_type
        else:
            return kind


def is_text(kind: Any) -> bool:
    """Whether the values are text."""
    kind = plain_type(kind)
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def is_bytes(kind: Any) -> bool:
    """Whether the column itself holds bytes of any length, such as images."""
    return types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)


def holds_bytes(kind: Any) -> bool:
    """Whether the values are bytes."""
    kind = plain_type(kind)
    return is_bytes(kind) or types.is_fixed_size_binary(kind)


def is_key(kind: Any) -> bool:
    """Whether the values can be keys: text, bytes of text, or integers."""
    return is_text(kind) or holds_bytes(kind) or types.is_integer(plain_type(kind))


def is_cell(kind: Any) -> bool:
    """Whether a value can be written as the text of one cell; bytes can where they are text."""
    plain = plain_type(kind)
    simple = types.is_primitive(plain) or types.is_decimal(plain) or types.is_null(plain)
    return is_text(kind) or holds_bytes(kind) or (simple and not types.is_interval(plain))


def floats_of(kind: Any) -> np.dtype | None:
    """Type of the numbers in a column of lists of floats; None for another column."""
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)
    kind = kind.storage_type if isinstance(kind, pyarrow.BaseExtensionType) else kind
    if not any(is_lists(kind) for is_lists in lists) or not types.is_floating(kind.value_type):
        return None
    return np.dtype(kind.value_type.to_pandas_dtype())


def is_labels(kind: Any) -> bool:
    """Whether the values are arrays of labels: of text or integers."""
    is_list = types.is_list(kind) or types.is_large_list(kind)
    return is_list and (is_text(kind.value_type) or types.is_integer(plain_type(kind.value_type)))


def texts(column: Any) -> list[str | None]:
    """Cells of a column as text, None where there is none; raises ValueError where bytes are not UTF-8."""
    kind = plain_type(column.type)
    exact = 1 << {16: 11, 32: 24}.get(kind.bit_width, 53) if types.is_floating(kind) else 0
    if types.is_floating(kind) or (types.is_temporal(kind) and not types.is_interval(kind)):
        if column.type != kind:  # no cast knows all dictionaries
            column = pyarrow.array(column.to_pylist(), kind)
        values = column.cast(pyarrow.string()).to_pylist()  # the shortest digits that name a float32
        return [as_text(float(value), exact) if value else None for value in values] if exact else values
    values = column.to_pylist()
    if is_text(kind) and not isinstance(column.type, pyarrow.BaseExtensionType):
        return values
    return [None if value is None else as_text(Several.of(value)) for value in values]


# --- reading -------------------------------------------------------------------------------------


def arrow_table(stream: BinaryIO, name: str, what: str, find: Finder) -> Table:
    """Read Parquet, or Arrow IPC (a file or a stream); columns of bytes only where `find` tells that they are wanted.

    Raises `LabelError` where it is damaged, or where a column that is wanted holds bytes that are not UTF-8.
    """
    try:
        schema, read = _opened(stream, what)
    except Exception as error:  # damage makes pyarrow raise almost anything
        raise LabelError(f"cannot read {name} as {what}: {one_line(error)}") from error
    kinds = dict(zip(map(plain_name, schema.names), schema.types, strict=True))
    names = [plain_name(each) for each in schema.names]
    usual = [each for each in names if is_cell(kinds[each]) and not (holds_bytes(kinds[each]) and each in _CONTENTS)]
    found = find(names) | find(usual)
    kept = [
        number
        for number, each in enumerate(names)
        if (is_cell(kinds[each]) and not holds_bytes(kinds[each]))
        or (each in found.values() and (is_cell(kinds[each]) or is_labels(kinds[each])))
    ]
    try:
        columns = {names[number]: column for number, column in zip(kept, read(kept), strict=True)}
    except Exception as error:
        raise LabelError(f"cannot read {name} as {what}: {one_line(error)}") from error
    cells = {}
    for each, column in columns.items():
        try:
            cells[each] = [text or "" for text in texts(column)]
        except (ValueError, ArithmeticError, pyarrow.ArrowException) as error:
            if each in found.values():
                raise LabelError(
                    f"{name} has the column {each!r} of {column.type} that cannot be read as text "
                    f"({one_line(error)}); expected text, numbers or yes and no"
                ) from error
    rows = [
        new_row(list(cells), row, number) for number, row in enumerate(zip(*cells.values(), strict=True), 1) if any(row)
    ]
    return Table(names, rows, {each: str(kind) for each, kind in kinds.items() if each not in cells}, found)


def _opened(stream: BinaryIO, what: str) -> tuple[Any, Callable[[list[int]], Sequence[Any]]]:
    """The schema, and a function that reads columns by their numbers."""
    if what == "Parquet":
        size = stream.seek(0, io.SEEK_END)
        stream.seek(0)
        file = parquet.ParquetFile(stream)
        if file.metadata.num_rows > UNPACKED_TIMES * size:
            raise ValueError(f"it has more than {UNPACKED_TIMES} rows for each of its {size:,} bytes")
        names = file.schema_arrow.names
        return file.schema_arrow, lambda kept: file.read(columns=[names[number] for number in kept]).columns
    reader = ipc.open_stream(stream) if what == "an Arrow stream" else ipc.open_file(stream)
    return reader.schema, lambda kept: reader.read_all().select(kept).columns


# --- writing -------------------------------------------------------------------------------------


def schema_of(aliases: Mapping[str, str]) -> Any:
    """Arrow's schema of columns, whose types go by their names, such as "string" and "float32"."""
    return pyarrow.schema([(name, pyarrow.type_for_alias(alias)) for name, alias in aliases.items()])


@contextmanager
def csv_writer(stream: Any, schema: Any) -> Iterator[Callable[[Columns], None]]:
    """Write CSV; floating-point numbers are rounded as by `six_digits`, and texts are quoted."""
    numbers = {field.name for field in schema if types.is_floating(field.type)}
    wide = pyarrow.schema([field.with_type(pyarrow.float64()) if field.name in numbers else field for field in schema])
    stream.write((",".join(schema.names) + "\n").encode())
    with csv.CSVWriter(stream, wide, write_options=csv.WriteOptions(include_header=False)) as writer:

        def write(columns: Columns) -> None:
            rounded = {
                name: six_digits(values) if name in numbers and values is not None else values
                for name, values in columns.items()
            }
            writer.write_table(_arrow_table(rounded, wide))

        yield write


def _arrow_table(columns: Columns, schema: Any) -> Any:
    """Arrow's table of columns, made of buffers: `pyarrow.array` imports pandas where that is installed."""
    arrays: list[Any] = []
    for field in schema:
        values, buffers = columns[field.name], [None]
        if values is None:
            arrays.append(pyarrow.nulls(len(arrays[0]), field.type))
            continue
        if types.is_string(field.type):
            values = values if isinstance(values, np.ndarray) else np.array([text.encode() for text in values], "S")
            characters = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.itemsize)
            used = characters != 0
            buffers.append(pyarrow.py_buffer(np.concatenate([[0], used.sum(1).cumsum()]).astype(np.int32)))
            buffers.append(pyarrow.py_buffer(characters[used]))
        else:
            if values.dtype.kind == "f" and (empty := np.isnan(values)).any():
                buffers = [pyarrow.py_buffer(np.packbits(~empty, bitorder="little"))]
            buffers.append(pyarrow.py_buffer(np.ascontiguousarray(values, field.type.to_pandas_dtype())))
        arrays.append(pyarrow.Array.from_buffers(field.type, len(values), buffers))
    return pyarrow.Table.from_arrays(arrays, schema=schema)


@contextmanager
def parquet_writer(stream: Any, schema: Any) -> Iterator[Callable[[Columns], None]]:
    """Write Parquet in row groups of one size, however the rows are divided."""
    waiting = schema.empty_table()
    with parquet.ParquetWriter(stream, schema, use_dictionary=False) as writer:  # keys are unique

        def write(columns: Columns) -> None:
            """Write the row groups that are complete."""
            nonlocal waiting
            waiting = pyarrow.concat_tables([waiting, _arrow_table(columns, schema)])
            while len(waiting) >= _ROW_GROUP:
                writer.write_table(waiting.slice(0, _ROW_GROUP).combine_chunks())
                waiting = waiting.slice(_ROW_GROUP)

        yield write
        if len(waiting):
            writer.write_table(waiting.combine_chunks())
