"""Tables of scores: CSV and Parquet files with the columns key, margin, posterior, label."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ..cache.keys import decode_texts
from ..errors import LabelError, OutputError, one_line
from ..storage.atomic import check_writable, is_standard_output
from ..storage.urls import is_url, path_or_url, without_secrets
from .score_csv import csv_rows

_ROW_GROUP = 1 << 16  # rows per row group of a Parquet file


@dataclass(frozen=True)
class ScoredRows:
    """Some rows of a table of scores, by column.

    Attributes
    ----------
    key : ndarray of bytes (dtype S), (b,)
        UTF-8.
    margin : ndarray of float32, (b,)
    posterior : ndarray of float64, (b,)
    label : ndarray of int8, (b,)
        0 or 1.
    """

    key: np.ndarray
    margin: np.ndarray
    posterior: np.ndarray
    label: np.ndarray


COLUMNS = tuple(field.name for field in fields(ScoredRows))
CSV_HEADER = (",".join(COLUMNS) + "\n").encode()
FORMATS = ("csv", "parquet")
WriteRows = Callable[[ScoredRows], None]


def check_output(out: str | Path, *, inputs: Iterable[str | Path] = ()) -> None:
    """Check, before any work, that scores can be written to `out`, and that it is none of the `inputs`.

    Raises
    ------
    ValueError
        The name ends neither in .csv nor in .parquet.
    OutputError, MissingExtraError
        The file cannot be written.
    """
    out = path_or_url(out)
    if is_url(out):
        from ..cache.destination import open_destination

        if os.fspath(out) in map(str, inputs):
            raise OutputError(f"{without_secrets(os.fspath(out))} is also an input; name another file to write")
        open_destination(out).check_writable()
    else:
        check_writable(out, inputs=inputs, is_table=True)
    if _suffix(out) not in _WRITERS:
        raise ValueError(f"{without_secrets(os.fspath(out))} must end in {' or '.join(_WRITERS)}")


@contextmanager
def open_table(path: Path, out: str | Path) -> Iterator[WriteRows]:
    """Open a new table at `path` and yield a function that appends rows; the suffix of `out` decides the format."""
    with _WRITERS[_suffix(out)](path) as write:
        yield write


def read_scores(path: str | Path) -> dict[str, np.ndarray]:
    """Read a table of scores.

    Parameters
    ----------
    path : path or str
        Parquet if it ends in ``.parquet``, otherwise CSV. Further columns are ignored.

    Returns
    -------
    dict of str to ndarray, (n,) each
        key (object), margin and posterior (float64), label (int64).

    Raises
    ------
    LabelError
        The file is missing, or not a table with those columns.
    """
    path = Path(path)
    if not path.is_file():
        raise LabelError(f"no such scores: {path}; expected the CSV or Parquet that score writes")
    try:
        table = _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
        numbers = {name: np.array(table[name], float) for name in COLUMNS[1:]}
        if None in table["key"] or not all(np.isfinite(column).all() for column in numbers.values()):
            raise ValueError("a cell is empty or not a number")
        if not np.isin(numbers["label"], (0, 1)).all():
            raise ValueError("a label is neither 0 nor 1")
        return {"key": np.array(table["key"], object), **numbers, "label": numbers["label"].astype(int)}
    except (KeyError, ValueError, TypeError, OSError, csv.Error) as error:
        raise LabelError(
            f"{path} is not a table of scores ({one_line(error)}); expected columns {', '.join(COLUMNS)}"
        ) from error


def is_parquet(out: str | Path) -> bool:
    """Whether the table is Parquet, by its name."""
    return _suffix(out) == ".parquet"


def _suffix(out: str | Path) -> str:
    return ".csv" if is_standard_output(out) else os.path.splitext(out)[1].lower()


@contextmanager
def _csv_table(path: Path) -> Iterator[WriteRows]:
    with path.open("wb") as stream:
        stream.write(CSV_HEADER)

        def write(rows: ScoredRows) -> None:
            text = csv_rows(rows.key, margin=rows.margin, posterior=rows.posterior, label=rows.label)
            stream.writelines(text)

        yield write


@contextmanager
def _parquet_table(path: Path) -> Iterator[WriteRows]:
    import pyarrow as arrow  # not needed for CSV
    from pyarrow import parquet

    types = (arrow.string(), arrow.float32(), arrow.float64(), arrow.int8())
    schema = arrow.schema(list(zip(COLUMNS, types, strict=True)))
    waiting: list[Any] = []

    def flush(*, all_rows: bool) -> None:
        """Write whole row groups, so that the file does not depend on how rows were divided."""
        table = arrow.concat_tables([schema.empty_table(), *waiting])
        groups = len(table) if all_rows else len(table) // _ROW_GROUP * _ROW_GROUP
        for start in range(0, groups, _ROW_GROUP):
            writer.write_table(table.slice(start, _ROW_GROUP).combine_chunks())
        waiting[:] = [table.slice(groups)]

    def write(rows: ScoredRows) -> None:
        columns = {name: getattr(rows, name) for name in COLUMNS} | {"key": decode_texts(rows.key.tolist())}
        waiting.append(arrow.table(columns, schema=schema))
        if sum(map(len, waiting)) >= _ROW_GROUP:
            flush(all_rows=False)

    with parquet.ParquetWriter(path, schema, use_dictionary=False) as writer:  # keys are unique
        yield write
        flush(all_rows=True)


_WRITERS: dict[str, Callable[[Path], AbstractContextManager[WriteRows]]] = {
    ".csv": _csv_table,
    ".parquet": _parquet_table,
}


def _read_csv(path: Path) -> dict[str, list[str]]:
    with path.open(newline="", encoding="utf-8-sig") as stream:
        table = csv.DictReader(stream, strict=True)
        rows = list(table)
    if not set(COLUMNS) <= set(table.fieldnames or []):
        raise ValueError(f"its columns are {', '.join(table.fieldnames or ['(none)'])}")
    return {name: [row[name] for row in rows] for name in COLUMNS}


def _read_parquet(path: Path) -> dict[str, list[Any]]:
    import pyarrow as arrow  # not needed for CSV
    from pyarrow import parquet

    try:
        return parquet.read_table(path).to_pydict()
    except arrow.ArrowInvalid as error:
        raise ValueError(str(error)) from error
