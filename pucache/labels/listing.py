"""Listings: what a text file of keys, a table or a glob on keys says of the rows of a cache, one entry a line."""

from __future__ import annotations

import glob
import logging
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cache.keys import Keys, encode_keys
from ..errors import LabelError, counted
from ..images.listing import is_image
from ..images.regions import MARK, image_of, parse_region
from ..storage.table_columns import CANONICAL_COLUMNS, KEY_NAMES
from ..storage.tables import LabelTable, Row, rows_with_keys
from ..storage.urls import is_url
from .key_matching import RULES, offered_rule, respelled
from .label_values import LabelRule, read_values

if TYPE_CHECKING:
    from ..cache.embedding_cache import EmbeddingCache
    from .labels import PULabels

log = logging.getLogger("pucache")
EXPORT = "reviewed.csv"  # what a session writes
_SHOWN, _SHOWN_LENGTH = 3, 200  # keys named in an error message, and their first characters
_DIGEST_DIGITS, _DIGEST_PREFIX = 16, "sha256:"  # of an image's sha256 in a table; a spreadsheet reads 1234e901 as 1E904
_SCORE_COLUMNS = {"margin", "posterior"}  # their presence shows that the labels are a model's
# columns of a list of keys, which a ranking is too, and of the numbers of rows that pandas writes
_UNLABELLED = {"rank", "score", "unnamed: 0", "__index_level_0__", "folder", *CANONICAL_COLUMNS, *KEY_NAMES} - {"label"}
_COLUMNS = ("key", "row", "label", "reviewed", "concept", "group")  # of `Listing`


@dataclass(frozen=True)
class Listing:
    """Lines of a file of labels."""

    name: str  # of the file, for messages
    key: np.ndarray  # (m,): as the cache spells it, where it holds the key
    row: np.ndarray  # int64, (m,): of the cache; -1 where it has none
    label: np.ndarray  # int8, (m,): 1, 0, or -1 where a line is undecided
    reviewed: np.ndarray  # bool, (m,): whether a line was decided in a review
    concept: np.ndarray | None = None  # texts, (m,), as `group`; None where the file has no such column
    group: np.ndarray | None = None
    is_list: bool = False  # of positive keys alone, without a column of labels

    def take(self, lines: np.ndarray, name: str) -> Listing:
        """Some lines, under another name."""
        columns = {of: getattr(self, of) for of in _COLUMNS}
        return replace(self, name=name, **{of: column[lines] for of, column in columns.items() if column is not None})

    def of_concept(self, name: str) -> Listing:
        """These lines as those of one concept."""
        return replace(self, concept=np.full(len(self.key), name, object))

    def matched(self) -> Listing:
        """The lines that name a row; all of them where no positive one does, so that `labels` tells why."""
        known, positive = self.row >= 0, self.label == 1
        if positive.any() and not (positive & known).any():
            return self
        return self.take(np.flatnonzero(known), self.name)

    @classmethod
    def of_all(cls, listings: Sequence[Listing]) -> Listing:
        """The lines of several files, which have the same columns; raises `LabelError` where they have not."""
        first, *others = listings
        if not others:
            return first
        for other in others:
            for of in ("concept", "group"):
                if (getattr(first, of) is None) != (getattr(other, of) is None):
                    has, lacks = (first, other) if getattr(first, of) is not None else (other, first)
                    raise LabelError(f"{has.name} has a column {of!r} and {lacks.name} has none; give both of them one")

        shared = [of for of in _COLUMNS if all(getattr(one, of) is not None for one in listings)]
        columns = {of: np.concatenate([getattr(one, of) for one in listings]) for of in shared}
        name = " and ".join(one.name for one in listings)
        return cls(name, **columns, is_list=all(one.is_list for one in listings))  # type: ignore[arg-type]

    def labels(self, cache: EmbeddingCache, *, negatives: bool) -> PULabels:
        """Labels of the rows of a cache; lines with 0 are known negatives, or are left aside.

        Raises `LabelError` for unknown keys, keys with both labels, and where no line is positive.
        """
        from .labels import PULabels

        used = self.label >= (0 if negatives else 1)
        self.require_known(cache.keys, used)
        positive, negative = (self.row[(self.label == label) & (self.row >= 0)] for label in (1, 0))
        if len(both := np.intersect1d(positive, negative)):
            shown = name_first(cache.keys[both])
            raise LabelError(
                f"{self.name} has both labels, 1 and 0, for {counted(len(both), 'key')} ({shown}); decide which"
            )
        negative = negative if negatives else negative[:0]
        if not len(positive):
            raise LabelError(f"no key in {self.name} has the label 1")
        s, reviewed = np.zeros(len(cache), np.int8), np.zeros(len(cache), np.int8)
        s[self.row[(self.label == 1) & ~self.reviewed]] = 1
        reviewed[negative], reviewed[positive] = -1, 1
        reviewed[s == 1] = 0  # decided before the review too
        if not s.any():
            raise LabelError(
                f"all positives in {self.name} are those that a review confirmed; figures rest on those labelled "
                "before it: give all that it exported, or remove the column 'reviewed' to count these as labelled"
            )
        return PULabels(s, reviewed)

    def require_known(self, keys: Keys, used: np.ndarray, *, holder: str = "the cache") -> None:
        """Raise `LabelError` where a line that is used names no row, with the rule that would match its key."""
        unknown = dict.fromkeys(self.key[used & (self.row < 0)].tolist())
        if not unknown:
            return
        if not len(keys):
            raise LabelError(f"{holder} is empty; no key of {self.name} is in it")
        remedy = f"keys are paths relative to the source, such as {keys[0]!r}"
        if self.is_list and is_image(keys[0]) and not any(map(is_image, unknown)):
            remedy += ", and no line is one: save a table as .csv, with names such as key,label above its rows"
        remedy = offered(keys, self, used) or remedy
        raise LabelError(
            f"{len(unknown)} of {used.sum()} keys in {self.name} are not in {holder} ({name_first(unknown)}); {remedy}"
        )

    def by_key(self) -> dict[str, int]:
        """Label of each key that is decided; raises `LabelError` where one has two."""
        found: dict[str, int] = {}
        for key, label in zip(self.key.tolist(), self.label.tolist(), strict=True):
            if label >= 0 and found.setdefault(key, label) != label:
                raise LabelError(f"{key!r} has both labels, 1 and 0, in {self.name}; decide which")
        return found


