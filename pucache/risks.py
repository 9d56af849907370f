r"""Risks of positive-unlabelled learning: value and gradient in the margins.

With m a margin, s = 1 the labelled positives P, s = 0 the unlabelled U, prior = p(y=1 | s=0), and
l(m) the loss of margin m under the positive label (l(-m) under the negative one):

    R+ = a * mean_P l(m)
    R- = c * [ mean_U l(-m) - prior * mean_P l(m') ],   m' = -m

    upu, nnpu        a = prior,        c = 1                                  (Kiryo et al. 2017, eq. 6)
    imbupu, imbnnpu  a = target_prior, c = (1 - target_prior) / (1 - prior)   (Su, Chen, Xu 2021)

Every mean is a *weighted mean*: weights are normalised to sum to one over the P rows, and over the
U rows, of each head. The non-negative ones (nn) follow Kiryo's algorithm 1: where R- < -beta, the
reported value is R+ - beta and the step goes against R- alone, -gamma * dR-; value and stepped
gradient are therefore two different things there. A P term over no rows counts as zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus


def _sigmoid_loss(margins: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    negative = torch.sigmoid(margins)  # l(-m)
    slope = negative * (1 - negative)
    return 1 - negative, -slope, negative, slope


def _logistic_loss(margins: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rising = torch.sigmoid(margins)
    return softplus(-margins), rising - 1, softplus(margins), rising


# margins -> l(m), its derivative, l(-m), its derivative
LOSSES: dict[str, Callable[[Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]] = {
    "sigmoid": _sigmoid_loss,
    "logistic": _logistic_loss,
}
_IMBALANCED = {"upu": False, "nnpu": False, "imbupu": True, "imbnnpu": True}
_CLAMPED = {"upu": False, "nnpu": True, "imbupu": False, "imbnnpu": True}
RISKS = tuple(_IMBALANCED)


@dataclass(frozen=True)
class PURisk:
    """One of `RISKS`, for any number of heads at once.

    Parameters
    ----------
    name : {"upu", "nnpu", "imbupu", "imbnnpu"}
    loss : {"sigmoid", "logistic"}
    target_prior : float
        Weight of the positive part in the imbalanced risks, in (0, 1).
    beta, gamma : float
        Kiryo's slack and step size where the negative part is clamped.

    Raises
    ------
    ValueError
        A name is unknown or a number outside its domain.
    """

    name: str = "imbnnpu"
    loss: str = "sigmoid"
    target_prior: float = 0.5
    beta: float = 0.0
    gamma: float = 1.0

    def __post_init__(self) -> None:
        if self.name not in RISKS:
            raise ValueError(f"unknown risk {self.name!r}; use {', '.join(RISKS)}")
        if self.loss not in LOSSES:
            raise ValueError(f"unknown loss {self.loss!r}; use {', '.join(LOSSES)}")
        if not 0 < self.target_prior < 1:
            raise ValueError(f"target_prior must lie strictly between 0 and 1, got {self.target_prior}")
        if not self.beta >= 0 or not 0 <= self.gamma <= 1:
            raise ValueError(f"beta must be >= 0 and gamma in [0, 1], got {self.beta} and {self.gamma}")

    def value_and_step(self, margins: Tensor, weights: Tensor, is_positive: Tensor, prior: Tensor) -> RiskStep:
        """Evaluate the risk of K heads on b rows.

        Parameters
        ----------
        margins : (b, K) tensor
        weights : (b, K) tensor
            Row weights of each head, >= 0; normalised here.
        is_positive : (b, 1) tensor of 0 and 1
        prior : (K,) tensor

        Returns
        -------
        RiskStep
        """
        w_pos = _normalised(weights * is_positive)  # (b, K)
        w_unl = _normalised(weights * (1 - is_positive))
        loss_pos, slope_pos, loss_neg, slope_neg = LOSSES[self.loss](margins)
        imbalanced = _IMBALANCED[self.name]
        a = torch.full_like(prior, self.target_prior) if imbalanced else prior
        c = (1 - self.target_prior) / (1 - prior) if imbalanced else torch.ones_like(prior)
        positive_part = a * (w_pos * loss_pos).sum(0)  # (K,)
        balance = w_unl - prior * w_pos  # (b, K)
        negative_part = c * (balance * loss_neg).sum(0)
        step_negative = c * balance * slope_neg
        value, step = positive_part + negative_part, a * w_pos * slope_pos + step_negative
        clamped = torch.zeros_like(prior, dtype=torch.bool)
        if _CLAMPED[self.name]:
            clamped = negative_part < -self.beta
            value = torch.where(clamped, positive_part - self.beta, value)
            step = torch.where(clamped, -self.gamma * step_negative, step)
        return RiskStep(value, step, clamped)


@dataclass(frozen=True)
class RiskStep:
    """What a risk says about one batch.

    Attributes
    ----------
    value : (K,) tensor
        The reported risk.
    step : (b, K) tensor
        The gradient to follow, in the margins; where `clamped`, not the gradient of `value`.
    clamped : (K,) bool tensor
        Heads whose negative part fell below -beta.
    """

    value: Tensor
    step: Tensor
    clamped: Tensor


def _normalised(weights: Tensor) -> Tensor:
    total = weights.sum(0)
    return weights / torch.where(total > 0, total, torch.ones_like(total))
