"""Small tables: CSV files and lists of keys, in and out."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from ..errors import LabelError


def read_table(path: str | Path) -> list[dict[str, str]]:
    """Read a CSV with a ``key`` column, or a text file of keys (one a line), as rows.

    Raises
    ------
    LabelError
        Missing, not UTF-8, not a table, or a table with no ``key`` column or a row without a key.
    """
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LabelError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except OSError as error:
        raise LabelError(f"cannot read {path}: {error.strerror}") from error
    if path.suffix.lower() != ".csv":
        # not str.splitlines: a key may hold U+2028 and its like, which only that takes for line ends
        return [{"key": line.rstrip("\n")} for line in io.StringIO(text, newline=None) if line.strip()]
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
    """Return a function that writes one row of a CSV; `stream` must leave line ends alone (``newline=""``)."""
    plain, quoting = (
        csv.writer(stream, lineterminator="\n", quoting=how) for how in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
    )

    def write(row: Sequence[object]) -> object:
        # csv itself quotes a lone carriage return only since Python 3.13
        return (quoting if any(isinstance(cell, str) and "\r" in cell for cell in row) else plain).writerow(row)

    return write
