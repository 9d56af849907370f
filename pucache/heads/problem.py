"""What is asked of a set of heads: the data, and for each head its column of weights, prior, penalty and seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from .design_matrix import Moments
from .risks import Coefficients, PURisk


@dataclass(frozen=True)
class HeadSpec:
    """K heads to be trained on n rows; see `pucache.heads.fit.fit_heads`.

    Attributes
    ----------
    X : ndarray, (n, d)
    s : ndarray of bool, (n,)
    weights : ndarray or None, (n, C)
        None: one column of ones.
    column, seed : ndarray of int64, (K,)
    prior, penalty : ndarray of float32, (K,)
    risk : PURisk
    moments : Moments
    device : torch.device
    """

    X: np.ndarray
    s: np.ndarray
    weights: np.ndarray | None
    column: np.ndarray
    prior: np.ndarray
    penalty: np.ndarray
    seed: np.ndarray
    risk: PURisk
    moments: Moments
    device: torch.device

    @classmethod
    def of(
        cls,
        X: np.ndarray,
        s: np.ndarray,
        weights: np.ndarray | None,
        each: dict[str, ArrayLike | None],
        risk: PURisk,
        moments: Moments | None,
        device: torch.device,
    ) -> HeadSpec:
        """Bring what each head has ("prior", "penalty", "seed", "column") to one length."""
        columns = 1 if weights is None else weights.shape[1]
        given = {name: np.atleast_1d(value) for name, value in each.items() if value is not None}
        K = max([len(value) for value in given.values()] + ([] if "column" in given else [columns]))
        given.setdefault("column", np.arange(columns))
        full = {name: np.broadcast_to(value, K) for name, value in given.items()}
        return cls(
            X,
            np.asarray(s) == 1,
            weights,
            full["column"].astype(np.int64),
            full["prior"].astype(np.float32),
            full["penalty"].astype(np.float32),
            full["seed"].astype(np.int64),
            risk,
            moments or Moments.of(X),
            device,
        )

    def __len__(self) -> int:
        return len(self.prior)

    @property
    def d(self) -> int:
        """Dimensions."""
        return int(self.X.shape[1])

    def tensor(self, values: np.ndarray) -> Tensor:
        """Values on the device; a copy."""
        return torch.from_numpy(np.array(values)).to(self.device)

    def weights_of(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Weights of some rows, scaled to sum to one in each column, (C, m), and what they summed to, (C,)."""
        if self.weights is None:
            weights = np.ones((1, len(rows)), np.float32)
        else:
            weights = np.ascontiguousarray(self.weights[rows].T, np.float32)
        total = weights.sum(1, dtype=np.float64).astype(np.float32)
        weights /= np.where(total > 0, total, 1)[:, None]
        return self.tensor(weights), self.tensor(total)

    def coefficients(self, total_positive: Tensor, total_unlabelled: Tensor) -> Coefficients:
        """Coefficients of each head's risk, given the weight of P and of U in each column, (C,)."""
        share = total_positive / (total_positive + total_unlabelled).clamp(min=1e-30)
        return self.risk.coefficients(self.tensor(self.prior), share[self.tensor(self.column)])

    def initial(self, bound: float) -> Tensor:
        """Coefficients and intercept uniform within `bound`, a stream of its own for each seed; (K, d + 1)."""
        generators = {seed: torch.Generator().manual_seed(int(seed)) for seed in np.unique(self.seed)}
        drawn = {
            seed: torch.empty(self.d + 1).uniform_(-bound, bound, generator=generator)
            for seed, generator in generators.items()
        }
        return torch.stack([drawn[seed] for seed in self.seed]).to(self.device)
