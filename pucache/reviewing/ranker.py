r"""Ranking of a pile by the labels of a sitting, made quickly and again and again.

A linear head is trained on the known positives, the known negatives and a fixed sample of the other rows, from
where the last fit ended. Beside it a head for each fold is trained, which does not see the labels of that fold: its
margins calibrate the scores. Neighbours count as in `pucache.pu.neighbour_scores`.
"""

from __future__ import annotations

import time

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..devices import choose_device
from ..heads.design_matrix import DesignMatrix
from ..heads.fit import fit_heads
from ..heads.fitted import FittedHeads
from ..heads.risks import PURisk
from ..neighbours.graph import NeighbourGraph
from ..neighbours.row_source import row_source
from ..pu.calibration import Tilt, fit_tilt
from ..pu.cross_fitting import CrossFitter
from ..pu.labels import Labels
from ..pu.propagation import LEAST_SHARE, neighbour_log_odds, probabilities
from ..pu.review_weights import TrainingLabels
from ..retrieval.similarity import Similarity
from .pile_features import PileFeatures
from .ranking_folds import RankingFolds
from .ranking_result import RankingResult

FOLDS = 5
_TOLERANCE = 2e-3
_FIRST_PENALTY = 1e-4  # of PENALTIES, the middle one
_LEAST_FOR_CHOICE = 4  # positives from which on the penalty is chosen, and neighbours count
_LEAST_FOR_POSTERIOR = 10
_NEIGHBOUR_WEIGHT = 1.0
_RISK = PURisk()


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
        self._source = row_source(cache)
        self.graph, self._device = graph, choose_device(device)
        self._features = PileFeatures(self._source, np.random.default_rng(seed))
        group = np.arange(len(self._source)) if groups is None else np.unique(groups, return_inverse=True)[1]
        self._folds = RankingFolds(group, FOLDS, seed)
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
        query = Similarity().queries(self._source, Labels(s, reviewed), self._features.whitening)[0]  # type: ignore[arg-type]
        scores = self._features.similarities(query)
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
        self._folds.place((s == 1) | (reviewed == 1))
        rows, X = self._training_rows((s == 1) | (reviewed != 0))
        labels = TrainingLabels.of(s[rows], reviewed[rows])
        design = DesignMatrix(X, labels.training_s, self._features.moments, self._device)
        design.leading = self._features.leading  # the same at every fit
        if self.choice_is_due(s, reviewed) if choose is None else choose:
            fitter = CrossFitter(design, labels, self._folds.of(rows), risk=_RISK, prior=0.5)
            self._penalty = fitter.choose_penalty().penalty
            self._chosen_at = int(labels.training_s.sum())
        self._heads = self._fit_heads(design, labels, rows)
        margins = self._features.margins(self._heads.coef, self._heads.intercept)
        scores, posterior, expected = self._scores(margins, s, reviewed)
        return RankingResult(scores, posterior, expected, time.perf_counter() - began)

    def _training_rows(self, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers and features of the sample and of the known rows."""
        sample, outside = self._features.sample, known.copy()
        outside[sample] = False
        others = np.flatnonzero(outside)
        return np.append(sample, others), np.concatenate([self._features.of_sample, self._features.take(others)])

    def _fit_heads(self, design: DesignMatrix, labels: TrainingLabels, rows: np.ndarray) -> FittedHeads:
        """The head of all labels, and after it one for each fold."""
        weights = np.ones(len(rows), np.float32) if labels.training_weights is None else labels.training_weights
        columns = np.repeat(weights[:, None], FOLDS + 1, axis=1)
        columns[:, 1:][self._folds.of(rows)[:, None] == np.arange(FOLDS)] = 0
        return fit_heads(
            design, weights=columns, penalty=self._penalty, tolerance=_TOLERANCE, start=self._heads, risk=_RISK
        )

    def _scores(
        self, margins: np.ndarray, s: np.ndarray, reviewed: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None, float]:
        """Scores, posterior and its mean over unknown rows."""
        positive, known = (s == 1) | (reviewed == 1), (s == 1) | (reviewed != 0)
        labelled = s if s.sum() >= _LEAST_FOR_POSTERIOR else positive.astype(np.int8)
        if positive.sum() < _LEAST_FOR_CHOICE:
            return margins[:, 0], None, float("nan")
        held_out = np.take_along_axis(margins, 1 + self._folds.of_all[:, None], axis=1)[:, 0]
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
