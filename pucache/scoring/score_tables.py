"""Tables of scores: CSV and Parquet files with the columns key, margin, posterior, label."""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
from pyarrow import compute, parquet
from pyarrow import csv as arrow_csv

from ..cache.keys import Keys
from ..errors import LabelError, OutputError, counted, one_line
from ..images.regions import split_key
from ..labels.listing import name_first
from ..storage.atomic import is_standard_output
from ..storage.file_kinds import SCORES, TABLE, kind_of
from ..storage.outputs import Paths
from ..storage.table_writer import open_table
from ..storage.urls import is_url, without_secrets

TYPES = {"key": "string", "margin": "float32", "posterior": "float64", "label": "int8"}
COLUMNS = tuple(TYPES)
FORMATS = ("csv", "parquet")
_QUOTED, _PLAIN = rb'"[^"]*+(?:""[^"]*+)*+"', rb'(?:[^",\r\n][^,\r\n]*+)?'
_CELLS = re.compile(rb"(?:(?:%b|%b)(?:,|\r\n?|\n|\Z))*+" % (_QUOTED, _PLAIN))  # RFC 4180
_FIRST = 100  # rows of an earlier table that tell whether it is of the same images
_LONGEST_KEY = 1 << 17  # bytes; a longer one is several rows behind a damaged quote


# Some rows of a table by column, (b,) each: key as a list of str or as their UTF-8 (dtype S), margin float32, posterior
# float64 (None where the model has too few labels for probabilities; the cells are empty then), and label int8
Columns = dict[str, Any]


def check_table(out: str | Path, *, inputs: Paths = ()) -> None:
    """Check, before any work, that scores can be written to `out`; see `pucache.storage.outputs.check_output`.

    Raises `ValueError` where the name ends neither in .csv nor in .parquet, `OutputError` and `MissingExtraError` where
    the file cannot be written.
    """
    from ..cache.destination import open_destination  # imports h5py, which readers do not need

    open_destination(out).check(table_kind(out), inputs=inputs)
    check_suffix(out)


def check_same_images(out: str | Path, keys: Keys) -> None:
    """Raise `OutputError` where a table of scores is there, and its first keys are of none of the images."""
    first = _first_keys(out)
    if not first or (keys.rows(first) >= 0).any():
        return
    images = {split_key(key)[0] for key in keys}  # a table by image names those of parts
    if not images.intersection(first):
        raise OutputError(f"{out} has the scores of other images, such as {first[0]!r}; name another table with --out")


def _first_keys(out: str | Path) -> list[str]:
    """Keys of the first rows of the table of scores at `out`; none where it is no such file."""
    if is_url(out) or not (path := Path(out)).is_file():
        return []
    try:
        at = column_names(path).index("key")
        if path.suffix.lower() == ".parquet":
            rows = next(parquet.ParquetFile(path).iter_batches(_FIRST, columns=["key"]), None)
            return [] if rows is None else rows.column(0).to_pylist()
        with path.open(encoding="utf-8-sig", newline="") as stream:
            return [row[at] for row in islice(csv.reader(stream), 1, _FIRST + 1)]
    except (LabelError, ValueError, IndexError, csv.Error):  # no table of scores; it is written anew
        return []


def check_suffix(out: str | Path) -> None:
    """Raise `ValueError` where a name ends neither in .csv nor in .parquet."""
    if _format(out) not in FORMATS:
        raise ValueError(f"{without_secrets(os.fspath(out))} must end in .{' or .'.join(FORMATS)}")


def table_kind(out: str | Path) -> str:
    """Kind of file that scores are written as, by the ending of its name."""
    return SCORES if _format(out) == "parquet" else TABLE


def best_parts(blocks: Iterable[Columns]) -> Columns:
    """Of each image the scores of its part with the largest margin, and in the column part where that lies."""
    best: dict[str, tuple[Any, ...]] = {}
    for block in blocks:
        keys = [key.decode() if isinstance(key, bytes) else key for key in block["key"]]
        posteriors = [None] * len(keys) if block["posterior"] is None else block["posterior"].tolist()
        for key, margin, *others in zip(
            keys, block["margin"].tolist(), posteriors, block["label"].tolist(), strict=True
        ):
            image, region = split_key(key)
            if image not in best or margin > best[image][0]:
                best[image] = (margin, *others, str(region))
    margins, posteriors, labels, regions = zip(*best.values(), strict=True) if best else ((),) * 4
    return {
        "key": list(best),
        "margin": np.array(margins, np.float32),
        "posterior": None if None in posteriors else np.array(posteriors),
        "label": np.array(labels, np.int8),
        "part": list(regions),
    }


def columns_of(concepts: Iterable[str], *, by_image: bool = False) -> dict[str, str]:
    """Types of the columns of a table: key, margin, posterior and label; of concepts CONCEPT_margin and so on."""
    types = {"key": "string"}
    for name in concepts:
        prefix, probability = (f"{name}_", "float32") if name else ("", "float64")
        types |= {f"{prefix}margin": "float32", f"{prefix}posterior": probability, f"{prefix}label": "int8"}
    return types | ({"part": "string"} if by_image else {})


