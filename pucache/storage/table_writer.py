"""Tables that are written: CSV files row by row, and CSV or Parquet of many rows, which pyarrow writes."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .atomic import replacing

# name to values: an array, NaN for an empty cell, or texts without NUL as a list or as UTF-8 of dtype S, or None for
# empty cells
Columns = Mapping[str, Any]
_LEAST = 1e-17  # from here up to `_MOST`, a number times a power of ten, exact up to 10^22, has six digits before the
_MOST = 1e5  # point
_TIE = 1e-6  # nearer than this to a tie the scaled number, rounded itself, decides nothing: Python rounds the exact one
_POWERS = np.array([float(f"1e{power}") for power in range(23)])


def write_rows(path: str | Path, rows: Iterable[Sequence[object]]) -> None:
    r"""Write a CSV file atomically, whose rows end in ``\n``."""
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as stream:
        minimal = csv.writer(stream, lineterminator="\n", quoting=csv.QUOTE_MINIMAL)
        quote_all = csv.writer(stream, lineterminator="\n", quoting=csv.QUOTE_ALL)
        for row in rows:  # csv quotes a lone carriage return only since Python 3.13
            has_return = any(isinstance(cell, str) and "\r" in cell for cell in row)
            (quote_all if has_return else minimal).writerow(row)


@contextmanager
def open_table(path: Path, types: Mapping[str, str], *, parquet: bool) -> Iterator[Callable[[Columns], None]]:
    """Open a new table and yield a function that appends rows; the file does not depend on how rows are divided.

    `types` are Arrow's names of the type of each column, such as "string" and "float32". In CSV floating-point numbers
    are rounded as by `six_digits`, and texts are quoted.
    """
    from .arrow import csv_writer, parquet_writer, schema_of  # not for commands that write no table

    with path.open("wb") as stream, (parquet_writer if parquet else csv_writer)(stream, schema_of(types)) as write:
        yield write


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
