"""Cross-entropies of soft targets and margins, summed over rows, for many heads at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..progress import Progress
from ..threads import RunAll, run_in_turn
from .design_matrix import DesignMatrix, RowBlocks
from .device_rows import DeviceBlocks, download, upload
from .lbfgs import Objective
from .loss_sums import LossSum, anchored

_LEAST_MEAN = 1e-6  # of the targets that an initial intercept is computed from
_LEAST_CURVATURE = 0.02  # relative to the one at the initial intercept; for targets of 0 and 1


class CrossEntropyObjective:
    """Value and gradient of the heads' penalised cross-entropies; rows are the positives and then the others."""

    def __init__(
        self,
        design: DesignMatrix,
        targets: np.ndarray,
        weights: np.ndarray,
        penalty: np.ndarray,
        progress: Progress,
    ):
        self._design, self._progress, self.passes = design, progress, 0
        self.run_all: RunAll = run_in_turn
        self._sides = [
            tuple(_columns(values[rows], design.device) for values in (targets, weights))
            for rows in (design.positive_rows, design.unlabelled_rows)
        ]
        (T_positive, w_positive), (T_other, w_other) = self._sides
        mean = (w_positive * T_positive).sum(1) + (w_other * T_other).sum(1)
        self._mean = mean.clamp(_LEAST_MEAN, 1 - _LEAST_MEAN)
        # second derivatives where every margin is the log-odds of its target
        least = _LEAST_CURVATURE * (self._mean * (1 - self._mean))[:, None]
        derivatives = [w * (T * (1 - T) + least) for T, w in self._sides]  # (K, rows of a side)
        self.curvature = derivatives[0].sum(1) + derivatives[1].sum(1)
        self.importance = np.empty(len(design), np.float32)
        of_sides = download(*((part / self.curvature[:, None]).mean(0) for part in derivatives))
        for rows, importance in zip((design.positive_rows, design.unlabelled_rows), of_sides, strict=True):
            self.importance[rows] = importance
        self.penalty = upload(np.array(penalty, np.float32), design.device).expand(len(self._mean))

    def __len__(self) -> int:
        return len(self._mean)

    def initial_parameters(self) -> Tensor:
        """Coefficients of zero, and the best intercepts for them, (K, d + 1)."""
        parameters = self._mean.new_zeros((len(self), self._design.d + 1))
        parameters[:, -1] = self._mean.logit()
        return parameters

    @property
    def unlabelled(self) -> RowBlocks | DeviceBlocks:
        """Blocks of the rows without a label."""
        return self._design.unlabelled

    @property
    def reduces(self) -> bool:
        """Whether evaluation at reduced precision is faster."""
        return self._design.reduces

    def anchored(self, parameters: Tensor) -> Objective:
        """The objective near ``parameters`` (K, d + 1) of all heads, with products of rounded rows and changes."""
        return anchored(self, parameters) or self

    def __call__(self, parameters: Tensor, head: Tensor, reduced: bool = False) -> tuple[Tensor, Tensor]:
        """Values (A,) and gradients (A, d + 1) of the heads numbered ``head`` (A,) at ``parameters`` (A, d + 1).

        With ``reduced``, unlabelled rows are rounded to bfloat16 where the processor multiplies it.
        """
        return self.combine(parameters, head, self.over_unlabelled(head, lambda: LossSum(parameters), reduced))

    def over_unlabelled(self, head: Tensor, new_sum: Callable[[], LossSum], reduced: bool = False) -> LossSum:
        """Sum of the cross-entropies over the rows without a label."""
        self.passes += 1
        self._progress.advance(1)
        return self._over(self.unlabelled, self._sides[1], head, new_sum, reduced)

    def _over(
        self,
        blocks: RowBlocks | DeviceBlocks,
        side: tuple[Tensor, ...],
        head: Tensor,
        new_sum: Callable[[], LossSum],
        reduced: bool = False,
    ) -> LossSum:
        targets, weights = (_heads(values, head) for values in side)

        def sum_group(group: list[slice]) -> LossSum:
            total = new_sum()
            for rows, X in blocks.blocks(group, reduced):
                total.add(X, rows, *_cross_entropy(total.margins(X, rows), targets[:, rows], weights[:, rows]))
            return total

        total, *others = self.run_all([partial(sum_group, group) for group in blocks.groups(len(self))])
        for other in others:
            total.merge(other)
        return total

    def combine(self, parameters: Tensor, head: Tensor, unlabelled: LossSum) -> tuple[Tensor, Tensor]:
        """Values and gradients from the sum over the rows without a label."""
        total = unlabelled
        total.merge(self._over(self._design.positive, self._sides[0], head, lambda: LossSum(parameters)))
        penalty, coef = self.penalty[head], parameters[:, :-1]
        total.gradient[:, :-1].addcmul_(coef, penalty[:, None])
        return total.value + 0.5 * penalty * coef.square().sum(1), total.gradient


def _cross_entropy(margins: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted sum over rows, (A,), and its derivatives in the margins, (A, b)."""
    value = (weights * (softplus(margins) - targets * margins)).sum(1)
    return value, margins.sigmoid().sub_(targets).mul_(weights)


def _columns(values: np.ndarray, device: torch.device) -> Tensor:
    """Float32 values of each head in one row, (K, n)."""
    return upload(np.ascontiguousarray(values.T, np.float32), device)


def _heads(values: Tensor, head: Tensor) -> Tensor:
    """Rows of the heads still running, (A, n); one row that serves all heads stays one."""
    return values if len(values) in (1, len(head)) else values[head]
