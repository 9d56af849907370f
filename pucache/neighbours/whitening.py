"""Whitening: rows centred on the cache mean and scaled to unit norm, and their covariance.

Inner products of centred unit rows are cosines. Centring removes what all images share; without it the
mean cosine ranks far worse. Whitening also gives less weight to directions in which all images vary much.
Both are estimated from the rows alone, without labels (docs/results/decisions.md has what each is worth).
That of a cache is kept beside it, in ``cache.h5.whitening``, so that a later ranking reads every row once.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..devices import upload
from ..errors import CacheError
from ..storage import tensor_file
from ..storage.rows import as_wide
from ..threads import one_blas_thread
from .graph_file import FILE_FORMAT as GRAPH_FORMAT
from .graph_file import keep_beside, sidecar_path
from .row_source import RowSource, row_source

if TYPE_CHECKING:
    import torch

ArrayOrTensor = Any  # ndarray, or Tensor on a GPU: the same code serves both
DIRECTIONS = 256  # leading directions whose variances are estimated one by one
SAMPLE = 16_384  # rows that the covariance is estimated from: every ceil(n / SAMPLE)-th
_TORCH_PAYS = 1 << 28  # float16 values of a cache whose conversion by numpy takes longer than importing torch

_ITERATIONS = 3  # products with A^T A, each followed by a QR decomposition
_OVERSAMPLING = 10  # further columns of the random start, which make the last directions more accurate


@dataclass(frozen=True)
class Whitening:
    """Mean of the rows, and covariance of the centred unit rows.

    The covariance is kept as its leading eigenvectors; all other directions share one variance.
    """

    mean: np.ndarray  # float32, (d,)
    directions: np.ndarray  # float32, (q, d): orthonormal, of greatest variance
    variances: np.ndarray  # float32, (q,): along `directions`
    residual_variance: float  # mean variance along all other directions

    @classmethod
    def estimate(cls, X: EmbeddingCache | np.ndarray | RowSource) -> Whitening:
        """Estimate mean and covariance in one pass, which verifies the checksums of a cache.

        Embeddings that are not finite raise `CacheError` in a cache, `ValueError` in an array.
        """
        source = row_source(X)
        if len(source) * source.d > _TORCH_PAYS:
            import_module("torch")
        total, step, rows_of_sample = np.zeros(source.d), -(-len(source) // SAMPLE), []
        for rows, X in source.blocks(check=True):
            block_sum = X.sum(0, dtype=np.float64)
            if not np.isfinite(block_sum).all():
                raise source.not_finite_error(rows.start + np.flatnonzero(~np.isfinite(X).all(1)))
            total += block_sum
            rows_of_sample.append(X[-rows.start % step :: step].copy())
        mean = (total / len(source)).astype(np.float32)
        sample = np.concatenate([centred_units(X, mean) for X in rows_of_sample])
        singular_values, directions = truncated_svd(sample, min(DIRECTIONS, *sample.shape))
        return cls.of_units(mean, sample, singular_values**2 / len(sample), directions)

    @classmethod
    def of_units(cls, mean: np.ndarray, units: np.ndarray, variances: np.ndarray, directions: np.ndarray) -> Whitening:
        """By centred rows (n, d) at unit norm, and the leading variances (q,) and directions (q, d) of these."""
        residual = max(float(np.square(units).sum() / len(units) - variances.sum()), 0.0)
        return cls(
            mean=mean,
            directions=directions.astype(np.float32),
            variances=variances.astype(np.float32),
            residual_variance=residual / max(len(mean) - len(variances), 1),
        )

    @property
    def total_variance(self) -> float:
        """Trace of the covariance: 1, but less where rows equal the mean."""
        return float(self.variances.sum() + self.residual_variance * (len(self.mean) - len(self.variances)))

    def to(self, device: torch.device) -> Whitening:
        """This whitening with its arrays as tensors on a device, for `centred_units` and `whiten` of tensors there."""
        return replace(self, **{name: put(getattr(self, name), device) for name in ("mean", "directions", "variances")})

    def centred_units(self, X: ArrayOrTensor) -> ArrayOrTensor:
        """Centred rows at unit norm, float32 (b, d); a row that equals the mean becomes zero."""
        return centred_units(X, self.mean)

    @one_blas_thread
    def solve(self, vector: np.ndarray, ridge: float) -> np.ndarray:
        """(covariance + ridge * I)^-1 @ vector, (d,)."""
        leading = self.directions @ vector
        residual = vector - leading @ self.directions
        return (leading / (self.variances + ridge)) @ self.directions + residual / (self.residual_variance + ridge)

    @one_blas_thread
    def whiten(self, units: ArrayOrTensor) -> ArrayOrTensor:
        """Coordinates (b, q) of `centred_units` along `directions`, divided by their standard deviations, at unit norm.

        The mean variance is added to each variance, which bounds the weight of directions of little variance.
        """
        ridge = self.total_variance / len(self.mean)
        whitened = units @ self.directions.T
        if ridge > 0:
            whitened *= 1 / (self.variances + ridge) ** 0.5
        _scale_to_unit(whitened)
        return whitened


def centred_units(X: ArrayOrTensor, mean: ArrayOrTensor | None = None) -> ArrayOrTensor:
    """Rows of X, (b, d), less the mean (d,), at unit norm, as float32; zero where a row equals the mean."""
    return units_and_norms(X, mean)[0]


def units_and_norms(X: ArrayOrTensor, mean: ArrayOrTensor | None = None) -> tuple[ArrayOrTensor, ArrayOrTensor]:
    """Rows as `centred_units` gives them, and their norms before, (b,)."""
    rows: ArrayOrTensor = as_wide(X) if isinstance(X, np.ndarray) else X.float() if X.itemsize == 2 else X.double()
    if mean is not None:
        rows -= mean
    norms = _scale_to_unit(rows)
    return rows.astype(np.float32, copy=False) if isinstance(rows, np.ndarray) else rows.float(), norms


def put(values: np.ndarray, gpu: torch.device | None) -> ArrayOrTensor:
    """A copy of an array as a tensor on a GPU; the array where there is none."""
    return values if gpu is None else upload(values, gpu)


def _scale_to_unit(rows: ArrayOrTensor) -> ArrayOrTensor:
    """Scale rows to unit norm, in place; returns the norms before, as `unit_rows`."""
    if isinstance(rows, np.ndarray):
        return unit_rows(rows)
    norms = (rows * rows).sum(1).sqrt()
    rows /= norms.masked_fill(norms == 0, 1)[:, None]
    return norms


# --- of arrays in memory ---------------------------------------------------------------------------


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Scale rows (n, d) to unit norm, in place; returns the norms before, (n,), not finite where a row is not.

    Rows of zeros stay. Squares are summed in the type of the rows, so pass float64 where those of float32 may overflow.
    """
    norm = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    with np.errstate(invalid="ignore"):
        rows /= np.where(norm > 0, norm, 1)[:, None]
    return norm


