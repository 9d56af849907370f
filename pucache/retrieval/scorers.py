r"""Scores of the rows of a cache: by similarity to the labelled positives, by a classifier's margin, or by margin and
neighbours fused.

    whitened   z @ (C + t I)^-1 @ mean_P z,   t = trace(C) / (number of positives)
    topk       mean cosine to the `TOP` nearest positives

z is a centred unit row (`pucache.neighbours.whitening`), C the covariance of all rows. The first is the direction
of Fisher's discriminant with all rows as the negatives. Its ridge t is the uncertainty of a mean of few positives:
with many positives it becomes the discriminant, with few their mean. The second is for positives of several kinds.

The fused score is the classifier's log density ratio plus the log odds of the nearest rows' classes, times
the weight that the model chose for its neighbours when it was trained (`pucache.scoring.neighbour_scores`).
The graph of neighbours of all rows is used where it is kept beside the cache or can be made in about a minute on
two cores. In larger caches, neighbours are searched for the rows of the highest margins: 50 for each row wanted or
10 for each expected positive, but no more than can be compared with all rows in about a minute. All other rows rank
below, in the order of their margins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..labels.labels import PULabels
from ..neighbours.graph import NeighbourSearch, cached_graph
from ..neighbours.graph_file import NEIGHBOURS, NeighbourGraph, kept_graph
from ..neighbours.search import FAISS_CPU, NUMPY_CPU, TORCH_GPU, find_gpu, row_search
from ..neighbours.whitening import Whitening, cached_whitening, centred_units, put
from ..progress import Progress, Silent
from .ranking import Scores

if TYPE_CHECKING:
    from ..training.sklearn_classifier import PULinearClassifier

SIMILARITIES = ("whitened", "topk")
TOP = 50


@dataclass(frozen=True)
class Similarity:
    """Scores every row by its similarity to the labelled and confirmed positives."""

    kind: str = "whitened"
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.kind not in SIMILARITIES:
            raise ValueError(f"unknown similarity {self.kind!r}; use whitened (for centroid) or topk (for max)")

    @property
    def name(self) -> str:
        """Description for messages and pages."""
        return f"similarity ({self.kind})"

    def __call__(
        self, cache: EmbeddingCache, labels: PULabels, count: int | None = None, progress: Progress | None = None
    ) -> Scores:
        """Score every row, block by block."""
        return self.of_vectors(cache, cache.take(np.flatnonzero(labels.positive)), progress)

    def of_vectors(self, cache: EmbeddingCache, vectors: np.ndarray, progress: Progress | None = None) -> Scores:
        """Score every row, block by block, by its similarity to vectors (p, d), rows of the cache or others."""
        progress = progress or Silent()
        progress.start(len(cache), "comparing")
        gpu = find_gpu(self.device, values=len(cache) * cache.encoder.dim)
        whitening, verified = cached_whitening(cache)
        mean, queries = put(whitening.mean, gpu), put(self.queries(vectors, whitening), gpu)
        search = row_search(queries, gpu) if self.kind == "topk" else None
        scores = np.empty(len(cache), np.float32)
        for rows, X in cache.blocks(check=not verified):  # verified meanwhile
            units = centred_units(put(X, gpu), mean)
            if search is not None:
                found = search(units, TOP)[0]
                scores[rows] = (found if gpu is None else found.cpu().numpy()).mean(1)
            elif gpu is None:  # row by row, so that equal rows score equally in any block
                scores[rows] = np.vecdot(units, queries[0])
            else:
                scores[rows] = units.mul_(queries[0]).sum(1).cpu().numpy()
            progress.advance(rows.stop - rows.start)
        return Scores(scores, search_by=TORCH_GPU if gpu else FAISS_CPU if search else NUMPY_CPU)

    def queries(self, vectors: np.ndarray, whitening: Whitening) -> np.ndarray:
        """What rows are compared with, float32: the direction of vectors (1, d), or each of them (p, d)."""
        positives = whitening.centred_units(vectors)
        if self.kind == "topk":
            return positives
        mean = positives.mean(0, dtype=np.float64).astype(np.float32)
        if whitening.total_variance > 0:
            mean = whitening.solve(mean, whitening.total_variance / len(positives))
        return mean[None].astype(np.float32)


_WEIGHT = 1.0  # of neighbours where the model chose none
_MAX_PAIRS = 1 << 34  # rows compared with rows
# rows whose neighbours are searched; the others for each row wanted, and for each expected positive
_MIN_CANDIDATES, _CANDIDATES_PER_ROW, _CANDIDATES_PER_POSITIVE = 2000, 50, 10


@dataclass(frozen=True)
class Margins:
    """Scores rows by a classifier's margin."""

    model: PULinearClassifier
    note: str = ""
    name: ClassVar = "classifier"

    def __call__(
        self, cache: EmbeddingCache, labels: PULabels | None, count: int | None = None, progress: Progress | None = None
    ) -> Scores:
        """Score every row, block by block; labels do not matter."""
        return self.scores(self.model.all_margins(cache, progress))

    def scores(self, margins: np.ndarray) -> Scores:
        """Scores by the margins of all rows of a cache."""
        if not self.model.figures_.has_probabilities:
            return Scores(margins, note=self.note)
        return Scores(margins, posterior=lambda rows: self.model.tilt_.posterior(margins[rows]), note=self.note)


