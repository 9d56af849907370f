"""Where rows are compared: centred on the cache's mean, at length 1, so that inner products are cosines.

Centring takes away what all images share, without which the mean cosine ranks far worse. Whitening goes a
step further: directions in which all images differ much count less. Both are learned from the cache
alone, without labels (docs/results/retrieval.md has what each is worth).
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.utils.extmath import randomized_svd

from ..cache.embedding_cache import EmbeddingCache

DIRECTIONS = 256  # that whitening knows one by one
_SAMPLE = 16_384  # rows that they are estimated from


@dataclass(frozen=True)
class Space:
    """The mean of the rows, and how they spread around it.

    Attributes
    ----------
    mean : ndarray of float32, (d,)
    directions : ndarray of float32, (q, d), orthonormal
        Of greatest variance.
    variances : ndarray of float32, (q,)
        Along these.
    rest : float
        Mean variance along all others.
    """

    mean: np.ndarray
    directions: np.ndarray
    variances: np.ndarray
    rest: float

    @classmethod
    def of(cls, cache: EmbeddingCache) -> Space:
        """Read the cache twice: for the mean, held against the seal, and for evenly spaced rows.

        Raises
        ------
        CacheError
            The cache is damaged, or holds embeddings that are not finite.
        """
        total = np.zeros(cache.encoder.dim)
        for rows, X in cache.blocks(check=True):
            block = X.sum(0, dtype=np.float64)
            if not np.isfinite(block).all():
                raise cache.not_finite(rows.start + np.flatnonzero(~np.isfinite(X).all(1)))
            total += block
        mean = (total / len(cache)).astype(np.float32)
        step = -(-len(cache) // _SAMPLE)
        sample = np.concatenate([unit(X[-rows.start % step :: step], mean) for rows, X in cache.blocks()])
        count = min(DIRECTIONS, *sample.shape)
        _, singular, directions = randomized_svd(sample, count, n_iter=3, random_state=0)
        variances = singular**2 / len(sample)
        others = sample.shape[1] - count
        rest = max(float(np.square(sample).sum() / len(sample) - variances.sum()), 0.0) / max(others, 1)
        return cls(mean, directions.astype(np.float32), variances.astype(np.float32), rest)

    def to_text(self) -> str:
        """All of it, for `from_text`."""
        numbers = np.concatenate([self.mean, self.variances, self.directions.ravel(), [self.rest]])
        return base64.b64encode(numbers.astype("<f4").tobytes()).decode()

    @classmethod
    def from_text(cls, text: str, d: int) -> Space:
        """Read what `to_text` wrote for rows of d numbers; ValueError where it is something else."""
        numbers = np.frombuffer(base64.b64decode(text, validate=True), "<f4").copy()
        count = (len(numbers) - d - 1) // (d + 1)
        if count < 1 or len(numbers) != d + count + count * d + 1:
            raise ValueError(f"{len(numbers)} numbers are no space of {d} dimensions")
        mean, variances, directions, rest = np.split(numbers, np.cumsum([d, count, count * d]))
        return cls(mean, directions.reshape(count, d), variances, float(rest[0]))

    @property
    def variance(self) -> float:
        """In all directions together; 1 but for rows that equal the mean."""
        return float(self.variances.sum() + self.rest * (len(self.mean) - len(self.variances)))

    def unit(self, X: np.ndarray) -> np.ndarray:
        """Centred rows at length 1, float32 (b, d); a row that equals the mean becomes zero."""
        return unit(X, self.mean)

    def whitening(self, vector: np.ndarray, ridge: float) -> np.ndarray:
        """(covariance + ridge)^-1 @ vector, (d,)."""
        along = self.directions @ vector
        elsewhere = vector - along @ self.directions
        return (along / (self.variances + ridge)) @ self.directions + elsewhere / (self.rest + ridge)

    def whitened(self, unit_rows: np.ndarray) -> np.ndarray:
        """Rows along the directions, each scaled by (variance + mean variance)^-1/2, at length 1; (b, q)."""
        ridge = self.variance / len(self.mean)
        scale = 1 / np.sqrt(self.variances + ridge) if ridge > 0 else np.ones_like(self.variances)
        return _at_length_1(torch.from_numpy((unit_rows @ self.directions.T) * scale)).numpy()


def unit(X: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Rows less the mean, at length 1, float32; zero where they equal it."""
    rows = torch.tensor(X, dtype=torch.float32).sub_(torch.from_numpy(mean))  # several times as fast as numpy
    if X.dtype == np.float32 and len(rows):  # whose squares may overflow, or vanish
        greatest = rows.abs().amax(1, keepdim=True)
        rows.div_(torch.where(greatest > 0, greatest, 1))
    return _at_length_1(rows).numpy()


def _at_length_1(rows: torch.Tensor) -> torch.Tensor:
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows.div_(torch.where(length > 0, length, 1))
