"""Trains many linear heads at once.

A head is a column: row weights, a prior, a penalty and a seed. One pass over X serves all K heads
as two matrix products, margins = X @ coef.T and gradient = step.T @ X, so folds, priors and seeds
cost little more than one fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from .progress import Progress, Silent
from .risks import PURisk
from .runtime import choose_device


@dataclass(frozen=True)
class Protocol:
    """How the heads are trained; the defaults are those of Dorigatti et al. (ImPULSeS).

    Attributes
    ----------
    epochs : int
        Passes over X.
    min_steps : int
        Epochs are added until so many steps are made: few rows would otherwise end far from
        converged.
    batch_size : int
        Rows a step.
    learning_rate : float
        Of Adam (betas 0.9, 0.999).
    """

    epochs: int = 100
    min_steps: int = 3000
    batch_size: int = 256
    learning_rate: float = 3e-4

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1 or self.min_steps < 0 or not self.learning_rate > 0:
            raise ValueError(f"epochs, batch_size and learning_rate must be positive, got {self}")

    def passes(self, n: int) -> int:
        """Epochs for n rows."""
        return max(self.epochs, -(-self.min_steps // -(-n // self.batch_size)))


@dataclass(frozen=True)
class FittedHeads:
    """Trained heads.

    Attributes
    ----------
    coef : ndarray of float32, (K, d)
    intercept : ndarray of float32, (K,)
    risk : ndarray of float32, (K,)
        Reported risk, mean over the last epoch.
    clamped : ndarray of float32, (K,)
        Share of the last epoch's steps in which the negative part was clamped.
    """

    coef: np.ndarray
    intercept: np.ndarray
    risk: np.ndarray
    clamped: np.ndarray

    def margins(self, X: np.ndarray) -> np.ndarray:
        """Margins of every head, (n, K) float32."""
        return np.asarray(X, np.float32) @ self.coef.T + self.intercept


def fit_heads(
    X: np.ndarray,
    s: np.ndarray,
    *,
    prior: ArrayLike,
    weights: np.ndarray | None = None,
    penalty: ArrayLike = 0.0,
    seed: ArrayLike = 0,
    risk: PURisk | None = None,
    protocol: Protocol | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> FittedHeads:
    """Train K linear heads by minibatch Adam on one shared stream of batches.

    Parameters
    ----------
    X : ndarray of float16 or float32, (n, d)
        Used as it is; centre or scale it before, if at all.
    s : ndarray, (n,)
        1 labelled positive, 0 unlabelled.
    prior, penalty, seed : float or int, or (K,)
        Of each head; what is shorter is repeated. The penalty is that of 0.5 * penalty * |coef|^2.
        The seed decides the initial coefficients; the order of batches is common to all heads.
    weights : ndarray, (n, K), optional
        Row weights of each head; 0 leaves a row out. All ones by default.
    risk : PURisk, optional
        Imbalanced nnPU with the sigmoid loss by default.
    protocol : Protocol, optional
    device : str
    progress : Progress, optional

    Returns
    -------
    FittedHeads
    """
    risk, protocol = risk or PURisk(), protocol or Protocol()
    columns = 1 if weights is None else weights.shape[1]
    heads = np.broadcast_arrays(np.zeros(columns), *map(np.atleast_1d, (prior, penalty, seed)))
    where = choose_device(device)
    data = _Data(X, s, weights, len(heads[0]), where)
    state = _Adam(
        _initial(X.shape[1], heads[3], where),
        torch.as_tensor(heads[2], dtype=torch.float32, device=where),
        protocol.learning_rate,
    )
    priors = torch.as_tensor(heads[1], dtype=torch.float32, device=where)
    order = torch.Generator().manual_seed(0)
    passes = protocol.passes(len(X))
    with progress or Silent() as progress, torch.inference_mode(), _flushed_denormals():
        progress.start(passes, "training")
        for _ in range(passes):
            risks, clamps = _epoch(data, state, risk, priors, protocol.batch_size, order)
            progress.advance(1)
    coef = state.parameters.cpu().numpy()
    return FittedHeads(coef[:, :-1].copy(), coef[:, -1].copy(), risks.cpu().numpy(), clamps.cpu().numpy())


@contextmanager
def _flushed_denormals() -> Iterator[None]:
    """Count numbers below 1e-38 as zero: saturated sigmoids make many, and the CPU is slow on them."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


class _Data:
    """X, s and weights on the device; batches are gathered there and widened to float32 one at a time."""

    def __init__(self, X: np.ndarray, s: np.ndarray, weights: np.ndarray | None, heads: int, device: torch.device):
        self.X = torch.from_numpy(np.require(X, requirements=["C", "W"])).to(device)
        self.is_positive = torch.as_tensor(np.asarray(s) == 1, device=device).float()[:, None]
        self._weights = None if weights is None else torch.as_tensor(weights, dtype=torch.float32, device=device)
        self._heads = heads

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        X = self.X[rows].float()  # (b, d)
        weights = self._weights[rows] if self._weights is not None else X.new_ones(1).expand(len(rows), self._heads)
        return X, self.is_positive[rows], weights


class _Adam:
    """Adam (Kingma and Ba 2015) on the (K, d + 1) matrix of coefficients and intercepts."""

    def __init__(self, parameters: Tensor, penalty: Tensor, learning_rate: float):
        self.parameters, self.gradient = parameters, torch.zeros_like(parameters)
        self._penalty = penalty[:, None] if bool((penalty != 0).any()) else None
        self._first, self._second = torch.zeros_like(parameters), torch.zeros_like(parameters)
        self._rate, self._steps = learning_rate, 0

    def step(self) -> None:
        if self._penalty is not None:
            self.gradient[:, :-1].addcmul_(self.parameters[:, :-1], self._penalty)
        self._steps += 1
        self._first.lerp_(self.gradient, 0.1)
        self._second.mul_(0.999).addcmul_(self.gradient, self.gradient, value=0.001)
        scale = (self._second / (1 - 0.999**self._steps)).sqrt_().add_(1e-8)
        self.parameters.addcdiv_(self._first, scale, value=-self._rate / (1 - 0.9**self._steps))


def _initial(d: int, seeds: np.ndarray, device: torch.device) -> Tensor:
    """As torch.nn.Linear begins: uniform within 1/sqrt(d), a stream of its own for each head; (K, d + 1)."""
    bound = d**-0.5
    generators = (torch.Generator().manual_seed(int(seed)) for seed in seeds)
    return torch.stack([torch.empty(d + 1).uniform_(-bound, bound, generator=g) for g in generators]).to(device)


def _epoch(
    data: _Data, state: _Adam, risk: PURisk, prior: Tensor, batch_size: int, order: torch.Generator
) -> tuple[Tensor, Tensor]:
    """One pass over the rows in a fresh order; returns mean reported risk and share of clamped steps, (K,)."""
    device = state.parameters.device
    risks, clamps, steps = torch.zeros_like(prior), torch.zeros_like(prior), 0
    for rows in torch.randperm(len(data.X), generator=order).to(device).split(batch_size):
        X, is_positive, weights = data.batch(rows)
        margins = X @ state.parameters[:, :-1].T + state.parameters[:, -1]  # (b, K)
        result = risk.value_and_step(margins, weights, is_positive, prior)
        torch.mm(result.step.T, X, out=state.gradient[:, :-1])
        state.gradient[:, -1] = result.step.sum(0)
        state.step()
        risks += result.value
        clamps += result.clamped
        steps += 1
    return risks / steps, clamps / steps
