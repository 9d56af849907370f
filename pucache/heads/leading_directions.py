"""Directions of greatest variance of the rows, estimated on the host or on a device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..storage.rows import RowMatrix, take_rows
from .device_rows import download, upload
from .linear_algebra import leading_subspace
from .moments import Moments

_SAMPLE = 4096  # rows that the leading directions are estimated from
_ITERATIONS = 3  # of the subspace iteration on a device, as in `leading_subspace`


@dataclass(frozen=True)
class LeadingDirections:
    """Directions of greatest variance of (X - centre) / spread.

    Attributes
    ----------
    directions : ndarray of float32, (d, q)
        Orthonormal columns.
    variances : ndarray of float32, (q,)
        Along each of them.
    rest : float
        Mean variance of all other directions; of all directions where there are no others.
    """

    directions: np.ndarray
    variances: np.ndarray
    rest: float


def sample_rows(n: int) -> np.ndarray:
    """Numbers of the evenly spaced rows that leading directions are estimated on, int64, ascending.

    Parameters
    ----------
    n : int
        Rows of X.
    """
    return np.unique(np.linspace(0, n - 1, min(n, _SAMPLE)).astype(np.int64))


def leading_directions(X: RowMatrix, moments: Moments, count: int) -> LeadingDirections:
    """Estimate the directions of greatest variance on evenly spaced rows, by subspace iteration.

    Parameters
    ----------
    X : ndarray, (n, d)
    moments : Moments
    count : int
        At most so many directions; no more than rows in the sample or dimensions.
    """
    sample = (take_rows(X, sample_rows(len(X))).astype(np.float32) - moments.centre) / np.float32(moments.spread)
    basis = leading_subspace(sample, _start(sample.shape, count))
    _, values, rotation = np.linalg.svd(sample @ basis, full_matrices=False)
    variances = values**2 / len(sample)
    total = float(np.square(sample).sum() / len(sample))
    return LeadingDirections(basis @ rotation.T, variances, _rest(total, variances, X.shape[1]))


def leading_directions_on_device(sample: Tensor, count: int) -> LeadingDirections:
    """Estimate them as `leading_directions` does, on the device of the sample; the host waits once.

    Parameters
    ----------
    sample : (m, d) tensor of float32
        Evenly spaced rows of (X - centre) / spread, see `sample_rows`.
    count : int
    """
    m, d = sample.shape
    basis = upload(_start((m, d), count), sample.device)
    for _ in range(_ITERATIONS):
        basis = torch.linalg.qr(sample.T @ (sample @ basis))[0]
    projected = (sample @ basis).double()
    squares = sample.square().sum(dtype=torch.float64)
    directions, products, total = download(basis.double(), projected.T @ projected, squares)
    values, rotation = np.linalg.eigh(products)  # ascending
    variances = (values[::-1].clip(0) / m).astype(np.float32)
    rotated = (directions @ rotation[:, ::-1]).astype(np.float32)
    return LeadingDirections(rotated, variances, _rest(float(total) / m, variances, d))


def _start(shape: tuple[int, ...], count: int) -> np.ndarray:
    """Normal draws, (d, q), that the subspace iteration starts from; the same in every run."""
    m, d = shape
    return np.random.default_rng(0).normal(size=(d, min(count, m, d))).astype(np.float32)


def _rest(total: float, variances: np.ndarray, d: int) -> float:
    """Mean variance of all other directions, given the sum over all directions."""
    count = len(variances)
    return float(max(total - float(variances.sum()), 0.0) / (d - count) if count < d else total / d)