def read_listing(
    keys: Keys,
    source: str | os.PathLike[str],
    cache: EmbeddingCache | None = None,
    rule: LabelRule = LabelRule(),  # noqa: B008  # it is frozen
) -> Listing:
    """Read a listing and join it with keys; with a `cache` also by the path of its source, by parts and by digests.

    `rule` says what the cells of the column of labels mean. Raises `LabelError` where the file is missing,
    unreadable or empty, or its labels are those of a model.
    """
    name, table = str(source), None
    if is_url(source) or (os.path.exists(source) and not os.path.isdir(source)):
        table = rows_with_keys(source, CANONICAL_COLUMNS)
    elif not any(character in name for character in "*?["):
        fault = "a folder, and no file" if os.path.isdir(source) else "no such file"
        expected = "expected a text file of keys, a table, or a glob on keys such as 'positives/**'"
        raise LabelError(f"{fault}: {source}; {expected}")
    if table is None:
        rows = _rows_by_glob(keys, source, tiles=cache is not None and bool(cache.encoder.tiles))
        ones = np.ones(len(rows), np.int8)
        return Listing(name, np.array(keys[rows], object), rows, ones, np.zeros(len(rows), bool), is_list=True)
    if not table:
        raise LabelError(f"{source} lists no keys")
    return joined(table, keys, source, cache, rule if _has_labels(table, source) else None)


def joined(
    table: list[Row],
    keys: Keys,
    source: str | os.PathLike[str],
    cache: EmbeddingCache | None,
    rule: LabelRule | None,
) -> Listing:
    """Rows of a table, joined with keys as `source` says; without a `rule` all are positive."""
    name = str(source)
    if isinstance(source, LabelTable) and source.match_keys is not None:
        spelled = respelled([row["key"] for row in table], keys, source.match_keys, source, partial=cache is None)
        table = [_with_key(row, key) for row, key in zip(table, spelled, strict=True)]
    if cache is not None and cache.encoder.tiles:
        table = _rows_of_parts(table, keys, source)
    key = np.array([one["key"] for one in table], object)
    row = _row_numbers(keys, key.tolist(), cache, name)
    key[row >= 0] = keys[row[row >= 0]]
    if cache is not None and "digest" in table[0]:
        _check_digests(cache, row, table, name)
    lines = [one.line for one in table]

    def cells(of: str) -> list[Any]:
        return [one.get(of) for one in table]

    labels = [1] * len(table) if rule is None else read_values(cells("label"), lines, rule, name, "label")
    decided = read_values(cells("reviewed"), lines, LabelRule(), name, "reviewed") if "reviewed" in table[0] else None
    texts = {of: np.array(cells(of), object) for of in ("concept", "group") if of in table[0]}
    return Listing(
        name=name,
        key=key,
        row=row,
        label=np.array(labels, np.int8),
        reviewed=np.zeros(len(table), bool) if decided is None else np.array(decided) == 1,
        is_list=rule is None,
        **texts,
    )


