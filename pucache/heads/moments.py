"""Mean and spread of the rows of X, accumulated block by block; their leading directions, and inverse Hessians by them.

The Hessian of head k is the sum over rows x, with 1 appended, of weight * second derivative * x x^T, plus the
penalty. Up to a factor, the curvature of the head, the weighted second moments of a sample of rows stand for the
sum. Around the sample's mean they fall apart into the intercept and the covariance of the rows, which is known
along its directions of greatest variance; all other directions have one variance.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..devices import upload
from ..errors import EmbeddingsError
from ..storage.rows import RowMatrix, release_pages, row_slices, row_step
from ..threads import limited_threads

log = logging.getLogger("pucache")
_CPU = torch.device("cpu")
_LEAST_SPREAD = 1e-17  # whose squares are still exact in float32
SAMPLE = 4096  # rows
_ITERATIONS = 3  # of the subspace iteration
_MIN_VARIANCE = 0.01  # relative to the mean variance; smaller ones are treated as rounding


@dataclass(frozen=True)
class Moments:
    """First and second moment of the rows of X."""

    centre: np.ndarray  # float32, (d,): mean row
    spread: float  # root mean square distance of the rows from the mean; 1 where all rows are equal

    @classmethod
    def of(cls, X: RowMatrix, device: torch.device = _CPU) -> Moments:
        """Compute the moments of X, (n, d), in blocks on a device."""
        sums = MomentSums(device)
        for rows in row_slices(len(X), X.shape[1]):
            sums.add(X[rows])
            release_pages(X)
        return sums.moments()

    @property
    def root_mean_square(self) -> float:
        """Root mean square of all values of X."""
        centre = self.centre.astype(np.float64)
        return float(np.sqrt((centre @ centre + self.spread**2) / len(centre)))


class MomentSums:
    """Sums from which `Moments` follow, accumulated over consecutive blocks of rows.

    Rows are summed in float32 in runs of a fixed length, whatever the blocks they come in, and the runs
    in float64. So the moments of several files are those of one file with the same rows, to the last bit.
    """

    def __init__(self, device: torch.device = _CPU) -> None:
        self._device, self._count = device, 0
        self._pending: list[np.ndarray] = []  # rows that do not fill a run yet

    def add(self, block: np.ndarray) -> None:
        """Add a block of rows, (b, d)."""
        step = row_step(block.shape[1])
        while len(block):
            room = step - sum(map(len, self._pending))
            if not self._pending and len(block) >= step:
                self._sum(block[:step])
            else:
                self._pending.append(block[:room].copy())
                if len(block) >= room:
                    self._sum_pending()
            block = block[room:]

    def moments(self) -> Moments:
        """Moments of all rows added so far, at least one; raises `EmbeddingsError` where their squares overflow."""
        self._sum_pending()
        total, squares = self._total.cpu().numpy(), float(self._squares)
        mean = total / self._count  # minus the origin
        spread = np.sqrt(max(squares / self._count - float(mean @ mean), 0.0))
        if not np.isfinite(spread):
            raise EmbeddingsError(
                "the squares of the embeddings overflow float32; scale them, such as by import-embeddings --normalize"
            )
        centre = (mean + self._origin.cpu().numpy()).astype(np.float32)
        if squares / self._count < _LEAST_SPREAD**2 and (total.any() or squares):
            log.warning(
                "the embeddings differ by less than %g, whose squares float32 cannot hold, so they count as equal: "
                "scale them, such as by import-embeddings --normalize",
                _LEAST_SPREAD,
            )
            spread = 0.0
        return Moments(centre=centre, spread=float(spread) or 1.0)

    def _sum_pending(self) -> None:
        if self._pending:
            self._sum(np.concatenate(self._pending))
            self._pending = []

    def _sum(self, rows: np.ndarray) -> None:
        values = upload(rows, self._device).float()
        if not self._count:
            self._origin = values[0].clone()  # against cancellation where the mean is far from zero
            self._total = torch.zeros_like(self._origin, dtype=torch.float64)
            self._squares = self._total.new_zeros(())
        values.sub_(self._origin)
        self._total += values.sum(0).double()
        self._squares += values.square_().sum(1).double().sum()
        self._count += len(values)


# --- leading directions ---------------------------------------------------------------------------


@dataclass(frozen=True)
class LeadingDirections:
    """Directions of greatest variance of rows."""

    centre: Tensor  # (d,): mean of the rows
    directions: Tensor  # (d, q), orthonormal columns
    variances: Tensor  # (q,), along each of them
    rest: float  # mean variance of all other directions; of all directions where there are no others

    @classmethod
    def of_sample(cls, rows: Tensor, count: int, weights: Tensor | None = None) -> LeadingDirections:
        """Directions of a weighted sample, by an eigendecomposition, or fewer than d by subspace iteration.

        At most `count` of them, and no more than rows (m, d). `weights` (m,) sum to one; all are equal by default.
        """
        m, d = rows.shape
        weights = rows.new_full((m,), 1 / m) if weights is None else weights
        with limited_threads(0):  # the same bits for any number of threads
            centre = weights @ rows
            sample = (rows - centre) * weights.sqrt()[:, None]
            basis = _leading_subspace(sample, min(count, m)) if min(count, m) < d else None
            projected = sample if basis is None else sample @ basis
            variances, rotation = torch.linalg.eigh(projected.T @ projected)
            others, total = d - len(variances), float(sample.square().sum())
            rest = max(total - float(variances.sum()), 0.0) / others if others else total / d
            return cls(centre, rotation if basis is None else basis @ rotation, variances.clamp(min=0), rest)


class Preconditioner:
    """Inverse of curvature * second moments + penalty of the coefficients, for K heads.

    `curvature` (K,) is the sum over rows of weight times second derivative, of each head.
    """

    def __init__(self, leading: LeadingDirections, curvature: Tensor, penalty: Tensor):
        device = curvature.device
        self._centre, self._directions = leading.centre.to(device), leading.directions.to(device)
        least = _MIN_VARIANCE / len(self._centre)  # the variances of all directions sum to about one
        variances = leading.variances.to(device).clamp(min=least)
        self._rest = (1 / (curvature * max(leading.rest, least) + penalty))[:, None]  # (K, 1)
        self._along = 1 / (curvature[:, None] * variances + penalty[:, None]) - self._rest  # (K, q)
        self._of_intercept = (1 / curvature)[:, None]

    def __call__(self, vectors: Tensor, head: Tensor) -> Tensor:
        """Approximate inverse Hessians of the heads numbered ``head`` (A,) times vectors (A, d + 1)."""
        intercept = vectors[:, -1:]
        coef = vectors[:, :-1] - intercept * self._centre
        coef = coef * self._rest[head] + ((coef @ self._directions) * self._along[head]) @ self._directions.T
        return torch.cat([coef, intercept * self._of_intercept[head] - (coef @ self._centre)[:, None]], 1)


def systematic_sample(importance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows drawn at `SAMPLE` even steps of the cumulated importance (n,), ascending, and their weights, (m,).

    Importances are at least 0, and not all zero; weights sum to one. Where there are no more than `SAMPLE` rows, all of
    some importance are taken.
    """
    if len(importance) <= SAMPLE:
        rows = np.flatnonzero(importance)
        return rows, importance[rows] / importance.sum(dtype=np.float64)
    cumulated = np.cumsum(importance, dtype=np.float64)
    steps = (np.arange(SAMPLE) + 0.5) / SAMPLE * cumulated[-1]
    rows, times = np.unique(np.searchsorted(cumulated, steps), return_counts=True)
    return rows, times / SAMPLE


def _leading_subspace(sample: Tensor, count: int) -> Tensor:
    """Orthonormal basis (d, count) by subspace iteration, from normal draws that are the same in every run."""
    draws = np.random.default_rng(0).normal(size=(sample.shape[1], count)).astype(np.float32)
    basis = torch.from_numpy(draws).to(sample.device)
    for _ in range(_ITERATIONS):
        basis = torch.linalg.qr(sample.T @ (sample @ basis))[0]
    return basis
