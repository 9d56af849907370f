"""Tables of scores: CSV and Parquet files with the columns key, margin, posterior, label."""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LabelError, one_line
from ..images.regions import split_key
from ..labels.label_files import name_first
from ..storage.atomic import is_standard_output
from ..storage.file_kinds import SCORES, TABLE
from ..storage.outputs import Paths
from ..storage.table_writer import open_table, six_digits
from ..storage.urls import without_secrets

TYPES = {"key": "string", "margin": "float32", "posterior": "float64", "label": "int8"}
COLUMNS = tuple(TYPES)
BY_IMAGE_TYPES = {**TYPES, "part": "string"}
FORMATS = ("csv", "parquet")
_QUOTED, _PLAIN = rb'"[^"]*+(?:""[^"]*+)*+"', rb'(?:[^",\r\n][^,\r\n]*+)?'
_CELLS = re.compile(rb"(?:(?:%b|%b)(?:,|\r\n?|\n|\Z))*+" % (_QUOTED, _PLAIN))  # RFC 4180
_LONGEST_KEY = 1 << 17  # bytes; a longer one is several rows behind a damaged quote
_NAMES_SHOWN = 3


# Some rows of a table by column, (b,) each: key as a list of str or as their UTF-8 (dtype S), margin float32, posterior
# float64 (None where the model has too few labels for probabilities; the cells are empty then), and label int8
ScoredRows = dict[str, Any]


def check_table(out: str | Path, *, inputs: Paths = (), force: bool = False) -> None:
    """Check, before any work, that scores can be written to `out`; see `pucache.storage.outputs.check_output`.

    Raises `ValueError` where the name ends neither in .csv nor in .parquet, `OutputError` and `MissingExtraError` where
    the file cannot be written.
    """
    from ..cache.destination import open_destination  # imports h5py, which readers do not need

    open_destination(out).check(table_kind(out), inputs=inputs, force=force)
    check_suffix(out)


def check_suffix(out: str | Path) -> None:
    """Raise `ValueError` where a name ends neither in .csv nor in .parquet."""
    if _format(out) not in FORMATS:
        raise ValueError(f"{without_secrets(os.fspath(out))} must end in .{' or .'.join(FORMATS)}")


def table_kind(out: str | Path) -> str:
    """Kind of file that scores are written as, by the ending of its name."""
    return SCORES if _format(out) == "parquet" else TABLE


def by_image(blocks: Iterable[ScoredRows]) -> ScoredRows:
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
    margins, posteriors, labels, regions = zip(*best.values(), strict=True)
    return {
        "key": list(best),
        "margin": np.array(margins, np.float32),
        "posterior": None if None in posteriors else np.array(posteriors),
        "label": np.array(labels, np.int8),
        "part": list(regions),
    }


def wide_types(concepts: Iterable[str], *, exclusive: bool = False) -> dict[str, str]:
    """Columns of a table of concepts: key, and CONCEPT_margin, CONCEPT_posterior and CONCEPT_label of each.

    With `exclusive` the second column is kind, the concept that an image has, or "" for none.
    """
    types = {"key": "string", "kind": "string"} if exclusive else {"key": "string"}
    for name in concepts:
        types |= {f"{name}_margin": "float32", f"{name}_posterior": "float32", f"{name}_label": "int8"}
    return types


