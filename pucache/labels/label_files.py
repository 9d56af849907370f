"""Reading labels from files: lists of keys, CSV tables, globs on keys, true classes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..cache.keys import Keys, encode_keys
from ..errors import LabelError
from ..images.regions import MARK, image_of, parse_region
from ..storage.table_columns import CONCEPT_COLUMNS, KEY_NAMES
from ..storage.tables import LabelTable, Row, is_blank, meaning, read_table
from ..storage.urls import is_url
from .key_globs import compile_glob
from .key_matching import RULES, offered_rule, respelled

if TYPE_CHECKING:
    from ..cache.embedding_cache import EmbeddingCache

log = logging.getLogger("pucache")
_SHOWN, _SHOWN_LENGTH = 3, 200  # keys named in an error message, and their first characters
EXPORT = "reviewed.csv"  # what a review page and a session write
_DIGEST_DIGITS = 16  # hexadecimal digits of an image's sha256 in a review sheet
_DIGEST_PREFIX = "sha256:"  # a spreadsheet would turn 12345678e9012345 into a number
_SCORE_COLUMNS = {"margin", "posterior"}  # their presence shows that the labels are a model's
# columns of a list of keys, which a ranking is too, and of the numbers of rows that pandas writes
_UNLABELLED = {"key", "reviewed", "digest", "rank", "score", *KEY_NAMES, "unnamed: 0", "__index_level_0__"}


def find_keys(keys: Keys, listing: str | os.PathLike[str], *, holder: str = "the cache") -> np.ndarray:
    """Row numbers of the positives that a file lists or a glob matches, int64 (m,), ascending and unique.

    Parameters
    ----------
    keys : Keys
    listing : path or str
        A text file of keys, a CSV with a ``key`` column, or a glob on keys such as ``'positives/**'``
        (``*`` stays within a folder, ``**`` does not). If the CSV has a ``label`` column, only rows
        with a positive label count.
    holder : str
        Name of what holds the keys, for error messages.

    Raises
    ------
    LabelError
        The file is unreadable or empty, or names keys that the cache does not hold.
    """
    table = _read_listing(listing)
    if table is None:
        return _matching_rows(keys, str(listing))
    table = match_keys(table, keys, listing)
    return np.unique(_row_numbers(keys, _rows_with_label(table, 1, listing), listing, holder))


def listed_positives(path: str | os.PathLike[str], keys: Sequence[str] = ()) -> set[str]:
    """Keys that a text file or a table lists as positive, as `find_keys` does, spelled as the `keys` of scores are."""
    return {row["key"] for row in _rows_with_label(_matched(read_table(path), path, keys), 1, path)}


def read_decisions(cache: EmbeddingCache, listing: str | os.PathLike[str], label: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows that have a label, int64 (m,), ascending and unique, and which of them got it in a review, bool (m,).

    In a listing as for `find_keys`, a CSV may have a column ``reviewed`` (1: decided in a review) and a column
    ``digest``, which must agree with the cache. A key that is listed as decided before the review too is not reviewed.
    """
    table = _read_listing(listing)
    if table is None:
        rows = _rows_by_glob(cache, listing)
        return rows, np.zeros(len(rows), bool)
    return decided_rows(cache, table, label, listing)


def decided_rows(
    cache: EmbeddingCache, table: list[Row], label: int, listing: str | os.PathLike[str]
) -> tuple[np.ndarray, np.ndarray]:
    """As `read_decisions`, of a table that was read from `listing`."""
    table = _rows_with_label(match_rows(cache, table, listing), label, listing)
    sources = sorted({file.source for file in cache.files})
    rows = _row_numbers(cache.keys, table, listing, "the cache", sources)
    _check_digests(cache, rows, table, listing)
    not_reviewed = [
        row
        for row, entry in zip(rows, table, strict=True)
        if is_blank(entry.get("reviewed")) or _parse_label(entry, listing, "reviewed") != 1
    ]
    unique_rows = np.unique(rows)
    return unique_rows, ~np.isin(unique_rows, not_reviewed)


