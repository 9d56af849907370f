"""Tables in Arrow's formats: Parquet, Feather and Arrow IPC, of which only columns of cells are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import pyarrow
from pyarrow import ipc, parquet

from ..errors import LabelError, one_line
from .arrow_types import holds_bytes, is_cell, texts
from .table_columns import plain_name
from .table_formats import Finder, Table, new_row

_CONTENTS = ("image", "img", "file")  # columns of these names that hold bytes hold no text


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
        if is_cell(kinds[each]) and (each in found.values() or not holds_bytes(kinds[each]))
    ]
    try:
        columns = {names[number]: column for number, column in zip(kept, read(kept), strict=True)}
    except Exception as error:
        raise LabelError(f"cannot read {name} as {what}: {one_line(error)}") from error
    cells = {each: _texts(column, name, each) for each, column in columns.items()}
    rows = [
        new_row(list(cells), row, number) for number, row in enumerate(zip(*cells.values(), strict=True), 1) if any(row)
    ]
    return Table(names, rows, {each: str(kind) for each, kind in kinds.items() if each not in cells}, found)


def _opened(stream: BinaryIO, what: str) -> tuple[Any, Callable[[list[int]], Sequence[Any]]]:
    """The schema, and a function that reads columns by their numbers."""
    if what == "Parquet":
        file = parquet.ParquetFile(stream)
        names = file.schema_arrow.names
        return file.schema_arrow, lambda kept: file.read(columns=[names[number] for number in kept]).columns
    reader = ipc.open_stream(stream) if what == "an Arrow stream" else ipc.open_file(stream)
    return reader.schema, lambda kept: reader.read_all().select(kept).columns


def _texts(column: Any, name: str, title: str) -> list[str]:
    try:
        return [text or "" for text in texts(column)]
    except (ValueError, pyarrow.ArrowException) as error:
        raise LabelError(
            f"{name} has the column {title!r} of {column.type} that cannot be read as text ({one_line(error)}); "
            "expected text, numbers or yes and no"
        ) from error
