r"""Ranking of a pile by the labels of a sitting, made quickly and again and again.

A linear head is trained on the known positives, the known negatives and a fixed sample of the other rows, from
where the last fit ended. Beside it a head for each fold is trained, which does not see the labels of that fold: its
margins calibrate the scores. Neighbours count as in `pucache.pu.neighbour_scores`.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from ..cache.embedding_cache import EmbeddingCache
from ..devices import choose_device
from ..heads.design_matrix import DesignMatrix, LeadingDirections, leading_directions
from ..heads.fit import fit_heads
from ..heads.fitted import FittedHeads
from ..heads.moments import Moments
from ..heads.risks import PURisk
from ..neighbours.graph import NeighbourGraph
from ..neighbours.row_source import RowSource, row_source
from ..neighbours.whitening import Whitening
from ..pu.calibration import Tilt, fit_tilt
from ..pu.cross_fitting import CrossFitter
from ..pu.labels import Labels
from ..pu.propagation import LEAST_SHARE, neighbour_log_odds, probabilities
from ..pu.review_weights import TrainingLabels
from ..retrieval.similarity import Similarity
from .ranking_result import RankingResult

SAMPLE_ROWS = 1 << 14  # of the rows that are not known
FOLDS = 5
_TOLERANCE = 2e-3
_FIRST_PENALTY = 1e-4  # of PENALTIES, the middle one
_LEAST_FOR_CHOICE = 4  # positives from which on the penalty is chosen, and neighbours count
_LEAST_FOR_POSTERIOR = 10
_NEIGHBOUR_WEIGHT = 1.0
_RISK = PURisk()
_BLOCK = 1 << 13  # rows whose margins are computed at once


class _Folds:
    """Fold of each row: at random, but positives in turn, in the order in which they become known."""

    def __init__(self, group: np.ndarray, count: int, seed: int):
        self._group, self._count = group, count
        self._of_group = np.random.default_rng(seed).integers(count, size=int(group.max()) + 1)
        self._placed = np.zeros(len(self._of_group), bool)
        self._sizes = np.zeros(count, np.int64)

    def place(self, positive: np.ndarray) -> None:
        """Move groups that have become positive to the fold with the fewest."""
        groups = np.unique(self._group[positive])
        for group in groups[~self._placed[groups]]:
            fold = int(self._sizes.argmin())
            self._of_group[group], self._placed[group] = fold, True
            self._sizes[fold] += 1

    @property
    def of_all(self) -> np.ndarray:
        """Of all rows, int64 (n,)."""
        return self._of_group[self._group]

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Of some rows, int64 (m,)."""
        return self._of_group[self._group[rows]]


