"""Whitening: rows centred on the cache mean and scaled to unit norm, and their covariance.

Inner products of centred unit rows are cosines. Centring removes what all images share; without it the
mean cosine ranks far worse. Whitening also gives less weight to directions in which all images vary much.
Both are estimated from the rows alone, without labels (docs/results/retrieval.md has what each is worth).
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..heads.linear_algebra import truncated_svd, unit_rows
from .row_source import RowSource, row_source

DIRECTIONS = 256  # leading directions whose variances are estimated one by one
SAMPLE = 16_384  # rows that the covariance is estimated from
_TORCH_PAYS = 1 << 28  # float16 values of a cache whose conversion by numpy takes longer than importing torch


@dataclass(frozen=True)
class Whitening:
    """Mean of the rows, and covariance of the centred unit rows.

    The covariance is kept as its leading eigenvectors; all other directions share one variance.

    Attributes
    ----------
    mean : ndarray of float32, (d,)
    directions : ndarray of float32, (q, d)
        Orthonormal directions of greatest variance.
    variances : ndarray of float32, (q,)
        Variances along `directions`.
    residual_variance : float
        Mean variance along all other directions.
    """

    mean: np.ndarray
    directions: np.ndarray
    variances: np.ndarray
    residual_variance: float

    @classmethod
    def estimate(cls, X: EmbeddingCache | np.ndarray | RowSource) -> Whitening:
        """Estimate mean and covariance in two passes; the first verifies the checksums of a cache.

        Parameters
        ----------
        X : EmbeddingCache, or ndarray of float16 or float32, (n, d)
            At least one row.

        Returns
        -------
        Whitening

        Raises
        ------
        CacheError
            The cache is damaged, or holds embeddings that are not finite.
        ValueError
            An array holds values that are not finite.
        """
        source = row_source(X)
        if len(source) * source.d > _TORCH_PAYS:
            import_module("torch")
        mean = mean_of(source)
        blocks = (X[sampled_rows(rows.start, len(X), n=len(source))] for rows, X in source.blocks())
        return cls.of_units(mean, np.concatenate([centred_units(X, mean) for X in blocks]))

    @classmethod
    def of_units(cls, mean: np.ndarray, sample: np.ndarray) -> Whitening:
        """Whitening by the mean, float32 (d,), and a sample of the centred unit rows, float32 (m, d)."""
        singular_values, directions = truncated_svd(sample, min(DIRECTIONS, *sample.shape))
        return cls.of_sample(mean, singular_values, directions, n=len(sample), squares=np.square(sample).sum())

    @classmethod
    def of_sample(
        cls, mean: np.ndarray, singular_values: np.ndarray, directions: np.ndarray, *, n: int, squares: float
    ) -> Whitening:
        """Whitening by the decomposition of a sample of centred unit rows.

        Parameters
        ----------
        mean : ndarray of float32, (d,)
        singular_values : ndarray of float32, (q,)
            The greatest of the sample.
        directions : ndarray of float32, (q, d)
            Their right singular vectors.
        n : int
            Rows of the sample.
        squares : float
            Sum of the squares of its values.
        """
        variances = singular_values**2 / n
        residual = max(float(squares / n - variances.sum()), 0.0)
        return cls(
            mean=mean,
            directions=directions.astype(np.float32),
            variances=variances.astype(np.float32),
            residual_variance=residual / max(len(mean) - len(variances), 1),
        )

    def to_text(self) -> str:
        """Base64 of all values, for `from_text`."""
        values = np.concatenate([self.mean, self.variances, self.directions.ravel(), [self.residual_variance]])
        return base64.b64encode(values.astype("<f4").tobytes()).decode()

    @classmethod
    def from_text(cls, text: str, d: int) -> Whitening:
        """Read the output of `to_text` for rows of d values; raise ValueError for any other text."""
        values = np.frombuffer(base64.b64decode(text, validate=True), "<f4").copy()
        count = (len(values) - d - 1) // (d + 1)
        if count < 1 or len(values) != d + count + count * d + 1:
            raise ValueError(f"{len(values)} numbers are no whitening of {d} dimensions")
        mean, variances, directions, residual = np.split(values, np.cumsum([d, count, count * d]))
        return cls(
            mean=mean,
            directions=directions.reshape(count, d),
            variances=variances,
            residual_variance=float(residual[0]),
        )

    @property
    def total_variance(self) -> float:
        """Trace of the covariance: 1, but less where rows equal the mean."""
        return float(self.variances.sum() + self.residual_variance * (len(self.mean) - len(self.variances)))

    def centred_units(self, X: np.ndarray) -> np.ndarray:
        """Centred rows at unit norm, float32 (b, d); a row that equals the mean becomes zero."""
        return centred_units(X, self.mean)

    def solve(self, vector: np.ndarray, ridge: float) -> np.ndarray:
        """(covariance + ridge * I)^-1 @ vector, (d,)."""
        leading = self.directions @ vector
        residual = vector - leading @ self.directions
        return (leading / (self.variances + ridge)) @ self.directions + residual / (self.residual_variance + ridge)

    def whiten(self, units: np.ndarray) -> np.ndarray:
        """Coordinates along `directions`, each divided by its standard deviation, at unit norm.

        Parameters
        ----------
        units : ndarray of float32, (b, d)
            Of `centred_units`.

        Returns
        -------
        ndarray of float32, (b, q)
            The mean variance is added to each variance, which bounds the weight of directions of little variance.
        """
        whitened = (units @ self.directions.T) * self.scale
        unit_rows(whitened)
        return whitened

    @property
    def scale(self) -> np.ndarray:
        """Factors of the coordinates along `directions` in `whiten`, float32 (q,)."""
        ridge = self.total_variance / len(self.mean)
        return 1 / np.sqrt(self.variances + ridge) if ridge > 0 else np.ones_like(self.variances)


def centred_units(X: np.ndarray, mean: np.ndarray | None = None) -> np.ndarray:
    """Rows of X less the mean, at unit norm.

    Parameters
    ----------
    X : ndarray of float16 or float32, (b, d)
    mean : ndarray of float32, (d,), optional
        Zero by default.

    Returns
    -------
    ndarray of float32, (b, d)
        Zero where a row equals the mean.
    """
    rows = _float32(X) if X.dtype == np.float16 else X.astype(np.float64)  # squares of float32 may overflow
    if mean is not None:
        rows -= mean
    unit_rows(rows)
    return rows.astype(np.float32, copy=False)


def sampled_rows(start: int, count: int, *, n: int) -> slice:
    """Rows of a block that belong to the sample of n rows: those whose number is a multiple of ceil(n / `SAMPLE`).

    Parameters
    ----------
    start : int
        Number of the block's first row.
    count : int
        Rows of the block.
    n : int
        Rows in all.

    Returns
    -------
    slice
        Of the block.
    """
    step = -(-n // SAMPLE)
    return slice(-start % step, count, step)


def mean_of(source: RowSource) -> np.ndarray:
    """Mean of the rows, float32 (d,)."""
    total = np.zeros(source.d)
    for rows, X in source.blocks(check=True):
        total += block_sum(source, rows, X)
    return (total / len(source)).astype(np.float32)


def block_sum(source: RowSource, rows: slice, X: np.ndarray) -> np.ndarray:
    """Sum of the rows of a block, float64 (d,); raises the error of the source where one is not finite."""
    total = X.sum(0, dtype=np.float64)
    if not np.isfinite(total).all():
        raise source.not_finite_error(rows.start + np.flatnonzero(~np.isfinite(X).all(1)))
    return np.asarray(total)


def _float32(X: np.ndarray) -> np.ndarray:
    """A float32 copy of float16 values.

    torch converts twenty times as fast as numpy, with the same result, but takes seconds to import; so it is
    used where it is loaded already.
    """
    torch = sys.modules.get("torch")
    return X.astype(np.float32) if torch is None else torch.tensor(X, dtype=torch.float32).numpy()


def whitened_blocks(source: RowSource, whitening: Whitening) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Read a source in blocks of whitened rows; rows that equal the mean, which have no direction, are left out.

    Parameters
    ----------
    source : RowSource
    whitening : Whitening

    Yields
    ------
    rows : slice
        The block.
    numbers : ndarray of int64, (m,)
        Rows of the block that have a direction, ascending.
    Z : ndarray of float32, (m, q)
        Whitened, at unit norm.

    Raises
    ------
    CacheError, ValueError
        A row is not finite: the error of the source.
    """
    for rows, X in source.blocks():
        Z = whitening.whiten(whitening.centred_units(X))
        finite = np.isfinite(Z).all(1)
        if not finite.all():
            raise source.not_finite_error(rows.start + np.flatnonzero(~finite))
        directed = Z.any(1)
        yield rows, rows.start + np.flatnonzero(directed), Z if directed.all() else Z[directed]


def whitened_rows(source: RowSource, whitening: Whitening) -> tuple[np.ndarray, np.ndarray]:
    """All rows of `whitened_blocks`: Z float32 (m, q), and their numbers int64 (m,)."""
    Z, numbers, count = np.empty((len(source), len(whitening.variances)), np.float32), [], 0
    for _, part, whitened in whitened_blocks(source, whitening):
        Z[count : count + len(part)] = whitened
        numbers.append(part)
        count += len(part)
    return Z[:count], np.concatenate(numbers)