def read_truth(path: str | os.PathLike[str], keys: Sequence[str]) -> np.ndarray:
    """True class of each key.

    Parameters
    ----------
    path : path or str
        A CSV ``key,label`` (1/0, true/false, yes/no, positive/negative), or a list of the positive
        keys, in which case all other keys are negative.
    keys : sequence of str
        Keys of a table of scores, or of a cache.

    Returns
    -------
    ndarray of int8, (n,)
        1, 0, or -1 where the file does not name the key.

    Raises
    ------
    LabelError
        The file is unreadable, has an unknown label, or shares no key with `keys`.
    """
    table = _matched(read_table(path), path, keys)
    if table and not _has_labels(table, path):
        positives = dict.fromkeys(row["key"] for row in table)
        y = np.array([key in positives for key in keys], np.int8)
        if not y.any():
            raise _no_scores(positives, keys, path)
        return y
    for row in table:
        if row["label"] is None:  # a row that is cut short
            _parse_label(row, path)
    truth = {row["key"]: label for row, label in _decided(table, path)}
    y = np.array([truth.get(key, -1) for key in keys], np.int8)
    if not (y >= 0).any():
        raise _no_scores(truth, keys, path)
    return y


def read_kinds(path: str | os.PathLike[str], keys: Sequence[str]) -> list[str | None]:
    """True kind of each key by a table ``key,concept``: "" for an image of none, None where the table lacks the key.

    Raises `LabelError` where the table cannot be read, gives a key two kinds, or shares no key with `keys`.
    """
    table = _matched(read_table(path, CONCEPT_COLUMNS), path, keys)
    if table and "concept" not in table[0]:
        raise LabelError(f"{path} has columns {', '.join(table[0])}; expected key,concept: the kind of each image")
    kinds: dict[str, str] = {}
    for row in _rows_with_label(table, 1, path) if table and "label" in table[0] else table:
        kind = (row["concept"] or "").strip()
        if (other := kinds.setdefault(row["key"], kind)) != kind:
            raise LabelError(f"{path} calls {row['key']} {other or 'none'} and {kind or 'none'}; keep one kind")
    if not kinds.keys() & set(keys):
        raise _no_scores(kinds, keys, path)
    return [kinds.get(key) for key in keys]


def _matched(table: list[Row], path: str | os.PathLike[str], keys: Sequence[str]) -> list[Row]:
    """Rows whose keys are spelled as those of scores are, where the user asks for it; others may be there too."""
    asked = isinstance(path, LabelTable) and path.match_keys is not None
    return match_keys(table, _sorted_keys(keys), path, partial=True) if asked else table


def _sorted_keys(keys: Sequence[str]) -> Keys:
    return Keys([np.unique(encode_keys(keys))])


def match_keys(table: list[Row], keys: Keys, path: str | os.PathLike[str], *, partial: bool = False) -> list[Row]:
    """Rows of a table, whose keys are spelled as those of the cache where `LabelTable.match_keys` asks for it."""
    if isinstance(path, LabelTable) and path.match_keys is not None:
        spelled = respelled([row["key"] for row in table], keys, path.match_keys, path, partial=partial)
        for row, key in zip(table, spelled, strict=True):
            row["key"] = key
    return table


def _no_scores(listed: Iterable[str], keys: Sequence[str], path: str | os.PathLike[str]) -> LabelError:
    listed = list(listed)
    rule = offered_rule(_sorted_keys(keys), listed, partial=True) if len(keys) else ""
    text = f"none of the {len(listed)} keys in {path} has a score ({name_first(listed)})"
    return LabelError(f"{text}; {_offer(rule)}" if rule else text)


def _offer(rule: str) -> str:
    """What a rule does, and how to take it."""
    words = ", ".join(RULES[name] for name in rule.split("+"))
    return f"{words} each names one image: --match-keys {rule}"


def short_digest(digest: np.ndarray) -> str:
    """Text for an image's sha256, (32,) uint8, in a review sheet; empty where the cache has no digest."""
    return _DIGEST_PREFIX + digest.tobytes().hex()[:_DIGEST_DIGITS] if digest.any() else ""


def name_first(keys: Iterable[str]) -> str:
    """The first few keys, for an error message."""
    keys = list(keys)
    shown = (key if len(key) <= _SHOWN_LENGTH else f"{key[:_SHOWN_LENGTH]}..." for key in keys[:_SHOWN])
    return ", ".join(map(repr, shown)) + (", ..." if len(keys) > _SHOWN else "")


