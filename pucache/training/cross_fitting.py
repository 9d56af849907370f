"""Cross-fitting: held-out margins, from which penalty, prior and calibration follow without true labels.

Each head leaves one fold out and gives the margins of that fold only. The penalty is the one whose
margins tell labelled from unlabelled rows best, by the likelihood of the labels under a tilt fitted to
the margins (`log_posteriors`). The tilt allows for hidden positives: an unlabelled row that
ranks high costs little.

Where rows are few, the likelihood is the mean over several deals of the rows to the folds: with one deal the
penalty would hang on the seed. For a large cache, the penalty is chosen on all positives and as many evenly
spaced unlabelled rows as fit into `SAMPLE_BYTES`: their number is not what limits it. The final heads are
trained on all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from ..estimates.calibration import log_likelihoods
from ..estimates.review_weights import TrainingLabels
from ..heads.design_matrix import DesignMatrix
from ..heads.linear_heads import FittedHeads
from ..heads.minibatch import SGDSettings
from ..heads.risks import PURisk
from ..heads.solve import TOLERANCE, fit_heads
from ..labels.folds import assign_folds
from ..storage.rows import evenly_spaced

PENALTIES = tuple(float(f"{10 ** (step / 2 - 6):.3g}") for step in range(9))  # 1e-6 to 1e-2
_EXPECTED, _DECADES = 1e-3, 1.1  # log-normal prior on the penalty: its median, and its standard deviation
_CHOICE_TOLERANCE = 2e-3  # of the solver; heads that stop early would make a weak penalty look good
HALVES_TOLERANCE = 5e-3  # of the heads of halves of the labels, which are only compared
_TOGETHER = 3  # penalties that are tried at once
_ROWS_OF_DEALS, _LEAST_DEALS, _MOST_DEALS = 1 << 14, 3, 15  # rows times divisions into folds
SAMPLE_BYTES = 1 << 25


@dataclass(frozen=True)
class HeadSettings:
    """How heads are trained; the fields are arguments of `pucache.heads.solve.fit_heads`."""

    risk: PURisk = field(default_factory=PURisk)
    solver: str = "batch"
    sgd_settings: SGDSettings | None = None
    seed: int = 0


@dataclass(frozen=True)
class CrossFit:
    """The heads of one penalty, each trained without one fold, and their margins of that fold."""

    penalty: float
    heads: FittedHeads  # those of the folds; from `CrossFitter.cross_fit` also one of all rows, and those of halves
    fold: np.ndarray  # (n,): number of the head that did not see the row
    margins: np.ndarray  # float32, (n,): of the row by that head
    deal: int = 0  # number of the division into folds

    @property
    def folds(self) -> int:
        """Number of folds."""
        return int(self.fold.max()) + 1

    @property
    def head(self) -> FittedHeads:
        """The head of all rows."""
        return self.heads.take([self.folds])

    @property
    def fold_heads(self) -> FittedHeads:
        """The heads of the folds."""
        return self.heads.take(np.arange(self.folds))

    @property
    def of_halves(self) -> FittedHeads:
        """The heads of halves of the labels."""
        return self.heads.take(np.arange(self.folds + 1, len(self.heads.coef)))


@dataclass(frozen=True)
class CrossFitter:
    """Trains heads that each leave one fold out."""

    design: DesignMatrix  # with `labels.training_s`
    labels: TrainingLabels
    deals: np.ndarray  # (n, S): divisions into folds; all of them choose the penalty, the median one holds out
    prior: float = 0.5  # among the rows that training calls unlabelled
    settings: HeadSettings = field(default_factory=HeadSettings)

    @cached_property
    def folds(self) -> int:
        """Number of folds."""
        return int(self.deals.max()) + 1

    @cached_property
    def _sample(self) -> CrossFitter:
        """A cross-fitter of fewer unlabelled rows where they are many; otherwise this one."""
        X, unlabelled = self.design.X, self.design.unlabelled_rows
        room = max(1, SAMPLE_BYTES // max(1, X.itemsize * X.shape[1]))
        if len(unlabelled) <= room:
            return self
        kept = unlabelled[evenly_spaced(len(unlabelled), room)]
        rows = np.union1d(kept, self.design.positive_rows)
        labels = self.labels.take(rows, len(kept) / len(unlabelled))
        design = self.design.take(rows, labels.training_s)
        return CrossFitter(design, labels, self.deals[rows], self.prior, self.settings)

    def cross_fit(self, penalties: tuple[float, ...] = PENALTIES, halves: np.ndarray | None = None) -> CrossFit:
        """Choose the best penalty, and train all heads at it in the same passes, to full accuracy.

        They are those of the folds, one of all rows, and one for each column of `halves` (n, H), which are rows
        (`pucache.training.neighbour_evidence`).
        """
        penalty, start, deal = penalties[0], None, 0
        if len(penalties) > 1:
            best = self.choose(penalties)
            penalty, start, deal = best.penalty, best.heads.joined(best.heads.mean()), best.deal
        base, fold = self.labels.row_weights[:, None], self.deals[:, deal]
        columns = [weights_without_folds(self.labels, fold[:, None]), base]
        tolerance = np.full(self.folds + 1, TOLERANCE)
        if halves is not None:
            columns.append(base * halves)
            tolerance = np.append(tolerance, np.full(halves.shape[1], HALVES_TOLERANCE))
            if start is not None:  # from nothing: the head of one half must not know the other
                start = start.joined(start.take(np.zeros(halves.shape[1], np.int64)).zero())
        heads = fit_heads(
            self.design,
            weights=np.concatenate(columns, axis=1),
            prior=self.prior,
            penalty=penalty,
            tolerance=tolerance,
            start=start,
            **vars(self.settings),
        )
        margins = self.design.margins(heads.take(np.arange(self.folds)), fold[:, None])[:, 0]
        return CrossFit(penalty, heads, fold, margins, deal)

    def choose(self, penalties: tuple[float, ...] = PENALTIES) -> CrossFit:
        """Cross-fit of the most likely penalty, on a sample of the unlabelled rows where they are many.

        Of several deals it is the one of the median prior, so that no figure hangs on an odd one.

        The strongest `_TOGETHER` are tried first. While the weakest of those tried is the most likely, as many weaker
        ones follow, whose heads start from those of the weakest: they are near, and take few passes. With a single fold
        nothing is held out to choose by, and the middle penalty is taken.
        """
        fitter = self._sample
        penalties = penalties if self.folds >= 2 else (penalties[len(penalties) // 2],)
        weaker, candidates, best = sorted(penalties, reverse=True), list[list[CrossFit]](), 0
        posteriors, priors = np.empty(0), list[np.ndarray]()
        while weaker and best >= len(candidates) - 1:
            group, weaker = tuple(weaker[:_TOGETHER]), weaker[_TOGETHER:]
            start = _repeated(candidates[-1], len(group)) if candidates else None
            tried = fitter.fit(group, start=start)
            margins = [np.stack([deal.margins for deal in deals], axis=1) for deals in tried]
            by_penalty, estimated = log_posteriors(margins, group, fitter.labels)
            posteriors = np.append(posteriors, by_penalty)
            priors += estimated
            candidates += tried
            best = int(np.argmax(posteriors))
        by_prior = np.argsort(priors[best], kind="stable")
        return candidates[best][int(by_prior[len(by_prior) // 2])]

    def fit(
        self, penalties: tuple[float, ...], *, tolerance: float = _CHOICE_TOLERANCE, start: FittedHeads | None = None
    ) -> list[list[CrossFit]]:
        """Cross-fits at several penalties, one for each deal, all heads at once."""
        S = self.deals.shape[1]
        heads, margins = fit_held_out(
            self.design,
            self.labels,
            self.deals,
            prior=np.repeat(self.prior, len(penalties)),
            penalty=penalties,
            seeds=[self.settings.seed] * S,
            settings=self.settings,
            tolerance=tolerance,
            start=start,
        )
        of_deal = np.split(np.arange(len(heads.coef)), len(penalties) * S)
        cross_fits = [
            CrossFit(penalties[number // S], heads.take(own), self.deals[:, number % S], margins[:, number], number % S)
            for number, own in enumerate(of_deal)
        ]
        return [cross_fits[first : first + S] for first in range(0, len(cross_fits), S)]


def log_posteriors(
    margins: Sequence[np.ndarray], penalties: Sequence[float], labels: TrainingLabels
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Log posterior (J,) of each penalty, up to a constant, by the held-out margins (n, S) of the heads of each.

    The likelihood is that of the labels given the held-out margins, at the tilt that fits these margins best
    (`pucache.estimates.calibration`), and the mean over S divisions into folds. The prior is log-normal: with few
    labels, when the likelihoods hardly differ, a medium penalty is the safer choice. Positives that a review has
    confirmed count as labelled. The estimated priors (S,) of each penalty are returned beside them.
    """
    likelihoods, priors = zip(
        *(log_likelihoods(deals, labels.training_s, labels.training_weights) for deals in margins), strict=True
    )
    floor = PENALTIES[0]  # for a penalty of 0
    decades = np.log10(np.maximum(penalties, floor) / _EXPECTED)
    return np.mean(likelihoods, axis=1) - np.square(decades / _DECADES) / 2, list(priors)