class Ranker:
    """Ranks the rows of a cache by labels; keeps what one fit has in common with the next.

    The same calls in the same order give the same results.

    Parameters
    ----------
    cache : EmbeddingCache, or ndarray of float16 or float32, (n, d)
    graph : NeighbourGraph, optional
        Of all rows; without it neighbours do not count.
    groups : ndarray of int64, (n,), optional
        Number of each row's group of images that show the same picture; they stay in one fold.
    seed : int
        Of the sample and of the folds.
    device : str

    Attributes
    ----------
    graph : NeighbourGraph or None
        May be set between two fits.
    """

    def __init__(
        self,
        cache: EmbeddingCache | np.ndarray,
        graph: NeighbourGraph | None = None,
        *,
        groups: np.ndarray | None = None,
        seed: int = 0,
        device: str = "auto",
    ):
        self._source: RowSource = row_source(cache)
        self.graph, self._device = graph, choose_device(device)
        n = len(self._source)
        generator = np.random.default_rng(seed)
        self._sample = np.sort(generator.permutation(n)[:SAMPLE_ROWS])
        self._sample_X = self._source.take(self._sample)
        self._moments = Moments.of(self._sample_X)
        self._group = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
        self._fold = _Folds(self._group, FOLDS, seed)
        self._leading: LeadingDirections | None = None
        self._whitening: Whitening | None = None if graph is None else graph.whitening
        self._heads: FittedHeads | None = None
        self._penalty, self._chosen_at = _FIRST_PENALTY, 0

    def similarity(self, s: np.ndarray, reviewed: np.ndarray) -> RankingResult:
        """Rank by similarity to the known positives: no head, at once.

        Parameters
        ----------
        s, reviewed : ndarray of int8, (n,)
            As for `pucache.pu.labels.Labels`; at least one positive.

        Returns
        -------
        RankingResult
        """
        began = time.perf_counter()
        if self._whitening is None:
            self._whitening = Whitening.estimate(self._sample_X)
        similarity, labels = Similarity(), Labels(s, reviewed)
        queries = similarity.queries(self._source, labels, self._whitening)  # type: ignore[arg-type]  # only takes rows
        scores = np.empty(len(s), np.float32)
        for rows, X in self._source.blocks():
            scores[rows] = similarity.scores(self._whitening.centred_units(X), queries)
        return RankingResult(scores, None, float("nan"), time.perf_counter() - began)

    def choice_is_due(self, s: np.ndarray, reviewed: np.ndarray) -> bool:
        """Whether `fit` would choose the penalty anew: the positives have doubled since."""
        positives = int(((s == 1) | (reviewed == 1)).sum())
        return positives >= _LEAST_FOR_CHOICE and positives >= 2 * self._chosen_at

    def fit(self, s: np.ndarray, reviewed: np.ndarray, *, choose: bool | None = None) -> RankingResult:
        """Rank by heads trained on these labels.

        Parameters
        ----------
        s, reviewed : ndarray of int8, (n,)
            As for `pucache.pu.labels.Labels`; at least one positive.
        choose : bool, optional
            Whether to choose the penalty anew, which takes longer; by default where it is due.

        Returns
        -------
        RankingResult
        """
        began = time.perf_counter()
        self._fold.place((s == 1) | (reviewed == 1))
        rows, X = self._training_rows((s == 1) | (reviewed != 0))
        labels = TrainingLabels.of(s[rows], reviewed[rows])
        design = self._design(X, labels)
        if self.choice_is_due(s, reviewed) if choose is None else choose:
            fitter = CrossFitter(design, labels, self._fold.of(rows), risk=_RISK, prior=0.5)
            self._penalty = fitter.choose_penalty().penalty
            self._chosen_at = int(labels.training_s.sum())
        self._heads = self._fit_heads(design, labels, rows)
        margins = self._margins(self._heads)
        scores, posterior, expected = self._scores(margins, s, reviewed)
        return RankingResult(scores, posterior, expected, time.perf_counter() - began)

    def _training_rows(self, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers and embeddings of the sample and of the known rows."""
        outside = known.copy()
        outside[self._sample] = False
        others = np.flatnonzero(outside)
        if not len(others):
            return self._sample, self._sample_X
        return np.append(self._sample, others), np.concatenate([self._sample_X, self._source.take(others)])

    def _design(self, X: np.ndarray, labels: TrainingLabels) -> DesignMatrix:
        design = DesignMatrix(X, labels.training_s, self._moments, self._device)
        if self._leading is None:
            self._leading = leading_directions(self._sample_X, self._moments, 64)
        design.leading = self._leading  # of the sample: the same at every fit
        return design

    def _fit_heads(self, design: DesignMatrix, labels: TrainingLabels, rows: np.ndarray) -> FittedHeads:
        """The head of all labels, and after it one for each fold."""
        weights = np.ones(len(rows), np.float32) if labels.training_weights is None else labels.training_weights
        columns = np.repeat(weights[:, None], FOLDS + 1, axis=1)
        columns[:, 1:][self._fold.of(rows)[:, None] == np.arange(FOLDS)] = 0
        return fit_heads(
            design, weights=columns, penalty=self._penalty, tolerance=_TOLERANCE, start=self._heads, risk=_RISK
        )

    def _margins(self, heads: FittedHeads) -> np.ndarray:
        """Margins of every row by every head, float32 (n, K)."""
        coef, margins = (
            torch.from_numpy(heads.coef.T.copy()),
            np.empty((len(self._source), len(heads.coef)), np.float32),
        )
        for rows, X in self._source.blocks():
            for begin in range(0, len(X), _BLOCK):
                part = torch.tensor(X[begin : begin + _BLOCK], dtype=torch.float32)
                margins[rows.start + begin : rows.start + begin + len(part)] = (part @ coef).numpy()
        return margins + heads.intercept

    def _scores(
        self, margins: np.ndarray, s: np.ndarray, reviewed: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None, float]:
        """Scores, posterior and its mean over unknown rows."""
        positive, known = (s == 1) | (reviewed == 1), (s == 1) | (reviewed != 0)
        labelled = s if s.sum() >= _LEAST_FOR_POSTERIOR else positive.astype(np.int8)
        if positive.sum() < _LEAST_FOR_CHOICE:
            return margins[:, 0], None, float("nan")
        held_out = np.take_along_axis(margins, 1 + self._fold.of_all[:, None], axis=1)[:, 0]
        tilt = fit_tilt(held_out, labelled)
        scores = tilt.log_ratio(margins[:, 0]).astype(np.float32)
        if self.graph is not None:
            scores, held_out = (
                self._fused(values, tilt, positive, reviewed == -1) for values in (margins[:, 0], held_out)
            )
            tilt = fit_tilt(held_out, labelled)
        if positive.sum() < _LEAST_FOR_POSTERIOR:
            return scores, None, float("nan")
        posterior = tilt.posterior(scores).astype(np.float32)
        expected = float(np.clip(posterior[~known].mean(), 1e-6, 1 - 1e-6)) if not known.all() else float("nan")
        return scores, posterior, expected

    def _fused(self, margins: np.ndarray, tilt: Tilt, positive: np.ndarray, negative: np.ndarray) -> np.ndarray:
        assert self.graph is not None
        log_ratios = tilt.log_ratio(margins).astype(np.float32)
        p = probabilities(log_ratios, max(tilt.prior, LEAST_SHARE))
        p[positive], p[negative] = 1, 0
        return log_ratios + np.float32(_NEIGHBOUR_WEIGHT) * neighbour_log_odds(self.graph.weighted_means(p))