def _read_listing(listing: str | os.PathLike[str]) -> list[Row] | None:
    """Rows of a file; None if `listing` is a glob."""
    if not is_url(listing) and not os.path.isfile(listing) and any(character in str(listing) for character in "*?["):
        return None
    if not is_url(listing) and not os.path.exists(listing):  # unlike Path.exists, False for names that no file can have
        raise LabelError(
            f"no such file: {listing}; expected a text file of keys, a CSV, or a glob such as 'positives/**'"
        )
    return read_table(listing)


def _rows_with_label(table: list[Row], label: int, path: str | os.PathLike[str]) -> list[Row]:
    """Rows of a table with the label; all rows if there is no label column. Blank labels are undecided."""
    if not table:
        raise LabelError(f"{path} lists no keys")
    if not _has_labels(table, path):
        return table
    if set(table[0]) >= _SCORE_COLUMNS:
        raise LabelError(
            f"{path} is a table of scores, whose labels are the model's own; list keys that a person decided"
        )
    decided = _decided(table, path)
    if label == 1 and not any(value == 1 for _, value in decided):
        raise LabelError(f"{path} lists no keys with the label 1")
    return [row for row, value in decided if value == label]


def _decided(table: list[Row], path: str | os.PathLike[str]) -> list[tuple[Row, int]]:
    """Rows with a label, 1 or 0, and it; raises `LabelError` where a key has both."""
    decided = [(row, _parse_label(row, path)) for row in table if not is_blank(row["label"])]
    positive, negative = ({row["key"] for row, value in decided if value == kind} for kind in (1, 0))
    if contradictory := sorted(positive & negative):
        raise LabelError(
            f"{len(contradictory)} keys in {path} have both labels, 1 and 0 ({name_first(contradictory)}); decide which"
        )
    return decided


def _has_labels(table: list[Row], path: str | os.PathLike[str]) -> bool:
    """Whether a table has a column ``label``; raises `LabelError` where another column may stand for it."""
    if "label" in table[0]:
        return True
    if unknown := sorted(set(filter(None, table[0])) - _UNLABELLED):
        raise LabelError(
            f"{path} has no column 'label', but {name_first(unknown)}: call the column of labels, 1 or 0, 'label', "
            "name it by --label-column, or keep the column 'key' alone where all keys are positive"
        )
    return False


def _row_numbers(
    keys: Keys, table: list[Row], path: str | os.PathLike[str], holder: str, sources: Sequence[str] = ()
) -> np.ndarray:
    """Row in the cache of each row of a table, int64 (m,); keys may begin with the path of the source."""
    listed = [row["key"] for row in table]
    rows = keys.rows(listed)
    unknown = [key for key, row in zip(listed, rows, strict=True) if row < 0]
    if not unknown:
        return rows
    if not len(keys):
        raise LabelError(f"{holder} is empty; no key of {path} is in it")

    def are_known(changed: list[str]) -> bool:
        return bool((keys.rows(changed) >= 0).all())

    prefix = _prefix(unknown, are_known)
    if prefix and _is_of_source(prefix, unknown[0], sources):
        log.warning("the keys of %s begin with %r, the source itself: it is left out", path, prefix)
        rows[rows < 0] = keys.rows([key.removeprefix(prefix) for key in unknown])
        return rows
    rule = offered_rule(keys, unknown, {key for key, row in zip(listed, rows, strict=True) if row >= 0})
    remedy = _offer(rule) if rule else f"keys are paths relative to the source, such as {keys[0]!r}"
    raise LabelError(
        f"{len(unknown)} of {len(listed)} keys in {path} are not in {holder} ({name_first(unknown)}); {remedy}"
    )


def _prefix(unknown: Sequence[str], are_known: Callable[[list[str]], bool]) -> str:
    """Folders at the beginning of all unknown keys, without which they are known; else ""."""
    first = unknown[0]
    for end in (place + 1 for place, character in enumerate(first) if character == "/"):
        if all(key.startswith(first[:end]) for key in unknown) and are_known([key[end:] for key in unknown]):
            return first[:end]
    return ""


def _is_of_source(prefix: str, key: str, sources: Sequence[str]) -> bool:
    """Whether a prefix of a key is ``./``, the end of a source's path, or a folder that follows once more."""
    folders = prefix.removeprefix("./")
    return key.removeprefix(prefix).startswith(folders) or any(
        f"/{source.rstrip('/')}/".endswith(f"/{folders}") for source in sources
    )


