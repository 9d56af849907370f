"""What a set of linear heads is trained for: rows, and for each head row weights, prior, penalty and seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from .design_matrix import DesignMatrix
from .device_rows import upload
from .risks import Coefficients, PURisk


@dataclass(frozen=True)
class HeadProblem:
    """K heads to be trained on n rows; see `pucache.heads.solve.fit_heads`.

    Attributes
    ----------
    design : DesignMatrix
        Rows and their labels.
    weights : ndarray or None, (n, C)
        Row weights; None for one column of ones.
    column, seed : ndarray of int64, (K,)
    prior, penalty : ndarray of float32, (K,)
    risk : PURisk
    """

    design: DesignMatrix
    weights: np.ndarray | None
    column: np.ndarray
    prior: np.ndarray
    penalty: np.ndarray
    seed: np.ndarray
    risk: PURisk

    @classmethod
    def of(
        cls,
        design: DesignMatrix,
        risk: PURisk,
        *,
        weights: np.ndarray | None = None,
        prior: ArrayLike = 0.5,
        penalty: ArrayLike = 0.0,
        seed: ArrayLike = 0,
        column: ArrayLike | None = None,
    ) -> HeadProblem:
        """Broadcast the parameters of the heads to one length K."""
        columns = np.arange(1 if weights is None else weights.shape[1]) if column is None else np.atleast_1d(column)
        prior, penalty, seed, columns = np.broadcast_arrays(*map(np.atleast_1d, (prior, penalty, seed, columns)))
        return cls(
            design=design,
            weights=weights,
            column=columns.astype(np.int64),
            prior=prior.astype(np.float32),
            penalty=penalty.astype(np.float32),
            seed=seed.astype(np.int64),
            risk=risk,
        )

    def __len__(self) -> int:
        return len(self.prior)

    @property
    def d(self) -> int:
        """Number of dimensions."""
        return self.design.d

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self.design.device

    def tensor(self, values: np.ndarray) -> Tensor:
        """Copy of an array on the device."""
        return upload(np.array(values), self.device)

    def normalised_weights(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Weights of some rows, scaled to sum to one in each column, (C, m), and their sums before, (C,)."""
        if self.device.type == "cuda":
            return self._normalised_on_device(rows)
        if self.weights is None:
            weights = np.ones((1, len(rows)), np.float32)
        else:
            weights = np.ascontiguousarray(self.weights[rows].T, np.float32)
        total = weights.sum(1, dtype=np.float64).astype(np.float32)
        weights /= np.where(total > 0, total, 1)[:, None]
        return self.tensor(weights), self.tensor(total)

    def _normalised_on_device(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        if self._weights_on_device is None:
            weights = torch.ones((1, len(rows)), device=self.device)
        else:
            weights = self._weights_on_device.index_select(0, upload(rows, self.device)).T.float().contiguous()
        total = weights.sum(1, dtype=torch.float64).float()
        return weights.div_(torch.where(total > 0, total, 1)[:, None]), total

    @cached_property
    def _weights_on_device(self) -> Tensor | None:
        """Row weights (n, C), which go up once."""
        return None if self.weights is None else upload(self.weights, self.device)

    def coefficients(self, total_positive: Tensor, total_unlabelled: Tensor) -> Coefficients:
        """Coefficients of each head's risk, given the total weight of P and of U in each column, (C,)."""
        share = total_positive / (total_positive + total_unlabelled).clamp(min=1e-30)
        return self.risk.coefficients(self.tensor(self.prior), share[self.tensor(self.column)])

    def initial_parameters(self, bound: float) -> Tensor:
        """Coefficients and intercepts drawn uniformly from (-bound, bound), one stream per seed; (K, d + 1)."""
        generators = {seed: torch.Generator().manual_seed(int(seed)) for seed in np.unique(self.seed)}
        draws = {
            seed: torch.empty(self.d + 1).uniform_(-bound, bound, generator=generator)
            for seed, generator in generators.items()
        }
        return upload(torch.stack([draws[seed] for seed in self.seed]).numpy(), self.device)
