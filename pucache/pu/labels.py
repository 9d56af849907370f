"""From keys to labels: positives, what a review decided, true labels.

`s` is 1 for labelled positives and 0 for unlabelled rows; `y` is the true class, which only
evaluation ever sees.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..cache.keys import Keys
from ..errors import LabelError
from ..storage.tables import read_table
from .key_globs import matcher

_SHOWN = 3
_DIGITS = 16  # of an image's sha256, in hexadecimal, that a review sheet writes down
_ALGORITHM = "sha256:"  # before them: a spreadsheet would take 12345678e9012345 for a number
_OF_SCORES = {"margin", "posterior"}  # columns of a table whose labels are a model's own


def find_keys(keys: Keys, wanted: str | Path, *, place: str = "the cache") -> np.ndarray:
    """Return the rows of the positives that a file lists or a glob matches.

    Parameters
    ----------
    keys : Keys
        Of the cache.
    wanted : path or str
        A text file of keys, a CSV with a ``key`` column, or a glob on keys such as
        ``'positives/**'`` (``*`` stays within a folder, ``**`` does not). Of a CSV that has a
        ``label`` column too, the rows whose label is positive.
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
    listed = _listed(wanted)
    if listed is None:
        return _match(keys, str(wanted))
    return np.unique(_rows(keys, _with_label(listed, 1, wanted), wanted, place))


def listed_positives(path: str | Path) -> set[str]:
    """Keys that a file lists as positive, whatever they are keys of.

    Parameters
    ----------
    path : path or str
        A text file of keys, or a CSV with a ``key`` column, and a ``label`` column where not all are positive.

    Returns
    -------
    set of str

    Raises
    ------
    LabelError
        Unreadable or empty.
    """
    return {row["key"] for row in _with_label(read_table(path), 1, path)}


def _listed(wanted: str | Path) -> list[dict[str, str]] | None:
    """Rows of a file; None where `wanted` is a glob."""
    if not os.path.isfile(wanted) and any(character in str(wanted) for character in "*?["):
        return None
    if not os.path.exists(wanted):  # os.path, unlike Path, takes a name that no file can have for no file
        raise LabelError(
            f"no such file: {wanted}; expected a text file of keys, a CSV, or a glob such as 'positives/**'"
        )
    return read_table(wanted)


def _with_label(table: list[dict[str, str]], label: int, path: str | Path) -> list[dict[str, str]]:
    """Rows that have the label, or are of a list of such keys; a row without one is not decided."""
    if not table:
        raise LabelError(f"{path} lists no keys")
    if "label" not in table[0]:
        return table
    if set(table[0]) >= _OF_SCORES:
        raise LabelError(
            f"{path} is a table of scores, whose labels are the model's own; list keys that a person decided"
        )
    decided = [(row, _label(row["label"], path)) for row in table if (row["label"] or "").strip()]
    both = {row["key"] for row, told in decided if told} & {row["key"] for row, told in decided if not told}
    if both:
        raise LabelError(f"{len(both)} keys in {path} have both labels, 1 and 0 ({_some(sorted(both))}); decide which")
    labelled = [row for row, told in decided if told == label]
    if not labelled and label == 1:
        raise LabelError(f"{path} lists no keys with the label 1")
    return labelled


def _rows(keys: Keys, table: list[dict[str, str]], path: str | Path, place: str) -> np.ndarray:
    listed = [row["key"] for row in table]
    rows = keys.rows(listed)
    unknown = [key for key, row in zip(listed, rows, strict=True) if row < 0]
    if unknown:
        raise LabelError(
            f"{len(unknown)} of {len(listed)} keys in {path} are not in {place} ({_some(unknown)}); "
            f"keys are paths relative to the source, such as {keys[0]!r}"
            if len(keys)
            else f"{place} is empty; no key of {path} is in it"
        )
    return rows


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


