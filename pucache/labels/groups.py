"""Groups of rows that are not independent, as users name them: patients, videos, sites, cameras."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..errors import LabelError
from ..storage.table_columns import GROUP_COLUMNS
from ..storage.tables import LabelTable, is_blank, read_rows
from ..storage.urls import is_url
from .key_matching import offered_rule
from .label_files import match_keys, name_first
from .row_values import RowValues, check_order, columns_of, index_of

GroupSource = str | Path | LabelTable | re.Pattern[str] | RowValues
log = logging.getLogger("pucache")


def read_groups(cache: EmbeddingCache, groups: GroupSource) -> np.ndarray:
    """Number the groups of the rows of a cache: the first row of each row's group, int64 (n,).

    Parameters
    ----------
    cache : EmbeddingCache
    groups : path, str, LabelTable or RowValues
        A table ``key,group``, or ``TABLE:COLUMN``; a regular expression that is searched in each key, whose first
        group in parentheses is the group, such as ``'(.*)/[^/]*'`` for the folder; or one group for each key, in a
        dict, Series or table, or for each row, in a list or an array. A row without a group is a group of its own.

    Returns
    -------
    ndarray of int64, (n,)

    Raises
    ------
    LabelError
        The table cannot be read, or names a key in two groups; the expression is none; no row has a group, or all rows
        have the same.
    """
    source = group_source(groups) if isinstance(groups, str | os.PathLike) else groups
    named = str(source) if isinstance(source, LabelTable) else "the groups"
    more = ""
    if isinstance(source, re.Pattern):
        named = repr(source.pattern)
        found = map(source.search, cache.keys)
        cells: Sequence[Any] = [None if one is None else one.group(1) for one in found]
    elif isinstance(source, LabelTable):
        cells, more = _cells_of(cache, *_table(cache, source), named)
    else:
        keys, values = _values(cache, source)
        cells, more = (values, "") if keys is None else _cells_of(cache, keys, values, named)
    first: dict[str, int] = {}
    texts = ["" if cell is None else str(cell).strip() for cell in cells]
    numbers = [row if is_blank(text) else first.setdefault(text, row) for row, text in enumerate(texts)]
    alone = sum(map(is_blank, texts))
    if not first:
        example = f", such as {cache.keys[0]!r}" if len(cache) else ""
        raise LabelError(f"{named} gives none of the {len(cache):,} images a group; keys are paths{example}{more}")
    if len(first) == 1 and not alone:
        raise LabelError(
            f"all {len(cache):,} images are of the one group {next(iter(first))!r} by {named}: leave groups out, or "
            "name what tells them apart"
        )
    if alone:
        log.warning(
            "%s gives %s of %s images a group; the other %s count as groups of their own%s",
            *(named, f"{len(cache) - alone:,}", f"{len(cache):,}", f"{alone:,}", more),
        )
    return np.array(numbers, np.int64)


def group_source(text: str | os.PathLike[str]) -> LabelTable | re.Pattern[str]:
    """Where groups are: ``TABLE``, ``TABLE:COLUMN``, or a regular expression; `LabelError` for none of these."""
    name = os.fspath(text)
    if isinstance(text, LabelTable):
        return text
    path, _, column = name.rpartition(":")
    if not os.path.isfile(name) and "/" not in column and (os.path.isfile(path) or is_url(path)):
        return LabelTable(path, label=column)
    if os.path.isfile(name) or is_url(name):
        return LabelTable(name)
    if "(" not in name:
        raise LabelError(
            f"no such file: {name}; expected groups as a table key,group (TABLE or TABLE:COLUMN), or as a pattern on "
            "keys with the group in parentheses, such as '(.*)/[^/]*' for the folder"
        )
    try:
        pattern = re.compile(name)
    except re.error as error:
        raise LabelError(f"{name!r} is neither a file nor a regular expression: {error}") from error
    if not pattern.groups:
        raise LabelError(f"the pattern {name!r} has no group in parentheses; write one, such as '(.*)/[^/]*'")
    return pattern


def _table(cache: EmbeddingCache, source: LabelTable) -> tuple[list[str], list[str]]:
    """Keys and groups of a table."""
    table = read_rows(source.path, GROUP_COLUMNS, {"key": source.key, "group": source.label}, encoding=source.encoding)
    key, group = table.found["key"], table.found.get("group")
    if group is None:
        others = [column for column in table.columns if column != key and column not in table.unreadable]
        if len(others) != 1:
            listed = ", ".join(others) or "no other"
            raise LabelError(f"{source} has beside its keys the columns {listed}; name that of groups: TABLE:COLUMN")
        group = others[0]
    for row in table.rows:
        row["key"] = row[key]
    rows = match_keys([row for row in table.rows if row["key"]], cache.keys, source, partial=True)
    return [row["key"] for row in rows], [row[group] for row in rows]


def _values(cache: EmbeddingCache, given: Any) -> tuple[list[str] | None, list[Any]]:
    """Keys and groups of values in memory; no keys where they are by position."""
    keys, column = columns_of(given, "groups", cache.keys)
    names = None if keys is None else list(keys)
    if names is not None and column is None:  # text is taken for keys there
        index = index_of(given)
        if isinstance(given, Set) or (index is not None and not np.array_equal(index, np.arange(len(index)))):
            raise LabelError("groups are given by key, as a dict or a Series with the keys as index, or for each row")
        names, column = None, names
    values = np.asarray(column, object)
    if values.ndim != 1 or len(values) != len(cache if names is None else names):
        raise LabelError(f"expected a group for each of {len(cache):,} rows of {cache.name}, got shape {values.shape}")
    if names is None:
        check_order(cache, "groups")
    return None if names is None else list(map(str, names)), values.tolist()


def _cells_of(cache: EmbeddingCache, keys: Sequence[str], values: Sequence[Any], named: str) -> tuple[list[Any], str]:
    """Group of each row by the groups of keys, and what is to be said of keys that name none."""
    group_of: dict[str, Any] = {}
    two = sorted({key for key, value in zip(keys, values, strict=True) if group_of.setdefault(key, value) != value})
    if two:
        raise LabelError(f"{len(two)} keys in {named} have two groups ({name_first(two)}); decide which")
    cells = [group_of.get(key) for key in cache.keys]
    if all(cell is not None for cell in cells):
        return cells, ""
    unknown = [key for key, row in zip(group_of, cache.keys.rows(list(group_of)), strict=True) if row < 0]
    if not unknown:
        return cells, ""
    rule = offered_rule(cache.keys, unknown, partial=True)
    more = f"; {len(unknown):,} of its keys are not in the cache ({name_first(unknown)})"
    return cells, more + (f": --match-keys {rule} may help" if rule else "")
