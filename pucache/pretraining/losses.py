r"""Contrastive losses over M >= 2 views of each image.

z are L2-normalised projections of B images; for an anchor (one view of one image)

    pos  = mean over the other M - 1 views of its image of exp(z.z' / temperature)
    neg  = mean over the N = M (B - 1) views of other images of exp(z.z'' / temperature)
    g    = max((neg - tau_plus * pos) / (1 - tau_plus), exp(-1 / temperature))
    loss = -log(pos / (pos + N g)),  averaged over all M B anchors

which is the debiased contrastive loss of Chuang et al. (2020), eq. 7 and 8, for one image drawn as its
own class with probability tau_plus, and with tau_plus = 0 the NT-Xent loss of SimCLR (Chen et al.
2020, eq. 1; with M > 2 the mean of the positives stands in the place of the one). Everything is
computed in the logarithm, so that exp(1 / temperature) overflows at no temperature.
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import normalize

from .process_group import all_gather_with_gradients

_NEARLY_ALL = -1e-6  # log of the share of neg that tau_plus * pos may take before the bound holds


def contrastive_loss(z: torch.Tensor, *, temperature: float = 0.5, tau_plus: float = 0.1) -> torch.Tensor:
    """Debiased contrastive loss of the images of one batch; NT-Xent with ``tau_plus = 0``.

    Under `torch.distributed` the views of all processes are the batch: each process returns the mean
    over its own anchors against the views of everybody. The mean of that over the processes is the
    loss of one process with the whole batch, and so is, with the gradients of parameters averaged, its
    gradient. Every process must bring as many images.

    Parameters
    ----------
    z : tensor, (b, M, d)
        Projections of M views of b images, of any length; normalised here, in float32 or better.
    temperature : float
        tau > 0.
    tau_plus : float
        Probability that an image drawn at random is of the anchor's class, in [0, 1).

    Returns
    -------
    tensor, ()

    Raises
    ------
    ValueError
        Not three axes, fewer than two images or views, or a parameter outside its domain.
    """
    check_parameters(temperature, tau_plus)
    if z.ndim != 3:
        raise ValueError(f"a contrastive loss takes projections (images, views, dimensions), got {tuple(z.shape)}")
    z = normalize(z.to(torch.promote_types(z.dtype, torch.float32)), dim=2)
    everybody, first = all_gather_with_gradients(z)
    b, M, d = z.shape
    B = len(everybody)
    if B < 2 or M < 2:
        raise ValueError(f"a contrastive loss needs at least 2 images and 2 views of each, got {B} and {M}")
    logits = (z.reshape(b * M, d) @ everybody.reshape(B * M, d).T / temperature).view(b, M, B, M)
    own = torch.arange(b, device=z.device)
    itself = torch.eye(M, dtype=torch.bool, device=z.device)
    same_image = logits[own, :, own + first, :].masked_fill(itself, -math.inf)  # (b, M, M)
    log_pos = same_image.logsumexp(2) - math.log(M - 1)
    N = M * (B - 1)
    others = logits.masked_fill(
        (own + first)[:, None, None, None] == torch.arange(B, device=z.device)[:, None], -math.inf
    )
    log_neg = others.flatten(2).logsumexp(2) - math.log(N)
    log_g = _debiased(log_pos, log_neg, temperature, tau_plus) if tau_plus else log_neg
    return (torch.logaddexp(log_pos, log_g + math.log(N)) - log_pos).mean()


def _debiased(log_pos: torch.Tensor, log_neg: torch.Tensor, temperature: float, tau_plus: float) -> torch.Tensor:
    """Logarithm of g."""
    share = log_pos - log_neg + math.log(tau_plus)  # log of tau_plus pos / neg
    positive = share < _NEARLY_ALL
    rest = torch.where(positive, share, -1.0)  # where it is not, any number of which the gradient is finite
    log_g = log_neg + torch.log(-torch.expm1(rest)) - math.log1p(-tau_plus)
    return torch.where(positive, log_g, -math.inf).clamp_min(-1 / temperature)


def check_parameters(temperature: float, tau_plus: float) -> None:
    """Raise `ValueError` unless both are in their domain."""
    if not 0 < temperature < math.inf:
        raise ValueError(f"the temperature must be above 0, got {temperature:g}; 0.5 is usual, 0.1 to 1 sensible")
    if not 0 <= tau_plus < 1:
        raise ValueError(f"tau-plus is a probability from 0 to below 1, got {tau_plus:g}; 0.1 is usual, 0 plain SimCLR")


def alignment(z: torch.Tensor) -> torch.Tensor:
    """Mean squared distance of two views of one image, on the sphere; 0 is best (Wang & Isola 2020, eq. 4).

    Parameters
    ----------
    z : tensor, (b, M, d)
    """
    z = normalize(z.float(), dim=2)
    return 2 * z.var(1).sum(1).mean()  # two draws differ, squared, by twice the variance


def uniformity(z: torch.Tensor) -> torch.Tensor:
    """Logarithm of the mean of exp(-2 distance²) over pairs of different images (Wang & Isola 2020, eq. 5).

    0 where all images fall on one point, about -4 where they fill the sphere, NaN where there is only one.

    Parameters
    ----------
    z : tensor, (b, M, d)
        The first view of each counts.
    """
    first = normalize(z[:, 0].float(), dim=1)
    squared = 2 - 2 * (first @ first.T)
    pairs = torch.triu_indices(len(first), len(first), 1, device=z.device)
    return torch.exp(-2 * squared[pairs[0], pairs[1]]).mean().log()