def deal_folds(s: np.ndarray, count: int, seed: int, groups: np.ndarray | None) -> np.ndarray:
    """Divisions into at most `count` folds (n, S): one, and where rows are few further ones for the penalty."""
    deals = min(_MOST_DEALS, _ROWS_OF_DEALS // len(s))
    further = range(1, deals if deals >= _LEAST_DEALS else 1)
    seeds: list[int | list[int]] = [seed, *([seed, deal] for deal in further)]
    return np.stack([assign_folds(s, count, one, groups) for one in seeds], axis=1)


def _repeated(deals: list[CrossFit], times: int) -> FittedHeads:
    """Heads of cross-fits, so many times over."""
    heads = deals[0].heads
    for deal in deals[1:]:
        heads = heads.joined(deal.heads)
    return heads.take(np.tile(np.arange(len(heads.coef)), times))


def fit_held_out(
    design: DesignMatrix,
    labels: TrainingLabels,
    folds: np.ndarray,
    *,
    prior: ArrayLike,
    penalty: ArrayLike,
    seeds: Sequence[int],
    settings: HeadSettings,
    tolerance: float,
    start: FittedHeads | None = None,
) -> tuple[FittedHeads, np.ndarray]:
    """Train heads that leave one fold out, at J priors and penalties and for the folds of S seeds, all at once.

    `folds` are int64, (n, S); `tolerance` and `start` are those of `pucache.heads.solve.fit_heads`. Returns J times C
    heads, C being the number of folds of all seeds, and margins by the heads that did not see the row, float32
    (n, J * S).
    """
    weights, counts = weights_without_folds(labels, folds), folds.max(0) + 1
    J, C = len(np.asarray(penalty)), weights.shape[1]
    heads = fit_heads(
        design,
        weights=weights,
        column=np.tile(np.arange(C), J),
        prior=np.repeat(prior, C),
        penalty=np.repeat(penalty, C),
        tolerance=tolerance,
        start=start,
        **vars(settings) | {"seed": np.tile(np.repeat(seeds, counts), J)},
    )
    own = folds + np.cumsum(counts) - counts  # column of the head that did not see the row, (n, S)
    own = own[:, None, :] + C * np.arange(J)[:, None]
    return heads, design.margins(heads, own.reshape(len(own), -1))


def weights_without_folds(labels: TrainingLabels, folds: np.ndarray) -> np.ndarray:
    """Row weights of the heads that each leave a fold of a column of `folds` out, (n, C); a single fold is not."""
    held_in = [fold[:, None] != np.arange(fold.max() + 1) if fold.any() else fold[:, None] == 0 for fold in folds.T]
    return labels.row_weights[:, None] * np.concatenate(held_in, axis=1)
