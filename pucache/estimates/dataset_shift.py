r"""Dataset shift: whether new images are of the kind that a model was trained on, but for the share of positives.

Two tests, both allowing for a change of that share:

- *margins*: the largest distance between the distribution function of the new margins and that of a mixture of the
  pile's positives and negatives, at whatever share fits best (Kolmogorov and Smirnov);
- *embeddings*: a logistic classifier is cross-fitted to tell new rows from rows of the pile, which are weighted to the
  share of the new ones (classifier two-sample test: Lopez-Paz and Oquab 2017). Its AUC is the effect, 0.5 by guessing.
  Where a few of the new images are of another kind, the AUC hardly rises; the share of new rows beyond 98 % of the
  pile's does. From a pile of `_LEAST_FOR_SQUARES`
  rows on, the classifier also sees the squares of all values and their sum: noise moves no mean. The leading
  directions of fewer rows follow these rows, which spread further along them than any other rows do.

A share rho above that of the unlabelled, the prior, is a mixture of the unlabelled and the labelled rows, whatever
their margins are; below it, unlabelled rows weigh by their probability p of being positive::

    rho >= prior:   (1 - rho) / (1 - prior) * f_U + (rho - prior) / (1 - prior) * f_P
    rho < prior:    f_U * (p * rho / prior + (1 - p) * (1 - rho) / (1 - prior))

The share is the one at which the margins are nearest. This share and the tilt, by which p follows, are estimates:
images differ only if they do near a share of 0, too, and at tilts across the prior's interval.

Both tests say that images differ, not that the model is wrong on them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import product

import numpy as np
from scipy.special import expit

from ..threads import one_blas_thread
from .calibration import Tilt
from .metrics import share_above
from .share_of_new_images import PileMargins

MOST_ROWS, MOST_POSITIVES = 2000, 500  # kept of a pile
MOST_BYTES = 440_000  # of rows and directions
LARGEST = 20  # images that are named
_FOLDS, _RIDGE, _STEPS = 5, 0.02, 6  # of the classifier; the penalty is per row, for columns of unit variance
_DISTANCE, _AUC = 0.03, 0.015  # beyond chance: what estimated weights, and margins that are held out, explain at least
_DEVIATIONS = 3.0  # standard errors beyond chance
_TAIL, _TAIL_DEVIATIONS = 0.02, 3.5  # of the pile's rows
_SMIRNOV = 1.95  # quantile .999 of the distance, in units of its error
_LEAST_FOR_SQUARES = 6000  # rows; of 1,000 and fewer, squares told unchanged images apart in 60 of 60 draws
_PARTS = (None, 0.02)  # of the prior: shares that are tried; first the one at which the margins are nearest
_SHARES = expit(np.linspace(-9, 9, 109))  # from 0.0001 to 0.9999


@dataclass(frozen=True, eq=False)
class PileSample:
    """Some rows of a pile along its leading directions, with their held-out margins."""

    directions: np.ndarray  # float16 (d, q)
    centre: np.ndarray  # of the pile, along these, float32 (q,)
    spread: float  # of the pile
    rows: np.ndarray  # the labelled positives first, float16 (m, q)
    margins: np.ndarray  # float32 (m,)
    n_labelled: int
    # greatest distance of the distribution functions of held-out margins and of those of the final head, of the
    # unlabelled rows; 0 in older models
    held_out_distance: float = 0.0
    # of the rows, uint64 (m,); none in models of 0.4 and older
    fingerprints: np.ndarray = field(default_factory=lambda: np.empty(0, "<u8"))

    def check(self, d: int) -> None:
        """Raise `ValueError` unless the arrays are as described for d dimensions; the file may be untrusted."""
        (m, q), arrays = self.rows.shape, (self.directions, self.centre, self.rows, self.margins)
        shapes = [array.shape for array in arrays] == [(d, q), (q,), (m, q), (m,)]
        kinds = [array.dtype.str for array in arrays] == ["<f2", "<f4", "<f2", "<f4"]
        known = self.fingerprints.dtype.str == "<u8" and self.fingerprints.shape in ((0,), (m,))
        finite = all(np.isfinite(array).all() for array in arrays) and 0 < self.spread < np.inf
        distance = 0 <= self.held_out_distance <= 1
        if not (shapes and kinds and known and finite and distance and q and 0 <= self.n_labelled < m <= MOST_ROWS):
            raise ValueError("the sample of its unlabelled images is not as described")

    def part_of_pile(self, X: np.ndarray, labelled: int, unlabelled: int) -> float:
        """Share of rows X (n, d) that are rows of the pile, of so many labelled and unlabelled rows; estimated."""
        kept = self.fingerprints[self.n_labelled :]
        if not len(kept):
            return 0.0
        found = np.isin(fingerprints(X), kept).mean()
        return float(found * (labelled + unlabelled) / len(kept))


def fingerprints(X: np.ndarray) -> np.ndarray:
    """A hash of the bytes of each row, uint64 (n,)."""
    return np.frombuffer(b"".join(blake2b(row, digest_size=8).digest() for row in np.ascontiguousarray(X)), "<u8")


@one_blas_thread  # more would change the last bits
def along(X: np.ndarray, directions: np.ndarray, centre: np.ndarray, spread: float) -> np.ndarray:
    """Rows X (n, d) along directions (d, q), less the centre (q,) there, in units of the spread, float32 (n, q)."""
    projected = np.asarray(X, np.float32) @ directions.astype(np.float32)
    return np.nan_to_num((projected - centre) / np.float32(spread), posinf=6e4, neginf=-6e4)


@dataclass(frozen=True, eq=False)
class DatasetShift:
    """How new images differ from those of the pile.

    Attributes
    ----------
    n_compared : int
        New images that were compared.
    auc : float
        How well a classifier tells them from the pile's, 0.5 by guessing.
    auc_limit : float
        Greatest AUC that chance explains, and the weights of the pile's rows.
    beyond, beyond_limit : float
        Share of the new images that the classifier puts beyond 98 % of the pile's, and the most that chance explains.
    distance : float
        Largest distance of the distribution functions of the margins.
    distance_limit : float
        Greatest one that chance explains, and the fit.
    most_different : ndarray of int64
        Numbers of the new images compared that differ most, at most `LARGEST`; the first one most.
    """

    n_compared: int
    auc: float
    auc_limit: float
    beyond: float
    beyond_limit: float
    distance: float
    distance_limit: float
    most_different: np.ndarray

    @property
    def is_told_apart(self) -> bool:
        """Whether the classifier found a difference."""
        return self.auc > self.auc_limit or self.beyond > self.beyond_limit

    @property
    def is_mixture(self) -> bool:
        """Whether the margins are those of a mixture at some share of positives, as far as the test can tell."""
        return self.distance <= self.distance_limit

    @property
    def differs(self) -> bool:
        """Whether either test found a difference."""
        return self.is_told_apart or not self.is_mixture


def weights_at(
    share: float, tilt: Tilt, margins: np.ndarray, labelled: np.ndarray, counts: np.ndarray | float = 1.0
) -> np.ndarray:
    """Weights (n,) of rows of the pile for a share of positives, see the module; `counts` (n,) are rows of bins."""
    counts = np.broadcast_to(np.asarray(counts, np.float64), margins.shape)
    of_positives, of_unlabelled = (
        np.where(rows, counts, 0) / max(counts[rows].sum(), 1e-300) for rows in (labelled, ~labelled)
    )
    negatives = (1 - share) / (1 - tilt.prior)
    if share >= tilt.prior:
        return np.asarray(of_unlabelled * negatives + of_positives * (1 - negatives))
    p = tilt.posterior(margins)
    weights = of_unlabelled * (p * (share / tilt.prior) + (1 - p) * negatives)
    return np.asarray(weights / weights.sum())


def margin_distance(pile: PileMargins, tilt: Tilt, margins: np.ndarray) -> tuple[float, float, float]:
    """Least distance of new margins to a mixture of the pile's margins, its error by chance, and the share there."""
    m, s, counts = pile.rows
    order = np.argsort(m, kind="stable")
    m, labelled, counts = m[order], s[order] == 1, counts[order]
    new = np.sort(margins.astype(np.float64))
    # in the middle of a bin half of its rows lie below
    below = (np.searchsorted(new, m, "left") + np.searchsorted(new, m, "right")) / 2 / len(new)
    best = (np.inf, 0.0, tilt.prior)
    for share in _SHARES.tolist():
        w = weights_at(share, tilt, m, labelled, counts)
        distance = float(np.abs(np.cumsum(w) - w / 2 - below).max())
        if distance < best[0]:
            best = distance, float(np.sqrt(1 / len(new) + (w**2 / counts).sum())), share
    return best


