"""Values of rows as people have them in Python: arrays and tensors, dicts, sets and lists of keys, Series and tables.

What carries keys is joined by them; only what carries none counts by position, and only where the rows of the cache
stand in the order that its maker saw. Values are checked as they are given, before any cast. Objects of pandas, Polars,
pyarrow and torch are recognised by their attributes; none of these packages is imported.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import LabelError, counted, one_line
from ..storage.table_columns import GROUP_NAMES, KEY_NAMES, find_column
from .key_matching import offered_rule
from .listing import Listing, keys_of, name_first, offer, read_listing

if TYPE_CHECKING:
    from ..cache.embedding_cache import EmbeddingCache
    from .labels import PULabels

VALUE_COLUMNS = {
    "groups": GROUP_NAMES,
    "labels": ("label", "s"),
    "true labels": ("label", "truth", "y"),
}  # by the name of the values
# whatever `read_values` takes; keys alone are the positive ones
RowValues = np.ndarray | Mapping[str, Any] | Set[str] | Sequence[Any]
Columns = tuple[Collection[Any] | None, Any]  # names of rows, or None; and their values, or None where all are 1


def rows_of_values(given: Any, cache: EmbeddingCache, *, negatives: bool = False) -> PULabels:
    """Labels by values in memory: 1 where `given` has it; what it has as 0 is a known negative, or is left aside.

    Raises `LabelError` for other values, unknown keys, another number of values than rows, and for values by position
    where rows were sorted into another order (`check_order`).
    """
    from .labels import PULabels

    keys, values = read_values(given, (0, 1), "labels", cache.keys)
    if keys is None:
        assert values is not None
        labels = PULabels.of(_by_position(values, cache, "labels"))
        labels.check()
        return labels
    row = cache.keys.rows(keys)
    label = np.ones(len(keys), np.int8) if values is None else values
    listing = Listing("the labels", np.array(keys, object), row, label, np.zeros(len(keys), bool))
    return listing.labels(cache, negatives=negatives)


def read_truth(truth: str | Path | RowValues, keys: Sequence[str], cache: EmbeddingCache | None = None) -> np.ndarray:
    """True class of each key, int8 (n,): 1, 0, or -1 where it is not known; beside a list of positive keys 0.

    `truth` is a listing, or holds 1, 0 and -1 as `read_values` reads them. `cache` is that of the keys; without one,
    values by position are refused. Raises `LabelError` as `read_listing`, and where no key is named.
    """
    what, is_list = "true labels", False
    if isinstance(truth, str | os.PathLike):
        listing = read_listing(keys_of(keys), truth)
        known, name = listing.by_key(), str(truth)
        is_list = listing.is_list
    else:
        named, values = read_values(truth, (0, 1, -1), what, keys)
        if named is None:
            assert values is not None
            if cache is None:
                raise LabelError(
                    f"a table of scores names its rows by keys: give {what} by key, in a dict, Series or file"
                )
            return _by_position(values, cache, what)
        known, name, is_list = dict.fromkeys(named, 1), f"the {what}", values is None
        known = known if values is None else dict(zip(named, values.tolist(), strict=True))
    y = np.array([known.get(key, 0 if is_list else -1) for key in keys], np.int8)
    if not any(key in known for key in keys):
        rule = offered_rule(keys_of(keys), list(known), partial=True) if len(keys) else ""
        text = f"none of the {len(known):,} keys of {name} ({name_first(known)}) is one of the rows' keys"
        text += f" ({name_first(keys)})"
        raise LabelError(f"{text}; {offer(rule)}" if rule else text)
    return y


def check_order(cache: EmbeddingCache, what: str) -> None:
    """Raise `LabelError` where the rows of a cache were sorted by key out of the order that its import or table had."""
    if cache.reordered:
        raise LabelError(
            f"the rows of {cache.name} are sorted by key, out of the order of the table they came from: {what} by "
            "position may be of other rows; name their keys (in a dict, a Series or a file), as "
            "dict(zip(cache.keys, values)) does for values in the order of cache.keys"
        )


def check_same_rows(X: Any, **columns: Any) -> None:
    """Raise `LabelError` for masked values, missing groups, and an index that is another than that of a DataFrame X."""
    rows = index_of(X)
    for name, column in {"X": X, **columns}.items():
        if np.ma.isMaskedArray(column) and np.ma.getmaskarray(column).any():
            raise LabelError(f"{name} has masked values; leave those rows out, or fill them")
        index = index_of(column)
        if rows is not None and index is not None and not np.array_equal(rows, index):
            raise LabelError(f"{name} has another index than X; bring both into one order, as with {name}.loc[X.index]")
    groups = columns.get("groups")
    if groups is not None and any(group is None or group != group for group in _array(groups, "groups").flat):
        raise LabelError("groups has missing values; give rows that belong to no other a group of their own")


def by_position(given: Any, allowed: tuple[int, ...], what: str) -> np.ndarray:
    """Values of rows that carry no keys, int8 (n,); `LabelError` for other values, and where they carry keys."""
    keys, values = read_values(given, allowed, what, ())
    if keys is not None or values is None:
        raise LabelError(f"{what} with keys need a cache to be joined with: pass them to the function that takes it")
    return values


def read_values(
    given: Any, allowed: tuple[int, ...], what: str, known: Collection[str]
) -> tuple[list[str] | None, np.ndarray | None]:
    """Keys and values of an object: no keys where values are by position, no values where keys stand alone.

    The object is a mapping of keys to values; a set, a list or an index of keys; a Series, by its index where this is
    text or names rows that are `known`, and by position where it is 0 to n - 1; a table with a column of keys
    (`KEY_NAMES`), or such an index, and one of values (`label` and its like, or the only other); or one value for each
    row. Values are numbers or booleans equal to one of those `allowed`.

    Raises `LabelError` for another value (None, NaN and text too), one key with two values, an index that is neither
    keys nor 0 to n - 1, and a table of other columns; `what` names the values there.
    """
    names, column = columns_of(given, what, known)
    if names is None:
        return None, _checked(column, None, allowed, what)
    keys = list(names)
    if odd := [key for key in keys if not isinstance(key, str)]:
        raise LabelError(f"expected the keys of the {what} as text, got {odd[0]!r:.80}")
    if column is None:
        return keys, None
    values = _checked(column, keys, allowed, what)
    first = dict(zip(reversed(keys), reversed(values.tolist()), strict=True))
    if len(first) < len(keys):
        twice = sorted({key for key, value in zip(keys, values.tolist(), strict=True) if first[key] != value})
        if twice:
            raise LabelError(
                f"the {what} have two values for {counted(len(twice), 'key')} ({name_first(twice)}); decide which"
            )
    return keys, values


def _by_position(values: np.ndarray, cache: EmbeddingCache, what: str) -> np.ndarray:
    if values.shape != (len(cache),):
        raise LabelError(
            f"expected keys, or a {what.removesuffix('s')} for each of {len(cache):,} rows of {cache.name}; got "
            f"{len(values):,}"
        )
    check_order(cache, what)
    return values


# --- objects -------------------------------------------------------------------------------------


def columns_of(given: Any, what: str, known: Collection[str]) -> Columns:
    """Keys and values of an object, unchecked: no keys where values are by position, no values beside lone text."""
    if isinstance(given, Mapping):
        return list(given), list(given.values())
    if isinstance(given, Set):
        return sorted(given, key=str), None
    if isinstance(given, Iterator):
        given = list(given)
    if hasattr(given, "columns") and hasattr(given, "__getitem__"):
        return _of_table(given, what, known)
    values, index = _array(given, what), index_of(given)
    if index is not None:
        return _of_series(values, index, what, known)
    return (values.tolist(), None) if _is_text(values) else (None, values)


def index_of(given: Any) -> np.ndarray | None:
    """Names of the rows of an object; None where it has none."""
    index = getattr(given, "index", None)
    return None if index is None or callable(index) else _array(index, "index")


def _of_series(values: np.ndarray, index: np.ndarray, what: str, known: Collection[str]) -> Columns:
    if _is_text(index):
        return index.tolist(), values
    if _is_text(values):
        return values.tolist(), None
    if index.dtype.kind in "iu" and np.array_equal(index, np.arange(len(values))):
        return None, values
    keys = list(map(str, index.tolist()))  # such as the numbers of a column "id" that an import took as keys
    if index.dtype.kind in "iu" and set(keys) <= set(known):
        return keys, values
    raise LabelError(
        f"the {what} have the index {name_first(keys)}, which is neither keys of the cache nor 0 to n - 1: set the "
        "keys as index, or pass the bare values where they are in the order of the rows"
    )


def _of_table(table: Any, what: str, known: Collection[str]) -> Columns:
    names = list(getattr(table, "column_names", None) or table.columns)
    key = find_column([name for name in names if isinstance(name, str)], KEY_NAMES, f"the table of {what}")
    others = [name for name in names if name != key]
    usual = [name for name in VALUE_COLUMNS.get(what, ("label",)) if name in others][:1] or others
    if len(usual) > 1 or not names:
        columns, expected = ", ".join(map(str, names)) or "none", VALUE_COLUMNS.get(what, ("label",))[0]
        raise LabelError(f"the table of {what} has the columns {columns}; expected 'key' and {expected!r}")
    column = table[usual[0]] if usual else None
    if key is not None:
        keys = _array(table[key], what)
        return keys.tolist() if _is_text(keys) else list(map(str, keys.tolist())), column
    return columns_of(column, what, known)


def _array(given: Any, what: str) -> np.ndarray:
    """An object as an array of the type it has; raises `LabelError` where it has masked values, or is no array."""
    if np.ma.isMaskedArray(given):
        if np.ma.getmaskarray(given).any():
            raise LabelError(
                f"the {what} have masked values; give one for each row, or name only the keys that have one"
            )
        given = given.data
    try:
        return np.asarray(given)
    except Exception as error:  # such as of a tensor on a GPU, or of a list of lists
        raise LabelError(f"the {what} cannot be read as an array: {one_line(error, 160)}") from error


def _is_text(values: np.ndarray) -> bool:
    if values.dtype.kind == "O" and values.ndim == 1:
        return bool(len(values)) and all(isinstance(value, str) for value in values.tolist())
    return values.dtype.kind in "UT" and values.ndim == 1


def _checked(given: Any, keys: Sequence[str] | None, allowed: tuple[int, ...], what: str) -> np.ndarray:
    """Values as int8, (n,); raises `LabelError` for one that is not among those allowed, before it is cast."""
    values = _array(given, what)
    expected = " or ".join(map(str, sorted(allowed, reverse=True)))
    if values.ndim != 1:
        got = f"an array of shape {values.shape}" if values.ndim else " ".join(repr(values.item()).split())[:80]
        raise LabelError(f"expected {what} as a file or list of keys, or one value ({expected}) a row; got {got}")
    if values.dtype.kind in "biuf":
        right = np.logical_or.reduce([values == value for value in allowed])
    else:
        numbers = [isinstance(value, Real | np.bool_) and value in allowed for value in values.tolist()]
        right = np.array(numbers, bool) if values.dtype.kind == "O" else np.zeros(len(values), bool)
    if not right.all():
        row = int(np.argmin(right))
        where = f"row {row}" if keys is None else f"the key {keys[row]!r:.200}"
        raise LabelError(
            f"{what} are numbers, {expected}; {where} has {values.tolist()[row]!r:.80} "
            f"({values.dtype}): correct it, or leave unknown ones out by naming only the keys that have one"
        )
    return values.astype(np.int8)
