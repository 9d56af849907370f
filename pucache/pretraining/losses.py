r"""Debiased contrastive loss over M >= 2 views of each image.

z are L2-normalised projections of B images. For an anchor (one view of one image)

    pos  = mean over the other M - 1 views of the same image of exp(z.z' / temperature)
    neg  = mean over the N = M (B - 1) views of other images of exp(z.z'' / temperature)
    g    = max((neg - tau_plus * pos) / (1 - tau_plus), exp(-1 / temperature))
    loss = -log(pos / (pos + N g)),  averaged over all M B anchors

This is the loss of Chuang et al. (2020), eq. 7 and 8, where an image drawn at random belongs to the anchor's
class with probability tau_plus. With tau_plus = 0 it is the NT-Xent loss of SimCLR (Chen et al. 2020,
eq. 1); for M > 2 the mean over the positives replaces the single positive. All terms are computed as
logarithms, so that exp(1 / temperature) does not overflow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn.functional import normalize

from .process_group import gather

_MAX_LOG_SHARE = -1e-6  # upper limit of log(tau_plus * pos / neg); beyond it g is at its bound


def contrastive_loss(z: torch.Tensor, *, temperature: float = 0.5, tau_plus: float = 0.1) -> torch.Tensor:
    """Debiased contrastive loss of the M >= 2 views of b >= 2 images: z (b, M, d), of any length; NT-Xent with
    ``tau_plus = 0``.

    Under `torch.distributed` the batch is the union over the processes, each of which must pass the same number of
    images. A process returns the mean over its own anchors against the views of all processes. The mean of these losses
    over the processes equals the loss of one process with the whole batch; so does its gradient, if parameter gradients
    are averaged. `tau_plus` is the probability that a random image is of the anchor's class.
    """
    check_parameters(temperature, tau_plus)
    if z.ndim != 3:
        raise ValueError(f"a contrastive loss takes projections (images, views, dimensions), got {tuple(z.shape)}")
    z = normalize(z.to(torch.promote_types(z.dtype, torch.float32)), dim=2)
    all_z, offset = gather(z)  # (B, M, d), index of this process's first image
    b, M, d = z.shape
    B = len(all_z)
    if B < 2 or M < 2:
        raise ValueError(f"a contrastive loss needs at least 2 images and 2 views of each, got {B} and {M}")
    logits = (z.reshape(b * M, d) @ all_z.reshape(B * M, d).T / temperature).view(b, M, B, M)
    own = torch.arange(b, device=z.device)
    same_view = torch.eye(M, dtype=torch.bool, device=z.device)
    positives = logits[own, :, own + offset, :].masked_fill(same_view, -math.inf)  # (b, M, M)
    log_pos = positives.logsumexp(2) - math.log(M - 1)
    N = M * (B - 1)
    same_image = (own + offset)[:, None, None, None] == torch.arange(B, device=z.device)[:, None]
    log_neg = logits.masked_fill(same_image, -math.inf).flatten(2).logsumexp(2) - math.log(N)
    log_g = _debiased(log_pos, log_neg, temperature, tau_plus) if tau_plus else log_neg
    return (torch.logaddexp(log_pos, log_g + math.log(N)) - log_pos).mean()


def _debiased(log_pos: torch.Tensor, log_neg: torch.Tensor, temperature: float, tau_plus: float) -> torch.Tensor:
    """Logarithm of g."""
    log_share = log_pos - log_neg + math.log(tau_plus)  # log(tau_plus pos / neg)
    positive = log_share < _MAX_LOG_SHARE
    # -1 is any value with a finite gradient: elsewhere the result is replaced by the bound
    safe = torch.where(positive, log_share, -1.0)
    log_g = log_neg + torch.log(-torch.expm1(safe)) - math.log1p(-tau_plus)
    return torch.where(positive, log_g, -math.inf).clamp_min(-1 / temperature)


def check_parameters(temperature: float, tau_plus: float) -> None:
    """Raise `ValueError` if the temperature or tau_plus is outside its domain."""
    if not 0 < temperature < math.inf:
        raise ValueError(f"the temperature must be above 0, got {temperature:g}; 0.5 is usual, 0.1 to 1 sensible")
    if not 0 <= tau_plus < 1:
        raise ValueError(f"tau-plus is a probability from 0 to below 1, got {tau_plus:g}; 0.1 is usual, 0 plain SimCLR")


@dataclass(frozen=True)
class ProjectionGeometry:
    """How the projections of a batch lie on the sphere; see `alignment` and `uniformity`."""

    alignment: float = float("nan")
    uniformity: float = float("nan")
    # standard deviation over the images times the root of the dimension: 1 for projections evenly spread over the
    # sphere, 0 if all coincide
    spread: float = float("nan")


def projection_geometry(z: torch.Tensor) -> ProjectionGeometry:
    """Measure the geometry of projections of M views of b images, (b, M, d), of any length."""
    first = normalize(z[:, 0].float(), dim=1)
    spread = first.std(0, correction=0).square().sum().sqrt()
    return ProjectionGeometry(*torch.stack([alignment(z), uniformity(z), spread]).tolist())  # one wait for the device


def alignment(z: torch.Tensor) -> torch.Tensor:
    """Mean squared distance on the sphere of two views of an image, z (b, M, d); best 0 (Wang & Isola 2020, eq. 4)."""
    z = normalize(z.float(), dim=2)
    return 2 * z.var(1).sum(1).mean()  # E|a - b|² of two draws is twice the variance


def uniformity(z: torch.Tensor) -> torch.Tensor:
    """Logarithm of the mean of exp(-2 distance²) over pairs of images, by the first views in z (b, M, d).

    0 if all images coincide, about -4 if they fill the sphere, NaN for a single image (Wang & Isola 2020, eq. 5).
    """
    first = normalize(z[:, 0].float(), dim=1)
    squared = 2 - 2 * (first @ first.T)
    pairs = torch.triu_indices(len(first), len(first), 1, device=z.device)
    return torch.exp(-2 * squared[pairs[0], pairs[1]]).mean().log()
