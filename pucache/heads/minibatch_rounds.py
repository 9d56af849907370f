"""Batches of the minibatch solver on a GPU, prepared for the training step many at a time.

A round is some consecutive batches of an epoch: their rows, and what the step needs of their weights.
It lies in tensors that never move, so that the steps on it can be one CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .device_rows import free_memory, upload
from .minibatch_rows import BatchRows, Slots
from .problem import HeadProblem
from .risks import falling, rising

ALIGNMENT = 8  # rows are padded to a multiple of it; the matrix units read rows of other lengths slowly
ROUND_BYTES = 1 << 30  # of the tensors of a round, or less where little memory is free
ROUND_SHARE = 0.25  # of the free memory
ROUND_BATCHES = 512  # of a round at most: the graph has several nodes per batch
STREAMED_BATCHES = 64  # of a round at most, while the host reads the next round
_TINY = 1e-30  # for sums of weights that are zero
_MATRICES = 12  # of the size of the parameters, at most: Adam's, and copies while a graph is checked
_WEIGHT_TENSORS, _MARGIN_TENSORS = 8, 8  # (heads, size) per batch: weights of the losses; margins of the report
_ROW_WEIGHT_TENSORS = 6  # (columns of weights, size) per batch


@dataclass(frozen=True)
class ClampTerms:
    """What the step on a clamped risk needs, for the S batches of a round.

    Attributes
    ----------
    factor : tensor, (S, K or 1, size)
        Of the slope of the loss where the clamp acts.
    balance : tensor, (S, K or 1, size)
        Weights of the losses in R-.
    slack : tensor, (S, K, 1, 1)
        Beta, and what R- has beside these losses, which the step adds.
    """

    factor: Tensor
    balance: Tensor
    slack: Tensor


class Rounds:
    """Rows and weights of the batches.

    With the sigmoid loss, the positives' rows have the opposite sign. Their margin is then that of their
    own label, and the terms below have one sign; see `pucache.heads.minibatch_step`. Empty slots are zero.

    Parameters
    ----------
    problem : HeadProblem
    generator : torch.Generator
        Of the CPU.
    size : int
        Rows of a batch.
    scale : float
        Factor of X.

    Attributes
    ----------
    risk_scale : tensor, (K,) or (1,)
        Sum of the magnitudes of the risk's coefficients, which the penalty is relative to.
    length : int
        Batches of a round, S; the last round of an epoch may have fewer.
    X : tensor, (S, size, columns)
        Rows; the column after the last dimension is for the intercept, all others are zero.
    factor : tensor, (S, K or 1, size)
        Of the slope of the loss in the step, in the margins of these rows.
    constant : tensor, (S, K or 1, size), or None
        Subtracted from it; with the logistic loss.
    clamp : ClampTerms or None
        With a clamped risk.
    """

    def __init__(self, problem: HeadProblem, generator: torch.Generator, *, size: int, scale: float):
        self._problem, self._generator, self._scale = problem, generator, scale
        slots, device = Slots.shuffled(problem.design.is_positive, size, generator), problem.device
        self.batches, self.size = slots.rows.shape
        self._positives = int(slots.positive.sum())
        self._weights = _LossWeights(problem, slots)
        self.risk_scale = self._weights.risk_scale
        self._rows = BatchRows(problem, slots)
        columns = -(-(problem.d + 1) // ALIGNMENT) * ALIGNMENT
        self.length = _round_length(problem, slots.rows.shape, columns, self._weights.heads, self._rows.streams)
        sign = -1.0 if problem.risk.surrogate == "sigmoid" else 1.0
        self._sign = upload(np.float32(sign) * slots.positive + slots.unlabelled, device)
        self.X = torch.zeros((self.length, self.size, columns), device=device)
        shape = (self.length, self._weights.heads, self.size)
        self.factor = torch.empty(shape, device=device)
        self.constant = torch.empty(shape, device=device) if problem.risk.surrogate == "logistic" else None
        self.clamp = None
        if problem.risk.clamped:
            factor, balance = torch.empty((2, *shape), device=device)
            self.clamp = ClampTerms(factor, balance, torch.empty((self.length, len(problem), 1, 1), device=device))

    def __len__(self) -> int:
        return -(-self.batches // self.length)

    def shuffle(self) -> None:
        """Begin an epoch: distribute the positives anew over their slots, and order the batches."""
        permutation = torch.randperm(self._positives, generator=self._generator)
        order = torch.randperm(self.batches, generator=self._generator)
        self._rows.shuffle(permutation, order)

    def prepare(self, number: int) -> int:
        """Write the rows and terms of a round of the epoch; returns how many batches it has."""
        positive, negative, sign = self._load(number)
        count = len(sign)
        balance = negative * sign
        torch.add(balance, positive, out=self.factor[:count])
        if self.constant is not None:
            self.constant[:count] = positive
        if self.clamp is not None:
            risk = self._problem.risk
            self.clamp.balance[:count] = balance
            torch.mul(balance, -risk.gamma, out=self.clamp.factor[:count])
            of_flipped = (negative - balance).sum(2) / 2  # sum of the weights where the loss is 1 - sigmoid
            self.clamp.slack[:count] = (of_flipped + risk.beta)[..., None, None]
        return count

    def report(self, parameters: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Mean over the batches of the reported risk and of the clamp's activity, (K,) each."""
        totals = torch.zeros((2, len(parameters)), device=parameters.device)
        surrogate = str(self._problem.risk.surrogate)
        for number in range(len(self)):
            positive, negative, sign = self._load(number)
            rows = self.X[: len(sign)].view(-1, self.X.shape[2])
            margins = (rows @ parameters.T).view(len(sign), self.size, -1).transpose(1, 2) * sign
            positive_part = (positive * falling(surrogate, margins)[0]).sum(2)
            negative_part = (negative * rising(surrogate, margins)[0]).sum(2)
            value, _, clamped = self._problem.risk.combine(positive_part, negative_part)
            totals += torch.stack([value.sum(0), clamped.float().sum(0)])
        risk, clamped_share = (totals / self.batches).cpu().numpy()
        return risk, clamped_share

    def _load(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """Write the rows of a round; returns the weights of both parts of the risk, and signs, (batches, 1, size)."""
        part = slice(number * self.length, min((number + 1) * self.length, self.batches))
        numbers = self._rows.order[part]
        X, row_weights = self._rows.take(part)
        sign = self._sign.index_select(0, numbers)  # (batches, size)
        d, count = self._problem.d, len(numbers)
        torch.mul(X.view(count, self.size, d), (sign * self._scale)[..., None], out=self.X[:count, :, :d])
        self.X[:count, :, d] = sign
        if row_weights is not None:
            row_weights = row_weights.view(count, self.size, -1).transpose(1, 2)
        return *self._weights.of(numbers, row_weights), sign[:, None]


class _LossWeights:
    """Weights of the losses in each batch: normalised, times the coefficients of the risk."""

    def __init__(self, problem: HeadProblem, slots: Slots):
        alike = all(len(np.unique(values)) == 1 for values in (problem.column, problem.prior))
        heads = slice(0, 1) if alike else slice(None)
        self._risk = problem.risk
        self._prior, self._column = problem.tensor(problem.prior[heads]), problem.tensor(problem.column[heads])
        self._positive, self._unlabelled = (
            upload(side.astype(np.float32), problem.device) for side in (slots.positive, slots.unlabelled)
        )
        share = torch.full_like(self._prior, float(problem.design.is_positive.mean()))
        self.risk_scale = self._risk.coefficients(self._prior, share).total

    @property
    def heads(self) -> int:
        """Number of heads with weights of their own; 1 where all have the same."""
        return len(self._prior)

    def of(self, numbers: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """Weights of the positive and of the negative part of the risk in some batches, (batches, K or 1, size).

        Parameters
        ----------
        numbers : tensor of int64, (batches,)
        weights : tensor, (batches, C, size), or None
            Row weights.
        """
        of_p, of_u = (side.index_select(0, numbers)[:, None] for side in (self._positive, self._unlabelled))
        if weights is not None:
            of_p, of_u = weights * of_p, weights * of_u
        total_p, total_u = of_p.sum(2), of_u.sum(2)  # (batches, C)
        share = (total_p / (total_p + total_u).clamp(min=_TINY)).index_select(1, self._column)
        c = self._risk.coefficients(self._prior, share)
        in_p, in_u = (
            (side / total.clamp(min=_TINY)[..., None]).index_select(1, self._column)
            for side, total in ((of_p, total_p), (of_u, total_u))
        )
        return c.a[..., None] * in_p, c.u[..., None] * in_u + c.p[..., None] * in_p


def _round_length(
    problem: HeadProblem, shape: tuple[int, ...], columns: int, weighted_heads: int, streams: bool
) -> int:
    """Batches of a round.

    Raises
    ------
    ValueError
        Not even one batch fits.
    """
    (batches, size), free = shape, free_memory(problem.device)
    row_weights = 0 if problem.weights is None else 4 * _ROW_WEIGHT_TENSORS * problem.weights.shape[1]
    of_heads = _WEIGHT_TENSORS * weighted_heads + _MARGIN_TENSORS * len(problem)
    stored = 12 if streams else 4  # bytes of a value as stored; streamed rows may come with as many between them
    batch = size * (4 * columns + stored * problem.d + row_weights + 4 * of_heads)
    fixed = 4 * _MATRICES * len(problem) * columns
    if fixed + batch > free:
        raise ValueError(
            f"training {len(problem)} heads on batches of {size} rows takes {(fixed + batch) / 1e9:.1f} GB, and "
            f"{problem.device} has {free / 1e9:.1f} GB free; train fewer heads at once, use smaller batches, or the CPU"
        )
    limit = STREAMED_BATCHES if streams else ROUND_BATCHES
    most = max(1, min(batches, limit, int(min(ROUND_BYTES, ROUND_SHARE * free)) // batch))
    return -(-batches // -(-batches // most))  # rounds of one length, but for the last
