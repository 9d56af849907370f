"""Labels of many concepts on one cache: a table of keys and concepts, a folder of lists, or a mapping.

A concept's name becomes the name of its model's file and of its columns, so it must be a plain file name.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ..errors import LabelError, PUCacheError, one_line
from ..storage.table_columns import CONCEPT_COLUMNS
from ..storage.tables import LabelTable, Row, read_table
from ..storage.urls import is_url
from .label_files import decided_rows, match_rows, name_first
from .labels import Labels, open_labels
from .row_values import RowValues

if TYPE_CHECKING:
    from ..cache.embedding_cache import EmbeddingCache

T = TypeVar("T")
R = TypeVar("R")
LISTS = (".txt", ".csv", ".tsv", ".tab", ".xlsx", ".ods", ".xls")  # of a folder: the keys of each concept
_PLAIN = re.compile(r"(?![. ])[^\x00-\x1f\x7f\ud800-\udfff/\\:*?\"<>|,]{1,100}(?<![. ])")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)  # no file names on Windows
# positives of a concept: a file of keys, a glob on keys, values in memory (keys, s, a Series), or labels with a review
Positives = str | Path | LabelTable | RowValues | Labels


@dataclass(frozen=True)
class ConceptLabels:
    """Labels of concepts.

    Attributes
    ----------
    labels : dict of str to Labels
        By concept, sorted by name.
    failures : dict of str to str
        Concepts whose labels cannot be used, and why, in one line.
    """

    labels: dict[str, Labels]
    failures: dict[str, str]

    def over_concepts(
        self, given: Iterable[tuple[str, T]], work: Callable[[str, T], R]
    ) -> tuple[dict[str, R], dict[str, str]]:
        """Do some work for each of the `given` concepts and what stands beside its name; one that fails stops no other.

        Returns the results, and `failures` with the concepts whose work failed; raises `LabelError` where all did.
        """
        results, failures = {}, dict(self.failures)
        for name, one in given:
            try:
                results[name] = work(name, one)
            except (PUCacheError, ValueError, ArithmeticError) as error:
                failures[name] = one_line(error)
        if not results:
            name, reason = next((name, failures[name]) for name in self.labels)
            raise LabelError(f"the work failed for each of {len(failures):,} concepts; {name}: {reason}")
        return results, failures


def exclusive(concepts: ConceptLabels) -> ConceptLabels:
    """Labels of kinds of which an image has one: the positives of each are known negatives of all others.

    Raises `LabelError` where an image is a positive of two.
    """
    counts = np.sum([labels.positive for labels in concepts.labels.values()], axis=0)
    if (twice := np.flatnonzero(counts > 1)).size:
        names = " and ".join(name for name, one in concepts.labels.items() if one.positive[twice[0]])
        raise LabelError(
            f"{len(twice):,} images are labelled with several concepts, the first with {names}; of concepts that "
            "exclude each other an image has one: remove the others, or leave out --exclusive"
        )
    labels = {
        name: replace(one, reviewed=np.where((counts > 0) & ~one.positive, np.int8(-1), one.reviewed))
        for name, one in concepts.labels.items()
    }
    return replace(concepts, labels=labels)


ConceptSource = str | Path | LabelTable | Mapping[str, Positives] | ConceptLabels


def open_concepts(cache: EmbeddingCache, concepts: ConceptSource) -> ConceptLabels:
    """Labels of several concepts on a cache.

    Parameters
    ----------
    cache : EmbeddingCache
    concepts : path, str or mapping
        A table with the columns ``key`` and ``concept``, and possibly ``label`` (1 or 0, by default 1),
        a key in any number of rows; a folder with a list of keys for each concept, ``CONCEPT.txt`` or ``CONCEPT.csv``;
        or for each concept keys, or what `pucache.train_pu` takes as positives. `ConceptLabels` are returned.

    Returns
    -------
    ConceptLabels
        A concept without a positive, with unknown keys or with contradictory labels is among the failures.

    Raises
    ------
    LabelError
        The table or the folder cannot be read; a name is no plain file name; two names differ in case only; no concept
        has labels that can be used.
    """
    if isinstance(concepts, ConceptLabels):
        return concepts
    given = dict(concepts) if isinstance(concepts, Mapping) else _read(cache, concepts)
    where = "the mapping" if isinstance(concepts, Mapping) else str(concepts)
    if not given:
        raise LabelError(f"{where} names no concepts; expected one at least")
    check_names(given, where)
    labels, failures = {}, {}
    for name in sorted(given):
        try:
            labels[name] = _labels(cache, given[name], f"{where}, concept {name}")
        except (LabelError, ValueError) as error:
            failures[name] = one_line(error)
    if not labels:
        name, reason = next(iter(failures.items()))
        raise LabelError(f"none of the {len(failures):,} concepts in {where} can be used; {name}: {reason}")
    return ConceptLabels(labels, failures)


def check_names(names: Iterable[str], where: str) -> None:
    """Raise `LabelError` for a name that is no plain file name, and for two that differ in case only."""
    seen: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str) or not _PLAIN.fullmatch(name) or _RESERVED.fullmatch(name):
            raise LabelError(
                f"{where} has the concept {name!r:.120}; a concept is called by a plain file name of every system: at "
                'most 100 characters in UTF-8, none of / \\ : * ? " < > | and comma, no dot or space at its ends, and '
                "none of the names of devices such as CON, NUL and COM1"
            )
        other = seen.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
        if other != name:
            raise LabelError(
                f"{where} has the concepts {other!r} and {name!r}, which are one file name on some machines; rename one"
            )


def _read(cache: EmbeddingCache, concepts: str | os.PathLike[str]) -> dict[str, Positives | list[Row]]:
    """Path of the list, or rows of the table, of each concept."""
    path = Path(concepts)
    if path.is_dir() and not is_url(concepts):
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in LISTS and file.name[0] != ".")
        if not files:
            raise LabelError(f"{path} holds no lists; expected CONCEPT.txt or CONCEPT.csv for each concept")
        twice = {file.stem for file in files if sum(other.stem == file.stem for other in files) > 1}
        if twice:
            raise LabelError(f"{path} has two lists of the concepts {name_first(sorted(twice))}; keep one of each")
        return {
            file.stem: replace(concepts, path=str(file)) if isinstance(concepts, LabelTable) else file for file in files
        }
    if not is_url(concepts) and not path.exists():
        raise LabelError(f"no such file: {path}; expected a table with the columns key,concept or a folder of lists")
    table = match_rows(cache, read_table(concepts, CONCEPT_COLUMNS), concepts)  # a LabelTable names its columns
    if table and "concept" not in table[0]:
        columns = ", ".join(table[0])
        raise LabelError(f"{path} has columns {columns}; expected key,concept and possibly label; or a folder of lists")
    by_name = defaultdict(list)
    for row in table:
        by_name[(row.pop("concept") or "").strip()].append(row)
    return dict(by_name)


def _labels(cache: EmbeddingCache, given: Positives | list[Row], source: str) -> Labels:
    if isinstance(given, Path | LabelTable):
        given, source = match_rows(cache, read_table(given), given), str(given)
    if not (isinstance(given, list) and given and isinstance(given[0], Row)):  # values in memory, or Labels
        return open_labels(cache, given)
    table = given
    s, reviewed = np.zeros(len(cache), np.int8), np.zeros(len(cache), np.int8)
    rows, confirmed = decided_rows(cache, table, 1, source)
    s[rows[~confirmed]], reviewed[rows[confirmed]] = 1, 1
    if "label" in table[0]:
        reviewed[decided_rows(cache, table, 0, source)[0]] = -1
    labels = Labels(s, reviewed)
    labels.check()
    return labels


def joint_labels(labels: Iterable[Labels]) -> Labels:
    """Positives of any concept as labelled; as reviewed negatives what a concept rejects and none accepts."""
    positive, negative = np.zeros((2, 1), bool)
    for one in labels:
        positive, negative = positive | one.positive, negative | one.negative
    return Labels(positive.astype(np.int8), -(negative & ~positive).astype(np.int8))
