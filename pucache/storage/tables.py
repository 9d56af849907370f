"""Small tables: CSV files and text files of keys."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

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
