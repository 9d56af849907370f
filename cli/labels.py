"""`pucache labels`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from pucache.cache.embedding_cache import EmbeddingCache, open_cache
from pucache.errors import counted
from pucache.labels.groups import numbered, read_groups
from pucache.labels.label_values import LabelRule
from pucache.labels.listing import name_first, offered
from pucache.labels.read_labels import ImportedLabels, import_labels, write_labels
from pucache.reviewing.session_folder import is_review, keep_groups
from pucache.storage.file_kinds import TABLE
from pucache.storage.tables import LabelTable

from . import options, output
from .destinations import check_outputs


@options.command()
@click.argument("cache")
@click.argument("table", nargs=-1)
@options.option("--out", default="labels.csv", metavar="FILE", help="Table to write.")
@options.option(
    "--key-column",
    metavar="NAME",
    help="Column of the keys; FOLDER+NAME joins two columns.  [default: key, image_path, path, file_name or the like]",
)
@options.option(
    "--label-column",
    metavar="NAME",
    help="Column of the labels; of tar and ZIP files the ending of the members beside the images.  [default: label, "
    "class or the like]",
)
@options.option(
    "--label-value",
    metavar="TEXT",
    help="Cell that means positive. Blank cells and classes below 0 are undecided; all others are negative.",
)
@options.option("--concept-column", metavar="NAME", help="Column of the names of several concepts.  [default: concept]")
@options.option(
    "--groups",
    metavar="TABLE[:COLUMN]|PATTERN|none",
    help="Images that are not independent, such as those of one patient, video or site: a table, or a pattern that is "
    "searched in keys, whose first parentheses are the group ('(.*)/[^/]*': the folder). none: all are independent. A "
    "review that is TABLE keeps them.",
)
@options.option("--negatives", metavar="FILE", help="Negatives, where TABLE lists positives alone.")
@options.as_json
@options.option(
    "--label-separator",
    section=options.READING,
    metavar="TEXT",
    help="What stands between the labels of a cell that has several, such as '|'.",
)
@options.option(
    "--undecided",
    section=options.READING,
    metavar="TEXT",
    multiple=True,
    show_default=False,
    help="Cell that means neither, such as -1. Repeatable.",
)
@options.option(
    "--match-keys",
    section=options.READING,
    metavar="RULE",
    help="How keys are matched that are spelled otherwise than in CACHE: auto, or quotes, slashes, url, unicode, case, "
    "hash, numbers, endings, folders, ends and names, joined by +.",
)
@options.option(
    "--all-parts",
    section=options.READING,
    is_flag=True,
    help="In a cache of parts of images, take the label of an image for all its parts.",
)
@options.encoding_of_text
def labels(
    cache: str,
    table: tuple[str, ...],
    out: str,
    groups: str | None,
    negatives: str | None,
    key_column: str | None,
    label_column: str | None,
    concept_column: str | None,
    match_keys: str | None,
    all_parts: bool,
    encoding: str | None,
    **cells: Any,
) -> None:
    """Turn the labels of any program into one table.

    TABLE is a table (CSV, JSON, Parquet, a spreadsheet), a list of positive keys, a glob on keys, a folder with a list
    for each concept, shards with labels beside their images, or the folder of a review. It may be left out where
    --groups is given. What cells mean and how keys were matched is printed. Keys that CACHE lacks are left out, and
    the exit code is 3 then.

    \b
    pucache labels cache.h5 answers.xlsx --label-column class --label-value ship
    pucache labels cache.h5 found.txt --groups '(.*)/[^/]*'
    """
    check_outputs(("out", out, TABLE), reads=_read_by(table, groups))
    opened = open_cache(cache)
    reading = LabelTable(
        "",
        key=key_column,
        label=label_column,
        concept=concept_column,
        needs_label=cells["label_value"] is not None,
        encoding=encoding,
        match_keys=match_keys,
        all_parts=all_parts,
    )
    rule = LabelRule(cells["label_value"], cells["label_separator"], cells["undecided"])
    if len(table) == 1 and os.path.isdir(table[0]) and is_review(Path(table[0])):
        read = _of_review(opened, table[0], groups, reading)
    else:
        read = import_labels(opened, table, reading, rule, negatives=negatives, groups=groups)
    counts = write_labels(opened, read.labels, out, group_names=read.group_names)
    _print(opened, read, counts, out)


def _read_by(tables: tuple[str, ...], groups: str | None) -> list[str]:
    """Files that are read and that no parameter names by itself: the lists of a folder, the table of TABLE:COLUMN."""
    lists = [str(file) for table in tables if os.path.isdir(table) for file in Path(table).iterdir() if file.is_file()]
    return [*lists, *filter(None, [(groups or "").rpartition(":")[0]])]


def _of_review(cache: EmbeddingCache, folder: str, groups: str | None, reading: LabelTable) -> ImportedLabels:
    """Labels of a review, and groups, which it keeps."""
    from pucache.reviewing.session_labels import session_labels

    read = ImportedLabels(cache, session_labels(cache, folder, check=False))
    if groups is None:
        return read
    names = read_groups(cache, groups, reading)
    keep_groups(Path(folder), cache, numbered(names))
    return read.grouped(names)


def _print(cache: EmbeddingCache, read: ImportedLabels, counts: dict[str, int], out: str) -> None:
    """What was written and what was left out; exits with 3 where that is not all that was given."""
    unknown = [] if read.unknown is None else list(dict.fromkeys(read.unknown.key.tolist()))
    result = {**counts, "undecided": read.undecided, "unknown": len(unknown), "out": out}
    named = {name: counts[name] for name in ("positive", "negative") if counts[name] or name == "positive"}
    lines = [", ".join(f"{number:,} {name}" for name, number in named.items())]
    if read.undecided:
        lines.append(f"{read.undecided:,} without a label are undecided, and left out")
    if read.labels.are_independent:
        lines.append("no groups: every image is independent of the others")
    elif "groups" in counts:
        lines.append(counted(counts["groups"], "group"))
    if unknown and read.used is not None:
        rule = offered(cache.keys, read.used)
        lines.append(
            f"left out, as {cache.name} lacks them: {counted(len(unknown), 'key')} ({name_first(unknown)})"
            + (f": {rule}" if rule else f"; its keys are such as {cache.keys[0]!r}")
        )
    rows = {name: {"positive": f"{one.positive.sum():,}"} for name, one in read.labels.columns.items() if name}
    written = f"wrote {counted(counts['rows'], 'row')} to {out}"
    output.print_concepts(result, read.labels.failures, rows, *lines, written, out=out)
    if unknown:
        raise click.exceptions.Exit(3)
