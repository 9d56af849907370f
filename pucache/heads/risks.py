r"""Risks of positive-unlabelled learning: value and gradient in the margins.

With m a margin, s = 1 the labelled positives P, s = 0 the unlabelled U, prior = p(y=1 | s=0), and
l(m) the loss of margin m under the positive label (l(-m) under the negative one), every risk is the sum of::

    R+ = a * mean_P l(m)
    R- = u * mean_U l(-m) + p * mean_P l(-m)

with the coefficients::

    name              a             u                      p             source
    upu, nnpu         prior         1                      -prior        Kiryo et al. 2017, eq. 4 and 6
    imbupu, imbnnpu   t             (1 - t) / (1 - prior)  -prior * u    Su, Chen, Xu 2021
    weighted_bce      t             1 - t                  0             U taken for negative
    bce               share of P    share of U             0             U taken for negative

with t = target_prior. Every mean is a *weighted mean*: weights are normalised to sum to one over
the P rows, and over the U rows, of each head. A mean over no rows counts as zero. The supervised
ceilings are `weighted_bce` and `bce` with the true classes in the place of s.

The non-negative ones (nn) follow Kiryo's algorithm 1: where R- < -beta, the reported value is
R+ - beta and the step goes against R- alone, -gamma * dR-; value and stepped gradient are
therefore two different things there.

With the sigmoid loss, l(m) + l(-m) = 1, and the imbalanced risk is, but for a constant, a weighting
of two means whose ratio at target_prior = 1/2 is one for *every* prior: imbupu then has the same
minimiser whatever the prior, and imbnnpu as long as its clamp does not act.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

SURROGATES = ("sigmoid", "logistic")
RISKS = ("upu", "nnpu", "imbupu", "imbnnpu", "weighted_bce", "bce")
_CLAMPED = ("nnpu", "imbnnpu")


def negative_loss(surrogate: str, margins: Tensor) -> tuple[Tensor, Tensor]:
    """Loss under the negative label, l(-m), and its derivative in m."""
    sigmoid = torch.sigmoid(margins)
    if surrogate == "sigmoid":
        return sigmoid, sigmoid * (1 - sigmoid)
    return softplus(margins), sigmoid


def positive_loss(surrogate: str, margins: Tensor) -> tuple[Tensor, Tensor]:
    """Loss under the positive label, l(m), and its derivative in m."""
    value, slope = negative_loss(surrogate, -margins)
    return value, -slope


@dataclass(frozen=True)
class Coefficients:
    """The weights of the three means of a risk.

    Attributes
    ----------
    a, u, p : (K,) tensor
    """

    a: Tensor
    u: Tensor
    p: Tensor

    @property
    def total(self) -> Tensor:
        """Sum of their magnitudes, (K,): the scale of the risk, which a penalty is relative to."""
        return self.a + self.u + self.p.abs()


@dataclass(frozen=True)
class PURisk:
    """One of `RISKS`, for any number of heads at once.

    Parameters
    ----------
    name : {"upu", "nnpu", "imbupu", "imbnnpu", "weighted_bce", "bce"}
    surrogate : {"sigmoid", "logistic"}, optional
        Sigmoid by default; logistic (cross-entropy) for the two ``bce``, which allow no other.
    target_prior : float
        Weight of the positive part in the imbalanced and weighted risks, in (0, 1).
    beta, gamma : float
        Kiryo's slack, and step size where the negative part is clamped.

    Raises
    ------
    ValueError
        A name is unknown or a number outside its domain.
    """

    name: str = "imbupu"
    surrogate: str | None = None
    target_prior: float = 0.5
    beta: float = 0.0
    gamma: float = 1.0

    def __post_init__(self) -> None:
        if self.name not in RISKS:
            raise ValueError(f"unknown loss {self.name!r}; use {', '.join(RISKS)}")
        cross_entropy = self.name.endswith("bce")
        if self.surrogate is None:
            object.__setattr__(self, "surrogate", "logistic" if cross_entropy else "sigmoid")
        if self.surrogate not in SURROGATES:
            raise ValueError(f"unknown surrogate {self.surrogate!r}; use {', '.join(SURROGATES)}")
        if cross_entropy and self.surrogate != "logistic":
            raise ValueError(f"{self.name} is cross-entropy: its surrogate is logistic, got {self.surrogate!r}")
        if not 0 < self.target_prior < 1:
            raise ValueError(f"target_prior must lie strictly between 0 and 1, got {self.target_prior}")
        if not self.beta >= 0 or not 0 <= self.gamma <= 1:
            raise ValueError(f"beta must be >= 0 and gamma in [0, 1], got {self.beta} and {self.gamma}")

    @property
    def clamped(self) -> bool:
        """Whether the negative part is held above -beta."""
        return self.name in _CLAMPED

    @property
    def needs_prior(self) -> bool:
        """Whether the minimiser depends on the prior."""
        is_even = self.surrogate == "sigmoid" and self.target_prior == 0.5  # both means weigh alike at every prior
        return not (self.name == "imbupu" and is_even) and not self.name.endswith("bce")

    def coefficients(self, prior: Tensor, share_labelled: Tensor) -> Coefficients:
        """Weights of the three means.

        Parameters
        ----------
        prior : (K,) tensor
        share_labelled : (K,) tensor
            Weight of the P rows over that of all rows; only ``bce`` looks at it.

        Returns
        -------
        Coefficients
            a, u and p, (K,) each.
        """
        one, zero = torch.ones_like(prior), torch.zeros_like(prior)
        if self.name in ("upu", "nnpu"):
            return Coefficients(prior, one, -prior)
        if self.name in ("imbupu", "imbnnpu"):
            u = (1 - self.target_prior) / (1 - prior)
            return Coefficients(self.target_prior * one, u, -prior * u)
        if self.name == "weighted_bce":
            return Coefficients(self.target_prior * one, (1 - self.target_prior) * one, zero)
        return Coefficients(share_labelled, 1 - share_labelled, zero)

    def combine(self, positive_part: Tensor, negative_part: Tensor) -> tuple[Tensor, Tensor]:
        """Reported value, and where the clamp acts.

        Parameters
        ----------
        positive_part, negative_part : (K,) tensor
            R+ and R-.

        Returns
        -------
        value : (K,) tensor
        clamped : (K,) bool tensor
        """
        if not self.clamped:
            return positive_part + negative_part, torch.zeros_like(negative_part, dtype=torch.bool)
        return positive_part + negative_part.clamp(min=-self.beta), negative_part < -self.beta
