"""A cache joined with its labels, the data that heads are trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..devices import choose_device
from ..estimates.review_weights import TrainingLabels
from ..heads.design_matrix import DesignMatrix
from ..heads.moments import Moments, MomentSums
from ..labels.labels import TWIN_COSINE, Labels, open_labels
from ..labels.near_duplicates import DuplicateScan, groups, joined_groups, unlabelled_twins
from ..labels.row_values import RowValues
from ..labels.sample import UnlabelledSample, copied_rows, draw_sample
from ..storage.rows import RowMatrix, take_rows

if TYPE_CHECKING:
    from ..neighbours.graph import NeighbourGraph


@dataclass(frozen=True)
class LabelledCache:
    """A cache with PU labels and groups of images that show the same picture.

    The n rows are all rows of the cache; where it has more unlabelled rows than training needs, they are the labelled
    positives and a sample of the others (`pucache.labels.sample`).

    Attributes
    ----------
    cache : EmbeddingCache
    labels : Labels
        Of the n rows.
    X : ndarray or StackedRows, (n, d)
        Embeddings of the rows; may be mapped.
    group : ndarray of int64, (n,)
        Number of each row's group, see `pucache.labels.near_duplicates.groups`.
    clusters : ndarray of int64, (n,), or None
        Groups of rows that are not independent, which the user named (`pucache.labels.groups`), united with `group`.
    moments : Moments or None
        Of the embeddings; None where there is a GPU, which computes them from the rows that go up.
    rows : ndarray of int64, (n,), or None
        Row numbers in the cache, ascending; None where the rows are all rows of the cache.
    sample : UnlabelledSample or None
        Size of the sample of the unlabelled rows; None where all are taken.
    labelled_by_any : ndarray of int64, (m,), or None
        Rows that any of several concepts labels, ascending; None where there is one.
    """

    cache: EmbeddingCache
    labels: Labels
    X: RowMatrix
    group: np.ndarray
    moments: Moments | None
    rows: np.ndarray | None = None
    sample: UnlabelledSample | None = None
    clusters: np.ndarray | None = None
    labelled_by_any: np.ndarray | None = None
    _designs: dict[str, DesignMatrix] = field(init=False, default_factory=dict, repr=False, compare=False)
    _shared: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)  # what knows no labels

    @property
    def s(self) -> np.ndarray:
        """Labels for estimates, int8 (n,): 1 labelled positive, 0 all others, including reviewed rows."""
        return self.labels.s

    @cached_property
    def training_labels(self) -> TrainingLabels:
        """Labels and weights that heads are trained on."""
        return TrainingLabels.of(self.labels.s, self.labels.reviewed, hidden=self.labels.hidden)

    @property
    def n_unlabelled(self) -> int:
        """Number of all unlabelled rows of the cache, in the sample or not."""
        return int((self.s == 0).sum()) if self.sample is None else self.sample.unlabelled

    @property
    def together(self) -> np.ndarray:
        """Groups of rows that stay in one fold and count as one label, int64 (n,)."""
        return self.group if self.clusters is None else self.clusters

    def cache_rows(self, rows: np.ndarray) -> np.ndarray:
        """Row numbers in the cache of some of these rows, int64 (m,)."""
        return rows if self.rows is None else self.rows[rows]

    def keys(self, rows: np.ndarray) -> list[str]:
        """Keys of some of these rows, int64 (m,)."""
        return self.cache.keys[self.cache_rows(rows)]

    def take(self, values: np.ndarray) -> np.ndarray:
        """Values of these rows, (n, ...), out of values of all rows of the cache."""
        return values if self.rows is None else values[self.rows]

    @classmethod
    def of(
        cls,
        cache: EmbeddingCache,
        positives: str | Path | RowValues | Labels,
        twins: float | None = TWIN_COSINE,
        *,
        negatives: str | Path | RowValues | None = None,
        all_rows: bool = False,
        clusters: np.ndarray | None = None,
        seed: int = 0,
        device: str = "auto",
    ) -> LabelledCache:
        """Join a cache with labels.

        Parameters
        ----------
        cache : EmbeddingCache
        positives : path, str, RowValues or Labels
            As for `pucache.train_pu`.
        twins : float or None
            As for `pucache.train_pu`.
        negatives : path, str or RowValues, optional
            As for `pucache.train_pu`.
        all_rows : bool
            Take all unlabelled rows, however many there are.
        clusters : ndarray of int64, (rows of the cache,), optional
            Groups of rows that are not independent, see `pucache.labels.groups.read_groups`.
        seed : int
            Of the sample of unlabelled rows.
        device : str
            Where heads will be trained; on a GPU moments are computed there.

        Returns
        -------
        LabelledCache

        Raises
        ------
        LabelError
            As `Labels.read`; no labelled or no unlabelled row; an s of another length.
        CacheError
            The cache is damaged, or holds embeddings that are not finite.
        """
        labels = open_labels(cache, positives, negatives)
        return cls.prepare(cache, labels, twins, all_rows=all_rows, clusters=clusters, seed=seed, device=device)

    @classmethod
    def prepare(
        cls,
        cache: EmbeddingCache,
        labels: Labels,
        twins: float | None,
        *,
        all_rows: bool = False,
        clusters: np.ndarray | None = None,
        seed: int = 0,
        device: str = "auto",
    ) -> LabelledCache:
        """Join a cache with labels that were checked, which may leave no row unlabelled; the rest is as for `of`."""
        on_host = choose_device(device).type == "cpu"
        row_bytes = cache.files[0].dtype.itemsize * cache.encoder.dim
        drawn = None if all_rows else draw_sample(cache.keys, labels, row_bytes=row_bytes, seed=seed)
        if drawn is not None:
            sample, numbers = drawn
            X = copied_rows(cache, numbers)
            group = groups(X, take_rows(cache.digest_matrix, numbers), cosine=twins)
            moments = Moments.of(X) if on_host else None
            clusters = None if clusters is None else joined_groups(group, clusters[numbers])
            return cls(cache, labels.take(numbers), X, group, moments, numbers, sample, clusters)
        scan, sums = DuplicateScan((len(cache), cache.encoder.dim), cache.take, twins), MomentSums()
        for block_rows, block in cache.verified_blocks():
            scan.add(block_rows.start, block)
            if on_host:
                sums.add(block)
        group = scan.groups(cache.matrix, cache.digest_matrix)
        clusters = None if clusters is None else joined_groups(group, clusters)
        return cls(cache, labels, cache.matrix, group, sums.moments() if on_host else None, clusters=clusters)

    def design_matrix(self, device: str = "auto") -> DesignMatrix:
        """Rows and training labels as the solvers take them; the same object for each device."""
        chosen = choose_device(device)
        if str(chosen) not in self._designs:
            training_s = self.training_labels.training_s
            self._designs[str(chosen)] = design = DesignMatrix(self.X, training_s, self.moments, chosen)
            if str(chosen) in self._shared:
                design.moments, design.leading = self._shared[str(chosen)]
            elif self.labelled_by_any is not None:  # other labels are to come
                self._shared[str(chosen)] = design.moments, design.leading
        return self._designs[str(chosen)]

    def neighbour_graph(self, rows: np.ndarray | None, device: str) -> NeighbourGraph:
        """Graph of the nearest neighbours of `rows`, int64 (m,), or of all; that of a whole cache is kept beside it."""
        from ..neighbours.graph import cached_graph, neighbour_graph  # only where neighbours are looked at

        kept_rows, graph = self._shared.get("graph", (None, None))
        same = kept_rows is rows or (kept_rows is not None and rows is not None and np.array_equal(kept_rows, rows))
        if graph is not None and same:
            return graph
        if self.rows is None and rows is None:
            graph = cached_graph(self.cache, device=device)
        else:
            graph = neighbour_graph(self.cache if self.rows is None else self.X, rows=rows, device=device)
        if self.labelled_by_any is not None:
            self._shared["graph"] = rows, graph
        return graph

    def of_concepts(self, concepts: Mapping[str, Labels]) -> Iterator[tuple[str, LabelledCache]]:
        """Yield name and rows with the labels of one concept after another; what knows no labels is prepared once.

        `concepts` are labels of all rows of the cache, and `pucache.labels.concepts.joint_labels` of them the labels of
        this one. The rows of a concept are freed before the next.
        """
        for name, labels in concepts.items():
            of_rows = labels if self.rows is None else labels.take(self.rows)
            data = replace(self, labels=of_rows, labelled_by_any=np.flatnonzero(self.labels.positive))
            yield name, data
            data.release()

    def release(self) -> None:
        """Free the rows that design matrices hold in memory; they are prepared again on the next use."""
        self._designs.clear()

    def twins_of_positives(self) -> list[tuple[str, str]]:
        """Keys of unlabelled images that show the same picture as a known positive, each with that of the positive."""
        twins, positives = unlabelled_twins(self.group, self.labels.positive.astype(np.int8))
        undecided = self.labels.unlabelled[twins]
        return list(zip(self.keys(twins[undecided]), self.keys(positives[undecided]), strict=True))
