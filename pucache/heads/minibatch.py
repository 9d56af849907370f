"""The minibatch solver: the protocol of Dorigatti et al. (ImPULSeS), for any number of heads at once.

Adam on batches of 256 for 100 epochs. Features are scaled by one number to the root mean square of
common encoders' raw features, but neither centred nor standardised. Rows are shuffled and cut into
batches once. In every epoch the batches come in a new order, and the labelled positives are permuted
among their positions in the batches. (Shuffling all rows again would cost more than the training;
without permuting the positives the heads overfit the batches and lose half a point of accuracy.)
The same training on a GPU: `pucache.heads.minibatch_cuda`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..devices import multiplies_bfloat16
from ..progress import Progress
from ..storage.rows import release_pages, take_rows
from .design_matrix import CPU_RESIDENT
from .linear_heads import FittedHeads
from .minibatch_cuda import train_on_cuda
from .problem import HeadProblem
from .risks import falling, rising

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
        """Number of epochs for n rows.

        Parameters
        ----------
        n : int

        Returns
        -------
        int
        """
        return max(self.epochs, -(-self.min_steps // -(-n // self.batch_size)))


def train(problem: HeadProblem, settings: SGDSettings, progress: Progress) -> FittedHeads:
    """Train the heads of a problem by Adam on minibatches."""
    epochs = settings.passes(len(problem.design))
    moments = problem.design.moments
    scale = RMS / max(moments.root_mean_square, 1e-12)
    penalty = problem.penalty * (moments.spread * scale) ** 2
    train_heads = train_on_cuda if problem.device.type == "cuda" else _train_on_cpu
    progress.start(epochs, "training")
    parameters, risk, clamped = train_heads(
        problem,
        progress,
        scale=scale,
        penalty=penalty,
        epochs=epochs,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
    )
    return FittedHeads(
        coef=parameters[:, :-1] * np.float32(scale),
        intercept=parameters[:, -1].copy(),
        risk=risk,
        clamped=clamped,
        residual=np.full(len(problem), np.nan, np.float32),
        passes=epochs,
    )


def _train_on_cpu(
    problem: HeadProblem,
    progress: Progress,
    *,
    scale: float,
    penalty: np.ndarray,
    epochs: int,
    batch_size: int,
    learning_rate: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Parameters for scaled rows, (K, d + 1), reported risk and activity of the clamp, (K,) each."""
    generator = torch.Generator().manual_seed(0)
    batches, weights = _Batches(problem, generator, batch_size, scale), _BatchWeights(problem)
    absolute = problem.tensor(penalty) * weights.total
    adam = _Adam(problem.initial_parameters(problem.d**-0.5), absolute, learning_rate, batches.dtype)
    for _ in range(epochs):
        batches.permute_positives()
        weights.update(batches)
        for number, batch in batches.in_order(torch.randperm(len(batches), generator=generator).tolist()):
            adam.step(*weights.gradient(number, adam.working, batch))
        progress.advance(1)
    return adam.parameters.numpy(), *weights.report(batches, adam.parameters)


class _Batches:
    """Shuffled rows in batches, with a column of ones appended; the positives come first in each batch."""

    def __init__(self, problem: HeadProblem, generator: torch.Generator, size: int, scale: float):
        self._problem, self._X, self._scale, self._generator = problem, problem.design.X, scale, generator
        self.dtype = torch.bfloat16 if multiplies_bfloat16(problem.device) else torch.float32
        is_positive = problem.design.is_positive
        order = torch.randperm(len(self._X), generator=generator).numpy()
        parts = [order[begin : begin + size] for begin in range(0, len(order), size)]
        self.rows = [part[np.argsort(~is_positive[part], kind="stable")] for part in parts]
        self._offsets = np.cumsum([0] + [int(is_positive[part].sum()) for part in parts]).tolist()
        self._positive_rows = np.flatnonzero(is_positive)
        self._positive = self._make(self._positive_rows)
        fits = self._X.size * self.dtype.itemsize <= 2 * CPU_RESIDENT
        self._kept = [self._make(rows) for rows in self.rows] if fits else None

    def __len__(self) -> int:
        return len(self.rows)

    def permute_positives(self) -> None:
        """Distribute the positives anew over their positions in the batches."""
        self._permutation = torch.randperm(len(self._positive_rows), generator=self._generator)
        positive = self._positive_rows[self._permutation.numpy()]
        for rows, begin, end in zip(self.rows, self._offsets, self._offsets[1:], strict=False):
            rows[: end - begin] = positive[begin:end]

    def in_order(self, numbers: list[int]) -> Iterator[tuple[int, Tensor]]:
        """Yield batches by their numbers; those that are not kept are read several at once."""
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
            torch.index_select(self._positive, 0, self._permutation[begin:end], out=batch[: end - begin])
        return batch

    def _make(self, rows: np.ndarray) -> Tensor:
        block = self._scaled(self._X[rows])
        release_pages(self._X)
        return block

    def _scaled(self, stored: np.ndarray) -> Tensor:
        block = torch.ones((len(stored), self._problem.d + 1), dtype=self.dtype)
        block[:, :-1] = torch.from_numpy(stored).float().mul_(self._scale)
        return block


