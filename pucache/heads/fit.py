"""Trains many linear heads at once.

A head is a column of row weights with a prior, a penalty and a seed. One pass over X serves all K
heads as two matrix products, margins = coef @ X.T and gradient = step @ X, so folds, priors,
penalties, seeds and bootstrap draws cost little more than one fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike

from ..devices import choose_device
from ..progress import Progress, Silent
from ..storage.mapped_arrays import release_pages
from . import full_batch, minibatch
from .design_matrix import Moments
from .minibatch import Protocol
from .problem import HeadSpec
from .risks import PURisk

SOLVERS = ("batch", "sgd")
_ROWS = 4096  # for which margins are computed at once


@dataclass(frozen=True)
class FittedHeads:
    """Trained heads, on X as it was given.

    Attributes
    ----------
    coef : ndarray of float32, (K, d)
    intercept : ndarray of float32, (K,)
    risk : ndarray of float32, (K,)
        Reported risk, without the penalty; with ``sgd`` the mean over the batches of the last epoch.
    clamped : ndarray of float32, (K,)
        How active the clamp of the negative part is: with ``sgd`` the share of the last epoch's
        batches where it acts; with ``batch`` the share of its gradient that the clamp takes away.
    residual : ndarray of float32, (K,)
        With ``batch`` the norm of the gradient left over that at the start, both preconditioned;
        NaN with ``sgd``.
    passes : int
        Over the data.
    """

    coef: np.ndarray
    intercept: np.ndarray
    risk: np.ndarray
    clamped: np.ndarray
    residual: np.ndarray
    passes: int

    def margins(self, X: np.ndarray) -> np.ndarray:
        """Margins of every head, (n, K) float32.

        Parameters
        ----------
        X : ndarray, (n, d)
            May be a memory map.

        Returns
        -------
        ndarray of float32, (n, K)
        """
        every = np.broadcast_to(np.arange(len(self.coef)), (len(X), len(self.coef)))
        return self.margins_by(X, every)

    def margins_by(self, X: np.ndarray, head: np.ndarray) -> np.ndarray:
        """Margins of chosen heads for each row.

        Parameters
        ----------
        X : ndarray, (n, d)
        head : ndarray of int, (n, J)
            J heads of each row.

        Returns
        -------
        ndarray of float32, (n, J)
        """
        result = np.empty(head.shape, np.float32)
        for begin in range(0, len(X), _ROWS):
            rows = slice(begin, begin + _ROWS)
            margins = np.asarray(X[rows], np.float32) @ self.coef.T + self.intercept
            result[rows] = np.take_along_axis(margins, head[rows], axis=1)
            release_pages(X)
        return result

    def take(self, heads: ArrayLike) -> FittedHeads:
        """Some of the heads, in the order given.

        Parameters
        ----------
        heads : array of int, (J,)

        Returns
        -------
        FittedHeads
            J of them.
        """
        at = np.asarray(heads)
        risk, clamped, residual = self.risk[at], self.clamped[at], self.residual[at]
        return FittedHeads(self.coef[at], self.intercept[at], risk, clamped, residual, self.passes)


def fit_heads(
    X: np.ndarray,
    s: np.ndarray,
    *,
    prior: ArrayLike = 0.5,
    weights: np.ndarray | None = None,
    column: ArrayLike | None = None,
    penalty: ArrayLike = 0.0,
    seed: ArrayLike = 0,
    risk: PURisk | None = None,
    solver: str = "batch",
    protocol: Protocol | None = None,
    tolerance: float = full_batch.TOLERANCE,
    start: FittedHeads | None = None,
    moments: Moments | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> FittedHeads:
    """Train K linear heads.

    Parameters
    ----------
    X : ndarray of float16 or float32, (n, d)
        May be a memory map; it is never copied as a whole where it is large.
    s : ndarray, (n,)
        1 labelled positive, 0 unlabelled.
    prior : float or (K,)
        Of each head, in (0, 1); a single one serves all, as with the next ones.
    weights : ndarray, (n, C), optional
        Row weights; 0 leaves a row out. All ones by default.
    column : int or (K,), optional
        Which of the weights a head has; head k has those of column k by default.
    penalty : float or (K,)
        Adds 0.5 * penalty * norm(coef)^2 to the risk divided by the sum of its coefficients'
        magnitudes, for coef on X divided by the root mean square distance of its rows from their
        mean: so it has no unit, suits any encoder, and does not depend on the prior.
    seed : int or (K,)
        Decides the initial coefficients.
    risk : PURisk, optional
        Imbalanced uPU with the sigmoid loss by default.
    solver : {"batch", "sgd"}
        ``batch`` minimises the risk to convergence, see `pucache.heads.full_batch`; ``sgd`` is the protocol
        of Dorigatti et al., see `pucache.heads.minibatch`.
    protocol : Protocol, optional
        Of ``sgd``.
    tolerance : float
        Of ``batch``: `FittedHeads.residual` at which a head is done.
    start : FittedHeads, optional
        Of ``batch``: begin at these K heads, not at small random ones.
    moments : Moments, optional
        Of X, where they are known.
    device : str
    progress : Progress, optional

    Returns
    -------
    FittedHeads

    Raises
    ------
    ValueError
        Unknown solver or device.
    """
    if solver not in SOLVERS:
        raise ValueError(f"unknown solver {solver!r}; use {' or '.join(SOLVERS)}")
    each = {"prior": prior, "penalty": penalty, "seed": seed, "column": column}
    spec = HeadSpec.of(X, s, weights, each, risk or PURisk(), moments, choose_device(device))
    with progress or Silent() as shown, torch.inference_mode(), _flushed_denormals():
        if solver == "sgd":
            return FittedHeads(**minibatch.train(spec, protocol or Protocol(), shown))
        begin = None if start is None else np.column_stack([start.coef, start.intercept])
        return FittedHeads(**full_batch.train(spec, begin, tolerance, shown))


@contextmanager
def _flushed_denormals() -> Iterator[None]:
    """Count numbers below 1e-38 as zero: saturated sigmoids make many, and the CPU is slow on them."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