def greatest_distance(first: np.ndarray, second: np.ndarray) -> float:
    """Greatest distance of the distribution functions of two samples of equal size (n,)."""
    first, second = np.sort(first), np.sort(second)
    return float(
        np.abs(np.searchsorted(second, first, "right") - np.searchsorted(first, first, "right")).max() / len(first)
    )


def check_shift(sample: PileSample, pile: PileMargins, tilt: Tilt, X: np.ndarray, margins: np.ndarray) -> DatasetShift:
    """Compare new images with those of the pile.

    X (n, d) are some of the new rows, and `margins` (m,) are of these and perhaps of more. The tilt is the one that
    fits the margins of the pile best.
    """
    found = _compared(sample, pile, tilt, X, margins)
    if not found.differs:
        return found
    for possible, part in product((tilt, *pile.plausible_tilts(tilt.prior)), _PARTS):
        again = _compared(sample, pile, possible, X, margins, part and part * possible.prior)
        if not again.differs:
            return again
    return found


def _compared(
    sample: PileSample, pile: PileMargins, tilt: Tilt, X: np.ndarray, margins: np.ndarray, share: float | None = None
) -> DatasetShift:
    """Both tests at one tilt; the second one at a share, by default that of the first one."""
    distance, error, nearest = margin_distance(pile, tilt, margins)
    share = nearest if share is None else share
    kept = sample.rows.astype(np.float32)
    w = weights_at(share, tilt, sample.margins, np.arange(len(kept)) < sample.n_labelled)
    rows = np.concatenate([kept, along(X, sample.directions, sample.centre, sample.spread)])
    if round(float(pile.unlabelled[:, 1].sum())) >= _LEAST_FOR_SQUARES:
        rows = _with_squares(rows)
    is_new = np.arange(len(rows)) >= len(kept)
    weights = np.concatenate([w, np.full(len(X), 1 / len(X))])
    odds = _cross_fitted(rows, is_new, weights)
    auc = share_above(odds[is_new], odds[~is_new], w)
    above = np.cumsum(w[order := np.argsort(-odds[~is_new])])
    beyond = float(np.mean(odds[is_new] > odds[~is_new][order][np.searchsorted(above, _TAIL)]))
    chance = float(np.sqrt((np.square(w).sum() + 1 / len(X)) / 12))  # error of the AUC of equal distributions
    return DatasetShift(
        n_compared=len(X),
        auc=auc,
        auc_limit=0.5 + _AUC + _DEVIATIONS * chance,
        beyond=beyond,
        beyond_limit=2 * _TAIL + _TAIL_DEVIATIONS * float(np.sqrt(12 * _TAIL * (1 - _TAIL)) * chance),
        distance=distance,
        distance_limit=max(_DISTANCE, sample.held_out_distance) + _SMIRNOV * error,
        most_different=np.argsort(-odds[is_new], kind="stable")[:LARGEST],
    )


