"""Unit rows, leading subspaces and truncated singular value decompositions of arrays in memory."""

from __future__ import annotations

import numpy as np

from ..threads import one_blas_thread

_ITERATIONS = 3  # products with A^T A, each followed by a QR decomposition
_OVERSAMPLING = 10  # further columns of the random start, which make the last directions more accurate


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
