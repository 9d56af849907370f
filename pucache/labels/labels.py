"""Labels of the rows of a cache.

`s` is 1 for labelled positives and 0 for unlabelled rows. `reviewed` holds what a review decided on rows
with s = 0. The true class `y` is used in evaluation only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from ..errors import LabelError
from .label_files import name_first, read_decisions
from .row_values import RowValues, by_position, labels_of_rows

if TYPE_CHECKING:
    from ..cache.embedding_cache import EmbeddingCache
    from ..estimates.audited_prior import AuditedHidden

LOOK_AGAIN = 20  # decisions that are doubted most, which are offered for a second look
TWIN_COSINE = 0.999  # cosine from which on two images show the same picture, and share their label


@dataclass(frozen=True)
class Labels:
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
            raise LabelError(f"all {len(self.s)} rows are {how}; some must be unlabelled, or there is nothing to find")

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

    def contradicted(self, called: np.ndarray, posterior: np.ndarray) -> np.ndarray:
        """Labelled and reviewed rows that a training without them contradicts, worst first, int64.

        `called` (n,) says which rows it calls positive, `posterior` (n,) is its probability of each.
        """
        rows = np.flatnonzero((self.positive & ~called) | (self.negative & called))
        doubt = np.where(self.positive[rows], 1 - posterior[rows], posterior[rows])
        return np.asarray(rows[np.argsort(-doubt, kind="stable")])

    def take(self, rows: np.ndarray) -> Labels:
        """Labels of some rows, without what an audit says about all of them.

        Parameters
        ----------
        rows : ndarray of int, (m,)

        Returns
        -------
        Labels
        """
        return Labels(self.s[rows], self.reviewed[rows])

    @classmethod
    def of(cls, s: RowValues) -> Labels:
        """Labels without a review, in the order of the rows of the cache, which is that of its `keys`.

        Parameters
        ----------
        s : array of 0 and 1, (n,)
            1 labelled positive. Values with keys go to the functions that take positives, which join them with a cache.

        Returns
        -------
        Labels
        """
        checked = by_position(s, (0, 1), "labels")
        return cls(checked, np.zeros(len(checked), np.int8))

    @classmethod
    def read(
        cls,
        cache: EmbeddingCache,
        positives: str | Path | RowValues,
        negatives: str | Path | RowValues | None = None,
    ) -> Labels:
        """Read labels from files of keys, globs on keys, or values in memory.

        Parameters
        ----------
        cache : EmbeddingCache
        positives : path, str or RowValues
            A path or str as for `find_keys`: in a CSV with a ``reviewed`` column, rows with 1 in it are positives
            that a review confirmed; the others are labelled positives. Or as for
            `pucache.labels.row_values.labels_of_rows`.
        negatives : path, str or RowValues, optional
            Known negatives, in the same forms; in a CSV with a ``label`` column the rows with 0.

        Returns
        -------
        Labels

        Raises
        ------
        LabelError
            As `find_keys` and `labels_of_rows`; also when a key is both positive and negative, when digests are those
            of other images, or when no row is left unlabelled.
        """
        s, reviewed = np.zeros(len(cache), np.int8), np.zeros(len(cache), np.int8)
        if _is_named(positives):
            rows, confirmed = read_decisions(cache, positives, 1)
            s[rows[~confirmed]], reviewed[rows[confirmed]] = 1, 1
            if not s.any():
                raise LabelError(
                    f"{positives} holds only positives that a review confirmed; figures rest on those labelled before "
                    "it: give all that the page exported, or remove the column 'reviewed' to count these as labelled"
                )
        else:
            s = labels_of_rows(positives, cache)
        if negatives is not None:
            rows = negative_rows(cache, negatives)
            contradictory = rows[(s[rows] == 1) | (reviewed[rows] == 1)]
            if len(contradictory):
                examples = name_first([cache.keys[int(row)] for row in contradictory])
                names = [text if _is_named(text) else "the values given" for text in (positives, negatives)]
                raise LabelError(
                    f"{len(contradictory)} keys are both in {names[0]} and in {names[1]} ({examples}); decide which"
                )
            reviewed[rows] = -1
        labels = cls(s, reviewed)
        labels.check()
        return labels

    def __repr__(self) -> str:
        counts = [(self.s == 1, "labelled positive"), (self.reviewed == 1, "confirmed"), (self.negative, "negative")]
        shown = ", ".join(f"{int(rows.sum()):,} {name}" for rows, name in counts if name[0] == "l" or rows.any())
        return f"Labels({len(self.s):,} rows: {shown}" + (", audited)" if self.hidden is not None else ")")


def open_labels(
    cache: EmbeddingCache,
    positives: str | Path | RowValues | Labels,
    negatives: str | Path | RowValues | None = None,
) -> Labels:
    """Labels of a cache: those of `Labels.read`, or given `Labels`, with which no `negatives` go.

    Raises `LabelError` as `Labels.read`, for `Labels` of another length; `ValueError` for negatives beside
    `Labels` or a vector.
    """
    is_vector = isinstance(positives, np.ndarray) and positives.dtype.kind in "biuf"
    if negatives is not None and (is_vector or isinstance(positives, Labels)):
        raise ValueError("negatives go with a file or a glob of positives, or with keys; give Labels that hold both")
    if not isinstance(positives, Labels):
        return Labels.read(cache, positives, negatives)
    if positives.s.shape != (len(cache),):
        raise LabelError(
            f"expected a label for each of {len(cache):,} rows of {cache.name}, got shape {positives.s.shape}"
        )
    positives.check()
    return positives


def labels_if_any(
    cache: EmbeddingCache, positives: str | Path | RowValues | Labels | None, negatives: str | Path | RowValues | None
) -> Labels | None:
    """Labels as `open_labels`, or known negatives alone; None where neither is named."""
    if positives is not None:
        return open_labels(cache, positives, negatives)
    if negatives is None:
        return None
    reviewed = np.zeros(len(cache), np.int8)
    reviewed[negative_rows(cache, negatives)] = -1
    return Labels(np.zeros(len(cache), np.int8), reviewed)


def _is_named(given: Any) -> TypeGuard[str | Path]:
    """Whether labels are named by a path or a glob."""
    return isinstance(given, str | os.PathLike)


def negative_rows(cache: EmbeddingCache, negatives: str | Path | RowValues) -> np.ndarray:
    """Rows of known negatives, int64 (m,), ascending, which are given as positives are."""
    if _is_named(negatives):
        return read_decisions(cache, negatives, 0)[0]
    return np.flatnonzero(labels_of_rows(negatives, cache, what="negatives"))
