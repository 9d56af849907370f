"""Training sets: rows that are prepared once for any labels, and the labels of one concept on them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from ..cache.embedding_cache import EmbeddingCache
from ..devices import choose_device
from ..estimates.calibration import fit_tilt
from ..estimates.label_requirements import LabelCount
from ..estimates.review_weights import TrainingLabels
from ..estimates.scar import ScarCheck, check_scar
from ..heads.design_matrix import DesignMatrix
from ..heads.moments import Moments, MomentSums
from ..labels.groups import groups_of_images
from ..labels.labels import TWIN_COSINE, Labels, PerConcept, PULabels
from ..labels.near_duplicates import DuplicateScan, groups, joined_groups, unlabelled_twins
from ..labels.sample import UnlabelledSample, copied_rows, draw_sample
from ..labels.unnamed_groups import find_unnamed_groups
from ..neighbours.graph import cached_graph, neighbour_graph
from ..storage.rows import RowMatrix, take_rows

if TYPE_CHECKING:
    from ..neighbours.graph import NeighbourGraph
    from .sklearn_classifier import PULinearClassifier

log = logging.getLogger("pucache")
R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Rows to train on, prepared once: moments, leading directions and the graph of neighbours know no labels."""

    X: RowMatrix  # (n, d): finite; may be mapped
    device: torch.device
    moments: Moments | None = None  # of X; None for a matrix, of which they are computed where they are needed
    twin: np.ndarray | None = None  # int64, (n,): rows that show the same picture, see `near_duplicates.groups`
    # int64, (n,): rows that are not independent, united with `twin`: as the user named them, the parts of each image,
    # or what holds the labels where these lie in few groups that nobody named
    group: np.ndarray | None = None
    cache: EmbeddingCache | None = None
    numbers: np.ndarray | None = None  # int64, (n,): of the cache, ascending, where the rows are a sample of it
    sample: UnlabelledSample | None = None
    # int64, (m,): rows that any concept labels; a sample for the graph holds them, so that one serves all concepts
    labelled: np.ndarray | None = None

    @classmethod
    def of_cache(
        cls,
        cache: EmbeddingCache,
        labels: Labels,
        *,
        twins: float | None = TWIN_COSINE,
        all_rows: bool = False,
        seed: int = 0,
        device: str = "auto",
    ) -> TrainingRows:
        """All rows of a cache, or the labelled positives and a sample of the others (`pucache.labels.sample`).

        `twins` is the cosine of images that show the same picture, None for equal bytes only; `seed` is that of the
        sample. Raises `CacheError` where the cache is damaged, or holds embeddings that are not finite.
        """
        chosen, joint = choose_device(device), labels.joint
        group = groups_of_images(cache) if labels.group is None else labels.group
        is_named = group is not None
        group = None if labels.are_independent else group
        X: RowMatrix
        sample: UnlabelledSample | None = None
        numbers: np.ndarray | None = None
        row_bytes = cache.files[0].dtype.itemsize * cache.encoder.dim
        drawn = None if all_rows else draw_sample(cache.keys, joint, row_bytes=row_bytes, seed=seed)
        if drawn is not None:
            sample, numbers = drawn
            X = copied_rows(cache, numbers)
            digests, joint = take_rows(cache.digest_matrix, numbers), joint.take(numbers)
            twin, moments = groups(X, digests, cosine=twins, device=chosen), Moments.of(X, chosen)
            group = None if group is None else group[numbers]
        else:
            scan = DuplicateScan((len(cache), cache.encoder.dim), cache.take, twins, chosen)
            sums = MomentSums(chosen)
            for block_rows, block in cache.verified_blocks():
                scan.add(block_rows.start, block)
                sums.add(block)
            X, twin, moments = cache.matrix, scan.groups(cache.matrix, cache.digest_matrix), sums.moments()
        if not is_named:
            unnamed = find_unnamed_groups(X, cache.keys, np.flatnonzero(joint.s == 1), twin, numbers)
            if unnamed is not None:
                group = unnamed.group
                log.warning("%s", unnamed.sentence(cache, labels.sources))
        group = None if group is None else joined_groups(twin, group)
        return cls(X, chosen, moments, twin, group, cache, numbers, sample, np.flatnonzero(joint.positive))

    @property
    def together(self) -> np.ndarray | None:
        """Groups of rows that stay in one fold and count as one label, int64 (n,)."""
        return self.twin if self.group is None else self.group

    @cached_property
    def unlabelled(self) -> DesignMatrix:
        """The rows as the solvers take them, without labels: with moments and leading directions."""
        return DesignMatrix(self.X, np.zeros(len(self.X), np.int8), self.moments, self.device)

    def take(self, values: np.ndarray) -> np.ndarray:
        """Values of these rows, (n, ...), out of values of all rows of the cache."""
        return values if self.numbers is None else values[self.numbers]

    def graph(self, rows: np.ndarray | None) -> NeighbourGraph:
        """Graph of the nearest neighbours of `rows`, int64 (m,), or of all; that of a whole cache is kept beside it."""
        known, graph = self.__dict__.get("_graph", (None, None))
        if graph is None or not np.array_equal(known, rows):  # type: ignore[arg-type]
            if self.cache is not None and self.numbers is None and rows is None:
                graph = cached_graph(self.cache, device=str(self.device))
            else:
                whole = self.X if self.cache is None or self.numbers is not None else self.cache
                graph = neighbour_graph(whole, rows=rows, device=str(self.device))
            self.__dict__["_graph"] = rows, graph
        return graph

    def labelled_by(self, labels: PULabels) -> TrainingSet:
        """The rows with labels of all rows of the cache."""
        one = labels if self.numbers is None else labels.take(self.numbers)
        return TrainingSet(self, one, TrainingLabels.of(one.s, one.reviewed, hidden=one.hidden))

    def map(self, labels: Labels, work: Callable[[str, TrainingSet], R]) -> PerConcept[R]:
        """Do some work with the labels of each concept, one after another, as `Labels.map`."""
        return labels.map(lambda name, one: work(name, self.labelled_by(one)))


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Rows with the labels of one concept."""

    rows: TrainingRows
    labels: PULabels
    training: TrainingLabels  # of these labels, with row weights

    @property
    def cache(self) -> EmbeddingCache:
        """The cache that the rows are of."""
        assert self.rows.cache is not None
        return self.rows.cache

    @property
    def together(self) -> np.ndarray:
        """Groups of rows of a cache that count as one label, int64 (n,)."""
        assert self.rows.together is not None
        return self.rows.together

    @property
    def twin(self) -> np.ndarray:
        """Rows of a cache that show the same picture, int64 (n,)."""
        assert self.rows.twin is not None
        return self.rows.twin

    @property
    def label_count(self) -> LabelCount:
        """Labels that estimates by the labels rest on; what a review confirmed is not counted."""
        count = LabelCount.of(self.training.s, groups=self.rows.together, weights=self.training.weights)
        return replace(count, grouped=self.rows.group is not None)

    @cached_property
    def design(self) -> DesignMatrix:
        """Rows and training labels as the solvers take them."""
        return self.rows.unlabelled.with_labels(self.training.training_s)

    def release(self) -> None:
        """Free the rows that the design matrix holds in memory; they are prepared again on the next use."""
        self.__dict__.pop("design", None)

    @property
    def n_unlabelled(self) -> int:
        """Number of all unlabelled rows of the cache, in the sample or not."""
        sample = self.rows.sample
        return int((self.training.s == 0).sum()) if sample is None else sample.unlabelled

    def cache_rows(self, rows: np.ndarray) -> np.ndarray:
        """Row numbers in the cache of some of these rows, int64 (m,)."""
        return rows if self.rows.numbers is None else self.rows.numbers[rows]

    def keys(self, rows: np.ndarray) -> list[str]:
        """Keys of some of these rows, int64 (m,)."""
        return self.cache.keys[self.cache_rows(rows)]

    def twins_of_positives(self) -> list[tuple[str, str]]:
        """Keys of unlabelled images that show the same picture as a known positive, each with that of the positive."""
        twins, positives = unlabelled_twins(self.twin, self.labels.positive.astype(np.int8))
        undecided = self.labels.unlabelled[twins]
        return list(zip(self.keys(twins[undecided]), self.keys(positives[undecided]), strict=True))

    def scar(self, model: PULinearClassifier) -> ScarCheck:
        """Compare labelled with likely positives, by the held-out margins of a model trained on these rows.

        A distilled head is not asked: it calls more rows like the labelled ones, and fewer of other kinds. A model that
        was loaded has no held-out margins.
        """
        margins, labels, rows = model.classifier_margins_, self.training, self.rows
        prior = model.prior if model.method_ == "distilled" else model.tilt_.prior
        tilt = fit_tilt(margins, labels.s, labels.weights, prior)
        return check_scar(rows.X, self.labels, margins, tilt, group=rows.twin, clusters=rows.group, seed=model.seed_)
