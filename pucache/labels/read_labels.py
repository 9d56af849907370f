"""Labels, concepts and groups of the rows of a cache, from whatever holds them.

`read_labels` reads what other programs wrote, `write_labels` writes the canonical table, and `open_labels` takes what
the verbs take: a list of positives, or labels. The way of a table:

1. `read_table` reads cells from any form; `read_values` says what those of the column of labels mean.
2. `read_listing` joins the keys with rows of the cache: a `Listing`; `respelled` where a rule matches them.
3. `of_all` puts the listings of several tables together; `labels` makes `PULabels` of one list or of each concept.
4. `read_groups` names the group of each row.
5. `of_known_keys` refuses keys that the cache lacks, or the concept that names them: `Labels`.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..cache.embedding_cache import CacheLike, open_cache
from ..errors import LabelError, MissingColumnError, OutputError, SourceError, one_line
from ..images.shards import ShardSource
from ..images.source import open_source
from ..images.tar import COMPRESSED
from ..storage.atomic import is_standard_output
from ..storage.file_kinds import TABLE
from ..storage.outputs import check_output
from ..storage.table_formats import new_row
from ..storage.table_writer import write_rows
from ..storage.tables import LabelTable, table_ending
from ..storage.urls import is_url
from .groups import GroupSource, group_of_each, numbered, read_groups
from .label_values import LabelRule
from .labels import Labels, PULabels, check_names, each_alone
from .listing import Listing, joined, name_first, read_listing, short_digest
from .row_values import RowValues, rows_of_values

if TYPE_CHECKING:
    from ..cache.embedding_cache import EmbeddingCache

LISTS = (".txt", ".csv", ".tsv", ".tab", ".xlsx", ".ods", ".xls")  # of a folder: the keys of each concept
R = TypeVar("R")
LabelSource = str | Path | RowValues | Mapping[str, Any] | PULabels | Labels
Forms = str | Path | RowValues | Mapping[str, Any]


def open_labels(cache: EmbeddingCache, positives: LabelSource) -> Labels:
    """Labels as the verbs take them: `Labels` as they are, anything else as a list of positives.

    Raises `LabelError` where they do not fit the cache, or label too few.
    """
    if isinstance(positives, Labels | PULabels):
        read = positives if isinstance(positives, Labels) else Labels({"": positives})
        read.check(cache)
        return read
    if isinstance(positives, str | os.PathLike):
        listing = read_listing(cache.keys, positives, cache)
        labels = listing.labels(cache, negatives=False)
        labels.check()
        return Labels({"": labels}, sources=(os.fspath(positives),))
    return Labels({"": rows_of_values(positives, cache)})


def read_labels(
    cache: CacheLike,
    *tables: Forms,
    negatives: str | Path | RowValues | None = None,
    groups: GroupSource | None = None,
    key_column: str | None = None,
    label_column: str | None = None,
    concept_column: str | None = None,
    label_value: str | None = None,
    label_separator: str | None = None,
    undecided: Sequence[str] = (),
    match_keys: str | None = None,
    all_parts: bool = False,
    encoding: str | None = None,
) -> Labels:
    """Read labels as other programs write them: 1 is positive, 0 a known negative, blank is undecided.

    Parameters
    ----------
    cache : EmbeddingCache, path, or sequence of paths
    *tables : path, str, RowValues or mapping
        Files of any form: tables in CSV, JSON, Parquet or a spreadsheet, lists of positive keys, globs on keys, a
        folder with a list for each concept, tar or ZIP shards with labels beside their images. Or values in memory: by
        key in a dict, Series or table, by position in an array, where 0 says nothing; a mapping of concepts to any of
        these. None where only groups are named.
    negatives : path, str or RowValues, optional
        Known negatives, where the tables list positives alone.
    groups : path, str, Pattern or RowValues, optional
        Rows that are not independent, such as those of one patient, video or site: a table ``key,group``,
        ``TABLE:COLUMN``, a pattern on keys, one group a key or row, or ``none`` (`pucache.labels.groups.read_groups`).
        They stay in one fold, count as one label, and intervals allow for them.
    key_column, label_column, concept_column : str, optional
        Names of columns, where they are other than the usual ones. ``FOLDER+NAME`` joins two columns to a key.
    label_value : str, optional
        Cell of the column of labels that means 1; others mean 0, classes below 0 and blank cells nothing.
    label_separator : str, optional
        What stands between the labels of a cell that has several.
    undecided : sequence of str
        Further cells that mean nothing, such as -1.
    match_keys : str, optional
        Rules of `pucache.labels.key_matching.RULES` joined by ``+``, or ``auto``, for keys that are spelled otherwise.
    all_parts : bool
        In a cache of parts of images, take the label of an image for all its parts.
    encoding : str, optional
        Of text files; by default UTF-8, or else cp1252, with a line.

    Returns
    -------
    Labels
        Of one list, or of each concept.

    Raises
    ------
    LabelError
        A table cannot be read, names keys that the cache lacks or one key with two labels, or labels nothing.
    """
    reading = LabelTable("", key=key_column, label=label_column, concept=concept_column, encoding=encoding)
    reading = replace(reading, match_keys=match_keys, all_parts=all_parts, needs_label=label_value is not None)
    rule = LabelRule(label_value, label_separator, tuple(undecided))
    read = import_labels(open_cache(cache), tables, reading, rule, negatives=negatives, groups=groups)
    labels = read.of_known_keys()
    labels.check(read.cache)
    return labels


@dataclass(frozen=True)
class ImportedLabels:
    """Labels of a cache, and what was left out on the way."""

    cache: EmbeddingCache
    labels: Labels
    group_names: list[str] | None = None  # of each row; "" for a row that is a group of its own
    unknown: Listing | None = None  # lines that are decided and name no row of the cache
    undecided: int = 0  # lines without a label
    used: Listing | None = field(default=None, repr=False)

    def grouped(self, names: list[str]) -> ImportedLabels:
        """These with the group of each row, by name."""
        return replace(self, labels=replace(self.labels, group=numbered(names)), group_names=names)

    def of_known_keys(self) -> Labels:
        """The labels, without concepts that name keys which the cache lacks: these have failed.

        Raises `LabelError` where one list names such keys, with the rule that would match them, or each concept does.
        """
        if self.unknown is None or self.used is None:
            return self.labels
        if self.labels.is_one or self.unknown.concept is None or self.used.concept is None:
            self.used.require_known(self.cache.keys, self.used.label >= 0)
        failures = dict(self.labels.failures)
        for name in sorted({(text or "").strip() for text in self.unknown.concept}):  # type: ignore[union-attr]
            of_name = np.array([(text or "").strip() == name for text in self.used.concept])  # type: ignore[union-attr]
            try:
                listing = self.used.take(np.flatnonzero(of_name), f"{self.used.name}, concept {name}")
                listing.require_known(self.cache.keys, listing.label >= 0)
            except LabelError as error:
                failures[name] = one_line(error)
        columns = {name: one for name, one in self.labels.columns.items() if name not in failures}
        if not columns:
            raise _none_of(failures, self.used.name)
        return replace(self.labels, columns=columns, failures=failures)


def import_labels(
    cache: EmbeddingCache,
    tables: Sequence[Forms],
    reading: LabelTable,
    rule: LabelRule = LabelRule(),  # noqa: B008  # it is frozen
    *,
    negatives: str | Path | RowValues | None = None,
    groups: GroupSource | None = None,
) -> ImportedLabels:
    """As `read_labels`, with what was left out; keys that the cache lacks are left aside, but not all of them."""
    reader = _Reader(reading)
    read = _of_tables(cache, tables, reader, rule)
    if negatives is not None:
        read = replace(read, labels=read.labels.with_one(_rejecting(cache, read.labels.only, negatives, reader)))
    if groups is not None:
        read = read.grouped(reader.read(groups, lambda how: read_groups(cache, groups, how)))
    elif read.used is not None and read.used.group is not None:
        read = read.grouped(group_of_each(cache, zip(read.used.key, read.used.group, strict=True), read.used.name))
    reader.check()
    if not tables and groups is None:
        raise LabelError("nothing is named to read; give tables of labels, or groups")
    files = [one for one in (*tables, negatives, groups) if isinstance(one, str | os.PathLike)]
    return replace(read, labels=replace(read.labels, sources=tuple(os.fspath(one) for one in files)))


@dataclass
class _Reader:
    """Reads files, at least one of which must have the column of keys that is named; others have a usual one."""

    table: LabelTable
    found: bool = False
    missing: MissingColumnError | None = None

    def read(self, source: Any, work: Callable[[LabelTable], R]) -> R:
        """Do some work with a file by the named column of keys, or else by the usual ones."""
        try:
            result = work(self.table)
        except MissingColumnError as error:
            if self.table.key is None or error.column not in self.table.key_columns.values():
                raise
            self.missing = error
        else:
            self.found |= _names_file(source)
            return result
        try:
            return work(replace(self.table, key=None))
        except LabelError:
            if self.found:
                raise
            raise self.missing from None

    def check(self) -> None:
        """Raise `MissingColumnError` where no file has the column that is named."""
        if self.missing is not None and not self.found:
            raise self.missing


def _names_file(source: Any) -> bool:
    """Whether a source of labels or groups is a file, or ``TABLE:COLUMN``, and no pattern."""
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else ""
    return is_url(name) or any(map(os.path.isfile, (name, name.rpartition(":")[0])))


def _of_tables(cache: EmbeddingCache, tables: Sequence[Forms], reader: _Reader, rule: LabelRule) -> ImportedLabels:
    if not tables:
        return ImportedLabels(cache, Labels({"": PULabels.of(np.zeros(len(cache), np.int8))}))
    first = tables[0]
    if isinstance(first, Mapping) and not all(isinstance(one, Real | np.bool_) for one in first.values()):
        given, failures = _listing_of_each(cache, first, reader, rule, "the mapping")
        return ImportedLabels(cache, _and_failures(_of_concepts(cache, given, "the mapping"), failures))
    if not isinstance(first, str | os.PathLike) and not _is_read_as_file(first, reader, rule):
        return ImportedLabels(cache, Labels({"": rows_of_values(first, cache, negatives=True)}))
    if not isinstance(first, str | os.PathLike):
        return _of_frame(cache, first, reader, rule)
    files = [one for one in tables if isinstance(one, str | os.PathLike)]
    failures = {}
    if not is_url(first) and os.path.isdir(first):
        given, failures = _listing_of_each(cache, _lists(Path(first)), reader, rule, str(first))
        listing = Listing.of_all([one.of_concept(name) for name, one in given.items()])
        listing = replace(listing, name=str(first))
    else:
        listing = Listing.of_all([_listing_of(cache, one, reader, rule) for one in files])
    decided = listing.label >= 0
    left_out = listing.take(np.flatnonzero(decided & (listing.row < 0)), listing.name)
    return ImportedLabels(
        cache,
        _and_failures(_of_listing(cache, listing), failures),
        unknown=left_out if len(left_out.key) else None,
        undecided=int((~decided).sum()),
        used=listing,
    )


def _listing_of_each(
    cache: EmbeddingCache, sources: Mapping[str, Any], reader: _Reader, rule: LabelRule, where: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """As `_listing_of`, of each concept, and why one has none; raises `LabelError` where none has any."""
    given, failures = each_alone(sources, lambda _, one: _listing_of(cache, one, reader, rule), (LabelError,))
    if failures and not given:
        raise _none_of(failures, where)
    return given, failures


def _and_failures(labels: Labels, failures: Mapping[str, str]) -> Labels:
    return replace(labels, failures={**failures, **labels.failures})


def _is_read_as_file(table: Any, reader: _Reader, rule: LabelRule) -> bool:
    """Whether a table in memory has columns or cells that only files are asked for."""
    if not hasattr(table, "columns"):
        return False
    named = list(getattr(table, "column_names", None) or table.columns)
    asked = reader.table.key or reader.table.label or reader.table.concept or reader.table.match_keys
    return bool(asked) or rule != LabelRule() or not {"concept", "group"}.isdisjoint(named)


def _of_frame(cache: EmbeddingCache, table: Any, reader: _Reader, rule: LabelRule) -> ImportedLabels:
    """Labels of a table in memory, read as a file of it, whose index is a column where it has a name or texts."""
    import pyarrow.parquet

    if hasattr(table, "reset_index"):
        is_key = table.index.name is not None or (len(table) and isinstance(table.index[0], str))
        table = pyarrow.Table.from_pandas(table.reset_index(names=table.index.name or "key") if is_key else table)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "table.parquet")
        pyarrow.parquet.write_table(table.to_arrow() if hasattr(table, "to_arrow") else table, path)
        try:
            read = _of_tables(cache, [path], reader, rule)
        except LabelError as error:
            raise type(error)(*(str(one).replace(path, "the table") for one in error.args)) from error
    return read


def _listing_of(cache: EmbeddingCache, source: Any, reader: _Reader, rule: LabelRule) -> Any:
    """The lines of a file; values in memory as they are."""
    if not isinstance(source, str | os.PathLike):
        return source
    name = os.fspath(source)
    table, column = replace(reader.table, path=name), reader.table.label
    ending = table_ending(name)
    is_glob = any(mark in name for mark in "*[{") if is_url(name) else not os.path.exists(name)
    if column is not None and (
        name.lower().endswith((".tar", ".zip", *COMPRESSED)) or (ending == ".parquet" and is_glob)
    ):
        return _of_shards(cache, table, column, rule)
    try:
        read = reader.read(name, lambda how: read_listing(cache.keys, replace(how, path=name), cache, rule))
    except MissingColumnError:
        if ending != ".parquet" or column is None:
            raise
        return _of_shards(cache, table, column, rule)  # images without a column of keys
    if ending == ".parquet" and column is not None and not (read.row >= 0).any():
        with contextlib.suppress(SourceError):  # images whose keys are others than those of the column
            beside = _of_shards(cache, table, column, rule)
            return beside if (beside.row >= 0).any() else read
    return read


def _of_shards(cache: EmbeddingCache, table: LabelTable, column: str, rule: LabelRule) -> Listing:
    """Labels beside the images of tar, ZIP or Parquet files."""
    source = open_source(table.path)
    assert isinstance(source, ShardSource)
    rows = [new_row(["key", "label"], pair, number) for number, pair in enumerate(source.labels(column), 1)]
    if not rows:
        raise LabelError(f"{table} holds no images that labels are beside; name tables one by one, without a glob")
    return joined(rows, cache.keys, table, cache, rule)


def _of_listing(cache: EmbeddingCache, listing: Listing) -> Labels:
    if listing.concept is None:
        if not (listing.label >= 0).any() and listing.group is not None:  # groups alone
            return Labels({"": PULabels.of(np.zeros(len(cache), np.int8))})
        return Labels({"": listing.matched().labels(cache, negatives=True)})
    texts = np.array([(text or "").strip() for text in listing.concept], object)
    named = {
        name: listing.take(np.flatnonzero(texts == name), f"{listing.name}, concept {name}").matched()
        for name in dict.fromkeys(texts.tolist())
        if name or (listing.label[texts == name] >= 0).any()
    }
    return _of_concepts(cache, named, listing.name)


def _of_concepts(cache: EmbeddingCache, given: Mapping[str, Any], where: str) -> Labels:
    """Labels of each concept; one whose labels cannot be used stops no other."""
    if not given:
        raise LabelError(f"no concepts are named in {where}; expected one at least")
    check_names(given, where)

    def labels_of(_: str, one: Any) -> PULabels:
        is_listing = isinstance(one, Listing)
        labels = one.labels(cache, negatives=True) if is_listing else rows_of_values(one, cache, negatives=True)
        labels.check()
        return labels

    columns, failures = each_alone(dict(sorted(given.items())), labels_of, (LabelError, ValueError))
    if not columns:
        raise _none_of(failures, where)
    return Labels(columns, failures)


def _none_of(failures: Mapping[str, str], where: str) -> LabelError:
    name, reason = next(iter(failures.items()))
    return LabelError(f"none of the {len(failures):,} concepts in {where} can be used; {name}: {reason}")


def _lists(folder: Path) -> dict[str, Path]:
    """List of the keys of each concept."""
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in LISTS and file.name[0] != ".")
    if not files:
        raise LabelError(f"{folder} holds no lists CONCEPT.txt or CONCEPT.csv; name its tables, or images by a glob")
    if twice := {file.stem for file in files if sum(other.stem == file.stem for other in files) > 1}:
        raise LabelError(f"{folder} has two lists of the concepts {name_first(sorted(twice))}; keep one of each")
    return {file.stem: file for file in files}


def _rejecting(cache: EmbeddingCache, labels: PULabels, negatives: str | Path | RowValues, reader: _Reader) -> PULabels:
    """Labels with known negatives from a list of them."""
    if not isinstance(negatives, str | os.PathLike):
        return labels.rejecting(np.flatnonzero(rows_of_values(negatives, cache).s), cache)
    plain: dict[str, Any] = {"path": os.fspath(negatives), "label": None, "needs_label": False}
    listing = reader.read(negatives, lambda how: read_listing(cache.keys, replace(how, **plain), cache))
    used = listing.label == (1 if listing.is_list else 0)  # a table of both labels has its negatives as 0
    listing.require_known(cache.keys, used)
    return labels.rejecting(listing.row[used], cache)


# --- the canonical table ---------------------------------------------------------------------------


def write_labels(
    cache: CacheLike,
    labels: LabelSource,
    path: str | Path,
    *,
    group_names: Sequence[str] | None = None,
) -> dict[str, int]:
    """Write labels as the table that every command takes.

    Columns are ``key``, ``label`` (1, 0 or empty) and, where labels have them, ``concept``, ``group`` (all rows then),
    and ``reviewed`` with ``digest`` (where a review has confirmed positives).

    Parameters
    ----------
    cache : EmbeddingCache, path, or sequence of paths
    labels : Labels, or positives as for `pucache.train_pu`
    path : path
        CSV file to write.
    group_names : sequence of str, optional
        Name of the group of each row; by default the number of its first row.

    Returns
    -------
    dict of str to int
        Numbers of positive, confirmed and negative labels, of rows, and of groups where there are any.

    Raises
    ------
    OutputError
        `path` cannot be written, is a file that the labels were read from, or has another ending than .csv.
    """
    if not (is_standard_output(path) or os.fspath(path).lower().endswith(".csv")):
        raise OutputError(f"the table of labels is CSV, and {path} would be read as something else; end it in .csv")
    opened = open_cache(cache)
    labels = labels if isinstance(labels, Labels) else open_labels(opened, labels)
    checked = check_output(path, TABLE, inputs=[*(file.path for file in opened.files), *labels.sources])
    columns, rows = ["key", "label"], []
    columns += ["concept"] * (not labels.is_one) + ["group"] * (labels.group is not None)
    decided = any((one.reviewed == 1).any() for one in labels.columns.values())
    columns += ["reviewed", "digest"] * decided
    names = _group_names(opened, labels, group_names)
    for number, (name, one) in enumerate(labels.columns.items()):
        used = np.ones(len(opened), bool) if names is not None and number == 0 else ~one.unlabelled
        positive, negative, numbers = one.positive, one.negative, np.flatnonzero(used)
        for row, key in zip(numbers.tolist(), opened.keys[numbers], strict=True):
            label = 1 if positive[row] else 0 if negative[row] else ""
            cells = [key, label, *([] if labels.is_one else [name if label != "" else ""])]
            cells += [] if names is None else [names[row]]
            if decided:
                cells += [int(one.reviewed[row] != 0), short_digest(opened.digest_matrix[row])]
            rows.append(cells)
    write_rows(checked, [columns, *rows])
    counts = {
        "positive": sum(int(one.positive.sum()) for one in labels.columns.values()),
        "confirmed": sum(int((one.reviewed == 1).sum()) for one in labels.columns.values()),
        "negative": sum(int(one.negative.sum()) for one in labels.columns.values()),
        "rows": len(rows),
    }
    return counts | ({} if labels.group is None else {"groups": len(np.unique(labels.group))})


def _group_names(cache: EmbeddingCache, labels: Labels, names: Sequence[str] | None) -> Sequence[str] | None:
    """Name of each row's group, "" for one of its own; None without groups."""
    if labels.group is None or names is not None:
        return names
    sizes = np.bincount(labels.group, minlength=len(cache))
    return [str(first) if sizes[first] > 1 else "" for first in labels.group.tolist()]
