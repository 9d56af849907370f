"""Alignment, uniformity and spread: how the projections of a batch lie on the sphere."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import normalize


@dataclass(frozen=True)
class ProjectionGeometry:
    """How the projections of a batch lie on the sphere.

    Attributes
    ----------
    alignment : float
        See `alignment`.
    uniformity : float
        See `uniformity`.
    spread : float
        Standard deviation over the images times the root of the dimension: 1 for projections evenly spread
        over the sphere, 0 if all coincide.
    """

    alignment: float = float("nan")
    uniformity: float = float("nan")
    spread: float = float("nan")


def projection_geometry(z: torch.Tensor) -> ProjectionGeometry:
    """Measure the geometry of projections.

    Parameters
    ----------
    z : tensor, (b, M, d)
        Projections of M views of b images, of any length.

    Returns
    -------
    ProjectionGeometry
    """
    first = normalize(z[:, 0].float(), dim=1)
    spread = first.std(0, correction=0).square().sum().sqrt()
    return ProjectionGeometry(*torch.stack([alignment(z), uniformity(z), spread]).tolist())  # one wait for the device


def alignment(z: torch.Tensor) -> torch.Tensor:
    """Mean squared distance on the sphere of two views of one image; 0 is best (Wang & Isola 2020, eq. 4).

    Parameters
    ----------
    z : tensor, (b, M, d)
    """
    z = normalize(z.float(), dim=2)
    return 2 * z.var(1).sum(1).mean()  # E|a - b|² of two draws is twice the variance


def uniformity(z: torch.Tensor) -> torch.Tensor:
    """Logarithm of the mean of exp(-2 distance²) over pairs of different images (Wang & Isola 2020, eq. 5).

    0 if all images coincide, about -4 if they fill the sphere, NaN for a single image.

    Parameters
    ----------
    z : tensor, (b, M, d)
        Only the first view of each image is used.
    """
    first = normalize(z[:, 0].float(), dim=1)
    squared = 2 - 2 * (first @ first.T)
    pairs = torch.triu_indices(len(first), len(first), 1, device=z.device)
    return torch.exp(-2 * squared[pairs[0], pairs[1]]).mean().log()