def _with_squares(X: np.ndarray) -> np.ndarray:
    """Values (n, q), their squares, and the sum of these, each value in units of its spread; (n, 2 q + 1)."""
    squares = np.square((X - X.mean(0)) / np.maximum(X.std(0), 1e-12))
    return np.column_stack([X, squares, squares.sum(1)])


def _cross_fitted(X: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Held-out log odds (n,) of y by logistic regressions with a ridge penalty, by Newton's method."""
    mean = weights @ X / weights.sum()
    scale = np.sqrt(weights @ np.square(X - mean) / weights.sum())
    design = np.column_stack([(X - mean) / np.where(scale > 0, scale, 1), np.ones(len(X))]).astype(np.float64)
    np.clip(design, -8, 8, out=design)
    fold, odds = np.random.default_rng(0).permutation(len(X)) % _FOLDS, np.empty(len(X))
    for number in range(_FOLDS):
        train = fold != number
        A, target, w = design[train], y[train], weights[train].copy()
        for side in (False, True):
            w[target == side] /= 2 * w[target == side].sum()
        coef, penalty = np.zeros(A.shape[1]), np.append(np.full(A.shape[1] - 1, _RIDGE), 1e-9)
        for _ in range(_STEPS):
            p = expit(A @ coef)
            hessian = (A * (w * np.maximum(p * (1 - p), 1e-3))[:, None]).T @ A + np.diag(penalty)
            coef -= np.linalg.solve(hessian, A.T @ (w * (p - target)) + penalty * coef)
        odds[~train] = design[~train] @ coef
    return odds
