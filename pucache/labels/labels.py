"""Labels of the rows of a cache: `PULabels` of one list of positives or one concept, `Labels` of all of them.

`s` is 1 for labelled positives and 0 for unlabelled rows. `reviewed` holds what a review decided on rows
with s = 0. The true class `y` is used in evaluation only.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ..errors import LabelError, PUCacheError, counted, one_line
from .row_values import RowValues, by_position

if TYPE_CHECKING:
    from ..cache.embedding_cache import EmbeddingCache
    from ..estimates.audited_prior import AuditedHidden

LOOK_AGAIN = 20  # decisions that are doubted most, which are offered for a second look
G = TypeVar("G")
R = TypeVar("R")
TWIN_COSINE = 0.999  # cosine from which on two images show the same picture, and share their label


@dataclass(frozen=True)
class PULabels:
    """Labelled positives and reviewed rows of a cache.

    Attributes
    ----------
    s : ndarray of int8, (n,)
        1 labelled positive, 0 not. The labelled positives are taken for a random sample of all
        positives (SCAR); every estimated figure rests on them.
    reviewed : ndarray of int8, (n,)
        For rows with s = 0: 1 confirmed positive, -1 known negative, 0 not reviewed. Reviewed rows
        were mostly picked by rank, so their positive rate estimates nothing.
    hidden : AuditedHidden or None
        Number of hidden positives by the audit of a review, on which estimates then rest.
    """

    s: np.ndarray
    reviewed: np.ndarray
    hidden: AuditedHidden | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "s", by_position(self.s, (0, 1), "labels"))
        object.__setattr__(self, "reviewed", by_position(self.reviewed, (-1, 0, 1), "decisions"))
        if self.s.shape != self.reviewed.shape:
            raise LabelError(f"expected a label and a decision a row, got {self.s.shape} and {self.reviewed.shape}")
        if self.reviewed[self.s == 1].any():
            raise LabelError("rows that are labelled positive are reviewed too; decide which")

    def check(self, *, positives: bool = True) -> None:
        """Raise `LabelError` unless there is at least one undecided row and, if `positives`, a labelled positive."""
        if positives and not self.s.any():
            raise LabelError("no labelled positives; name at least one")
        if not self.unlabelled.any():
            how = "labelled positive" if self.s.all() else "labelled"
            raise LabelError(
                f"all {len(self.s)} rows are {how}; some must be unlabelled, or there is "
                "nothing to find: given as positives (--positives), a table gives its positives alone"
            )

    @property
    def positive(self) -> np.ndarray:
        """Labelled and confirmed positives, bool (n,)."""
        return (self.s == 1) | (self.reviewed == 1)

    @property
    def negative(self) -> np.ndarray:
        """Known negatives, bool (n,)."""
        return np.asarray(self.reviewed == -1)

    @property
    def unlabelled(self) -> np.ndarray:
        """Rows neither labelled nor reviewed, bool (n,)."""
        return (self.s == 0) & (self.reviewed == 0)

    def rejecting(self, rows: np.ndarray, cache: EmbeddingCache) -> PULabels:
        """These labels with some rows as known negatives; raises `LabelError` where one is positive."""
        if len(both := rows[self.positive[rows]]):
            shown = cache.keys[int(both[0])]
            raise LabelError(f"positive and negative at once: {counted(len(both), 'key')}, {shown!r}; decide which")
        reviewed = self.reviewed.copy()
        reviewed[rows] = -1
        return replace(self, reviewed=reviewed)

    def contradicted(self, called: np.ndarray, posterior: np.ndarray) -> np.ndarray:
        """Labelled and reviewed rows that a training without them contradicts, worst first, int64.

        `called` (n,) says which rows it calls positive, `posterior` (n,) is its probability of each.
        """
        rows = np.flatnonzero((self.positive & ~called) | (self.negative & called))
        doubt = np.where(self.positive[rows], 1 - posterior[rows], posterior[rows])
        return np.asarray(rows[np.argsort(-doubt, kind="stable")])

    def take(self, rows: np.ndarray) -> PULabels:
        """Labels of some rows, without what an audit says about all of them.

        Parameters
        ----------
        rows : ndarray of int, (m,)

        Returns
        -------
        PULabels
        """
        return PULabels(self.s[rows], self.reviewed[rows])

    @classmethod
    def of(cls, s: RowValues) -> PULabels:
        """Labels without a review, in the order of the rows of the cache, which is that of its `keys`.

        Parameters
        ----------
        s : array of 0 and 1, (n,)
            1 labelled positive. Values with keys go to the functions that take positives, which join them with a cache.

        Returns
        -------
        PULabels
        """
        checked = by_position(s, (0, 1), "labels")
        return cls(checked, np.zeros(len(checked), np.int8))

    def __repr__(self) -> str:
        counts = [(self.s == 1, "labelled positive"), (self.reviewed == 1, "confirmed"), (self.negative, "negative")]
        shown = ", ".join(f"{int(rows.sum()):,} {name}" for rows, name in counts if name[0] == "l" or rows.any())
        return f"PULabels({len(self.s):,} rows: {shown}" + (", audited)" if self.hidden is not None else ")")


class PerConcept(dict[str, R]):
    """Results by concept, under "" for one list of positives; `failures` are concepts that failed, and why."""

    def __init__(self, results: Mapping[str, R], failures: Mapping[str, str] | None = None):
        super().__init__(results)
        self.failures = dict(failures or {})

    @property
    def is_one(self) -> bool:
        """Whether the result is of one list of positives, and not of concepts."""
        return set(self) == {""}


@dataclass(frozen=True)
class Labels:
    """Labels of the rows of a cache: of one list of positives, or of several concepts.

    Attributes
    ----------
    columns : dict of str to PULabels
        By concept, sorted by name; under "" those of one list.
    failures : dict of str to str
        Concepts whose labels cannot be used, and why, in one line.
    group : ndarray of int64, (n,), or None
        First row of each row's group: rows that are not independent (`pucache.labels.groups`). None where nothing was
        said of groups; each row by itself where the user said that all are independent.
    sources : tuple of str
        Files that they were read from, which no output replaces.
    """

    columns: dict[str, PULabels]
    failures: dict[str, str] = field(default_factory=dict)
    group: np.ndarray | None = None
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.columns, Mapping):
            raise LabelError(
                "Labels are of one list or of several concepts, by name; those of rows are PULabels(s, reviewed)"
            )

    @property
    def is_one(self) -> bool:
        """Whether they are of one list of positives."""
        return set(self.columns) == {""}

    @property
    def only(self) -> PULabels:
        """Those of one list; `LabelError` where they are of concepts."""
        if not self.is_one:
            raise LabelError(f"labels of {len(self.columns)} concepts where one list is expected; give those of one")
        return self.columns[""]

    @property
    def are_independent(self) -> bool:
        """Whether the user said that no two rows are of one group."""
        return self.group is not None and np.array_equal(self.group, np.arange(len(self.group)))

    def with_one(self, labels: PULabels) -> Labels:
        """These with other labels of their one list."""
        return replace(self, columns={"": labels})

    @property
    def joint(self) -> PULabels:
        """Positives of any concept as labelled; as reviewed negatives what a concept rejects and none accepts."""
        if self.is_one:
            return self.only  # itself, as a review forbids to sample
        positive = np.logical_or.reduce([one.positive for one in self.columns.values()])
        negative = np.logical_or.reduce([one.negative for one in self.columns.values()])
        return PULabels(positive.astype(np.int8), -(negative & ~positive).astype(np.int8))

    def check(self, cache: EmbeddingCache) -> None:
        """Raise `LabelError` where they are of another number of rows than a cache has, or label too few."""
        for one in self.columns.values():
            if one.s.shape != (len(cache),):
                raise LabelError(
                    f"expected a label for each of {len(cache):,} rows of {cache.name}, got shape {one.s.shape}"
                )
            if self.is_one and one.positive.any():  # groups may stand alone; a concept fails alone
                one.check()

    def map(self, work: Callable[[str, PULabels], R]) -> PerConcept[R]:
        """Do some work for each concept; one that fails stops no other. Of one list what is raised is raised.

        Raises `LabelError` where the work failed for every concept.
        """
        if self.is_one:
            return PerConcept({"": work("", self.only)})
        results, failed = each_alone(self.columns, work, (PUCacheError, ValueError, ArithmeticError))
        failures = {**self.failures, **failed}
        if not results:
            name, reason = next(iter(failed.items()))
            raise LabelError(f"the work failed for each of {len(failures):,} concepts; {name}: {reason}")
        return PerConcept(results, failures)


def each_alone(
    given: Mapping[str, G], work: Callable[[str, G], R], errors: tuple[type[Exception], ...]
) -> tuple[dict[str, R], dict[str, str]]:
    """Results of some work for each concept, and why one has none; one that fails stops no other."""
    results, failures = {}, {}
    for name, one in given.items():
        try:
            results[name] = work(name, one)
        except errors as error:
            failures[name] = one_line(error)
    return results, failures


_PLAIN = re.compile(r"(?![. ])[^\x00-\x1f\x7f\ud800-\udfff/\\:*?\"<>|,]{1,100}(?<![. ])")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)  # no file names on Windows


def check_names(names: Iterable[str], where: str) -> None:
    """Raise `LabelError` for a name that is no plain file name, and for two that differ in case only."""
    seen: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str) or not _PLAIN.fullmatch(name) or _RESERVED.fullmatch(name):
            raise LabelError(
                f"the concept {name!r:.120} in {where} is refused; it is to be a plain file name of every system: at "
                'most 100 characters in UTF-8, none of / \\ : * ? " < > | and comma, no dot or space at its ends, and '
                "none of the names of devices such as CON, NUL and COM1"
            )
        other = seen.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
        if other != name:
            raise LabelError(
                f"the concepts {other!r} and {name!r} in {where} are one file name on some machines; rename one"
            )
