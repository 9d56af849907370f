"""From keys to labels: positives, true labels, folds.

`s` is 1 for labelled positives and 0 for unlabelled rows; `y` is the true class, which only
evaluation ever sees.
"""

from __future__ import annotations

import csv
import heapq
import io
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np

from .errors import LabelError
from .globs import matcher
from .keys import Keys

_SHOWN = 3


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


def find_keys(keys: Keys, wanted: str | Path, *, place: str = "the cache") -> np.ndarray:
    """Return the rows of the keys that a file lists or a glob matches.

    Parameters
    ----------
    keys : Keys
        Of the cache.
    wanted : path or str
        A text file of keys, a CSV with a ``key`` column, or a glob on keys such as
        ``'positives/**'`` (``*`` stays within a folder, ``**`` does not).
    place : str
        What errors call the holder of the keys.

    Returns
    -------
    ndarray of int64
        Sorted, unique.

    Raises
    ------
    LabelError
        Unreadable, empty, or keys that the cache does not hold.
    """
    if not os.path.isfile(wanted) and any(character in str(wanted) for character in "*?["):
        return _match(keys, str(wanted))
    if not os.path.exists(wanted):  # os.path, unlike Path, takes a name that no file can have for no file
        raise LabelError(
            f"no such file: {wanted}; expected a text file of keys, a CSV, or a glob such as 'positives/**'"
        )
    listed = [row["key"] for row in read_table(wanted)]
    if not listed:
        raise LabelError(f"{wanted} lists no keys")
    rows = keys.rows(listed)
    unknown = [key for key, row in zip(listed, rows, strict=True) if row < 0]
    if unknown:
        raise LabelError(
            f"{len(unknown)} of {len(listed)} keys in {wanted} are not in {place} ({_some(unknown)}); "
            f"keys are paths relative to the source, such as {keys[0]!r}"
            if len(keys)
            else f"{place} is empty; no key of {wanted} is in it"
        )
    return np.unique(rows)


def _match(keys: Keys, pattern: str) -> np.ndarray:
    try:
        matches = matcher(pattern)
    except ValueError as error:
        raise LabelError(str(error)) from error
    rows = np.array([row for row, key in enumerate(keys) if matches(key)], np.int64)
    if not len(rows):
        example = f", such as {keys[0]!r}" if len(keys) else ""
        raise LabelError(f"no key matches {pattern!r}; keys are paths relative to the source{example}")
    return rows


def label_vector(keys: Keys, positives: str | Path) -> np.ndarray:
    """Return s, (n,) int8: 1 where `positives` names the row, else 0.

    Raises
    ------
    LabelError
        As `find_keys`; also when no row is left unlabelled.
    """
    s = np.zeros(len(keys), np.int8)
    s[find_keys(keys, positives)] = 1
    check_labels(s)
    return s


def check_labels(s: np.ndarray) -> None:
    """Raise `LabelError` unless there is at least one labelled positive and one unlabelled row."""
    if not s.any():
        raise LabelError("no labelled positives; name at least one")
    if s.all():
        raise LabelError(
            f"all {len(s)} rows are labelled positive; some must be unlabelled, or there is nothing to find"
        )


def folds(s: np.ndarray, count: int, seed: int = 0, groups: np.ndarray | None = None) -> np.ndarray:
    """Deal rows into folds at random, P and U each evenly, and every group whole into one fold.

    Groups of several rows go one by one, the largest first, to the fold with the fewest P (groups
    of U alone: the fewest U): groups of both first, as they give a fold both, then those of P
    alone, then those of U alone. All other rows fill up the folds at random. So every fold holds P
    and U if that is possible at all. It is not where P, or U, is in fewer than `count` groups: then
    so many folds hold some and the others none; are all P twins, one fold holds every P.

    Parameters
    ----------
    s : ndarray of 0 and 1, (n,)
    count : int
        Of folds.
    seed : int
        Of the order in which rows, and groups that are alike, are dealt.
    groups : ndarray of int, (n,), optional
        Equal numbers mark rows to be kept together, such as `pucache.duplicates.groups`.

    Returns
    -------
    ndarray of int64, (n,)
        The fold that each row is held out in, 0 .. count-1.

    Raises
    ------
    ValueError
        `groups` has not one number a row.
    """
    generator = np.random.default_rng(seed)
    fold = np.full(len(s), -1)
    held = np.zeros((2, count), np.int64)  # rows of U and of P in each fold
    if groups is not None:
        _deal_groups(fold, held, s, groups, generator)
    for value in (0, 1):
        rows = np.flatnonzero((s == value) & (fold < 0))
        fold[generator.permutation(rows)] = _fill(held[value], len(rows))
    return fold


