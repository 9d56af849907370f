"""Tables of scores: CSV and Parquet files with the columns key, margin, posterior, label."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LabelError, OutputError, one_line
from ..storage.atomic import check_writable, is_standard_output
from ..storage.tables import open_table
from ..storage.urls import is_url, path_or_url, without_secrets

_TYPES = {"key": "string", "margin": "float32", "posterior": "float64", "label": "int8"}
COLUMNS = tuple(_TYPES)
FORMATS = ("csv", "parquet")
_QUOTED, _PLAIN = rb'"[^"]*+(?:""[^"]*+)*+"', rb'(?:[^",\r\n][^,\r\n]*+)?'
_CELLS = re.compile(rb"(?:(?:%b|%b)(?:,|\r\n?|\n|\Z))*+" % (_QUOTED, _PLAIN))  # RFC 4180
_LONGEST_KEY = 1 << 17  # bytes; a longer one is several rows behind a damaged quote


@dataclass(frozen=True)
class ScoredRows:
    """Some rows of a table of scores, by column.

    Attributes
    ----------
    key : list of str, or ndarray of their UTF-8 (dtype S), (b,)
    margin : ndarray of float32, (b,)
    posterior : ndarray of float64, (b,)
    label : ndarray of int8, (b,)
        0 or 1.
    """

    key: list[str] | np.ndarray
    margin: np.ndarray
    posterior: np.ndarray
    label: np.ndarray


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
    if _format(out) not in FORMATS:
        raise ValueError(f"{without_secrets(os.fspath(out))} must end in .{' or .'.join(FORMATS)}")


def write_scores(out: str | Path, blocks: Iterable[ScoredRows]) -> int:
    """Write a table of scores as a whole, or not at all; returns the number of rows above the threshold.

    Raises
    ------
    OutputError
        It cannot be written.
    """
    from ..cache.destination import atomic_output  # imports h5py, which readers do not need

    positives = 0
    parquet = _format(out) == "parquet"
    with atomic_output(out) as temporary, open_table(temporary, _TYPES, parquet=parquet) as write:
        for rows in blocks:
            positives += int(rows.label.sum())
            write(vars(rows))
    return positives


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
    import pyarrow as arrow  # not for commands that read no table

    path = Path(path)
    if not path.is_file():
        raise LabelError(f"no such scores: {path}; expected the CSV or Parquet that score writes")
    try:
        table = _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
        key = np.array(table["key"].to_pylist(), object)
        margin, posterior, label = (np.array(table[name].to_numpy(), float) for name in COLUMNS[1:])
        if None in key or not np.isfinite([margin, posterior, label]).all():
            raise ValueError("a cell is empty or not a number")
        if not np.isin(label, (0, 1)).all():
            raise ValueError("a label is neither 0 nor 1")
        return {"key": key, "margin": margin, "posterior": posterior, "label": label.astype(int)}
    except (KeyError, ValueError, TypeError, OSError, arrow.ArrowException) as error:
        raise LabelError(
            f"{path} is not a table of scores ({one_line(error)}); expected columns {', '.join(COLUMNS)}"
        ) from error


def _format(out: str | Path) -> str:
    return "csv" if is_standard_output(out) else os.path.splitext(out)[1].lower().removeprefix(".")


def _read_csv(path: Path) -> Any:
    import pyarrow as arrow
    from pyarrow import compute, csv

    content = path.read_bytes()
    if not _CELLS.fullmatch(content):  # pyarrow reads "a"b as ab
        raise ValueError("a quoted cell does not end at its closing quote")
    kinds = csv.ConvertOptions(  # a key may be 007 or NA
        column_types={name: "string" if name == "key" else "float64" for name in COLUMNS},
        include_columns=COLUMNS,
        null_values=[],
        strings_can_be_null=False,
    )
    cells = csv.ParseOptions(newlines_in_values=True)
    table = csv.read_csv(arrow.BufferReader(content), parse_options=cells, convert_options=kinds)
    if len(table) and compute.max(compute.binary_length(table["key"])).as_py() > _LONGEST_KEY:
        raise ValueError(f"a key is longer than {_LONGEST_KEY:,} bytes")
    return table


def _read_parquet(path: Path) -> Any:
    from pyarrow import parquet

    return parquet.read_table(path, columns=list(COLUMNS))