@dataclass(frozen=True)
class Fused:
    """Scores rows by margin and the classes of the nearest rows, with the weight that the model chose, or else 1."""

    model: PULinearClassifier
    device: str = "auto"
    name: ClassVar = "classifier and neighbours, fused"

    def __call__(
        self, cache: EmbeddingCache, labels: PULabels, count: int | None = None, progress: Progress | None = None
    ) -> Scores:
        """Score every row; rows whose neighbours are not searched get the least share of positives among them."""
        from ..scoring.neighbour_scores import chosen_weight, fused_scores, pile_probabilities, reason  # needs scipy

        chosen, note = chosen_weight(self.model), reason(self.model)
        if not chosen:
            note = (
                f"neighbours have weight {_WEIGHT:g} because fused was asked for; by default the classifier would rank "
                f"alone: {note}"
            )
        by_margin = Margins(self.model)(cache, labels, count, progress)
        margins, settings = by_margin.values, self.model.neighbours_
        p = pile_probabilities(self.model, margins)
        p[labels.positive], p[labels.negative] = 1, 0
        is_large = len(cache) ** 2 > _MAX_PAIRS
        graph = kept_graph(cache) if is_large else cached_graph(cache, device=self.device, progress=progress)
        if graph is not None:
            searched = np.ones(len(cache), bool)
            shares, search = graph.weighted_means(p), graph.search
            search_by = graph.search_by
        else:
            rows = _candidates(margins, labels, count, self.model.tilt_.prior)
            searched, shares = np.isin(np.arange(len(cache)), rows), np.zeros(len(cache), np.float32)
            graph = _neighbours_of_rows(cache, rows, self.device, progress)
            shares[rows], search_by = graph.weighted_means(p), graph.search_by
            search = f"exact search for the {len(rows):,} rows of the highest margins"
        values = fused_scores(self.model, chosen or _WEIGHT, margins, shares)

        def posterior(rows: np.ndarray) -> np.ndarray:  # at the weight that the model chose and was calibrated at
            assert settings is not None
            with_neighbours = settings.tilt.posterior(values[rows], self.model.tilt_.prior)
            return np.where(searched[rows], with_neighbours, self.model.tilt_.posterior(margins[rows]))

        return Scores(
            values,
            posterior=posterior if by_margin.posterior and chosen else by_margin.posterior,
            note=note,
            search=search,
            search_by=search_by,
        )


def _candidates(margins: np.ndarray, labels: PULabels, count: int | None, prior: float) -> np.ndarray:
    """Unlabelled rows of the highest margins, ascending."""
    unlabelled = np.flatnonzero(labels.unlabelled)
    expected = int(prior * len(unlabelled))
    enough = len(margins) if count is None else max(_CANDIDATES_PER_ROW * count, _CANDIDATES_PER_POSITIVE * expected)
    size = max(_MIN_CANDIDATES, min(enough, _MAX_PAIRS // len(margins)))
    if size >= len(unlabelled):
        return unlabelled
    return np.sort(unlabelled[np.argpartition(-margins[unlabelled], size)[:size]])


def _neighbours_of_rows(
    cache: EmbeddingCache, rows: np.ndarray, device: str, progress: Progress | None
) -> NeighbourGraph:
    """Neighbours of some rows of a cache, each left out of its own."""
    graph = NeighbourSearch(cache, device=device).nearest(cache.take(rows), NEIGHBOURS + 1, progress=progress)
    dropped = graph.rows == rows[:, None]
    dropped[~dropped.any(1), -1] = True  # more copies of a row than neighbours: the row itself is not among them
    shape = (len(rows), NEIGHBOURS)
    return NeighbourGraph(
        rows=graph.rows[~dropped].reshape(shape),
        cosines=graph.cosines[~dropped].reshape(shape),
        search_by=graph.search_by,
    )
