"""The rows of a pile along the directions of greatest variance: what heads of a review are trained on.

Fits on 512 directions take a fraction of the time of fits on all dimensions, and rank as well; with 256, positives
that differ in how a picture was taken rank lower. A head of the directions is a head of the rows as they are. Where
the pile is small, all rows are projected once and kept; margins of a larger one are computed from its cache, block
by block.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

import numpy as np
import torch

from ..heads.linear_algebra import truncated_svd
from ..heads.moments import Moments
from ..heads.preconditioner import LeadingDirections, evenly_spaced
from ..neighbours.row_source import RowSource
from ..neighbours.whitening import Whitening, centred_units
from ..threads import limited_threads, worker_threads

SAMPLE_ROWS = 1 << 14  # of the rows that are not known
_DIRECTIONS, _DIRECTION_ROWS = 512, 1 << 12  # and rows of the sample that they are estimated from
_MOST_DIMENSIONS = 2048  # whose covariance is decomposed as a whole, which takes time as the cube
_KEPT_BYTES = 1 << 28  # of projected rows
_BLOCK_ROWS = 1 << 12
_PRECONDITIONED = 64  # leading directions that the solver is told of


class PileFeatures:
    """Projected rows of a pile, and a fixed random sample of them.

    Parameters
    ----------
    source : RowSource
    generator : Generator
        Draws the sample.

    Attributes
    ----------
    sample : ndarray of int64, (m,)
        Row numbers, ascending.
    whitening : Whitening
        Of a part of the sample; its directions are those that rows are projected on.
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
        self.of_sample = self._project(rows)

    @property
    def moments(self) -> Moments:
        """Of the projected rows: they are centred, and scaled like the rows."""
        return Moments(np.zeros(self._directions.shape[1], np.float32), 1.0)

    @cached_property
    def leading(self) -> LeadingDirections:
        """Leading directions of the projected sample."""
        rows = self.of_sample[evenly_spaced(len(self.of_sample))]
        return LeadingDirections.of_sample(torch.from_numpy(rows), _PRECONDITIONED)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Projected rows, float32 (m, q), by ascending row numbers."""
        if self.keeps_all:
            return np.asarray(self.all[rows])
        return self._project(self._source.take(rows))

    def margins(self, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        """Margins of all rows by K heads on the projected rows.

        Parameters
        ----------
        coef : ndarray of float32, (K, q)
        intercept : ndarray of float32, (K,)

        Returns
        -------
        ndarray of float32, (n, K)
        """
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
    count, d = min(_DIRECTIONS, *units.shape), units.shape[1]
    with limited_threads(units.size * d):
        variances, directions = _leading(units, count)
    residual = max(float(np.square(units).sum() / len(units) - variances.sum()), 0.0)
    return Whitening(
        mean=mean,
        directions=directions,
        variances=variances,
        residual_variance=residual / max(d - count, 1),
    )


def _leading(units: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Leading variances (q,) of rows, falling, and their directions (q, d), float32."""
    if units.shape[1] > _MOST_DIMENSIONS:
        values, directions = truncated_svd(units, count)
        return (values**2 / len(units)).astype(np.float32), np.ascontiguousarray(directions)
    rows = torch.from_numpy(units)
    values, vectors = torch.linalg.eigh(rows.T @ rows / len(rows))  # ascending
    return values.flip(0)[:count].clamp(min=0).numpy(), vectors.T.flip(0)[:count].contiguous().numpy()