class _BatchWeights:
    """Weights of the losses in each batch, (K, b) or (1, b): normalised, times the coefficients of the risk."""

    def __init__(self, problem: HeadProblem):
        self._problem, self._risk, self._logistic = problem, problem.risk, problem.risk.surrogate == "logistic"
        alike = all(len(np.unique(values)) == 1 for values in (problem.column, problem.prior))
        heads = slice(0, 1) if alike else slice(None)
        self._prior, self._column = problem.tensor(problem.prior[heads]), problem.tensor(problem.column[heads])
        self._parts: list[tuple[Tensor, Tensor]] = []
        share = torch.full_like(self._prior, float(problem.design.is_positive.mean()))
        self.total = problem.risk.coefficients(self._prior, share).total  # (K,) or (1,)

    def update(self, batches: _Batches) -> None:
        """Compute the weights of the rows now in the batches; without row weights they never change."""
        if not self._parts or self._problem.weights is not None:
            self._parts = [self._batch_weights(rows) for rows in batches.rows]
            self._steps = [self._step(*part) for part in self._parts]

    def _batch_weights(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Weights of the positive and of the negative part of the risk."""
        problem, positive = self._problem, self._problem.design.is_positive[rows]
        weights = np.ones((1, len(rows)), np.float32) if problem.weights is None else problem.weights[rows].T
        (weights_p, total_p), (weights_u, total_u) = (_normalised(weights * side) for side in (positive, ~positive))
        share = problem.tensor(total_p / np.maximum(total_p + total_u, 1e-30))[self._column]
        c = problem.risk.coefficients(self._prior, share)
        in_p, in_u = problem.tensor(weights_p)[self._column], problem.tensor(weights_u)[self._column]
        return c.a[:, None] * in_p, c.u[:, None] * in_u + c.p[:, None] * in_p

    def gradient(self, number: int, parameters: Tensor, X: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient in the margins, (K, b), and the rows of the batch, (b, d + 1)."""
        margins = (parameters @ X.T).float()  # (K, b)
        sigmoid = margins.sigmoid()
        loss = softplus(margins) if self._logistic else sigmoid
        slope = sigmoid if self._logistic else torch.addcmul(sigmoid, sigmoid, sigmoid, value=-1)
        negative_weights, factor, clamped_factor, constant = self._steps[number]
        if self._risk.clamped:  # Kiryo's rule: where the negative part is below -beta, step against it alone
            clamped = torch.linalg.vecdot(negative_weights, loss)[:, None] < -self._risk.beta  # (K, 1)
            factor = torch.where(clamped, clamped_factor, factor)
            constant = None if constant is None else constant * ~clamped
        step = slope * factor
        return (step if constant is None else step.sub_(constant)).to(X.dtype), X

    def _step(self, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Terms of step = slope * factor - constant.

        Returns the weights of the negative part, the factor where the clamp is inactive, the factor
        where it is active, and the constant.
        """
        clamped_factor = -self._risk.gamma * negative
        if self._logistic:
            return negative, negative + positive, clamped_factor, positive
        return negative, negative - positive, clamped_factor, None

    def report(self, batches: _Batches, parameters: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Mean over the batches of the reported risk and of the clamp's activity, (K,) each."""
        risks, clamps = torch.zeros_like(parameters[:, 0]), torch.zeros_like(parameters[:, 0])
        surrogate = str(self._risk.surrogate)
        ordered = batches.in_order(list(range(len(batches))))
        for (_, X), (positive, negative) in zip(ordered, self._parts, strict=True):
            margins = parameters @ X.float().T
            positive_part = (positive * falling(surrogate, margins)[0]).sum(1)
            negative_part = (negative * rising(surrogate, margins)[0]).sum(1)
            value, _, clamped = self._risk.combine(positive_part, negative_part)
            risks += value
            clamps += clamped
        return (risks / len(batches)).numpy(), (clamps / len(batches)).numpy()


class _Adam:
    """Adam (Kingma and Ba 2015) on the (K, d + 1) matrix of coefficients and intercepts."""

    def __init__(self, parameters: Tensor, penalty: Tensor, learning_rate: float, working: torch.dtype):
        self.parameters = parameters
        self.working = parameters.to(working)  # copy for the matrix products, where the types differ
        self._gradient = torch.zeros_like(self.working)
        self._penalty = penalty[:, None] if bool((penalty != 0).any()) else None
        self._first, self._second = torch.zeros_like(parameters), torch.zeros_like(parameters)
        self._rate, self._steps = learning_rate, torch.zeros(())

    def step(self, step: Tensor, X: Tensor) -> None:
        """Update the parameters by the gradient ``step @ X``."""
        torch.mm(step, X, out=self._gradient)
        gradient = self._gradient.float()
        if self._penalty is not None:
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
        if self.working is not self.parameters:
            self.working.copy_(self.parameters)


def _normalised(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = weights.sum(1)
    return (weights / np.where(total > 0, total, 1)[:, None]).astype(np.float32), total.astype(np.float32)
