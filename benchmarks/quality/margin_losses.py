"""Losses of positive-unlabelled learning from other papers, as functions of the margins of K linear heads.

Margins of P are (A, p), of U (A, u), and weights, which sum to one in every row, have the same shapes; each
function gives the value for every head, (A,), and is differentiable by torch. As a mixture of rows has the same
mixture of margins, MixUp on the embeddings costs a linear head nothing but these functions.

    variational, consistency     VPU, Chen, Liu, Wang, Zhao, Wu 2020: the variational loss and the MixUp regulariser
    distribution, entropy, mixed Dist-PU, Zhao, Xu, Jiang, Wen, Huang 2022: L_lab, L_ent and L_mix
    labelled                     sigmoid or logistic loss under hard or soft labels, what self-training is made of
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

_ROUNDING = 0.02  # of the kink of the absolute value in `distribution`, relative to the prior


def variational(m_p: Tensor, m_u: Tensor, w_p: Tensor, w_u: Tensor) -> Tensor:
    """log mean_U phi - mean_P log phi, phi the sigmoid of the margin."""
    return torch.logsumexp(logsigmoid(m_u) + w_u.log(), 1) - (w_p * logsigmoid(m_p)).sum(1)


def consistency(m_p: Tensor, m_u: Tensor, gamma: Tensor, weights: Tensor) -> Tensor:
    """Mean of (log(gamma + (1 - gamma) phi(x_u)) - log phi(gamma x_p + (1 - gamma) x_u))^2 over mixtures.

    m_p are the margins of each unlabelled row's partner, (A, u); gamma the partner's share, (u,).
    """
    target = torch.log(gamma + (1 - gamma) * torch.sigmoid(m_u))
    return (weights * (target - logsigmoid(gamma * m_p + (1 - gamma) * m_u)).square()).sum(1)


def distribution(m_p: Tensor, m_u: Tensor, w_p: Tensor, w_u: Tensor, prior: Tensor) -> Tensor:
    """1 - mean_P f + |mean_U f - prior| / (2 prior), f the sigmoid of the margin; prior (A,).

    The paper's 2 prior |mean_P f - 1| + |mean_U f - prior| over 2 prior, the scale of the authors' code, to which
    their coefficients of the other terms belong. The kink is rounded over a fiftieth of the prior.
    """
    excess = (w_u * torch.sigmoid(m_u)).sum(1) - prior
    width = _ROUNDING * prior
    return 1 - (w_p * torch.sigmoid(m_p)).sum(1) + ((excess.square() + width.square()).sqrt() - width) / (2 * prior)


def entropy(margins: Tensor, weights: Tensor) -> Tensor:
    """Mean entropy of Bernoulli(f), f the sigmoid of the margin; in nats."""
    return (weights * (softplus(margins) - margins * torch.sigmoid(margins))).sum(1)


def mixed(margins: Tensor, soft: Tensor, weights: Tensor) -> Tensor:
    """Mean cross-entropy of mixtures, whose soft labels are mixed as their rows are."""
    return (weights * (softplus(margins) - soft * margins)).sum(1)


def labelled(margins: Tensor, positive: Tensor, negative: Tensor, surrogate: str) -> Tensor:
    """Sum of positive * l(m) + negative * l(-m) over rows, l the ``sigmoid`` or ``logistic`` loss."""
    if surrogate == "sigmoid":
        return (positive * torch.sigmoid(-margins) + negative * torch.sigmoid(margins)).sum(1)
    return (positive * softplus(-margins) + negative * softplus(margins)).sum(1)