def keys_of(keys: Iterable[str]) -> Keys:
    """Keys of a table of scores, each once."""
    return Keys([np.unique(encode_keys(list(keys)))])


def offered(keys: Keys, listing: Listing, used: np.ndarray | None = None) -> str:
    """The rule that would match the keys of the lines that name no row, in words; "" where there is none."""
    lines = listing.label >= 0 if used is None else used
    unknown = list(dict.fromkeys(listing.key[lines & (listing.row < 0)].tolist()))
    rule = offered_rule(keys, unknown, set(listing.key[lines & (listing.row >= 0)].tolist())) if unknown else ""
    return offer(rule) if rule else ""


def offer(rule: str) -> str:
    """What a rule does, and how to take it."""
    words = ", ".join(RULES[name] for name in rule.split("+"))
    return f"{words} each names one image: pucache labels --match-keys {rule}"


def name_first(keys: Iterable[str]) -> str:
    """The first few keys, for an error message."""
    keys = list(keys)
    shown = (key if len(key) <= _SHOWN_LENGTH else f"{key[:_SHOWN_LENGTH]}..." for key in keys[:_SHOWN])
    return ", ".join(map(repr, shown)) + (", ..." if len(keys) > _SHOWN else "")


def short_digest(digest: np.ndarray) -> str:
    """Text for an image's sha256, (32,) uint8, in a table; empty where the cache has no digest."""
    return _DIGEST_PREFIX + digest.tobytes().hex()[:_DIGEST_DIGITS] if digest.any() else ""


def _with_key(row: Row, key: str) -> Row:
    copy = Row(row, key=key)
    copy.line = row.line
    return copy


def _has_labels(table: list[Row], source: str | os.PathLike[str]) -> bool:
    """Whether a table has a column ``label``; raises `LabelError` where another column may stand for it."""
    if "label" in table[0] and set(table[0]) >= _SCORE_COLUMNS:
        raise LabelError(
            f"{source} is a table of scores, whose labels are the model's own; list keys that a person decided"
        )
    if "label" not in table[0] and (unknown := sorted(set(filter(None, table[0])) - _UNLABELLED)):
        raise LabelError(
            f"{source} has no column 'label', but {name_first(unknown)}: call the column of labels, 1 or 0, 'label', "
            "name it by pucache labels --label-column, or keep the column 'key' alone where all keys are positive"
        )
    return "label" in table[0]


def _row_numbers(keys: Keys, listed: list[str], cache: EmbeddingCache | None, name: str) -> np.ndarray:
    """Row of each key, int64 (m,), -1 where there is none; keys may begin with the path of the cache's source."""
    rows = keys.rows(listed)
    unknown = [key for key, row in zip(listed, rows, strict=True) if row < 0]
    if cache is None and unknown:  # of a table of scores, which has no source
        rows[rows < 0] = keys.rows([key.removeprefix("./") for key in unknown])
    if cache is None or not unknown or not len(keys):
        return rows

    def are_known(changed: list[str]) -> bool:
        return bool((keys.rows(changed) >= 0).all())

    prefix = _prefix(unknown, are_known)
    if prefix and _is_of_source(prefix, unknown[0], [file.source for file in cache.files]):
        log.warning("the keys of %s begin with %r, the source itself: it is left out", name, prefix)
        rows[rows < 0] = keys.rows([key.removeprefix(prefix) for key in unknown])
    return rows


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


def _rows_by_glob(keys: Keys, source: str | os.PathLike[str], *, tiles: bool) -> np.ndarray:
    """Rows whose key matches a glob, int64 (m,), ascending; of parts, those whose image does where it names no
    parts."""
    pattern = str(source)
    try:
        matches = compile_glob(pattern)
    except ValueError as error:
        raise LabelError(str(error)) from error
    of_images = tiles and MARK not in pattern
    matching = [row for row, key in enumerate(keys) if matches(image_of(key) if of_images else key)]
    if not matching:
        remedy = "keys are paths relative to the source" + (f", such as {keys[0]!r}" if len(keys) else "")
        if (file := next(glob.iglob(pattern), "")) and not is_image(file):
            remedy = f"it matches files, such as {file}: name them one by one, without quotes"
        raise LabelError(f"no key matches {pattern!r}; {remedy}")
    if of_images:
        _require_all_parts(source, sorted({image_of(keys[row]) for row in matching}), keys)
    return np.array(matching, np.int64)


