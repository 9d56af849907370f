r"""Ranking of a pile by the labels of a review, made quickly and again and again.

A linear head is trained on the known positives, the known negatives and a fixed sample of the other rows, along the
directions of greatest variance (`PileFeatures`), from where the last fit ended. Beside it a head
for each fold is trained, which does not see the labels of that fold: its margins calibrate the scores, as in
`pucache.estimates.calibration`. Scores are log density ratios, to which neighbours add
(`pucache.scoring.neighbour_scores`)::

    score  =  log f_P / f_N  +  weight * lg(W p)

with the weight that `pucache.training.neighbour_evidence` says by the positives labelled before the review, or by
the first twenty or more where these are few. Later ones were found by the ranking, and with them neighbours would
seem to add nothing.

Loss and penalty are fixed: cross-entropy in which the known positives weigh as much as all other rows. Known
negatives have the share of the latter that `pucache.estimates.review_weights` gives them. A choice of the penalty for
each review found no more positives, and took ten times as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property, partial

import numpy as np
import torch

from ..cache.embedding_cache import EmbeddingCache
from ..devices import choose_device
from ..estimates.calibration import Tilt, fit_tilt
from ..estimates.review_weights import TrainingLabels
from ..heads.design_matrix import DesignMatrix
from ..heads.linear_heads import FittedHeads
from ..heads.moments import Moments
from ..heads.preconditioner import SAMPLE, LeadingDirections
from ..heads.risks import PURisk
from ..heads.solve import SoftTargetTrainer, fit_heads
from ..labels.labels import PULabels
from ..neighbours.graph import NeighbourGraph
from ..neighbours.row_source import RowSource, row_source
from ..neighbours.whitening import Whitening, centred_units, truncated_svd
from ..storage.rows import evenly_spaced
from ..threads import limited_threads, worker_threads
from .cross_fitting import HALVES_TOLERANCE
from .neighbour_evidence import (
    LEAST_POSITIVES,
    NeighbourEvidence,
    agreement_gain,
    halves_of,
    held_out_gain,
)
from .propagation import LEAST_SHARE, neighbour_log_odds, probabilities
from .ranking_result import RankingResult

FOLDS = 5
SAMPLE_ROWS = 1 << 14  # of the rows that are not known
_DIRECTIONS, _DIRECTION_ROWS = 512, 1 << 12  # and rows of the sample that they are estimated from
_MOST_DIMENSIONS = 2048  # whose covariance is decomposed as a whole, which takes time as the cube
_KEPT_BYTES = 1 << 28  # of projected rows
_BLOCK_ROWS = 1 << 12
_PRECONDITIONED = 64  # leading directions that the solver is told of
_RISK, _PENALTY, _TOLERANCE = PURisk("weighted_bce"), 3e-4, 5e-3
_LEAST_LABELLED = 10  # positives from before the review that estimates can rest on, and positives for a posterior
_ENOUGH_TO_CHOOSE = 20  # positives, with which the weight of the neighbours is decided for good


class RankingFolds:
    """Fold of each row: at random, but positives in turn, in the order in which they become known.

    They stay while labels come in, so that heads that start from the last ones stay held out. Groups stay together.
    """

    def __init__(self, group: np.ndarray, seed: int):
        self._group = group
        self._of_group = np.random.default_rng(seed).integers(FOLDS, size=int(group.max()) + 1)
        self._assigned = np.zeros(len(self._of_group), bool)
        self._sizes = np.zeros(FOLDS, np.int64)

    def assign(self, positive: np.ndarray) -> None:
        """Move groups that have become positive to the fold with the fewest."""
        groups = np.unique(self._group[positive])
        for group in groups[~self._assigned[groups]]:
            fold = int(self._sizes.argmin())
            self._of_group[group], self._assigned[group] = fold, True
            self._sizes[fold] += 1

    @property
    def of_all(self) -> np.ndarray:
        """Of all rows, int64 (n,)."""
        return self._of_group[self._group]


class Ranker:
    """Ranks the rows of a cache by labels; keeps what one fit has in common with the next.

    The same calls in the same order give the same results. `graph` is of all rows and may be set between two fits;
    without it neighbours do not count. Rows of one of the `groups`, int64 (n,), stay in one fold. `seed` is of the
    sample and of the folds; `features` are those of another ranker of this cache and seed. `neighbour_weight` is that
    of the last fit.
    """

    def __init__(
        self,
        cache: EmbeddingCache | np.ndarray,
        graph: NeighbourGraph | None = None,
        *,
        groups: np.ndarray | None = None,
        seed: int = 0,
        device: str = "auto",
        features: PileFeatures | None = None,
    ):
        self._source = row_source(cache)
        self.graph, self.neighbour_weight = graph, 0.0
        self._device, self._seed = choose_device(device), seed
        self.features = features or PileFeatures(self._source, np.random.default_rng(seed))
        self._group = np.arange(len(self._source)) if groups is None else np.unique(groups, return_inverse=True)[1]
        self._folds = RankingFolds(self._group, seed)
        self._heads: FittedHeads | None = None
        self._chosen_at = 0  # positives when neighbours were last weighed

    def choice_is_due(self, s: np.ndarray, reviewed: np.ndarray) -> bool:
        """Whether `fit` would weigh the neighbours: they never were, or by few positives, which have doubled since."""
        positives = int(np.count_nonzero(_choice_labels(s, reviewed)[0]))
        is_open = self.graph is not None and self._chosen_at < _ENOUGH_TO_CHOOSE
        return is_open and positives >= max(LEAST_POSITIVES, 2 * self._chosen_at)

    def fit(self, s: np.ndarray, reviewed: np.ndarray, *, choose: bool | None = None) -> RankingResult:
        """Rank by heads trained on these labels, int8 (n,) each, with at least one positive.

        `choose` says whether to weigh the neighbours anew, which takes longer; by default where it is due.
        """
        began = time.perf_counter()
        choose = self.choice_is_due(s, reviewed) if choose is None else choose
        s, reviewed = _labels_for_estimates(s, reviewed)
        positive, posterior, doubted = (s == 1) | (reviewed == 1), None, np.empty(0, np.int64)
        self._folds.assign(positive)
        with limited_threads(0):  # also for the small problems of scipy
            if choose and self.graph is not None and positive.sum() >= LEAST_POSITIVES:
                self._weigh_neighbours(*_choice_labels(s, reviewed))
            scores, held_out = self._train(s, reviewed)
            if positive.sum() >= LEAST_POSITIVES:
                tilt = fit_tilt(held_out, s)
                scores, held_out = (self._scores(tilt, margins, s, reviewed) for margins in (scores, held_out))
                if positive.sum() >= _LEAST_LABELLED:
                    tilt = fit_tilt(held_out, s)
                    posterior, without = (tilt.posterior(values).astype(np.float32) for values in (scores, held_out))
                    doubted = PULabels(s, reviewed).contradicted(without > 0.5, without)
        return RankingResult(scores, posterior, time.perf_counter() - began, doubted)

    def _train(self, s: np.ndarray, reviewed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Train the head of all labels and the heads of the folds on the sample and the known rows.

        Returns margins of all rows, float32 (n,): by the head of all labels, and by the head that did not see the
        row's fold.
        """
        rows, X = self._training_rows((s == 1) | (reviewed != 0))
        labels = TrainingLabels.of(s[rows], reviewed[rows])
        weights = _head_weights(labels, self._folds.of_all[rows])
        targets = np.broadcast_to(labels.training_s[:, None], weights.shape)
        design = self._design(X, labels)
        trainer = SoftTargetTrainer(design, weights=weights, penalty=_PENALTY, tolerance=_TOLERANCE)
        self._heads = trainer.fit(targets, start=self._heads)
        margins = self.features.margins(self._heads.coef, self._heads.intercept)  # (n, 1 + FOLDS)
        held_out = np.take_along_axis(margins, 1 + self._folds.of_all[:, None], axis=1)
        return margins[:, 0], held_out[:, 0]

    def _training_rows(self, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers and features of the sample and of the known rows."""
        sample, outside = self.features.sample, known.copy()
        outside[sample] = False
        others = np.flatnonzero(outside)
        return np.append(sample, others), np.concatenate([self.features.of_sample, self.features.take(others)])

    def _design(self, X: np.ndarray, labels: TrainingLabels) -> DesignMatrix:
        design = DesignMatrix(X, labels.training_s, self.features.moments, self._device)
        design.leading = self.features.leading  # the same at every fit
        return design

    def _weigh_neighbours(self, s: np.ndarray, reviewed: np.ndarray) -> None:
        """Decide on the weight of the neighbours, by heads of halves of the labels and by held-out positives."""
        assert self.graph is not None
        _, margins = self._train(s, reviewed)
        tilt = fit_tilt(margins, s)
        labels = TrainingLabels.of(s, reviewed)
        positives = int(labels.training_s.sum())
        halves, design = halves_of(labels, self._group, self._seed), self._design(self.features.all, labels)
        weights = labels.row_weights[:, None] * halves
        heads = fit_heads(design, weights=weights, risk=_RISK, penalty=_PENALTY, tolerance=HALVES_TOLERANCE)
        agreement = agreement_gain(design.margins(heads), halves, labels, self.graph, prior=tilt.prior)
        log_ratios = tilt.log_ratio(margins).astype(np.float32)
        lifts = self._lifts(log_ratios, tilt, s, reviewed)
        held_out = held_out_gain(log_ratios, log_ratios + lifts, labels, self._folds.of_all)
        self.neighbour_weight = NeighbourEvidence(agreement=agreement, held_out=held_out, labels=positives).weight
        self._chosen_at = positives

    def _scores(self, tilt: Tilt, margins: np.ndarray, s: np.ndarray, reviewed: np.ndarray) -> np.ndarray:
        """Log density ratios with neighbours, float32 (n,)."""
        log_ratios = tilt.log_ratio(margins).astype(np.float32)
        if not self.neighbour_weight:
            return log_ratios
        return log_ratios + np.float32(self.neighbour_weight) * self._lifts(log_ratios, tilt, s, reviewed)

    def _lifts(self, log_ratios: np.ndarray, tilt: Tilt, s: np.ndarray, reviewed: np.ndarray) -> np.ndarray:
        """Log odds of the share of positives among the neighbours, float32 (n,)."""
        assert self.graph is not None
        p = probabilities(log_ratios, max(tilt.prior, LEAST_SHARE))
        p[(s == 1) | (reviewed == 1)], p[reviewed == -1] = 1, 0
        return neighbour_log_odds(self.graph.weighted_means(p))


def _head_weights(labels: TrainingLabels, fold: np.ndarray) -> np.ndarray:
    """Row weights of the head of all labels and of one head for each fold, float32 (m, 1 + FOLDS).

    Positives and all other rows have half the weight each.
    """
    weights = labels.row_weights
    weights = weights[:, None] * (fold[:, None] != np.arange(-1, FOLDS)).astype(np.float32)
    for value in (0, 1):
        half = labels.training_s == value
        weights[half] /= 2 * np.maximum(weights[half].sum(0, dtype=np.float64), 1e-30).astype(np.float32)
    return weights


def _labels_for_estimates(s: np.ndarray, reviewed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """s and reviewed as estimates take them: with few labelled positives, those of the review count as labelled."""
    if np.count_nonzero(s == 1) >= _LEAST_LABELLED:
        return s, reviewed
    return ((s == 1) | (reviewed == 1)).astype(np.int8), np.minimum(reviewed, 0)


def _choice_labels(s: np.ndarray, reviewed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Labels that the weight of the neighbours is decided by: those from before the review, or all where few."""
    s, reviewed = _labels_for_estimates(s, reviewed)
    return (s, np.zeros_like(reviewed)) if np.count_nonzero(s == 1) >= _LEAST_LABELLED else (s, reviewed)


# --- features ----------------------------------------------------------------------------------


class PileFeatures:
    """Rows of a pile along their directions of greatest variance, and a fixed random sample of them.

    Fits on 512 directions take a fraction of the time of fits on all dimensions, and rank as well; with 256, positives
    that differ in how a picture was taken rank lower. A head of the directions is a head of the rows as they are.
    Where the pile is small, all rows are projected once and kept; margins of a larger one are computed block by block.
    `sample` holds row numbers, int64 (m,), ascending; `whitening` is of a part of it, and rows are projected on its
    directions.
    """

    def __init__(self, source: RowSource, generator: np.random.Generator):
        self._source = source
        self.sample = np.sort(generator.permutation(len(source))[:SAMPLE_ROWS])
        rows = source.take(self.sample)
        if not np.isfinite(rows).all():
            raise source.not_finite_error(self.sample[~np.isfinite(rows).all(1)])
        self._of_rows = Moments.of(rows)
        self.whitening = _whitening(rows[:: -(-len(rows) // _DIRECTION_ROWS)])
        self._directions = torch.from_numpy(np.ascontiguousarray(self.whitening.directions.T))  # (d, q)
        self.moments = Moments(np.zeros(self._directions.shape[1], np.float32), 1.0)  # centred, scaled like the rows
        self.of_sample = self._project(rows)

    @cached_property
    def leading(self) -> LeadingDirections:
        """Leading directions of the projected sample."""
        rows = self.of_sample[evenly_spaced(len(self.of_sample), SAMPLE)]
        return LeadingDirections.of_sample(torch.from_numpy(rows), _PRECONDITIONED)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Projected rows, float32 (m, q), by ascending row numbers."""
        if self.keeps_all:
            return np.asarray(self.all[rows])
        return self._project(self._source.take(rows))

    def margins(self, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        """Margins of all rows, float32 (n, K), by heads on the projected rows: coef (K, q), intercept (K,)."""
        if self.keeps_all:
            with limited_threads(self.all.size):
                return (torch.from_numpy(self.all) @ torch.from_numpy(coef.T.copy())).numpy() + intercept
        by_dimension = self._directions @ torch.from_numpy(coef.T / np.float32(self._of_rows.spread))  # (d, K)
        offset = intercept - self._of_rows.centre @ by_dimension.numpy()
        margins = np.empty((len(self._source), len(coef)), np.float32)
        self._each_block(lambda X: (X @ by_dimension).numpy() + offset, margins)
        return margins

    def similarities(self, query: np.ndarray) -> np.ndarray:
        """Inner product of the centred rows, at unit norm, with a vector (d,); float32 (n,)."""
        mean, direction = torch.from_numpy(self.whitening.mean), torch.from_numpy(query)[:, None]

        def similarity(X: torch.Tensor) -> np.ndarray:
            X -= mean
            return ((X @ direction)[:, 0] / X.norm(dim=1).clamp(min=1e-30)).numpy()[:, None]

        values = np.empty((len(self._source), 1), np.float32)
        self._each_block(similarity, values)
        return values[:, 0]

    @property
    def keeps_all(self) -> bool:
        """Whether all rows are projected once, and kept."""
        return 4 * len(self._source) * self._directions.shape[1] <= _KEPT_BYTES

    @cached_property
    def all(self) -> np.ndarray:
        """All rows, projected, float32 (n, q)."""
        values = np.empty((len(self._source), self._directions.shape[1]), np.float32)
        self._each_block(self._projected, values)
        return values

    def _project(self, X: np.ndarray) -> np.ndarray:
        return self._projected(torch.tensor(X, dtype=torch.float32))

    def _projected(self, X: torch.Tensor) -> np.ndarray:
        X -= torch.from_numpy(self._of_rows.centre)
        return np.asarray(((X @ self._directions) / self._of_rows.spread).numpy())

    def _each_block(self, compute: Callable[[torch.Tensor], np.ndarray], values: np.ndarray) -> None:
        """Fill values (n, k) with those that are computed from blocks of rows, float32 tensors (b, d).

        Raises
        ------
        CacheError, ValueError
            A row is not finite: the error of the source.
        """

        def fill(rows: slice, X: np.ndarray) -> None:
            values[rows] = compute(torch.tensor(X, dtype=torch.float32))

        with limited_threads(0) as threads, worker_threads(threads) as run_all:
            for rows, X in self._source.blocks():
                starts = range(rows.start, rows.stop, _BLOCK_ROWS)
                parts = [slice(start, min(start + _BLOCK_ROWS, rows.stop)) for start in starts]
                blocks = [X[part.start - rows.start : part.stop - rows.start] for part in parts]
                for _ in run_all([partial(fill, part, block) for part, block in zip(parts, blocks, strict=True)]):
                    pass
                finite = np.isfinite(values[rows]).all(1)
                if not finite.all():
                    raise self._source.not_finite_error(rows.start + np.flatnonzero(~finite))


def _whitening(X: np.ndarray) -> Whitening:
    """Whitening of rows (m, d), with more directions than `Whitening.estimate` keeps."""
    mean = X.mean(0, dtype=np.float64).astype(np.float32)
    units = centred_units(X, mean)
    with limited_threads(units.size * units.shape[1]):
        return Whitening.of_units(mean, units, *_leading(units, min(_DIRECTIONS, *units.shape)))


def _leading(units: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Leading variances (q,) of rows, falling, and their directions (q, d), float32."""
    if units.shape[1] > _MOST_DIMENSIONS:
        values, directions = truncated_svd(units, count)
        return (values**2 / len(units)).astype(np.float32), np.ascontiguousarray(directions)
    rows = torch.from_numpy(units)
    values, vectors = torch.linalg.eigh(rows.T @ rows / len(rows))  # ascending
    return values.flip(0)[:count].clamp(min=0).numpy(), vectors.T.flip(0)[:count].contiguous().numpy()
