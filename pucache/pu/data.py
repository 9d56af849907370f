"""A cache joined with its labels: what every verb that trains works on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from .labels import Labels, open_labels
from .near_duplicates import groups, unlabelled_twins
from .review_weights import TrainingLabels

TWIN_COSINE = 0.999  # cosine from which on two images count as the same picture


@dataclass(frozen=True)
class PUData:
    """A cache with PU labels and groups of twins.

    Attributes
    ----------
    cache : EmbeddingCache
    labels : Labels
    group : ndarray of int64, (n,)
        See `pucache.pu.near_duplicates.groups`.
    """

    cache: EmbeddingCache
    labels: Labels
    group: np.ndarray

    @property
    def s(self) -> np.ndarray:
        """Labels that figures rest on, int8 (n,): 1 labelled positive, 0 all others, reviewed ones too."""
        return self.labels.s

    @property
    def known(self) -> TrainingLabels:
        """What heads are trained on."""
        return TrainingLabels.of(self.labels.s, self.labels.reviewed)

    @classmethod
    def of(
        cls,
        cache: EmbeddingCache,
        positives: str | Path | np.ndarray | Labels,
        twins: float | None = TWIN_COSINE,
        *,
        negatives: str | Path | None = None,
    ) -> PUData:
        """Join a cache with labels: files of keys, globs on keys, s itself, or labels that were read.

        Parameters
        ----------
        cache : EmbeddingCache
        positives : path, str, ndarray of int8 (n,) or Labels
        twins : float or None
            As for `train_pu`.
        negatives : path or str, optional
            As for `train_pu`; only beside a file or a glob of positives.

        Raises
        ------
        LabelError
            As `Labels.read`; no labelled or no unlabelled row; an s of another length.
        CacheError
            The cache is damaged, or holds embeddings that are not finite.
        """
        labels = open_labels(cache, positives, negatives)
        cache.verify()
        return cls(cache, labels, groups(cache.X, cache.digests, cosine=twins))

    def found(self) -> list[tuple[str, str]]:
        """Unlabelled images that are twins of labelled positives: (key, key of the positive)."""
        rows, labelled = unlabelled_twins(self.group, self.labels.positive.astype(np.int8))
        new = self.labels.unlabelled[rows]
        rows, labelled = rows[new], labelled[new]
        return [(self.cache.keys[int(a)], self.cache.keys[int(b)]) for a, b in zip(rows, labelled, strict=True)]