def _rows_of_parts(table: list[Row], keys: Keys, source: str | os.PathLike[str]) -> list[Row]:
    """Rows of a table, with one for each part in place of that of an image, where the user asks for it."""
    unknown = {row["key"] for row in table if not parse_region(row["key"].rpartition(MARK)[2])}
    parts: dict[str, list[str]] = {}
    for key in keys if unknown else ():
        if (image := image_of(key)) in unknown:
            parts.setdefault(image, []).append(key)
    if parts:
        _require_all_parts(source, list(parts), keys)
    return [_with_key(row, key) for row in table for key in parts.get(row["key"], [row["key"]])]


def _require_all_parts(source: str | os.PathLike[str], images: Sequence[str], keys: Keys) -> None:
    """Raise `LabelError` where labels of whole images are not meant for all their parts."""
    if not (isinstance(source, LabelTable) and source.all_parts):
        raise LabelError(
            f"{source} names {len(images):,} whole image{'s' * (len(images) > 1)} ({name_first(images)}) of a cache of "
            f"parts of images; name the parts, such as {keys[0]!r}, or label all parts: pucache labels --all-parts"
        )


def _check_digests(cache: EmbeddingCache, rows: np.ndarray, table: list[Row], source: str) -> None:
    """Compare the digests of a table with those of the cache; either may be missing."""
    differing = []
    for row, line in zip(rows.tolist(), table, strict=True):
        written = (line.get("digest") or "").strip().lower().removeprefix(_DIGEST_PREFIX)
        if row >= 0 and written and (cached := short_digest(cache.digest_matrix[row]).removeprefix(_DIGEST_PREFIX)):
            differing += [] if cached.startswith(written[:_DIGEST_DIGITS]) else [line["key"]]
    if differing:
        raise LabelError(
            f"{len(differing)} of {len(table)} keys in {source} are other images in {cache.name} "
            f"({name_first(differing)}): it is of another cache, or the images have changed since; review them again, "
            "or remove the digest column"
        )


def compile_glob(pattern: str) -> Callable[[str], object]:
    """Compile a glob to a function of a key whose result is true where the key matches.

    ``*`` and ``?`` match within a folder name; ``*`` alone stands for a name of at least one character.
    ``**`` stands for any number of folders, and at the end for anything. ``[abc]``, ``[a-z]`` and ``[!abc]``
    stand for one character. Raises ValueError for ``**`` beside other characters, or an invalid range in brackets.
    Each star matches as little as lets the next piece match, and keeps that match: the usual translation of
    ``a*a*a*b`` takes exponential time to reject a key.
    """
    names = pattern.split("/")
    if any("**" in name and name != "**" for name in names):
        raise ValueError(f"in {pattern!r} ** stands beside other characters; write it as a folder of its own: 'a/**/b'")
    runs: list[list[str]] = [[]]  # names between one ** and the next
    for name in names:
        if name == "**":
            runs.append([])
        else:
            runs[-1].append(name)
    begin, *middle = runs
    end = middle.pop() if middle else None
    expression = "/".join(map(_name_expression, begin)) + ("/" if begin and end is not None else "")
    for run in filter(None, middle):
        expression += rf"(?>(?:[^/]*/)*?{'/'.join(map(_name_expression, run))}/)"
    if end is not None:
        expression += rf"(?:.*/)?{'/'.join(map(_name_expression, end))}" if end else ".*"
    try:
        return re.compile(rf"(?s:{expression})\Z").match
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a glob ({error})") from error


def _name_expression(name: str) -> str:
    """Regular expression for one name of a path."""
    if name == "*":
        return r"[^/]+"
    first, *pieces = map("".join, _pieces(name))
    if not pieces:
        return first
    return first + "".join(rf"(?>[^/]*?{piece})" for piece in pieces[:-1] if piece) + rf"[^/]*{pieces[-1]}"


def _pieces(name: str) -> list[list[str]]:
    """Parts of a name between its stars, each a list of regular expressions for one character."""
    pieces: list[list[str]] = [[]]
    for part in re.findall(r"\[!?+.[^]]*+]|.", name, re.DOTALL):
        if part == "*":
            pieces.append([])
        elif part == "?":
            pieces[-1].append("[^/]")
        else:
            pieces[-1].append(_bracket_expression(part[1:-1]) if len(part) > 1 else re.escape(part))
    return pieces


def _bracket_expression(inside: str) -> str:
    """Regular expression for the content of brackets; ``/`` never matches."""
    inside = inside.replace("\\", r"\\").replace("[", r"\[").replace("&&", r"&\&")
    inside = inside.replace("||", r"|\|").replace("~~", r"~\~").replace("--", r"-\-")
    negated = inside.startswith("!")
    inside = inside.removeprefix("!").replace("^", r"\^")
    inside = rf"\]{inside[1:]}" if inside.startswith("]") else inside
    return rf"(?!/)[{'^' if negated else ''}{inside}]"
