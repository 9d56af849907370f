"""The minibatch solver: the protocol of Dorigatti et al. (ImPULSeS), for any number of heads at once.

Adam on batches of 256 for 100 epochs. Features are scaled by one number to the root mean square of
common encoders' raw features, but neither centred nor standardised. Rows are shuffled and cut into
batches once. In every epoch the batches come in a new order, and the labelled positives are permuted
among their positions in the batches. (Shuffling all rows again would cost more than the training;
without permuting the positives the heads overfit the batches and lose half a point of accuracy.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..progress import Progress
from ..storage.rows import release_pages, take_rows
from .design_matrix import fits
from .linear_heads import FittedHeads
from .objective import HeadProblem
from .risks import negative_loss, positive_loss

_ROWS_AT_ONCE = 1 << 13  # that are read of a map, in its order, for the next batches
RMS = 0.5  # root mean square that features are scaled to, which is that of common encoders' raw features


@dataclass(frozen=True)
class SGDSettings:
    """Settings of the minibatch solver; the defaults are those of Dorigatti et al.

    Attributes
    ----------
    epochs : int
        Passes over X.
    min_steps : int
        Least number of steps: epochs are added until it is reached, as few rows would otherwise end
        far from converged.
    batch_size : int
        Rows per step.
    learning_rate : float
        Learning rate of Adam (betas 0.9, 0.999).
    """

    epochs: int = 100
    min_steps: int = 3000
    batch_size: int = 256
    learning_rate: float = 3e-4

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1 or self.min_steps < 0 or not self.learning_rate > 0:
            raise ValueError(f"epochs, batch_size and learning_rate must be positive, got {self}")

    def passes(self, n: int) -> int:
        """Number of epochs for n rows."""
        return max(self.epochs, -(-self.min_steps // -(-n // self.batch_size)))


def train(problem: HeadProblem, settings: SGDSettings, progress: Progress) -> FittedHeads:
    """Train the heads of a problem by Adam on minibatches."""
    design, moments = problem.design, problem.design.moments
    epochs, scale = settings.passes(len(design)), RMS / (moments.root_mean_square or 1.0)
    progress.start(epochs, "training")
    generator = torch.Generator().manual_seed(0)
    batches, losses = _Batches(problem, generator, settings.batch_size, scale), _BatchLosses(problem)
    penalty = problem.tensor(problem.penalty) * (moments.spread * scale) ** 2 * losses.scale
    adam = _Adam(problem.initial_parameters(design.d**-0.5), penalty, settings.learning_rate)
    for _ in range(epochs):
        batches.permute_positives()
        losses.update(batches)
        for number, X in batches.in_order(torch.randperm(len(batches), generator=generator).tolist()):
            adam.step(losses.gradient(number, adam.parameters @ X.T) @ X)
        progress.advance(1)
    risk, clamped = losses.report(batches, adam.parameters)
    parameters = adam.parameters.cpu().numpy()
    return FittedHeads(
        coef=parameters[:, :-1] * np.float32(scale),
        intercept=parameters[:, -1].copy(),
        risk=risk,
        clamped=clamped,
        residual=np.full(len(problem), np.nan, np.float32),
        passes=epochs,
    )


class _Batches:
    """Shuffled rows in batches, with a column of ones appended; the positives come first in each batch."""

    def __init__(self, problem: HeadProblem, generator: torch.Generator, size: int, scale: float):
        design = problem.design
        self._X, self._scale, self._generator, self._device = design.X, scale, generator, design.device
        order = torch.randperm(len(design), generator=generator).numpy()
        parts = [order[begin : begin + size] for begin in range(0, len(order), size)]
        self.rows = [part[np.argsort(~design.is_positive[part], kind="stable")] for part in parts]
        self._offsets = np.cumsum([0] + [int(design.is_positive[part].sum()) for part in parts]).tolist()
        self._positive_rows, self._positive = design.positive_rows, self._read(design.positive_rows)
        self._kept = [self._read(rows) for rows in self.rows] if fits(self._X.size, self._device) else None

    def __len__(self) -> int:
        return len(self.rows)

    def permute_positives(self) -> None:
        """Distribute the positives anew over their positions in the batches."""
        permutation = torch.randperm(len(self._positive_rows), generator=self._generator)
        self._permutation, positive = permutation.to(self._device), self._positive_rows[permutation.numpy()]
        for rows, begin, end in zip(self.rows, self._offsets, self._offsets[1:], strict=False):
            rows[: end - begin] = positive[begin:end]

    def in_order(self, numbers: list[int]) -> Iterator[tuple[int, Tensor]]:
        """Yield batches (b, d + 1) by their numbers; those that are not kept are read several at once."""
        if self._kept is not None:
            yield from ((number, self._current(self._kept[number], number)) for number in numbers)
            return
        count = max(1, _ROWS_AT_ONCE // len(self.rows[0]))
        for begin in range(0, len(numbers), count):
            group = numbers[begin : begin + count]
            rows, positions = np.unique(np.concatenate([self.rows[number] for number in group]), return_inverse=True)
            stored, ends = take_rows(self._X, rows), np.cumsum([len(self.rows[number]) for number in group])
            for number, part in zip(group, np.split(positions, ends[:-1]), strict=True):
                yield number, self._scaled(stored[part])

    def _current(self, batch: Tensor, number: int) -> Tensor:
        """A kept batch with the positives that are in it now."""
        begin, end = self._offsets[number], self._offsets[number + 1]
        if end > begin:
            batch[: end - begin] = self._positive[self._permutation[begin:end]]
        return batch

    def _read(self, rows: np.ndarray) -> Tensor:
        block = self._scaled(self._X[rows])
        release_pages(self._X)
        return block

    def _scaled(self, stored: np.ndarray) -> Tensor:
        block = torch.ones((len(stored), stored.shape[1] + 1), device=self._device)
        block[:, :-1] = torch.tensor(stored).to(self._device).float() * self._scale
        return block


class _BatchLosses:
    """Weights of the losses in each batch, (K, b) or (1, b): normalised, times the coefficients of the risk."""

    def __init__(self, problem: HeadProblem):
        self._problem, self._risk, self._surrogate = problem, problem.risk, str(problem.risk.surrogate)
        alike = all(len(np.unique(values)) == 1 for values in (problem.column, problem.prior))
        heads = slice(0, 1) if alike else slice(None)
        self._prior, self._column = problem.tensor(problem.prior[heads]), problem.tensor(problem.column[heads])
        self._terms: list[tuple[Tensor, Tensor, Tensor, Tensor | None]] = []
        share = torch.full_like(self._prior, float(problem.design.is_positive.mean()))
        self.scale = problem.risk.coefficients(self._prior, share).total  # (K,) or (1,)

    def update(self, batches: _Batches) -> None:
        """Compute the weights of the rows now in the batches; without row weights they never change."""
        if not self._terms or self._problem.weights is not None:
            self._terms = [self._batch_terms(rows) for rows in batches.rows]

    def _batch_terms(self, rows: np.ndarray) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Weights of both parts of the risk, and factor and constant of step = slope of l(-m) * factor - constant."""
        is_positive = self._problem.design.is_positive[rows]
        weights = (
            np.ones((1, len(rows)), np.float32) if self._problem.weights is None else self._problem.weights[rows].T
        )
        sides = [np.asarray(weights * side, np.float32) for side in (is_positive, ~is_positive)]
        (in_p, total_p), (in_u, total_u) = map(self._normalised, sides)
        c = self._risk.coefficients(self._prior, total_p / (total_p + total_u).clamp(min=1e-30))
        positive, negative = c.a[:, None] * in_p, c.u[:, None] * in_u + c.p[:, None] * in_p
        if self._surrogate == "logistic":  # l(m) = l(-m) - m
            return positive, negative, negative + positive, positive
        return positive, negative, negative - positive, None  # l(m) = 1 - l(-m)

    def _normalised(self, weights: np.ndarray) -> tuple[Tensor, Tensor]:
        """Weights of each head's column with a sum of one, (K, b), and their sums before, (K,)."""
        on_device = self._problem.tensor(weights)[self._column]
        total = on_device.sum(1)
        return on_device / torch.where(total > 0, total, 1)[:, None], total

    def gradient(self, number: int, margins: Tensor) -> Tensor:
        """Direction to step against, in the margins of a batch, (K, b)."""
        _, negative, factor, constant = self._terms[number]
        loss, slope = negative_loss(self._surrogate, margins)
        if self._risk.clamped:  # Kiryo's rule: where the negative part is below -beta, step against it alone
            acts = torch.linalg.vecdot(negative, loss)[:, None] < -self._risk.beta  # (K, 1)
            factor = torch.where(acts, -self._risk.gamma * negative, factor)
            constant = None if constant is None else constant * ~acts
        step = slope * factor
        return step if constant is None else step.sub_(constant)

    def report(self, batches: _Batches, parameters: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Mean over the batches of the reported risk and of the clamp's activity, (K,) each."""
        risks, clamps = torch.zeros_like(parameters[:, 0]), torch.zeros_like(parameters[:, 0])
        ordered = batches.in_order(list(range(len(batches))))
        for (_, X), (positive, negative, *_) in zip(ordered, self._terms, strict=True):
            margins = parameters @ X.T
            positive_part = (positive * positive_loss(self._surrogate, margins)[0]).sum(1)
            negative_part = (negative * negative_loss(self._surrogate, margins)[0]).sum(1)
            value, clamped = self._risk.combine(positive_part, negative_part)
            risks += value
            clamps += clamped
        return (risks / len(batches)).cpu().numpy(), (clamps / len(batches)).cpu().numpy()


class _Adam:
    """Adam (Kingma and Ba 2015) on the (K, d + 1) matrix of coefficients and intercepts."""

    def __init__(self, parameters: Tensor, penalty: Tensor, learning_rate: float):
        self.parameters, self._penalty = parameters, penalty[:, None]
        self._first, self._second = torch.zeros_like(parameters), torch.zeros_like(parameters)
        self._rate, self._steps = learning_rate, torch.zeros((), device=parameters.device)

    def step(self, gradient: Tensor) -> None:
        """Update the parameters by the gradient of the risk, (K, d + 1)."""
        gradient[:, :-1].addcmul_(self.parameters[:, :-1], self._penalty)
        torch._fused_adam_(  # the update of torch.optim.Adam(fused=True)
            [self.parameters],
            [gradient],
            [self._first],
            [self._second],
            [],
            [self._steps.add_(1)],
            lr=self._rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )
