"""The training step of the minibatch solver on a GPU, in few kernels.

With one head, a step is far shorter than the launch of a kernel, so kernels are what counts. Products
and Adam are one each, and so is the penalty. What remains depends on the loss:

sigmoid
    With rows turned to their own label (`pucache.heads.minibatch_rounds`), every loss of the risk is the
    sigmoid of a margin, or 1 minus it, and the step is ``factor * sigmoid * (1 - sigmoid)``. Two kernels.
sigmoid, clamped
    Two more: R- + beta, and the choice of the factor. Where the clamp does not act, the factor is nowhere
    negative, and where it acts nowhere positive. So R- + beta times a huge number, limited to these two, is
    the chosen one.
logistic
    The step is ``factor * sigmoid - constant``. Two kernels; seven where the risk is clamped: the
    loss is then needed beside the sigmoid, and both factor and constant are chosen.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from .minibatch_rounds import ClampTerms, Rounds

_HUGE = 1e30  # times R- + beta: beyond every weight, and within float32
_PARTS = 32  # of the parameters, which Adam's kernel spreads over the device by; up to 36 are one launch


class TrainingStep:
    """Adam (Kingma and Ba 2015) on coefficients and intercepts.

    Parameters
    ----------
    rounds : Rounds
    parameters : tensor, (K, d + 1)
    penalty : tensor, (K,)
    learning_rate : float

    Attributes
    ----------
    parameters : tensor, (K, columns)
        Columns as those of `Rounds.X`.
    state : list of tensor
        All that training changes.
    """

    def __init__(self, rounds: Rounds, parameters: Tensor, penalty: Tensor | None, learning_rate: float):
        self._rounds, self._rate = rounds, learning_rate
        heads, used = parameters.shape
        shape, device = (heads, rounds.X.shape[2]), parameters.device
        self.parameters = torch.zeros(shape, device=device)
        self.parameters[:, :used] = parameters
        self._gradient, first, second = (torch.zeros(shape, device=device) for _ in range(3))
        self._penalty = None
        if penalty is not None:  # for the coefficients, not for the intercept
            self._penalty = torch.zeros(shape, device=device)
            self._penalty[:, : used - 1] = penalty[:, None]
        self.state = [self.parameters, first, second]
        self._adam = [list(matrix.chunk(_PARTS)) for matrix in (self.parameters, self._gradient, first, second)]
        self._margins = torch.empty((heads, rounds.size), device=device)
        self._numbers = torch.arange(1.0, rounds.length + 1, device=device)
        self._steps = torch.empty_like(self._numbers)
        self._zero = torch.zeros((), device=device)

    def begin_round(self, steps: int) -> None:
        """Number the steps of the round, after so many before: Adam corrects its means by them."""
        torch.add(self._numbers, steps, out=self._steps)

    def __call__(self, number: int) -> None:
        """Update the parameters on a batch of the round."""
        X = self._rounds.X[number]  # (size, columns)
        torch.mm(self.parameters, X.T, out=self._margins)
        constant = self._rounds.constant
        step = self._sigmoid(number) if constant is None else self._logistic(number, constant[number])
        torch.mm(step, X, out=self._gradient)
        if self._penalty is not None:
            self._gradient.addcmul_(self.parameters, self._penalty)
        parameters, gradient, first, second = self._adam
        torch._fused_adam_(  # the update of torch.optim.Adam(fused=True)
            parameters,
            gradient,
            first,
            second,
            [],
            [self._steps[number]] * len(parameters),
            lr=self._rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    def _sigmoid(self, number: int) -> Tensor:
        """Step in the margins, (K, size)."""
        loss, factor, clamp = self._margins.sigmoid_(), self._rounds.factor[number], self._rounds.clamp
        if clamp is not None:
            factor = torch.clamp(_slack(clamp, number, loss, times=_HUGE), min=clamp.factor[number], max=factor)
        return torch.ops.aten.sigmoid_backward.grad_input(factor, loss, grad_input=loss)

    def _logistic(self, number: int, constant: Tensor) -> Tensor:
        """Step in the margins, (K, size)."""
        margins, factor, clamp = self._margins, self._rounds.factor[number], self._rounds.clamp
        if clamp is not None:
            acts = _slack(clamp, number, softplus(margins)) < 0
            factor = torch.where(acts, clamp.factor[number], factor)
            constant = torch.where(acts, self._zero, constant)
        torch.ops.aten.softplus_backward.grad_input(factor, margins, 1, 20, grad_input=margins)
        return margins.sub_(constant)


def _slack(clamp: ClampTerms, number: int, loss: Tensor, times: float = 1) -> Tensor:
    """R- + beta, times a factor, (K, 1); negative where the clamp acts. It overwrites what it starts from."""
    balance = clamp.balance[number].unsqueeze(2).expand(len(loss), -1, -1)  # (K, size, 1)
    return clamp.slack[number].baddbmm_(loss.unsqueeze(1), balance, beta=times, alpha=times)[:, 0]
