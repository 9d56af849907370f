"""Cross-fitting: held-out margins, from which penalty, prior and calibration follow without true labels.

Each head leaves one fold out and gives the margins of that fold only. The penalty is chosen by how
high held-out positives rank among the likely negatives, by the mean over P of

    -log(share of negatives above the margin + 0.01),

which depends more on the top of the ranking than the area under the curve (PAUC) does. The class of
an unlabelled row is not known, so each row of U counts as a negative with the probability that a
tilt fitted to the margins gives it (`pucache.estimates.calibration`). If whole rows were counted, hidden
positives would rank above labelled ones whatever the penalty, and where there are many of them no
penalty would look much better than another. All tilts share one prior, the upper quartile of the
priors that they estimate alone: heads of a weak penalty often estimate next to none, and with few
labels a prior for each penalty is noise. The score of a penalty is smoothed with those of its
neighbours. Among the penalties within one standard error (of the paired difference) of the best, the
weakest is taken, within a factor of ten: with few labels a strong penalty wins by chance more often
than it is better.

For a large cache, the penalty is chosen and bootstrap draws are made on all positives and as many
evenly spaced unlabelled rows as fit into `SAMPLE_BYTES`: their number is not what limits either.
The final heads are trained on all rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..devices import choose_device
from ..estimates.review_weights import TrainingLabels
from ..heads.design_matrix import DesignMatrix
from ..heads.linear_heads import FittedHeads
from ..heads.minibatch import SGDSettings
from ..heads.moments import Moments
from ..heads.risks import PURisk
from ..heads.solve import TOLERANCE, fit_heads
from ..storage.rows import RowMatrix
from .penalty import PENALTIES, ranks_of_positives, weakest_of_the_best

# tolerances of the solver; heads that stop early would make a weak penalty look good
_CHOICE_TOLERANCE, _DRAW_TOLERANCE = 2e-3, 0.01
_DRAWS_PER_FIT = 20
SAMPLE_BYTES = 1 << 25


@dataclass(frozen=True)
class CrossFit:
    """The heads of one penalty, each trained without one fold, and their margins of that fold.

    Attributes
    ----------
    penalty : float
    heads : FittedHeads
        One per fold; a single head of all rows where nothing can be held out.
    fold : ndarray of int64, (n,)
        Number of the head that did not see the row.
    margins : ndarray of float32, (n,)
        Margin of the row by that head.
    """

    penalty: float
    heads: FittedHeads
    fold: np.ndarray
    margins: np.ndarray


@dataclass(frozen=True)
class BootstrapDraw:
    """Rows drawn with replacement.

    Attributes
    ----------
    margins : ndarray of float32, (m,)
        Held-out margins of the heads trained on the draw.
    s : ndarray of int8, (m,)
        `TrainingLabels.s`.
    weights : ndarray, (m,)
        How often the row was drawn, times its weight.
    """

    margins: np.ndarray
    s: np.ndarray
    weights: np.ndarray


class CrossFitter:
    """Trains heads that each leave one fold out, on one set of rows.

    Parameters
    ----------
    X : ndarray, (n, d), or DesignMatrix
        A `DesignMatrix` of these rows and labels is shared with other fits.
    labels : TrainingLabels
    fold : ndarray of int64, (n,)
        As `pucache.labels.folds.assign_folds` returns it.
    risk : PURisk
    prior : float
    moments : Moments, optional
        Of X, where known; part of a `DesignMatrix`.
    solver, sgd_settings, seed
        As for `pucache.heads.solve.fit_heads`.
    device : str
        Ignored for a `DesignMatrix`, which has its own.
    """

    def __init__(
        self,
        X: RowMatrix | DesignMatrix,
        labels: TrainingLabels,
        fold: np.ndarray,
        *,
        risk: PURisk,
        prior: float,
        moments: Moments | None = None,
        solver: str = "batch",
        sgd_settings: SGDSettings | None = None,
        seed: int = 0,
        device: str = "auto",
    ):
        if not isinstance(X, DesignMatrix):
            X = DesignMatrix(X, labels.training_s, moments, choose_device(device))
        self._design, self._labels, self.fold = X, labels, fold
        self._weights = labels.training_weights
        self.folds, self.prior = int(fold.max()) + 1, prior
        self._risk, self._solver, self._sgd_settings, self._seed = risk, solver, sgd_settings, seed

    @cached_property
    def _sample(self) -> CrossFitter:
        """A cross-fitter of fewer unlabelled rows where they are many; otherwise this one."""
        X, unlabelled = self._design.X, self._design.unlabelled_rows
        room = max(1, SAMPLE_BYTES // max(1, X.itemsize * X.shape[1]))
        if len(unlabelled) <= room:
            return self
        kept = unlabelled[np.linspace(0, len(unlabelled) - 1, room).astype(np.int64)]
        rows = np.union1d(kept, self._design.positive_rows)
        labels = self._labels.take(rows, len(kept) / len(unlabelled))
        return CrossFitter(
            self._design.take(rows, labels.training_s),
            labels,
            self.fold[rows],
            risk=self._risk,
            prior=self.prior,
            solver=self._solver,
            sgd_settings=self._sgd_settings,
            seed=self._seed,
        )

    def fit(
        self, penalties: tuple[float, ...], *, tolerance: float = _CHOICE_TOLERANCE, start: FittedHeads | None = None
    ) -> list[CrossFit]:
        """Cross-fit at several penalties, all heads at once."""
        heads = self._fit_heads(
            self._fold_weights(),
            column=np.tile(np.arange(self.folds), len(penalties)),
            penalty=np.repeat(penalties, self.folds),
            tolerance=tolerance,
            start=start,
        )
        margins = self._design.margins(heads, self.fold[:, None] + self.folds * np.arange(len(penalties)))
        of_first = np.arange(self.folds)
        return [
            CrossFit(
                penalty=penalty,
                heads=heads.take(of_first + self.folds * number),
                fold=self.fold,
                margins=margins[:, number],
            )
            for number, penalty in enumerate(penalties)
        ]

    def choose_penalty(self, penalties: tuple[float, ...] = PENALTIES) -> CrossFit:
        """Cross-fit at every penalty, choose the best, and train its heads to full accuracy.

        With a single fold nothing is held out to choose by, and the middle penalty is taken.
        """
        if self.folds < 2:
            return self.fit((penalties[len(penalties) // 2],), tolerance=TOLERANCE)[0]
        candidates = self._sample.fit(penalties)
        ranks = ranks_of_positives([candidate.margins for candidate in candidates], self._sample._labels)
        best = candidates[weakest_of_the_best(ranks)]
        return self.fit((best.penalty,), tolerance=TOLERANCE, start=best.heads)[0]

    def bootstrap(self, cross_fit: CrossFit, draws: int, seed: int) -> Iterator[BootstrapDraw]:
        """Refit on bootstrap draws of P and of U; rows without weight are never drawn."""
        sample, generator = self._sample, np.random.default_rng(seed)
        for begin in range(0, draws, _DRAWS_PER_FIT):
            together = min(_DRAWS_PER_FIT, draws - begin)
            counts = np.stack([sample._draw(generator) for _ in range(together)], axis=1)  # (n, B)
            yield from sample._refit(cross_fit, counts)

    def _draw(self, generator: np.random.Generator) -> np.ndarray:
        """How often each row is drawn, uint8 (n,)."""
        counts = np.zeros(len(self.fold), np.uint8)
        weighted = np.ones(len(counts), bool) if self._weights is None else self._weights > 0
        # labelled (2), confirmed (1) and other rows (0) are drawn apart: estimates need labelled ones in every draw
        stratum = self._labels.s + self._labels.training_s
        for value in np.unique(stratum[weighted]):
            rows = np.flatnonzero((stratum == value) & weighted)
            drawn = np.bincount(generator.integers(len(rows), size=len(rows)), minlength=len(rows))
            counts[rows] = np.minimum(drawn, 255)
        return counts

    def _refit(self, cross_fit: CrossFit, counts: np.ndarray) -> Iterator[BootstrapDraw]:
        draws = counts.shape[1]
        weights = (self._fold_weights()[:, :, None] * counts[:, None, :]).reshape(len(counts), -1)  # (n, folds * B)
        heads = self._fit_heads(
            weights,
            penalty=cross_fit.penalty,
            tolerance=_DRAW_TOLERANCE,
            start=cross_fit.heads.take(np.repeat(np.arange(self.folds), draws)),
        )
        margins = self._design.margins(heads, self.fold[:, None] * draws + np.arange(draws))
        row_weights = self._labels.weights
        for draw in range(draws):
            drawn = counts[:, draw] if row_weights is None else counts[:, draw] * row_weights
            yield BootstrapDraw(margins=margins[:, draw], s=self._labels.s, weights=drawn)

    def _fit_heads(
        self,
        weights: np.ndarray,
        *,
        penalty: float | np.ndarray,
        tolerance: float,
        start: FittedHeads | None,
        column: np.ndarray | None = None,
    ) -> FittedHeads:
        return fit_heads(
            self._design,
            weights=weights,
            column=column,
            penalty=penalty,
            tolerance=tolerance,
            start=start,
            prior=self.prior,
            risk=self._risk,
            solver=self._solver,
            sgd_settings=self._sgd_settings,
            seed=self._seed,
        )

    def _fold_weights(self) -> np.ndarray:
        """Row weights of the head of each fold, (n, folds)."""
        weights = np.ones(len(self.fold), np.float32) if self._weights is None else self._weights
        if self.folds == 1:
            return weights[:, None]
        return weights[:, None] * (self.fold[:, None] != np.arange(self.folds))
