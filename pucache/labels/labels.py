"""Labels of the rows of a cache.

`s` is 1 for labelled positives and 0 for unlabelled rows. `reviewed` holds what a review decided on rows
with s = 0. The true class `y` is used in evaluation only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import LabelError
from .label_files import name_first, read_decisions

if TYPE_CHECKING:
    from ..cache.embedding_cache import EmbeddingCache
    from ..estimates.audited_prior import AuditedHidden

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
        if self.s.ndim != 1 or self.s.shape != self.reviewed.shape:
            raise LabelError(f"expected a label and a decision a row, got {self.s.shape} and {self.reviewed.shape}")
        if not (np.isin(self.s, (0, 1)).all() and np.isin(self.reviewed, (-1, 0, 1)).all()):
            raise LabelError("expected s of 0 and 1, and reviewed of -1, 0 and 1; got other values")
        if self.reviewed[self.s == 1].any():
            raise LabelError("rows that are labelled positive are reviewed too; decide which")

    def check(self) -> None:
        """Raise `LabelError` unless there is at least one labelled positive and one undecided row."""
        if not self.s.any():
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
    def of(cls, s: np.ndarray) -> Labels:
        """Labels without a review.

        Parameters
        ----------
        s : array of 0 and 1, (n,)
            1 labelled positive.

        Returns
        -------
        Labels
        """
        return cls(np.asarray(s, np.int8), np.zeros(len(s), np.int8))

    @classmethod
    def read(cls, cache: EmbeddingCache, positives: str | Path, negatives: str | Path | None = None) -> Labels:
        """Read labels from files of keys or globs on keys.

        Parameters
        ----------
        cache : EmbeddingCache
        positives : path or str
            As for `find_keys`. In a CSV with a ``reviewed`` column, rows with 1 in it are positives
            that a review confirmed; the others are labelled positives.
        negatives : path or str, optional
            Known negatives, in the same forms; in a CSV with a ``label`` column the rows with 0.

        Returns
        -------
        Labels

        Raises
        ------
        LabelError
            As `find_keys`; also when a key is both positive and negative, when digests are those of
            other images, or when no row is left unlabelled.
        """
        s, reviewed = np.zeros(len(cache), np.int8), np.zeros(len(cache), np.int8)
        rows, confirmed = read_decisions(cache, positives, 1)
        s[rows[~confirmed]], reviewed[rows[confirmed]] = 1, 1
        if not s.any():
            raise LabelError(
                f"{positives} holds only positives that a review confirmed; figures rest on those labelled before it: "
                "give all that the page exported, or remove the column 'reviewed' to count these as labelled"
            )
        if negatives is not None:
            rows, _ = read_decisions(cache, negatives, 0)
            contradictory = rows[(s[rows] == 1) | (reviewed[rows] == 1)]
            if len(contradictory):
                examples = name_first([cache.keys[int(row)] for row in contradictory])
                raise LabelError(
                    f"{len(contradictory)} keys are both in {positives} and in {negatives} ({examples}); decide which"
                )
            reviewed[rows] = -1
        labels = cls(s, reviewed)
        labels.check()
        return labels


def open_labels(
    cache: EmbeddingCache, positives: str | Path | np.ndarray | Labels, negatives: str | Path | None = None
) -> Labels:
    """Labels of a cache: those of `Labels.read`, or a given s or `Labels`, with which no `negatives` go.

    Raises `LabelError` as `Labels.read`, and for an s of another length; `ValueError` for negatives beside an array or
    `Labels`.
    """
    if negatives is not None and not isinstance(positives, str | os.PathLike):
        raise ValueError("negatives go with a file or a glob of positives; give Labels that hold both instead")
    if isinstance(positives, str | os.PathLike):
        labels = Labels.read(cache, positives, negatives)
    else:
        labels = positives if isinstance(positives, Labels) else _labels_of(positives)
    if labels.s.shape != (len(cache),):
        raise LabelError(
            f"expected a label for each of {len(cache):,} rows of {cache.name}, got shape {labels.s.shape}"
        )
    labels.check()
    return labels


def _labels_of(s: np.ndarray) -> Labels:
    values = np.asarray(s)
    if values.dtype.kind not in "biuf":
        raise LabelError(
            "expected a file of keys, a glob on keys, an array of a label (1 or 0) for each row, or Labels; got "
            f"{s!r:.80}" + ("; write keys to a file, one a line" if values.dtype.kind == "U" else "")
        )
    return Labels.of(values)
