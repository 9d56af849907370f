"""Sums of weighted losses over rows, and their gradients in the parameters of the heads."""

from __future__ import annotations

import torch
from torch import Tensor


class LossSum:
    """Sum over rows of weight times loss, and its gradient in coefficients and intercept.

    Parameters
    ----------
    parameters : (A, d + 1) tensor
        Coefficients and intercept of A heads.

    Attributes
    ----------
    value : (A,) tensor
    gradient : (A, d + 1) tensor
    """

    def __init__(self, parameters: Tensor):
        self._coef, self._intercept = parameters[:, :-1], parameters[:, -1:]
        self.value, self.gradient = torch.zeros_like(parameters[:, 0]), torch.zeros_like(parameters)

    def margins(self, X: Tensor) -> Tensor:
        """Margins of the rows of a block, (A, b)."""
        return torch.addmm(self._intercept, self._coef, X.T)

    def add(self, X: Tensor, loss: Tensor, step: Tensor) -> None:
        """Add a block of rows (b, d): their weighted loss (A,) and its derivatives in the margins (A, b)."""
        self.value += loss
        self.gradient[:, :-1] += step @ X
        self.gradient[:, -1] += step.sum(1)

    def merge(self, other: LossSum) -> None:
        """Add the sums over other rows."""
        self.value += other.value
        self.gradient += other.gradient
