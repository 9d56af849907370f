"""Trains many linear heads at once.

A head has a column of row weights, a prior, a penalty and a seed. One pass over X serves all K heads
by two matrix products, margins = coef @ X.T and gradient = step @ X, so folds, priors, penalties,
seeds and bootstrap draws cost little more than one fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import ArrayLike

from ..devices import choose_device
from ..progress import Progress, Silent
from ..storage.rows import RowMatrix
from ..threads import limited_threads
from . import full_batch, minibatch
from .design_matrix import DesignMatrix
from .linear_heads import FittedHeads
from .minibatch import SGDSettings
from .moments import Moments
from .problem import HeadProblem
from .risks import PURisk

SOLVERS = ("batch", "sgd")


def fit_heads(
    X: RowMatrix | DesignMatrix,
    s: np.ndarray | None = None,
    *,
    prior: ArrayLike = 0.5,
    weights: np.ndarray | None = None,
    column: ArrayLike | None = None,
    penalty: ArrayLike = 0.0,
    seed: ArrayLike = 0,
    risk: PURisk | None = None,
    solver: str = "batch",
    sgd_settings: SGDSettings | None = None,
    tolerance: float = full_batch.TOLERANCE,
    start: FittedHeads | None = None,
    moments: Moments | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> FittedHeads:
    """Train K linear heads.

    Parameters
    ----------
    X : ndarray or StackedRows of float16 or float32, (n, d), or DesignMatrix
        Rows; they may be mapped, and is never copied as a whole where it is large. Several
        fits on the same rows and labels share their preparation if a `DesignMatrix` is passed.
    s : ndarray, (n,)
        1 labelled positive, 0 unlabelled; part of a `DesignMatrix` already.
    prior : float or (K,)
        Prior of each head, in (0, 1). Here and below, a single value applies to all heads.
    weights : ndarray, (n, C), optional
        Row weights; 0 leaves a row out. All ones by default.
    column : int or (K,), optional
        The column of weights that each head uses; head k uses column k by default.
    penalty : float or (K,)
        Adds 0.5 * penalty * norm(coef)^2 to the risk divided by the sum of its coefficients'
        magnitudes, for coef on X divided by the root mean square distance of its rows from their
        mean. So the penalty has no unit, suits any encoder, and does not depend on the prior.
    seed : int or (K,)
        Seed of the initial coefficients.
    risk : PURisk, optional
        Imbalanced uPU with the sigmoid loss by default.
    solver : {"batch", "sgd"}
        ``batch`` minimises the risk to convergence, see `pucache.heads.full_batch`; ``sgd`` is the
        protocol of Dorigatti et al., see `pucache.heads.minibatch`.
    sgd_settings : SGDSettings, optional
        For ``sgd``.
    tolerance : float
        For ``batch``: `FittedHeads.residual` at which a head is finished.
    start : FittedHeads, optional
        For ``batch``: K heads to start from, in place of small random ones.
    moments : Moments, optional
        Of X, where they have been computed already; part of a `DesignMatrix`.
    device : str
        Ignored for a `DesignMatrix`, which has its own.
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
    design = X if isinstance(X, DesignMatrix) else DesignMatrix(X, np.asarray(s), moments, choose_device(device))
    problem = HeadProblem.of(
        design, risk or PURisk(), weights=weights, prior=prior, penalty=penalty, seed=seed, column=column
    )
    settings = sgd_settings or SGDSettings()
    with progress or Silent() as shown_progress, torch.inference_mode(), flushed_denormals():
        if solver == "sgd":
            with limited_threads(len(problem) * settings.batch_size * problem.d):
                return minibatch.train(problem, settings, shown_progress)
        with limited_threads(0) as threads:  # for blocks of rows; products have one thread each
            return full_batch.train(problem, start=start, tolerance=tolerance, threads=threads, progress=shown_progress)


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Treat numbers below 1e-38 as zero: saturated sigmoids produce many, and they are slow on a CPU."""
    try:
        torch.set_flush_denormal(True)
        yield
    finally:
        torch.set_flush_denormal(False)
