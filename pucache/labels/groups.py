"""Groups of rows that are not independent, as users name them: patients, videos, sites, cameras, parts of an image."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..errors import LabelError, counted
from ..images.regions import image_of
from ..storage.limits import PATTERN_SECONDS
from ..storage.table_columns import GROUP_COLUMNS
from ..storage.table_formats import as_text
from ..storage.tables import LabelTable, joined_key, read_rows
from ..storage.urls import is_url
from .key_matching import offered_rule, respelled
from .listing import name_first, offer
from .row_values import RowValues, check_order, columns_of, index_of

NONE = "none"  # in place of groups: every image is independent of the others
GroupSource = str | os.PathLike[str] | re.Pattern[str] | RowValues
log = logging.getLogger("pucache")


def read_groups(cache: EmbeddingCache, groups: GroupSource, reading: LabelTable | None = None) -> list[str]:
    """Name of the group of each row of a cache; "" for a row that is a group of its own.

    Parameters
    ----------
    cache : EmbeddingCache
    groups : path, str, Pattern or RowValues
        A table ``key,group``, or ``TABLE:COLUMN``; a regular expression that is searched in each key, whose first
        group in parentheses is the group, such as ``'(.*)/[^/]*'`` for the folder; one group for each key, in a
        dict, Series or table, or for each row, in a list or an array; or ``none``.
    reading : LabelTable, optional
        How the keys of a table are read.

    Returns
    -------
    list of str, (n,)

    Raises
    ------
    LabelError
        The table cannot be read, or names a key in two groups; the expression is none; no row has a group, or all rows
        have the same.
    """
    if isinstance(groups, str) and groups == NONE:
        return [""] * len(cache)
    names, where = _named(cache, groups, reading)
    given = sum(map(bool, names))
    if not given:
        example = f", such as {cache.keys[0]!r}" if len(cache) else ""
        raise LabelError(f"{where} gives none of the {len(cache):,} images a group; keys are paths{example}")
    if given == len(cache) and len(set(names)) == 1:
        raise LabelError(
            f"all {len(cache):,} images are of the one group {names[0]!r} by {where}: leave groups out, or name what "
            "tells them apart"
        )
    if given < len(cache):
        alone = f"{len(cache) - given:,}"
        log.warning("%s gives %s of %s images a group; the other %s count as groups of their own",
                    where, f"{given:,}", f"{len(cache):,}", alone)  # fmt: skip
    return names


def numbered(names: Sequence[str]) -> np.ndarray:
    """The first row of each row's group, int64 (n,); a row without a name is a group of its own."""
    first: dict[str, int] = {}
    return np.array([first.setdefault(name, row) if name else row for row, name in enumerate(names)], np.int64)


def groups_of_images(cache: EmbeddingCache) -> np.ndarray | None:
    """The first row of the parts of each image, int64 (n,); None for a cache of whole images."""
    return numbered([image_of(key) for key in cache.keys]) if cache.encoder.tiles else None


def group_of_each(cache: EmbeddingCache, pairs: Iterable[tuple[str, Any]], where: str) -> list[str]:
    """Name of the group of each row, by pairs of a key and a group; raises `LabelError` where a key has two."""
    group_of: dict[str, str] = {}
    two: set[str] = set()
    for key, value in pairs:
        name = _name(value)
        if name and group_of.setdefault(key, name) != name:
            two.add(key)
    if two:
        raise LabelError(
            f"{where}: two groups for {counted(len(two), 'key')} ({name_first(sorted(two))}); decide which"
        )
    images = [image_of(key) for key in cache.keys] if cache.encoder.tiles else list(cache.keys)
    rows = cache.keys.rows(list(group_of))
    unknown = [key for key, row in zip(group_of, rows, strict=True) if row < 0]
    if unknown and cache.encoder.tiles:  # a group of an image is that of its parts
        unknown = sorted(set(unknown).difference(images))
    if unknown:
        rule = offered_rule(cache.keys, unknown, partial=True)
        said = f"{where}: {len(unknown):,} of its keys are not in the cache ({name_first(unknown)})"
        said += f"; {offer(rule)}" if rule else "; keys are paths relative to the source"
        if len(unknown) == len(group_of):
            raise LabelError(said)
        log.warning("%s", said)
    return [group_of.get(key) or group_of.get(image, "") for key, image in zip(cache.keys, images, strict=True)]


