"""Evaluation of scores against true labels."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

from ..errors import LabelError, counted, one_line
from ..estimates.metrics import precision_at, with_labels
from ..labels.listing import Listing, keys_of, name_first, read_listing
from ..labels.row_values import RowValues, read_truth, read_values
from ..storage.urls import path_or_url
from .score_tables import FORMATS, read_scores, unique_keys

Scores = dict[str, np.ndarray]


def evaluate(
    scores: str | Path | Sequence[str | Path] | Mapping[str, Any],
    truth: str | Path | RowValues,
    *,
    positives: str | Path | RowValues | None = None,
    labels: str | Path | RowValues | None = None,
    at: int | Sequence[int] = (100, 1000),
    concept: str | None = None,
) -> dict[str, Any]:
    """Compute metrics of scored images whose true class is known.

    Parameters
    ----------
    scores : path, str, or sequence of them, or table
        Tables written by `pucache.score`, or a folder of such tables. Figures of several are those of all their rows,
        and of each; no two have a key in common. Or one in memory: a DataFrame, or a mapping of columns.
    truth : path, str or RowValues
        See `pucache.labels.row_values.read_truth`; by key. Images that it does not name are left out.
    positives : path, str or RowValues, optional
        Labelled positives, in a file or by key, which are left out too, so that only hidden positives count.
    labels : path or RowValues, optional
        Table of labels, as `pucache.write_labels` writes it, or 1 and 0 by key; what is decided there is left out.
    at : int or sequence of int
        Ranks, from 1, at which the precision is computed; ranks beyond the number of images are left out.
    concept : str, optional
        See `pucache.scoring.score_tables.read_scores`.

    Returns
    -------
    dict of str to float
        Metrics of `pucache.estimates.metrics.with_labels`, ``precision@K`` for each rank, and ``without_truth``, the
        number of images whose true class is not known; of several tables also ``tables``, the same for each by name.

    Raises
    ------
    LabelError
        A file cannot be read, scores a key more than once, or nothing is left to evaluate; a key stands in two tables.
    ValueError
        A rank is no whole number of at least 1.
    """
    ranks = np.atleast_1d(np.asarray(at))
    if ranks.size and (ranks.dtype.kind not in "iu" or ranks.min() < 1):
        raise ValueError(f"at must be whole numbers of at least 1, the ranks of precision; got {at}")
    at_ranks: list[int] = ranks.tolist()
    if isinstance(scores, str | os.PathLike | list | tuple):
        names = _tables(scores)
        tables = {name: read_scores(name, concept=concept) for name in names}
    else:
        names = ["the scores"]
        tables = {names[0]: _of_values(scores, concept)}
    for name, table in tables.items():
        if not len(table["key"]):
            raise LabelError(f"{name} has no rows, only the names of columns; score a cache that holds images")
        unique_keys(table, name)
    known = _truth_of_tables(truth, tables)
    keep = {name: _kept(table["key"], known[name], positives, labels) for name, table in tables.items()}
    joined = {column: np.concatenate([table[column] for table in tables.values()]) for column in ("margin", "label")}
    y, kept = np.concatenate(list(known.values())), np.concatenate(list(keep.values()))
    whole = _figures(y, joined, kept, at_ranks, " and ".join(names), truth)
    if len(tables) == 1:
        return whole
    each = {name: _figures(known[name], table, keep[name], at_ranks, name, truth) for name, table in tables.items()}
    return {**whole, "tables": each}


def _of_values(scores: Any, concept: str | None) -> Scores:
    """A table of scores in memory, read as a file of it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "scores.parquet")
        try:
            columns = {str(name): np.asarray(scores[name]) for name in scores}
            parquet.write_table(pyarrow.table(columns), path)
        except (TypeError, ValueError, IndexError, KeyError, pyarrow.ArrowException) as error:
            raise LabelError(f"the scores are no table with columns as score writes them: {one_line(error)}") from error
        return read_scores(path, concept=concept)


def _tables(scores: str | Path | Sequence[str | Path]) -> list[str]:
    """Names of the tables; those of a folder in the order of their names."""
    given = [scores] if isinstance(scores, str | Path) else list(scores)
    names: list[str] = []
    for one in map(path_or_url, given):
        if os.path.isdir(one):
            found = sorted(str(path) for path in Path(one).iterdir() if path.suffix.lower().lstrip(".") in FORMATS)
            if not found:
                raise LabelError(f"{one} holds no tables of scores (.csv or .parquet)")
            names += found
        else:
            names.append(one)
    return list(dict.fromkeys(names))


def _truth_of_tables(truth: str | Path | RowValues, tables: Mapping[str, Scores]) -> dict[str, np.ndarray]:
    """True class of each row of each table, int8: 1, 0, or -1 where it is not known."""
    _check_apart(tables)
    keys = [key for table in tables.values() for key in table["key"].tolist()]
    ends = np.cumsum([len(table["key"]) for table in tables.values()])[:-1]
    return dict(zip(tables, np.split(read_truth(truth, keys), ends), strict=True))


def _check_apart(tables: Mapping[str, Scores]) -> None:
    """Raise `LabelError` where a key stands in two tables."""
    first: dict[str, str] = {}
    for name, table in tables.items():
        keys: list[str] = table["key"].tolist()
        if both := [key for key in keys if key in first]:
            raise LabelError(
                f"{first[both[0]]} and {name} share {counted(len(both), 'key')} ({name_first(both)}) for two images "
                "each: evaluate each table with a truth of its own"
            )
        first |= dict.fromkeys(keys, name)


def _kept(
    keys: np.ndarray, y: np.ndarray, positives: str | Path | RowValues | None, labels: str | Path | RowValues | None
) -> np.ndarray:
    """Which rows are evaluated: those of known truth that are not labelled."""
    keep = y >= 0
    listed: list[str] = keys.tolist()
    if positives is not None:
        keep &= read_truth(positives, listed) != 1
    if labels is not None and not isinstance(labels, str | os.PathLike):
        named, _ = read_values(labels, (0, 1), "labels", listed)
        if named is None:
            raise LabelError("a table of scores names its rows by keys: give labels by key, in a dict, Series or file")
        keep &= ~np.isin(listed, named)
    elif labels is not None:
        listing: Listing = read_listing(keys_of(listed), labels)
        decided = set(listing.key[listing.label >= 0].tolist())
        keep &= np.array([key not in decided for key in listed])
    return np.asarray(keep)


def _figures(
    y: np.ndarray, scores: Scores, keep: np.ndarray, at: Sequence[int], name: str, truth: str | Path | RowValues
) -> dict[str, float]:
    """Metrics of the rows that are kept."""
    if not keep.any():
        named = truth if isinstance(truth, str | Path) else "the true classes"
        raise LabelError(f"no image of {name} is left to evaluate; {named} and the labels cover all or none of them")
    without_truth = int((y < 0).sum())
    y, margins = y[keep], scores["margin"][keep]
    figures = with_labels(y, margins, scores["label"][keep])
    figures |= {f"precision@{k}": precision_at(y, margins, k) for k in at if k <= len(y)}
    return figures | {"without_truth": without_truth}