def write_table(out: str | Path, types: Mapping[str, str], blocks: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Write a table as a whole, or not at all; returns the sum of each column of labels.

    Raises `OutputError` where it cannot be written.
    """
    from ..cache.destination import atomic_output  # imports h5py, which readers do not need

    sums = {name: 0 for name, kind in types.items() if kind == "int8"}
    parquet = _format(out) == "parquet"
    with atomic_output(out) as temporary, open_table(temporary, types, parquet=parquet) as write:
        for columns in blocks:
            sums = {name: total + int(columns[name].sum()) for name, total in sums.items()}
            write(columns)
    return sums


def read_scores(path: str | Path, *, concept: str | None = None, source: str | None = None) -> dict[str, np.ndarray]:
    """Read a table of scores.

    Parameters
    ----------
    path : path or str
        Parquet if it ends in ``.parquet``, otherwise CSV. Further columns are ignored.
    concept : str, optional
        Of a table of concepts, which one.
    source : str, optional
        Of a table that has grown, the rows of this source alone.

    Returns
    -------
    dict of str to ndarray, (n,) each
        key (object), margin and posterior (float64; NaN where it is empty), label (int64).

    Raises
    ------
    LabelError
        The file is missing, not a table with those columns, or holds nothing of the source.
    """
    names = column_names(path)
    prefix = "" if concept is None else f"{concept}_"
    found = {name: name if name == "key" else prefix + name for name in COLUMNS}
    concepts = [name.removesuffix("_label") for name in names if name.endswith("_label")]
    if not set(found.values()) <= set(names) and concepts and concept not in concepts:
        all_at_once = ", or evaluate their kinds with --exclusive" if "kind" in names else ""
        raise LabelError(
            f"{path} has scores of the concepts {', '.join(concepts)}; name one of these as --concept{all_at_once}"
        )
    types = {column: TYPES[name] for name, column in found.items()}
    columns = _read_of_source(path, names, types, source)
    table = {name: columns[column] for name, column in found.items()}
    return table | {"label": table["label"].astype(int)}


def read_kinds(path: str | Path, *, source: str | None = None) -> tuple[dict[str, np.ndarray], list[str]]:
    """Key and kind of each row of a table of `score` with `exclusive`, and its concepts; `source` as `read_scores`."""
    names = column_names(path)
    if "kind" not in names:
        raise LabelError(f"{path} has no column kind; score with a folder of models and --exclusive")
    columns = _read_of_source(path, names, {"key": "string", "kind": "string"}, source)
    return columns, [name.removesuffix("_label") for name in names if name.endswith("_label")]


def _read_of_source(
    path: str | Path, names: Sequence[str], types: dict[str, str], source: str | None
) -> dict[str, np.ndarray]:
    """Columns of a table that has `names`: all rows, or those of one source."""
    if source is None:
        return read_columns(path, types)
    if "source" not in names:
        raise LabelError(f"{path} has no column source, as score --append writes; leave out --source")
    columns = read_columns(path, types | {"source": "string"})
    of_source = columns["source"] == source
    if not of_source.any():
        known = ", ".join(sorted(set(columns["source"].tolist()))[:_NAMES_SHOWN])
        raise LabelError(f"{path} has no row of the source {source}; its sources are {known}")
    return {name: values[of_source] for name, values in columns.items()}


def unique_keys(table: dict[str, np.ndarray], path: str | Path) -> list[str]:
    """Keys of a table of scores; raises `LabelError` where one stands there more than once."""
    keys: list[str] = table["key"].tolist()
    repeated = [key for key, rows in Counter(keys).items() if rows > 1]
    if repeated:
        several = "source" in column_names(path)
        raise LabelError(
            f"{path} has more than one row for {len(repeated):,} keys ({name_first(repeated)}), whose images would "
            f"count more than once; {'name one source of them (--source)' if several else 'keep one row for each'}"
        )
    return keys


def column_names(path: str | Path) -> list[str]:
    """Names of the columns of a table; raises `LabelError` where it cannot be read."""
    from pyarrow import ArrowException, parquet  # not for commands that read no table

    path = Path(path)
    if not path.is_file():
        problem = f"{path} is not a regular file" if path.exists() else f"no such scores: {path}"
        raise LabelError(f"{problem}; expected the CSV or Parquet that score writes")
    try:
        if path.suffix.lower() == ".parquet":
            return list(parquet.read_schema(path).names)
        with path.open(encoding="utf-8-sig", newline="") as stream:
            return next(csv.reader(stream), [])
    except (ValueError, csv.Error, OSError, ArrowException) as error:
        raise LabelError(f"{path} is not a table of scores ({one_line(error)})") from error


def read_columns(path: str | Path, types: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Columns of a table by name: texts as objects, numbers as float64, NaN where a posterior is empty.

    Raises `LabelError` where one is missing or has another value than it may have.
    """
    import pyarrow as arrow
    from pyarrow import parquet

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


class EarlierScores:
    """Scores that an earlier run left in a table, which images keep whose margin is still the same.

    Parameters
    ----------
    table : dict of str to ndarray
        Scores, as `read_scores` gives them.
    key : ndarray of bytes, (n,)
        Encoded keys of the images that are scored now.

    Attributes
    ----------
    known : ndarray of bool, (n,)
        Whether the table holds the image.
    """

    def __init__(self, table: dict[str, np.ndarray], key: np.ndarray):
        from ..cache.keys import encode_keys, find_sorted

        encoded = encode_keys(table["key"].tolist())
        order = np.argsort(encoded)
        rows = find_sorted(encoded[order], key)
        self.known = rows >= 0
        self._columns = {name: np.append(table[name][order], 0)[rows] for name in COLUMNS[1:]}  # 0 of unknown images

    def same_margin(self, rows: slice | np.ndarray, margins: np.ndarray) -> np.ndarray:
        """Which of some rows the table holds with these margins, bool (b,)."""
        old = self._columns["margin"][rows]
        same = (six_digits(old) == six_digits(margins)) | (old.astype(np.float32) == margins)
        return np.asarray(self.known[rows] & same)

    def kept(self, blocks: Iterable[ScoredRows]) -> Iterator[ScoredRows]:
        """Blocks of all rows in order, with posterior and label of the earlier run where there are any."""
        stop = 0
        for block in blocks:
            rows = slice(stop, stop := stop + len(block["margin"]))
            old = self.same_margin(rows, block["margin"])
            posterior, label = (self._columns[name][rows] for name in ("posterior", "label"))
            if block["posterior"] is not None:
                block["posterior"] = np.where(old, posterior, block["posterior"])
            yield block | {"label": np.where(old, label, block["label"]).astype(np.int8)}


def _format(out: str | Path) -> str:
    return "csv" if is_standard_output(out) else os.path.splitext(out)[1].lower().removeprefix(".")


def _read_csv(path: Path, types: Mapping[str, str]) -> Any:
    import pyarrow as arrow
    from pyarrow import compute
    from pyarrow import csv as arrow_csv

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
    if len(table) and compute.max(compute.binary_length(table["key"])).as_py() > _LONGEST_KEY:
        raise ValueError(f"a key is longer than {_LONGEST_KEY:,} bytes")
    return table