@dataclass(frozen=True)
class Labels:
    """What is known of the rows of a cache.

    Attributes
    ----------
    s : ndarray of int8, (n,)
        1 labelled positive, 0 not. These stand for all positives (SCAR): figures rest on them.
    reviewed : ndarray of int8, (n,)
        Of the others: 1 confirmed positive, -1 known negative, 0 unlabelled. Most were looked at
        because they rank high, so they say nothing of how often that is right.
    """

    s: np.ndarray
    reviewed: np.ndarray

    def __post_init__(self) -> None:
        if self.s.ndim != 1 or self.s.shape != self.reviewed.shape:
            raise LabelError(f"expected a label and a decision a row, got {self.s.shape} and {self.reviewed.shape}")
        if not (np.isin(self.s, (0, 1)).all() and np.isin(self.reviewed, (-1, 0, 1)).all()):
            raise LabelError("expected s of 0 and 1, and reviewed of -1, 0 and 1; got other values")
        if self.reviewed[self.s == 1].any():
            raise LabelError("rows that are labelled positive are reviewed too; decide which")

    def check(self) -> None:
        """Raise `LabelError` unless there is at least one labelled positive and one row of which nothing is known."""
        check_labels(self.s == 1)
        if not self.unlabelled.any():
            raise LabelError(
                f"all {len(self.s)} rows are labelled; some must be unlabelled, or there is nothing to find"
            )

    @property
    def positive(self) -> np.ndarray:
        """Known positives, bool (n,)."""
        return (self.s == 1) | (self.reviewed == 1)

    @property
    def negative(self) -> np.ndarray:
        """Known negatives, bool (n,)."""
        return np.asarray(self.reviewed == -1)

    @property
    def unlabelled(self) -> np.ndarray:
        """Rows of which nothing is known, bool (n,)."""
        return (self.s == 0) & (self.reviewed == 0)

    @classmethod
    def of(cls, s: np.ndarray) -> Labels:
        """Labels without a review.

        Parameters
        ----------
        s : array of 0 and 1, (n,)
            1 labelled positive.
        """
        return cls(np.asarray(s, np.int8), np.zeros(len(s), np.int8))

    @classmethod
    def read(cls, cache: EmbeddingCache, positives: str | Path, negatives: str | Path | None = None) -> Labels:
        """Read positives, and negatives where they are named, from files of keys or globs on keys.

        Parameters
        ----------
        cache : EmbeddingCache
        positives : path or str
            As `find_keys` takes it. Of a CSV with a ``reviewed`` column, the rows with 1 in it are
            positives that a review confirmed; the others are the labelled ones.
        negatives : path or str, optional
            The same for known negatives: of a CSV with a ``label`` column the rows with 0.

        Raises
        ------
        LabelError
            As `find_keys`; also a key that is both, a review of other images than the cache holds,
            or no row that is left unlabelled.
        """
        s, reviewed = np.zeros(len(cache), np.int8), np.zeros(len(cache), np.int8)
        rows, confirmed = _decided(cache, positives, 1)
        s[rows], reviewed[rows[confirmed]] = 1, 1
        s[reviewed == 1] = 0
        if not s.any():
            raise LabelError(
                f"{positives} holds only positives that a review confirmed; figures rest on those labelled before it: "
                "give all that the page exported, or remove the column 'reviewed' to count these as labelled"
            )
        if negatives is not None:
            rows, _ = _decided(cache, negatives, 0)
            both = rows[(s[rows] == 1) | (reviewed[rows] == 1)]
            if len(both):
                named = _some([cache.keys[int(row)] for row in both])
                raise LabelError(f"{len(both)} keys are both in {positives} and in {negatives} ({named}); decide which")
            reviewed[rows] = -1
        labels = cls(s, reviewed)
        labels.check()
        return labels


def _decided(cache: EmbeddingCache, wanted: str | Path, label: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows with a label, unique, and which of them a review gave it to."""
    listed = _listed(wanted)
    if listed is None:
        rows = _match(cache.keys, str(wanted))
        return rows, np.zeros(len(rows), bool)
    table = _with_label(listed, label, wanted)
    rows = _rows(cache.keys, table, wanted, "the cache")
    _check_digests(cache, rows, table, wanted)
    every = np.unique(rows)
    labelled = [row for row, told in zip(rows, table, strict=True) if not _is_reviewed(told, wanted)]
    return every, ~np.isin(every, labelled)  # what is listed as labelled too is labelled


def _is_reviewed(row: dict[str, str], path: str | Path) -> bool:
    told = (row.get("reviewed") or "").strip()
    return bool(told) and _label(told, path, "value of 'reviewed'") == 1


def _check_digests(cache: EmbeddingCache, rows: np.ndarray, table: list[dict[str, str]], path: str | Path) -> None:
    """Hold the digests that a review sheet wrote down against the cache's."""
    told = [(row.get("digest") or "").strip().lower().removeprefix(_ALGORITHM) for row in table]
    if not any(told):
        return
    digests = cache.digests[rows]
    known = digests.any(1).tolist()
    held = [digest.tobytes().hex()[:_DIGITS] for digest in digests]
    other = [
        row["key"]
        for row, here, there, some in zip(table, told, held, known, strict=True)
        if here and some and not there.startswith(here[:_DIGITS])
    ]
    if other:
        raise LabelError(
            f"{len(other)} of {len(table)} keys in {path} are other images in {cache.name} ({_some(other)}): it is of "
            "another cache, or the images have changed since; review them again, or remove the digest column"
        )


def short_digest(digest: np.ndarray) -> str:
    """What a review sheet writes down of an image's sha256, (32,) uint8; nothing where it is not known."""
    return _ALGORITHM + digest.tobytes().hex()[:_DIGITS] if digest.any() else ""


def label_vector(keys: Keys, positives: str | Path) -> np.ndarray:
    """Return s, (n,) int8: 1 where `positives` names the row, else 0.

    Parameters
    ----------
    keys : Keys
        Of the cache.
    positives : path or str
        As `find_keys` takes it.

    Returns
    -------
    ndarray of int8, (n,)

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


def read_truth(path: str | Path, keys: Sequence[str]) -> np.ndarray:
    """Return the true class of each key, (n,) int8: 1, 0, or -1 where the file does not say.

    Parameters
    ----------
    path : path
        A CSV ``key,label`` (1/0, true/false, yes/no, positive/negative), or a plain list of the
        positive keys, in which case every other key is negative.
    keys : sequence of str
        Such as those of a table of scores.

    Returns
    -------
    ndarray of int8, (n,)

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
    truth = {row["key"]: _label(row["label"], path) for row in table}
    y = np.array([truth.get(key, -1) for key in keys], np.int8)
    if not (y >= 0).any():
        raise LabelError(f"none of the {len(truth)} keys in {path} has a score ({_some(truth)})")
    return y


_LABELS = {
    **dict.fromkeys(("1", "1.0", "true", "yes", "positive"), 1),
    **dict.fromkeys(("0", "0.0", "-1", "-1.0", "false", "no", "negative"), 0),
}


def _label(label: str | None, path: str | Path, what: str = "label") -> int:
    try:
        return _LABELS[(label or "").strip().lower()]
    except KeyError as error:
        raise LabelError(f"{path} has the {what} {label!r}; expected 1 or 0 (or true/false, yes/no)") from error


def _some(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(map(repr, names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")