def _deal_groups(
    fold: np.ndarray, held: np.ndarray, s: np.ndarray, groups: np.ndarray, generator: np.random.Generator
) -> None:
    """Deal the groups of several rows; writes into `fold`, (n,), and `held`, (2, count)."""
    if groups.shape != s.shape:
        raise ValueError(f"expected one group for each of {len(s)} rows, got groups {groups.shape}")
    _, group, size = np.unique(groups, return_inverse=True, return_counts=True)
    several = np.flatnonzero(size[group] > 1)
    _, group = np.unique(group[several], return_inverse=True)
    p, u = (np.bincount(group[s[several] == value], minlength=(size > 1).sum()) for value in (1, 0))
    order = generator.permutation(len(p))
    order = order[np.lexsort((-u[order], -p[order], u[order] == 0, p[order] == 0))]
    with_p, without = np.split(order, [np.count_nonzero(p)])
    to = np.empty(len(p), np.int64)
    to[with_p] = _greedily(p[with_p], u[with_p], held[::-1])
    to[without] = _greedily(u[without], p[without], held)
    fold[several] = to[group]


def _greedily(first: np.ndarray, second: np.ndarray, held: np.ndarray) -> list[int]:
    """Deal groups one by one to the fold with the least in held[0], then held[1]; adds to `held`, (2, count)."""
    heap = [(a, b, number) for number, (a, b) in enumerate(held.T.tolist())]
    heapq.heapify(heap)
    to = []
    for more_a, more_b in zip(first.tolist(), second.tolist(), strict=True):
        a, b, number = heap[0]
        heapq.heapreplace(heap, (a + more_a, b + more_b, number))
        to.append(number)
    for a, b, number in heap:
        held[:, number] = a, b
    return to


def _fill(held: np.ndarray, more: int) -> np.ndarray:
    """The folds (more,) that further rows go to, each the one with the fewest rows by then."""
    top, every = held.max(), np.arange(len(held))
    behind = np.repeat(every, top - held)
    level = np.concatenate([np.arange(rows, top) for rows in held])
    even = np.tile(every, max(0, more - len(behind)) // len(held) + 1)
    return np.concatenate([behind[np.argsort(level, kind="stable")], even])[:more]


def read_truth(path: str | Path, keys: Sequence[str]) -> np.ndarray:
    """Return the true class of each key, (n,) int8: 1, 0, or -1 where the file does not say.

    Parameters
    ----------
    path : path
        A CSV ``key,label`` (1/0, true/false, yes/no, positive/negative), or a plain list of the
        positive keys, in which case every other key is negative.

    Raises
    ------
    LabelError
        Unreadable, an unknown label, or no key in common.
    """
    table = read_table(path)
    if table and "label" not in table[0]:
        listed = {row["key"] for row in table}
        y = np.array([key in listed for key in keys], np.int8)
        if not y.any():
            raise LabelError(f"none of the {len(listed)} keys in {path} has a score ({_some(listed)})")
        return y
    truth = {row["key"]: _truth(row["label"], path) for row in table}
    y = np.array([truth.get(key, -1) for key in keys], np.int8)
    if not (y >= 0).any():
        raise LabelError(f"none of the {len(truth)} keys in {path} has a score ({_some(truth)})")
    return y


_TRUTH = {
    **dict.fromkeys(("1", "1.0", "true", "yes", "positive"), 1),
    **dict.fromkeys(("0", "0.0", "-1", "-1.0", "false", "no", "negative"), 0),
}


def _truth(label: str | None, path: str | Path) -> int:
    try:
        return _TRUTH[(label or "").strip().lower()]
    except KeyError as error:
        raise LabelError(f"{path} has the label {label!r}; expected 1 or 0 (or true/false, yes/no)") from error


def _some(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(map(repr, names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")