def _name(value: Any) -> str:
    """Name of a group in a cell; "" for a missing value, also of the kind that pandas compares with nothing."""
    return "" if type(value).__name__ == "NAType" else as_text(value).strip()


def _named(cache: EmbeddingCache, groups: Any, reading: LabelTable | None) -> tuple[list[str], str]:
    """Name of the group of each row, and what to call the groups in a message."""
    if isinstance(groups, str | os.PathLike | re.Pattern):
        source = groups if isinstance(groups, re.Pattern) else _source(groups)
        if isinstance(source, re.Pattern):
            if not source.groups:
                raise LabelError(
                    f"the pattern {source.pattern!r:.80} has no group in parentheses; write one, such as '(.*)/[^/]*'"
                )
            return _by_pattern(source, cache.keys), f"{source.pattern!r:.80}"
        table = source if reading is None else replace(reading, path=source.path, group=source.group)
        return group_of_each(cache, _pairs(cache, table), str(table)), str(table)
    keys, values = _values(cache, groups)
    where = "the groups"
    if keys is None:
        return list(map(_name, values)), where
    return group_of_each(cache, zip(keys, values, strict=True), where), where


def _source(text: str | os.PathLike[str]) -> LabelTable | re.Pattern[str]:
    """Where groups are: ``TABLE``, ``TABLE:COLUMN``, or a regular expression; `LabelError` for none of these."""
    name = os.fspath(text)
    path, _, column = name.rpartition(":")
    if not os.path.isfile(name) and "/" not in column and (os.path.isfile(path) or is_url(path)):
        return LabelTable(path, group=column)
    if os.path.isfile(name) or is_url(name):
        return LabelTable(name)
    if "(" not in name:
        raise LabelError(
            f"no such file: {name}; expected groups as a table key,group (TABLE or TABLE:COLUMN), as a pattern on keys "
            "with the group in parentheses, such as '(.*)/[^/]*' for the folder, or none"
        )
    try:
        return re.compile(name)
    except (re.error, OverflowError, RecursionError) as error:
        raise LabelError(f"{name[:80]!r} is neither a file nor a regular expression: {error}") from error


def _by_pattern(pattern: re.Pattern[str], keys: Iterable[str]) -> list[str]:
    found = []
    with _seconds(PATTERN_SECONDS, f"the pattern {pattern.pattern[:80]!r}"):
        for key in keys:
            one = pattern.search(key)
            found.append("" if one is None else (one.group(1) or "").strip())
    return found


@contextmanager
def _seconds(limit: float, what: str) -> Iterator[None]:
    """Raise `LabelError` where the work takes longer, in the main thread alone, which signals reach."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise LabelError(f"{what} takes more than {limit:g} s on the keys; write it without repetitions inside others")

    before = signal.signal(signal.SIGALRM, stop)
    timer = signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)


def _pairs(cache: EmbeddingCache, source: LabelTable) -> list[tuple[str, str]]:
    """Keys, as the cache spells them, and groups of a table."""
    named = {**source.key_columns, "group": source.group}
    table = read_rows(source.path, GROUP_COLUMNS, named, encoding=source.encoding)
    key, folder, group = table.found["key"], table.found.get("folder"), table.found.get("group")
    if group is None:
        others = [column for column in table.columns if column not in (key, folder, *table.unreadable)]
        if len(others) != 1:
            listed = ", ".join(others) or "no other"
            raise LabelError(f"{source} has beside its keys the columns {listed}; name that of groups: TABLE:COLUMN")
        group = others[0]
    rows = [row for row in table.rows if row[key]]
    listed_keys = [row[key] if folder is None else joined_key(row[folder], row[key]) for row in rows]
    keys = respelled(listed_keys, cache.keys, source.match_keys, source, partial=True)
    return [(spelled, row[group]) for spelled, row in zip(keys, rows, strict=True)]


def _values(cache: EmbeddingCache, given: Any) -> tuple[list[str] | None, list[Any]]:
    """Keys and groups of values in memory; no keys where they are by position."""
    if isinstance(given, list | tuple):  # NumPy would make the text "nan" of a missing value among texts
        given = np.array(given, object)
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
