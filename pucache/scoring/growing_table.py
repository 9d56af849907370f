"""Tables of scores that grow from source to source, week by week: rows are told apart by source and key.

Beside the columns of scores they have source, day and model, the last a digest of what margins follow from.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from ..cache.parts import writer_lock
from ..errors import LabelError, OutputError
from ..storage.atomic import is_standard_output
from ..storage.table_writer import six_digits
from ..storage.urls import is_url, without_secrets
from ..training.concept_models import ConceptModels
from ..training.sklearn_classifier import PULinearClassifier
from .score_tables import column_names, read_columns, write_table

_ADDED = {"source": "string", "day": "string", "model": "string"}
_DIGITS = 12  # of the digest of a model
Columns = dict[str, Any]


class GrowingTable:
    """A table that is read as a whole, and written again as a whole with the rows of one source.

    Parameters
    ----------
    path : path or str
        CSV or Parquet; it need not exist.
    types : mapping of str to str
        Columns of scores, see `pucache.storage.table_writer.open_table`.
    model : str
        Digest of the model, see `model_digest`.
    day : str, optional
        ISO date of rows that are new.

    Raises
    ------
    LabelError
        The table cannot be read, has other columns, or scores of another model.
    ValueError
        The day is no date, or lies before one in the table.
    """

    def __init__(self, path: str | Path, types: Mapping[str, str], model: str, day: str | None = None):
        self.path, self.model, self.day = Path(path), model, _iso(day)
        self.types = {**types, **_ADDED}
        self._state = self._signature()
        self.rows: Columns = (
            self._read() if self._state else {name: _joined(name, kind, []) for name, kind in self.types.items()}
        )
        self._check()

    def _signature(self) -> tuple[int, ...] | None:
        """What changes where another process replaces the file; None where there is none."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _read(self) -> Columns:
        names = column_names(self.path)
        if more := [name for name in names if name not in self.types]:
            raise LabelError(
                f"{self.path} has the column {more[0]}, which scores of this model have not, and which would be lost; "
                "name another table"
            )
        rows: Columns = read_columns(
            self.path, {name: kind for name, kind in self.types.items() if name in names or name not in _ADDED}
        )
        missing = {name: np.full(len(rows["key"]), "", object) for name in _ADDED if name not in names}
        return rows | missing

    def _check(self) -> None:
        others = sorted(set(self.rows["model"]) - {"", self.model})
        if others:
            raise LabelError(
                f"{self.path} holds scores of model {others[0]}, and this is model {self.model}; name another table"
            )
        newest = max(self.rows["day"], default="")
        if self.day and self.day < newest:
            raise ValueError(f"the day {self.day} lies before {newest}, the newest in {self.path}; name a later one")

    def check_unnamed(self, fits: Callable[[Columns], bool]) -> None:
        """Raise `LabelError` unless rows that name no model, as those of before 0.4, are what the model gives."""
        unnamed = self.rows["model"] == ""
        if unnamed.any() and not fits({name: values[unnamed] for name, values in self.rows.items()}):
            raise LabelError(
                f"{self.path} holds scores of another model than {self.model}, or at another share of positives; name "
                "another table"
            )

    def of_source(self, source: str) -> Columns:
        """Rows of one source."""
        return {name: values[self.rows["source"] == source] for name, values in self.rows.items()}

    def rename(self, source: str, moved_to: str) -> None:
        """Have the rows of a source that was moved under its new name."""
        self.rows["source"][self.rows["source"] == source] = moved_to

    def write(self, source: str, blocks: Iterable[Columns]) -> dict[str, int]:
        """Write the table with the rows of a source, by key, each source at its place.

        A row that is there with the same margins keeps its day. Returns the sums of the labels that were scored.
        """
        scored = list(blocks)
        new = {name: _joined(name, kind, scored) for name, kind in self.types.items() if name not in _ADDED}
        count, rows = len(new["key"]), self._rows_of(source, new["key"])
        new |= {
            "source": np.full(count, source, object),
            "day": self._days(new, rows),
            "model": np.full(count, self.model, object),
        }
        kept = np.setdiff1d(np.arange(len(self.rows["key"])), rows)
        together = {name: np.concatenate([self.rows[name][kept], new[name]]) for name in self.types}
        order = self._order(together, source)
        if self._signature() != self._state:
            raise OutputError(f"{self.path} was changed while images were scored; run the command again")
        ordered = {name: values[order] for name, values in together.items()}
        texts = {name: ordered[name].tolist() for name, kind in self.types.items() if kind == "string"}
        write_table(self.path, self.types, [ordered | texts] if len(order) else [])
        return {name: int(new[name].sum()) for name, kind in self.types.items() if kind == "int8"}

    def _rows_of(self, source: str, keys: np.ndarray) -> np.ndarray:
        """Row of each key of a source, int (m,); -1 where the table has none."""
        of_source = np.flatnonzero(self.rows["source"] == source)
        places = dict(zip(self.rows["key"][of_source], of_source, strict=True))
        return np.array([places.get(key, -1) for key in keys], int)

    def _days(self, new: Columns, rows: np.ndarray) -> np.ndarray:
        """Days of the rows that were scored: those of before where all margins are as before."""
        same = rows >= 0
        margins = [name for name in new if name.endswith("margin")]
        pairs = [(six_digits(self.rows[name][rows[same]]), six_digits(new[name][same])) for name in margins]
        same[same] = np.all([before == after for before, after in pairs], axis=0)
        days = np.full(len(rows), self.day, object)
        days[same] = self.rows["day"][rows[same]]
        return days

    def _order(self, together: Columns, source: str) -> np.ndarray:
        """Order of all rows: by source, each at the place of its first row, then by key."""
        number = {name: number for number, name in enumerate(dict.fromkeys([*self.rows["source"], source]))}
        places = np.array([number[name] for name in together["source"]], int)
        keys = np.array([key.encode() for key in together["key"]], "S")
        return np.lexsort((keys, places))