def write_table(out: str | Path, types: Mapping[str, str], blocks: Iterable[Columns]) -> tuple[int, dict[str, int]]:
    """Write a table as a whole, or not at all; returns its rows, and the sum of each column of labels.

    Raises `OutputError` where it cannot be written.
    """
    from ..cache.destination import atomic_output  # imports h5py, which readers do not need

    rows, sums = 0, {name: 0 for name, kind in types.items() if kind == "int8"}
    parquet = _format(out) == "parquet"
    with atomic_output(out) as temporary, open_table(temporary, types, parquet=parquet) as write:
        for columns in blocks:
            rows += len(columns["key"])
            sums = {name: total + int(columns[name].sum()) for name, total in sums.items()}
            write(columns)
    return rows, sums


def read_scores(path: str | Path, *, concept: str | None = None) -> dict[str, np.ndarray]:
    """Read a table of scores.

    Parameters
    ----------
    path : path or str
        Parquet if it ends in ``.parquet``, otherwise CSV. Further columns are ignored.
    concept : str, optional
        Of a table of concepts, which one.

    Returns
    -------
    dict of str to ndarray, (n,) each
        key (object), margin and posterior (float64; NaN where it is empty), label (int64).

    Raises
    ------
    LabelError
        The file is missing, or not a table with those columns.
    """
    names = column_names(path)
    prefix = "" if concept is None else f"{concept}_"
    found = {name: name if name == "key" else prefix + name for name in COLUMNS}
    concepts = [name.removesuffix("_label") for name in names if name.endswith("_label")]
    if not set(found.values()) <= set(names) and concepts and concept not in concepts:
        raise LabelError(f"{path} has scores of the concepts {', '.join(concepts)}; name one of these as --concept")
    types = {column: TYPES[name] for name, column in found.items()}
    columns = read_columns(path, types)
    table = {name: columns[column] for name, column in found.items()}
    return table | {"label": table["label"].astype(int)}


def unique_keys(table: dict[str, np.ndarray], path: str | Path) -> list[str]:
    """Keys of a table of scores; raises `LabelError` where one stands there more than once."""
    keys: list[str] = table["key"].tolist()
    repeated = [key for key, rows in Counter(keys).items() if rows > 1]
    if repeated:
        raise LabelError(
            f"{path} has more than one row for {counted(len(repeated), 'key')} ({name_first(repeated)}), whose images "
            "would count more than once; keep one row for each"
        )
    return keys


def column_names(path: str | Path) -> list[str]:
    """Names of the columns of a table; raises `LabelError` where it cannot be read."""
    path, expected = Path(path), "expected the CSV or Parquet that score writes"
    if not path.is_file():
        problem = f"{path} is not a regular file" if path.exists() else f"no such scores: {path}"
        raise LabelError(f"{problem}; {expected}")
    try:
        if path.suffix.lower() == ".parquet":
            return list(parquet.read_schema(path).names)
        with path.open(encoding="utf-8-sig", newline="") as stream:
            return next(csv.reader(stream), [])
    except UnicodeDecodeError as error:
        raise LabelError(f"{path} is {kind_of(path)}, not UTF-8 text; {expected}") from error
    except (ValueError, csv.Error, OSError, arrow.ArrowException) as error:
        raise LabelError(f"{path} is not a table of scores ({one_line(error)})") from error


def read_columns(path: str | Path, types: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Columns of a table by name: texts as objects, numbers as float64, NaN where a posterior is empty.

    Raises `LabelError` where one is missing or has another value than it may have.
    """
    path = Path(path)
    try:
        is_parquet = path.suffix.lower() == ".parquet"
        table = parquet.read_table(path, columns=list(types)) if is_parquet else _read_csv(path, types)
        columns = {}
        for name, kind in types.items():
            values = np.array(table[name].to_pylist(), object) if kind == "string" else table[name].to_numpy()
            columns[name] = values if kind == "string" else np.array(values, float)
            if kind == "string" and None in values:
                raise ValueError("a cell is empty or not a number")
        for name, values in columns.items():
            if name.endswith("label") and not np.isin(values, (0, 1)).all():
                raise ValueError("a label is neither 0 nor 1, or a cell is empty")
            if name.endswith("margin") and not np.isfinite(values).all():
                raise ValueError("a cell is empty or not a number")
            if name.endswith("posterior") and np.isinf(values).any():
                raise ValueError("a cell is empty or not a number")
        return columns
    except (KeyError, ValueError, TypeError, OSError, arrow.ArrowException) as error:
        raise LabelError(
            f"{path} is not a table of scores ({one_line(error)}); expected columns {', '.join(types)}"
        ) from error


def _format(out: str | Path) -> str:
    return "csv" if is_standard_output(out) else os.path.splitext(out)[1].lower().removeprefix(".")


def _read_csv(path: Path, types: Mapping[str, str]) -> Any:
    content = path.read_bytes()
    if not _CELLS.fullmatch(content):  # pyarrow reads "a"b as ab
        raise ValueError("a quoted cell does not end at its closing quote")
    kinds = arrow_csv.ConvertOptions(  # a key may be 007 or NA
        column_types={name: "string" if kind == "string" else "float64" for name, kind in types.items()},
        include_columns=list(types),
        null_values=[""],
        strings_can_be_null=False,
    )
    cells = arrow_csv.ParseOptions(newlines_in_values=True)
    table = arrow_csv.read_csv(arrow.BufferReader(content), parse_options=cells, convert_options=kinds)
    if "key" in types and len(table) and compute.max(compute.binary_length(table["key"])).as_py() > _LONGEST_KEY:
        raise ValueError(f"a key is longer than {_LONGEST_KEY:,} bytes")
    return table
