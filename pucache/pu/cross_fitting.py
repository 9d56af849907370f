"""Held-out margins: what chooses the penalty, tells the prior and calibrates, all without truth.

Every head of this module leaves one fold out and is asked about that fold only. The penalty is the
one whose held-out positives rank best among the negatives, by the mean over P of

    -log(share of negatives above the margin + 0.01),

which looks at the top of the ranking more than the area under the curve (PAUC) does. Who is negative
is not known: each row of U counts as one with the chance that a tilt fitted to these margins gives
it (`pucache.pu.calibration`). Were the whole row counted, hidden positives would stand above labelled
ones whatever the penalty, and where they are many no penalty would look much better than another. The
tilts share one prior, the upper quartile of what they tell each by itself: heads of a weak penalty
often tell of none, and on few labels a prior for each is chance. The score of a penalty is smoothed
with those of its neighbours. Of penalties that do not differ from the best
by more than the standard error of their paired difference, the weakest is taken, within a factor
of ten: on few labels a strong one wins by chance more often than it is better.

Of a cache that is large, the penalty is chosen and bootstrap draws are made on all positives and as
many unlabelled rows, evenly spaced, as fit into `SAMPLE` bytes: their number is not what limits
either. The heads that count are trained on all rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, logit

from ..heads.design_matrix import Moments
from ..heads.fit import FittedHeads, fit_heads
from ..heads.full_batch import TOLERANCE
from ..heads.risks import PURisk
from ..storage.mapped_arrays import take_rows
from .calibration import Tilt, fit_tilt
from .review_weights import TrainingLabels

PENALTIES = tuple(float(f"{10 ** (step / 2 - 6):.3g}") for step in range(9))  # 1e-6 to 1e-2
_CHOOSING, _RESAMPLING = 2e-3, 0.01  # tolerances: heads that stop early would make a weak penalty look good
_FLOOR = 0.01  # of the share of negatives above a positive
_QUARTILE, _TINY = 0.75, 1e-300
_REACH = 2  # steps of the grid: a factor of ten in the penalty
_DRAWS_AT_ONCE = 20
SAMPLE = 1 << 27


@dataclass(frozen=True)
class CrossFit:
    """The heads of a penalty, each leaving out one fold, and what they say of it.

    Attributes
    ----------
    penalty : float
    heads : FittedHeads
        One a fold; a single head of all rows where there was nothing to leave out.
    fold : ndarray of int64, (n,)
        The head that did not see the row.
    margins : ndarray of float32, (n,)
        Its margin.
    """

    penalty: float
    heads: FittedHeads
    fold: np.ndarray
    margins: np.ndarray


@dataclass(frozen=True)
class Draw:
    """Rows drawn with replacement: held-out margins, s, and how often each was drawn times its weight, (m,) each.

    s and weight are those that figures rest on (`TrainingLabels.s`).
    """

    margins: np.ndarray
    s: np.ndarray
    weights: np.ndarray


class CrossFitter:
    """Fits heads with folds left out, on one set of rows.

    Parameters
    ----------
    X : ndarray, (n, d)
    known : TrainingLabels
    fold : ndarray of int64, (n,)
        As `deal` gives it.
    risk : PURisk
    prior : float
    moments : Moments
    **training
        For `fit_heads`: solver, protocol, seed, device.
    """

    def __init__(
        self,
        X: np.ndarray,
        known: TrainingLabels,
        fold: np.ndarray,
        *,
        risk: PURisk,
        prior: float,
        moments: Moments,
        **training: Any,
    ):
        self._X, self._known, self._s, self.fold, self._weights = X, known, known.trained, fold, known.training_weights
        self.folds, self.prior = int(fold.max()) + 1, prior
        self._common = {"risk": risk, "prior": prior, "moments": moments, **training}
        self._few = self._sample()

    def _sample(self) -> CrossFitter:
        """The same of fewer unlabelled rows where they are many, else this one."""
        room = max(1, SAMPLE // max(1, self._X.itemsize * self._X.shape[1]))
        unlabelled = np.flatnonzero(self._s == 0)
        if len(unlabelled) <= room:
            return self
        kept = unlabelled[np.linspace(0, len(unlabelled) - 1, room).astype(np.int64)]
        rows = np.union1d(kept, np.flatnonzero(self._s == 1))
        return CrossFitter(
            take_rows(self._X, rows),
            self._known.take(rows, len(kept) / len(unlabelled)),
            self.fold[rows],
            **self._common,
        )

    def at(
        self, penalties: tuple[float, ...], *, tolerance: float = _CHOOSING, start: FittedHeads | None = None
    ) -> list[CrossFit]:
        """Cross-fit at several penalties."""
        heads = fit_heads(
            self._X,
            self._s,
            weights=self._columns(),
            column=np.tile(np.arange(self.folds), len(penalties)),
            penalty=np.repeat(penalties, self.folds),
            tolerance=tolerance,
            start=start,
            **self._common,
        )
        margins = heads.margins_by(self._X, self.fold[:, None] + self.folds * np.arange(len(penalties)))
        every = np.arange(self.folds)
        return [
            CrossFit(penalty, heads.take(every + self.folds * number), self.fold, margins[:, number])
            for number, penalty in enumerate(penalties)
        ]

    def choose(self, penalties: tuple[float, ...] = PENALTIES) -> CrossFit:
        """Cross-fit at every penalty and keep the best; its heads are then trained to the end.

        With a single fold nothing is held out to choose by: the middle one.
        """
        if self.folds < 2:
            return self.at((penalties[len(penalties) // 2],), tolerance=TOLERANCE)[0]
        tried = self._few.at(penalties)
        chosen = tried[weakest_of_the_best(ranks_of_positives([one.margins for one in tried], self._few._known))]
        return self.at((chosen.penalty,), tolerance=TOLERANCE, start=chosen.heads)[0]

    def resampled(self, fitted: CrossFit, draws: int, seed: int) -> Iterator[Draw]:
        """Refit on bootstrap draws of P and of U.

        Rows without weight are never drawn.
        """
        few, generator = self._few, np.random.default_rng(seed)
        for begin in range(0, draws, _DRAWS_AT_ONCE):
            together = min(_DRAWS_AT_ONCE, draws - begin)
            counts = np.stack([few._draw(generator) for _ in range(together)], axis=1)  # (n, B)
            yield from few._refit(fitted, counts)

    def _draw(self, generator: np.random.Generator) -> np.ndarray:
        counts = np.zeros(len(self._s), np.uint8)
        held = np.ones(len(self._s), bool) if self._weights is None else self._weights > 0
        told = self._known.s + self._known.trained  # 2: labelled, which figures cannot be without; 1: confirmed
        for value in np.unique(told[held]):
            rows = np.flatnonzero((told == value) & held)
            drawn = np.bincount(generator.integers(len(rows), size=len(rows)), minlength=len(rows))
            counts[rows] = np.minimum(drawn, 255)
        return counts

    def _refit(self, fitted: CrossFit, counts: np.ndarray) -> Iterator[Draw]:
        B = counts.shape[1]
        columns = (self._columns()[:, :, None] * counts[:, None, :]).reshape(len(counts), -1)  # (n, folds * B)
        heads = fit_heads(
            self._X,
            self._s,
            weights=columns,
            penalty=fitted.penalty,
            tolerance=_RESAMPLING,
            start=fitted.heads.take(np.repeat(np.arange(self.folds), B)),
            **self._common,
        )
        margins = heads.margins_by(self._X, self.fold[:, None] * B + np.arange(B))
        for draw in range(B):
            times = counts[:, draw]
            weights = self._known.weights
            yield Draw(margins[:, draw], self._known.s, times if weights is None else times * weights)

    def _columns(self) -> np.ndarray:
        """Row weights of the head of each fold, (n, folds)."""
        weights = np.ones(len(self._s), np.float32) if self._weights is None else self._weights
        if self.folds == 1:
            return weights[:, None]
        return weights[:, None] * (self.fold[:, None] != np.arange(self.folds))


def weakest_of_the_best(score: np.ndarray) -> int:
    """Of neighbouring candidates, the first that is within a standard error of the best, at most `_REACH` before it.

    Parameters
    ----------
    score : ndarray, (J, p)
        Score of each candidate on p cases; the differences to the best are paired. Of several best
        the last counts: where all rank everything alike there is no reason to go far.
    """
    around = np.pad(score, ((1, 1), (0, 0)), mode="edge")
    smooth = around[:-2] / 4 + around[1:-1] / 2 + around[2:] / 4
    mean = smooth.mean(1)
    best = int(np.flatnonzero(mean >= mean.max() - 1e-9)[-1])
    behind = smooth[best] - smooth
    error = behind.std(1) / np.sqrt(score.shape[1])
    good = np.flatnonzero(behind.mean(1) <= error + 1e-9)
    return int(good[good >= best - _REACH][0])


def ranks_of_positives(margins: list[np.ndarray], known: TrainingLabels) -> np.ndarray:
    """How high the known positives stand among the likely negatives, by each candidate's held-out margins.

    Parameters
    ----------
    margins : list of J ndarrays, (n,)
    known : TrainingLabels
        Tilts are fitted to the labels as they were before a review.

    Returns
    -------
    ndarray of float64, (J, p)
        -log(share of the negatives above + floor) of each positive; the greater the better.
    """
    s, weights = known.s, known.weights
    prior = float(np.quantile([fit_tilt(one, s, weights).prior for one in margins], _QUARTILE))
    return np.stack([_ranks(one, known, fit_tilt(one, s, weights, prior)) for one in margins])


def _ranks(margins: np.ndarray, known: TrainingLabels, tilt: Tilt) -> np.ndarray:
    order = np.argsort(margins, kind="stable")
    order = order[known.trained[order] == 0]
    negative = expit(-tilt.log_ratio(margins[order]) - logit(tilt.prior))  # exact where 1 - posterior is not
    if known.weights is not None:
        negative = negative * known.weights[order]
    total = np.concatenate([[0.0], np.cumsum(negative)])
    below = total[np.searchsorted(margins[order], margins[known.trained == 1], side="left")]
    return np.asarray(-np.log(1 - below / max(total[-1], _TINY) + _FLOOR))
