"""Sums of weighted losses over rows, and their gradients in the parameters of the heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from .design_matrix import RowBlocks
from .device_rows import DeviceBlocks
from .lbfgs import Objective

_ANCHOR_VALUES = 1 << 24  # margins that an anchor may keep, of all heads: 128 MiB with the derivatives


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
        self._parameters, self._intercept = parameters, parameters[:, -1:]
        self._reduced: Tensor | None = None
        self._sums: tuple[Tensor, Tensor] | None = None  # value and gradient, from the first block on

    @property
    def value(self) -> Tensor:
        """Sum of the weighted losses."""
        return self._values()[0]

    @property
    def gradient(self) -> Tensor:
        """Its gradient."""
        return self._values()[1]

    def _values(self) -> tuple[Tensor, Tensor]:
        if self._sums is None:  # no rows
            self._sums = torch.zeros_like(self._parameters[:, 0]), torch.zeros_like(self._parameters)
        return self._sums

    @cached_property
    def _coef(self) -> Tensor:
        coef = self._parameters[:, :-1]
        return coef.contiguous() if coef.is_cuda else coef  # a GPU multiplies aligned rows faster

    def margins(self, X: Tensor, rows: slice) -> Tensor:
        """Margins of the rows of a block (b, d) of the parameters' type or a shorter one, (A, b)."""
        if X.dtype == self._coef.dtype:
            return torch.addmm(self._intercept, self._coef, X.T)
        if self._reduced is None:
            self._reduced = self._coef.to(X.dtype)
        return torch.mm(self._reduced, X.T) + self._intercept

    def add(self, X: Tensor, rows: slice, loss: Tensor, step: Tensor) -> None:
        """Add a block of rows (b, d): their weighted loss (A,) and its derivatives in the margins (A, b)."""
        coef, intercept = step.to(X.dtype) @ X, step.sum(1)
        if self._sums is None:
            self._sums = loss, torch.cat([coef, intercept[:, None]], 1)
            return
        value, gradient = self._sums
        value += loss
        gradient[:, :-1] += coef
        gradient[:, -1] += intercept

    def merge(self, other: LossSum) -> None:
        """Add the sums over other rows."""
        value, gradient = self._values()
        value += other.value
        gradient += other.gradient


@dataclass(frozen=True)
class Anchor:
    """Exact margins and derivatives at one point for each of K heads, which `AnchoredSum` adds changes to.

    Attributes
    ----------
    parameters : (K, d + 1) tensor
    margins, steps : (K, n) tensor
        Of each row: its margin, and the derivative of its weighted loss in the margin.
    gradient : (K, d + 1) tensor
        Sum over the rows of derivatives times rows.
    """

    parameters: Tensor
    margins: Tensor
    steps: Tensor
    gradient: Tensor


class RecordedSum(LossSum):
    """Sum that keeps margins and derivatives of its rows in an anchor.

    Parameters
    ----------
    anchor : Anchor
        Of the heads (K,) whose sums are computed.
    """

    def __init__(self, anchor: Anchor):
        super().__init__(anchor.parameters)
        self._anchor = anchor

    def add(self, X: Tensor, rows: slice, loss: Tensor, step: Tensor) -> None:
        """As `LossSum.add`."""
        super().add(X, rows, loss, step)
        self._anchor.steps[:, rows] = step

    def margins(self, X: Tensor, rows: slice) -> Tensor:
        """As `LossSum.margins`."""
        margins = super().margins(X, rows)
        self._anchor.margins[:, rows] = margins
        return margins


class AnchoredSum(LossSum):
    """Sum whose products are those of changes since an anchor, without the gradient of the anchor.

    Blocks of rows may then be rounded: errors are relative to the changes.

    Parameters
    ----------
    parameters : (A, d + 1) tensor
    head : (A,) tensor of int64
        Numbers of the heads in the anchor.
    anchor : Anchor
    """

    def __init__(self, parameters: Tensor, head: Tensor, anchor: Anchor):
        super().__init__(parameters - anchor.parameters[head])
        self._head, self._anchor = head, anchor

    def margins(self, X: Tensor, rows: slice) -> Tensor:
        """As `LossSum.margins`."""
        return super().margins(X, rows) + self._anchor.margins[:, rows][self._head]

    def add(self, X: Tensor, rows: slice, loss: Tensor, step: Tensor) -> None:
        """As `LossSum.add`."""
        super().add(X, rows, loss, step - self._anchor.steps[:, rows][self._head])


class SummedObjective(Protocol):
    """An objective that is a sum over unlabelled rows and something of the other rows."""

    @property
    def unlabelled(self) -> RowBlocks | DeviceBlocks:
        """Blocks of the rows of the sum."""

    def over_unlabelled(self, head: Tensor, new_sum: Callable[[], LossSum], reduced: bool = False) -> LossSum:
        """Sum over the unlabelled rows, by sums that ``new_sum`` makes."""

    def combine(self, parameters: Tensor, head: Tensor, unlabelled: LossSum) -> tuple[Tensor, Tensor]:
        """Value and gradient from the sum over the unlabelled rows."""


def anchored(objective: SummedObjective, parameters: Tensor) -> Objective | None:
    """The objective near a point, with products of rounded rows and changes since that point.

    Parameters
    ----------
    objective : SummedObjective
    parameters : (K, d + 1) tensor
        Of all heads; the objective is exact there.

    Returns
    -------
    Objective or None
        None where blocks are not rounded, or the margins need much memory.
    """
    blocks = objective.unlabelled
    if not blocks.reduces or len(parameters) * len(blocks) > _ANCHOR_VALUES:
        return None
    all_heads = torch.arange(len(parameters), device=parameters.device)
    margins = parameters.new_empty((len(parameters), len(blocks)))
    anchor = Anchor(parameters.clone(), margins, torch.empty_like(margins), torch.zeros_like(parameters))
    anchor.gradient[:] = objective.over_unlabelled(all_heads, lambda: RecordedSum(anchor)).gradient

    def evaluate(parameters: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
        total = objective.over_unlabelled(head, lambda: AnchoredSum(parameters, head, anchor), reduced=True)
        total.gradient.add_(anchor.gradient[head])
        return objective.combine(parameters, head, total)

    return evaluate