def leading_subspace(A: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Orthonormal basis (d, min(q, d)) of the leading right singular subspace of A (n, d), by subspace iteration.

    `start` (d, q) are normal draws or the like.
    """
    basis = start
    for _ in range(_ITERATIONS):
        basis, _ = np.linalg.qr(A.T @ (A @ basis))
    return basis


@one_blas_thread
def truncated_svd(A: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Largest singular values of A (n, d), falling, and their right singular vectors (count, d).

    A randomized method: algorithms 4.4 and 5.1 of Halko, Martinsson and Tropp (2011), with a start that is the same in
    every run. `A` is float32, `count` at most min(n, d).
    """
    wide = len(A) < A.shape[1]
    M = A.T if wide else A  # QR decompositions are cheapest on the shorter side
    draws = np.random.RandomState(0).normal(size=(M.shape[1], count + _OVERSAMPLING))
    basis, _ = np.linalg.qr(M @ leading_subspace(M, draws.astype(M.dtype)))
    left, values, right = np.linalg.svd(basis.T @ M, full_matrices=False)
    return values[:count], ((basis @ left).T if wide else right)[:count]


# --- beside the cache ---------------------------------------------------------------------------


_log = logging.getLogger(__name__)

FILE_FORMAT = replace(GRAPH_FORMAT, format="pucache-whitening", noun="whitening")
SUFFIX = "whitening"
_MAX_BYTES = 1 << 30
_ARRAYS = ("mean", "directions", "variances")


def cached_whitening(cache: EmbeddingCache) -> tuple[Whitening, bool]:
    """Whitening of a cache, and whether all rows were read and verified for it.

    They were not where it is kept beside the cache: whoever uses it verifies them then. Otherwise it is estimated and
    kept, where it can be. Raises `CacheError` where a cache is damaged or holds embeddings that are not finite.
    """
    path = sidecar_path(cache, SUFFIX)
    try:
        kept, checksums = read_whitening(path)
        if (checksums, len(kept.mean)) == (cache.checksums, cache.encoder.dim):
            return kept, False
    except CacheError as error:
        _log.debug("%s; making it anew", error)
    whitening = Whitening.estimate(cache)
    tensors = {name: getattr(whitening, name) for name in _ARRAYS}
    if not whitening.directions.flags.c_contiguous:  # of fewer rows than dimensions; products have the same bits again
        tensors["directions"] = whitening.directions.T
    state = {"checksums": cache.checksums, "residual_variance": whitening.residual_variance}
    keep_beside("the whitening", lambda: tensor_file.write(path, FILE_FORMAT, tensors, state))
    return whitening, True


def whitening_of(source: RowSource) -> Whitening:
    """Whitening of all rows of a source; those of a cache have been verified."""
    if not isinstance(source.X, EmbeddingCache) or source.rows is not None:
        return Whitening.estimate(source)
    whitening, verified = cached_whitening(source.X)
    if not verified:
        for _ in source.blocks(check=True):
            pass
    return whitening


def read_whitening(path: str | Path) -> tuple[Whitening, list[str]]:
    """Read a whitening and the checksums of its cache's files; `CacheError` if missing, damaged or another file."""
    tensors, state = tensor_file.read(path, FILE_FORMAT, max_bytes=_MAX_BYTES)
    try:
        mean, directions, variances = (tensors[name] for name in _ARRAYS)
        residual, checksums = float(state["residual_variance"]), [str(checksum) for checksum in state["checksums"]]
    except (KeyError, TypeError, ValueError) as error:
        raise CacheError(f"{path} is a whitening of another version of pucache; {FILE_FORMAT.remedy}") from error
    directions = directions if len(directions) == len(variances) else directions.T
    shapes = mean.shape, variances.shape, directions.shape
    if shapes != ((mean.size,), (variances.size,), (variances.size, mean.size)) or any(
        array.dtype != np.float32 for array in (mean, directions, variances)
    ):
        raise CacheError(f"{path} holds no whitening; {FILE_FORMAT.remedy}")
    return Whitening(mean, directions, variances, residual), checksums