def _matching_rows(keys: Sequence[str], pattern: str) -> np.ndarray:
    """Rows whose key matches a glob, int64 (m,), ascending."""
    try:
        matches = compile_glob(pattern)
    except ValueError as error:
        raise LabelError(str(error)) from error
    rows = np.array([row for row, key in enumerate(keys) if matches(key)], np.int64)
    if not len(rows):
        example = f", such as {keys[0]!r}" if len(keys) else ""
        raise LabelError(f"no key matches {pattern!r}; keys are paths relative to the source{example}")
    return rows


def _rows_by_glob(cache: EmbeddingCache, listing: str | os.PathLike[str]) -> np.ndarray:
    """Rows whose key matches a glob, or in a cache of parts whose image does, where the glob names no parts."""
    pattern = str(listing)
    if not cache.encoder.tiles or MARK in pattern:
        return _matching_rows(cache.keys, pattern)
    images = list(map(image_of, cache.keys))
    matching = set(np.array(images, object)[_matching_rows(images, pattern)].tolist())
    _require_all_parts(listing, sorted(matching), cache.keys)
    return np.array([row for row, image in enumerate(images) if image in matching], np.int64)


def match_rows(cache: EmbeddingCache, table: list[Row], path: str | os.PathLike[str]) -> list[Row]:
    """Rows of a table as `match_keys`, with one for each part of an image where all are asked for."""
    table = match_keys(table, cache.keys, path)
    return _rows_of_parts(table, cache.keys, path) if cache.encoder.tiles else table


def _rows_of_parts(table: list[Row], keys: Keys, path: str | os.PathLike[str]) -> list[Row]:
    """Rows of a table, with one for each part in place of that of an image, where the user asks for it."""
    unknown = {row["key"] for row in table if not parse_region(row["key"].rpartition(MARK)[2])}
    parts: dict[str, list[str]] = {}
    for key in keys if unknown else ():
        if (image := image_of(key)) in unknown:
            parts.setdefault(image, []).append(key)
    if not parts:
        return table
    _require_all_parts(path, list(parts), keys)
    expanded: list[Row] = []
    for row in table:
        for key in parts.get(row["key"], [row["key"]]):
            copy = Row(row, key=key)
            copy.line = row.line
            expanded.append(copy)
    return expanded


def _require_all_parts(path: str | os.PathLike[str], images: Sequence[str], keys: Keys) -> None:
    """Raise `LabelError` where labels of whole images are not meant for all their parts."""
    if not (isinstance(path, LabelTable) and path.all_parts):
        raise LabelError(
            f"{path} names {len(images):,} whole image{'s' * (len(images) > 1)} ({name_first(images)}) of a cache of "
            f"parts of images; name the parts, such as {keys[0]!r}, or label all parts of each with --all-parts"
        )


def _check_digests(cache: EmbeddingCache, rows: np.ndarray, table: list[Row], path: str | os.PathLike[str]) -> None:
    """Compare the digests of a review sheet with those of the cache; either may be missing."""
    expected = [(row.get("digest") or "").strip().lower().removeprefix(_DIGEST_PREFIX) for row in table]
    if not any(expected):
        return
    digests = cache.digest_matrix[rows]
    cached = [digest.tobytes().hex()[:_DIGEST_DIGITS] if digest.any() else "" for digest in digests]
    differing = [
        row["key"]
        for row, written, actual in zip(table, expected, cached, strict=True)
        if written and actual and not actual.startswith(written[:_DIGEST_DIGITS])
    ]
    if differing:
        raise LabelError(
            f"{len(differing)} of {len(table)} keys in {path} are other images in {cache.name} "
            f"({name_first(differing)}): it is of another cache, or the images have changed since; review them again, "
            "or remove the digest column"
        )


def _parse_label(row: Row, path: str | os.PathLike[str], column: str = "label") -> int:
    value = row[column]
    if (label := meaning(value)) is not None:
        return label
    what = "label" if column == "label" else f"value of {column!r}"
    raise LabelError(
        f"{path} has the {what} {value!r}; expected 1 or 0 (or true/false, yes/no) in row {row.line}"
        + (", or name the value that means 1: --label-value" if column == "label" else "")
    )
