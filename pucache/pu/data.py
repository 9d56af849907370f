"""A cache joined with its labels, the data that heads are trained on."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..devices import choose_device
from ..heads.design_matrix import DesignMatrix
from ..heads.moments import Moments, MomentSums
from .labels import TWIN_COSINE, Labels, open_labels
from .near_duplicates import DuplicateScan, unlabelled_twins
from .review_weights import TrainingLabels


@dataclass(frozen=True)
class PUData:
    """A cache with PU labels and groups of images that show the same picture.

    Attributes
    ----------
    cache : EmbeddingCache
    labels : Labels
    group : ndarray of int64, (n,)
        Number of each row's group, see `pucache.pu.near_duplicates.groups`.
    moments : Moments or None
        Of the embeddings; None where there is a GPU, which computes them from the rows that go up.
    """

    cache: EmbeddingCache
    labels: Labels
    group: np.ndarray
    moments: Moments | None
    _designs: dict[str, DesignMatrix] = field(init=False, default_factory=dict, repr=False, compare=False)

    @property
    def s(self) -> np.ndarray:
        """Labels for estimates, int8 (n,): 1 labelled positive, 0 all others, including reviewed rows."""
        return self.labels.s

    @cached_property
    def training_labels(self) -> TrainingLabels:
        """Labels and weights that heads are trained on."""
        return TrainingLabels.of(self.labels.s, self.labels.reviewed, hidden=self.labels.hidden)

    @classmethod
    def of(
        cls,
        cache: EmbeddingCache,
        positives: str | Path | np.ndarray | Labels,
        twins: float | None = TWIN_COSINE,
        *,
        negatives: str | Path | None = None,
    ) -> PUData:
        """Join a cache with labels.

        Parameters
        ----------
        cache : EmbeddingCache
        positives : path, str, ndarray of int8 (n,) or Labels
            A file of keys, a glob on keys, the label vector s, or labels with a review.
        twins : float or None
            As for `pucache.train_pu`.
        negatives : path or str, optional
            As for `pucache.train_pu`; only beside a file or a glob of positives.

        Returns
        -------
        PUData

        Raises
        ------
        LabelError
            As `Labels.read`; no labelled or no unlabelled row; an s of another length.
        CacheError
            The cache is damaged, or holds embeddings that are not finite.
        """
        labels = open_labels(cache, positives, negatives)
        shape = (len(cache), cache.encoder.dim)
        scan, sums = DuplicateScan(shape, cache.take, twins), MomentSums()
        on_host = choose_device().type == "cpu"
        for rows, X in cache.verified_blocks():
            scan.add(rows.start, X)
            if on_host:
                sums.add(X)
        moments = sums.moments() if on_host else None
        return cls(cache=cache, labels=labels, group=scan.groups(cache.X, cache.digests), moments=moments)

    def design_matrix(self, device: str = "auto") -> DesignMatrix:
        """Rows and training labels as the solvers take them; the same object for each device.

        Parameters
        ----------
        device : str
            ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

        Returns
        -------
        DesignMatrix
        """
        chosen = choose_device(device)
        if str(chosen) not in self._designs:
            training_s = self.training_labels.training_s
            self._designs[str(chosen)] = DesignMatrix(self.cache.X, training_s, self.moments, chosen)
        return self._designs[str(chosen)]

    def release(self) -> None:
        """Free the rows that design matrices hold in memory; they are prepared again on the next use."""
        self._designs.clear()

    def twins_of_positives(self) -> list[tuple[str, str]]:
        """Unlabelled images that show the same picture as a known positive.

        Returns
        -------
        list of (str, str)
            Key of the unlabelled image, and key of the positive.
        """
        twins, positives = unlabelled_twins(self.group, self.labels.positive.astype(np.int8))
        undecided = self.labels.unlabelled[twins]
        pairs = zip(twins[undecided], positives[undecided], strict=True)
        return [(self.cache.keys[int(twin)], self.cache.keys[int(positive)]) for twin, positive in pairs]