@contextmanager
def one_writer(path: str | Path) -> Iterator[None]:
    """Keep a second `score --append` from a table until the first has written it: one of two weeks would be lost.

    Raises `CacheLockedError` where one is at work, and ValueError for a URL or the standard output.
    """
    if is_url(path) or is_standard_output(path):
        raise ValueError(f"a table that grows is a file of this machine; {without_secrets(os.fspath(path))} is not")
    with writer_lock(Path(os.path.realpath(path)), os.fspath(path)):
        yield


def model_digest(model: PULinearClassifier | ConceptModels, neighbours: str = "") -> str:
    """Digest of what the margins of a model follow from; `neighbours` says which, where they count."""
    digest = hashlib.sha256(neighbours.encode())
    for name, one in model.items() if isinstance(model, ConceptModels) else [("", model)]:
        digest.update(name.encode() + b"\0" + np.append(one.coef_[0], one.intercept_[0]).astype("<f4").tobytes())
    return digest.hexdigest()[:_DIGITS]


def cache_of_source(out: str | Path, source: str) -> str:
    """The cache beside a table that grows: ``weekly.photos.h5`` for the source ``/some/photos``."""
    name = re.sub(r"[^\w.-]+", "-", without_secrets(source).partition("#")[0].rstrip("/").rpartition("/")[2])
    return f"{os.path.splitext(out)[0]}.{name or 'images'}.h5"


def _joined(name: str, kind: str, blocks: list[Columns]) -> np.ndarray:
    """A column of all blocks; texts as str, and NaN where a column is empty."""
    if kind == "string":
        return np.array([key.decode() for block in blocks for key in block[name].tolist()], object)
    columns = [np.full(len(block["key"]), np.nan) if block[name] is None else block[name] for block in blocks]
    return np.concatenate([np.array([], float), *columns])


def _iso(day: str | None) -> str:
    try:
        return "" if day is None else date.fromisoformat(day).isoformat()
    except ValueError as error:
        raise ValueError(f"a day must be a date such as 2026-01-31, got {day!r}") from error
