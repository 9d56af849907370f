"""The minibatch solver: the protocol of Dorigatti et al. (ImPULSeS), for any number of heads at once.

Adam on batches of 256 for 100 epochs, on features that are scaled by one number to the root mean
square of common encoders' raw features, but neither centred nor standardised. Rows are shuffled
and cut into batches once; in every epoch the order of the batches is new, and the labelled positives
are dealt anew among their places in them. (A new shuffle of everything would cost more than the
training; without new company for the positives the heads fit the batches: half a point of accuracy.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..devices import multiplies_bfloat16
from ..progress import Progress
from ..storage.mapped_arrays import release_pages
from .design_matrix import CPU_RESIDENT
from .problem import HeadSpec
from .risks import falling, rising

RMS = 0.5  # of the features trained on: that of common encoders' raw features


@dataclass(frozen=True)
class Protocol:
    """How long and how fast; the defaults are the authors'.

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
        """Epochs for n rows.

        Parameters
        ----------
        n : int

        Returns
        -------
        int
        """
        return max(self.epochs, -(-self.min_steps // -(-n // self.batch_size)))


def train(spec: HeadSpec, protocol: Protocol, progress: Progress) -> dict[str, Any]:
    """Train the heads of `spec`.

    Returns
    -------
    dict
        The fields of `pucache.heads.fit.FittedHeads`.
    """
    passes = protocol.passes(len(spec.X))
    scale = RMS / max(spec.moments.root_mean_square, 1e-12)
    order = torch.Generator().manual_seed(0)
    batches, weights = _Batches(spec, order, protocol.batch_size, scale), _Weights(spec)
    penalty = spec.tensor(spec.penalty * (spec.moments.spread * scale) ** 2) * weights.total
    adam = _Adam(spec.initial(spec.d**-0.5), penalty, protocol.learning_rate, batches.dtype)
    progress.start(passes, "training")
    for _ in range(passes):
        batches.deal()
        weights.follow(batches)
        for number in torch.randperm(len(batches), generator=order).tolist():
            adam.step(*weights.gradient(number, adam.working, batches[number]))
        progress.advance(1)
    reported, clamped = weights.report(batches, adam.parameters)
    parameters = adam.parameters.cpu().numpy()
    return {
        "coef": parameters[:, :-1] * np.float32(scale),
        "intercept": parameters[:, -1].copy(),
        "risk": reported,
        "clamped": clamped,
        "residual": np.full(len(spec), np.nan, np.float32),
        "passes": passes,
    }


class _Batches:
    """Shuffled rows, a column of ones behind them, in batches; the positives come first in each."""

    def __init__(self, spec: HeadSpec, generator: torch.Generator, size: int, scale: float):
        self._spec, self._scale, self._generator = spec, scale, generator
        self.dtype = torch.bfloat16 if multiplies_bfloat16(spec.device) else torch.float32
        order = torch.randperm(len(spec.X), generator=generator).numpy()
        parts = [order[begin : begin + size] for begin in range(0, len(order), size)]
        self.rows = [part[np.argsort(~spec.s[part], kind="stable")] for part in parts]
        self._places = np.cumsum([0] + [int(spec.s[part].sum()) for part in parts]).tolist()
        self._positive = np.flatnonzero(spec.s)
        self._of_positive = self._make(self._positive)
        fits = spec.device.type == "cuda" or spec.X.size * self.dtype.itemsize <= 2 * CPU_RESIDENT
        self._kept = [self._make(rows) for rows in self.rows] if fits else None

    def __len__(self) -> int:
        return len(self.rows)

    def deal(self) -> None:
        """Deal the positives anew."""
        self._dealt = torch.randperm(len(self._positive), generator=self._generator).to(self._spec.device)
        positive = self._positive[self._dealt.cpu().numpy()]
        for rows, begin, end in zip(self.rows, self._places, self._places[1:], strict=False):
            rows[: end - begin] = positive[begin:end]

    def __getitem__(self, number: int) -> Tensor:
        if self._kept is None:
            return self._make(self.rows[number])
        batch, begin, end = self._kept[number], self._places[number], self._places[number + 1]
        if end > begin:
            torch.index_select(self._of_positive, 0, self._dealt[begin:end], out=batch[: end - begin])
        return batch

    def _make(self, rows: np.ndarray) -> Tensor:
        block = torch.ones((len(rows), self._spec.d + 1), dtype=self.dtype)
        block[:, :-1] = torch.from_numpy(self._spec.X[rows]).float().mul_(self._scale)
        release_pages(self._spec.X)
        return block.to(self._spec.device)


class _Weights:
    """For each batch the weights of the losses, (K, b) or (1, b): normalised, times the risk's coefficients."""

    def __init__(self, spec: HeadSpec):
        self._spec, self._risk, self._logistic = spec, spec.risk, spec.risk.surrogate == "logistic"
        alike = all(len(np.unique(values)) == 1 for values in (spec.column, spec.prior))
        heads = slice(0, 1) if alike else slice(None)
        self._prior, self._column = spec.tensor(spec.prior[heads]), spec.tensor(spec.column[heads])
        self._parts: list[tuple[Tensor, Tensor]] = []
        share = torch.full_like(self._prior, float(spec.s.mean()))
        self.total = spec.risk.coefficients(self._prior, share).total  # (K,) or (1,)

    def follow(self, batches: _Batches) -> None:
        """Weigh the rows that are now in the batches; without weights one positive is like another."""
        if not self._parts or self._spec.weights is not None:
            self._parts = [self._of_batch(rows) for rows in batches.rows]
            self._steps = [self._step(*part) for part in self._parts]

    def _of_batch(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        spec, positive = self._spec, self._spec.s[rows]
        weights = np.ones((1, len(rows)), np.float32) if spec.weights is None else spec.weights[rows].T
        (of_p, total_p), (of_u, total_u) = (_normalised(weights * side) for side in (positive, ~positive))
        share = spec.tensor(total_p / np.maximum(total_p + total_u, 1e-30))[self._column]
        c = spec.risk.coefficients(self._prior, share)
        in_p, in_u = spec.tensor(of_p)[self._column], spec.tensor(of_u)[self._column]
        return c.a[:, None] * in_p, c.u[:, None] * in_u + c.p[:, None] * in_p

    def gradient(self, number: int, parameters: Tensor, X: Tensor) -> tuple[Tensor, Tensor]:
        """Step in the margins, (K, b), and the rows it belongs to."""
        margins = (parameters @ X.T).float()  # (K, b)
        sigmoid = margins.sigmoid()
        loss = softplus(margins) if self._logistic else sigmoid
        slope = sigmoid if self._logistic else torch.addcmul(sigmoid, sigmoid, sigmoid, value=-1)
        lower, free, against, constant = self._steps[number]
        if self._risk.clamped:  # Kiryo's rule: where the negative part is below -beta, step against it alone
            held = torch.linalg.vecdot(lower, loss)[:, None] < -self._risk.beta  # (K, 1)
            free = torch.where(held, against, free)
            constant = None if constant is None else constant * ~held
        step = slope * free
        return (step if constant is None else step.sub_(constant)).to(X.dtype), X

    def _step(self, upper: Tensor, lower: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The weights of the negative part, and step = slope * factor - constant, free and where the clamp acts."""
        against = -self._risk.gamma * lower
        return (lower, lower + upper, against, upper) if self._logistic else (lower, lower - upper, against, None)

    def report(self, batches: _Batches, parameters: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Mean over the batches of the reported risk and of the clamp's activity, (K,) each."""
        risks, clamps = torch.zeros_like(parameters[:, 0]), torch.zeros_like(parameters[:, 0])
        for number, (upper, lower) in enumerate(self._parts):
            margins = parameters @ batches[number].float().T
            surrogate = str(self._risk.surrogate)
            parts = (
                (weights * side(surrogate, margins)[0]).sum(1) for weights, side in ((upper, falling), (lower, rising))
            )
            value, _, clamped = self._risk.combine(*parts)
            risks += value
            clamps += clamped
        return (risks / len(batches)).cpu().numpy(), (clamps / len(batches)).cpu().numpy()


class _Adam:
    """Adam (Kingma and Ba 2015) on the (K, d + 1) matrix of coefficients and intercepts."""

    def __init__(self, parameters: Tensor, penalty: Tensor, learning_rate: float, working: torch.dtype):
        self.parameters = parameters
        self.working = parameters.to(working)  # what the products take; a copy where the types differ
        self._gradient = torch.zeros_like(self.working)
        self._penalty = penalty[:, None] if bool((penalty != 0).any()) else None
        self._first, self._second = torch.zeros_like(parameters), torch.zeros_like(parameters)
        self._scale = torch.zeros_like(parameters)
        self._rate, self._steps = learning_rate, 0

    def step(self, step: Tensor, X: Tensor) -> None:
        """Go against the gradient step @ X."""
        torch.mm(step, X, out=self._gradient)
        gradient = self._gradient.float()
        if self._penalty is not None:
            gradient[:, :-1].addcmul_(self.parameters[:, :-1], self._penalty)
        self._steps += 1
        unbiased = (1 - 0.999**self._steps) ** 0.5
        self._first.lerp_(gradient, 0.1)
        self._second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        torch.sqrt(self._second, out=self._scale).add_(1e-8 * unbiased)
        self.parameters.addcdiv_(self._first, self._scale, value=-self._rate * unbiased / (1 - 0.9**self._steps))
        if self.working is not self.parameters:
            self.working.copy_(self.parameters)


def _normalised(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = weights.sum(1)
    return (weights / np.where(total > 0, total, 1)[:, None]).astype(np.float32), total.astype(np.float32)
