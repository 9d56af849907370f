"""Whitening on a GPU: the estimates and the rows of `pucache.neighbours.whitening`, up to rounding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ..heads.device_rows import upload
from . import whitening as on_host
from .device_source import DeviceSource
from .whitening import Whitening

_OVERSAMPLING, _ITERATIONS = 10, 3  # of the randomized decomposition, as in `truncated_svd`


class DeviceWhitening:
    """A whitening, applied on a GPU; its length is the number of its directions.

    Parameters
    ----------
    whitening : Whitening
    device : torch.device
    """

    def __init__(self, whitening: Whitening, device: torch.device):
        self.mean = upload(whitening.mean, device)
        self._directions = upload(whitening.directions, device)
        self._scale = upload(whitening.scale, device)

    def __len__(self) -> int:
        return len(self._scale)

    def centred_units(self, X: Tensor) -> Tensor:
        """As `Whitening.centred_units`, float32 (b, d)."""
        return centred_units(X, self.mean)

    def whiten(self, X: Tensor) -> Tensor:
        """Whitened rows of X (b, d), float32 (b, q); zero where a row equals the mean."""
        whitened = torch.mm(self.centred_units(X), self._directions.T).mul_(self._scale)
        return whitened.div_(_norms(whitened))


def centred_units(X: Tensor, mean: Tensor) -> Tensor:
    """Rows of X less the mean, at unit norm, float32 (b, d); zero where a row equals the mean."""
    rows = X.float() if X.dtype == torch.float16 else X.double()  # squares of float32 may overflow
    rows -= mean
    return rows.div_(_norms(rows)).float()


def _norms(rows: Tensor) -> Tensor:
    """Norms of the rows, (b, 1); 1 for rows of zeros."""
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return norms.masked_fill_(norms == 0, 1)


def estimate(rows: DeviceSource) -> Whitening:
    """As `Whitening.estimate`; checks the checksums of a cache in the first pass.

    Parameters
    ----------
    rows : DeviceSource
        At least one row.

    Raises
    ------
    CacheError, ValueError
        A row is not finite, or the cache is damaged.
    """
    total = torch.zeros(rows.source.d, dtype=torch.float64, device=rows.device)
    for _, X in rows.blocks(check=True):
        total += X.sum(0, dtype=torch.float64)
    mean = (total / len(rows)).float()
    if not bool(torch.isfinite(total).all()):
        on_host.mean_of(rows.source)  # raises the error that names the rows
    sample = _sample(rows, mean)
    count = min(on_host.DIRECTIONS, *sample.shape)
    values, directions = _truncated_svd(sample, count)
    squares = sample.square().sum(dtype=torch.float64).float().view(1)
    packed = torch.cat([squares, mean, values, directions.reshape(-1)]).cpu().numpy()
    total_squares, host_mean, singular, flat = np.split(packed, np.cumsum([1, rows.source.d, count]))
    return Whitening.of_sample(host_mean, singular, flat.reshape(count, -1), n=len(sample), squares=total_squares[0])


def _sample(rows: DeviceSource, mean: Tensor) -> Tensor:
    """Centred unit rows that the covariance is estimated from, the same as on the CPU."""
    step = -(-len(rows) // on_host.SAMPLE)
    parts = [X[-part.start % step :: step] for part, X in rows.blocks()]
    return torch.cat([centred_units(part, mean) for part in parts if len(part)])


def _truncated_svd(A: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """As `pucache.heads.linear_algebra.truncated_svd`."""
    wide = A.shape[0] < A.shape[1]
    M = A.T if wide else A
    draws = np.random.RandomState(0).normal(size=(M.shape[1], count + _OVERSAMPLING))
    basis = upload(draws.astype(np.float32), A.device)
    for _ in range(_ITERATIONS):
        basis = torch.linalg.qr(M.T @ (M @ basis))[0]
    basis = torch.linalg.qr(M @ basis)[0]
    left, values, right = torch.linalg.svd(basis.T @ M, full_matrices=False)
    return values[:count], ((basis @ left).T if wide else right)[:count]


def whitened_rows(rows: DeviceSource, whitening: DeviceWhitening) -> tuple[Tensor, np.ndarray]:
    """Whitened rows that have a direction: float32 (m, q) on the GPU; and their numbers, int64 (m,).

    The host waits once.

    Raises
    ------
    CacheError, ValueError
        A row is not finite: the error of the source.
    """
    Z = torch.empty(len(rows), len(whitening), device=rows.device)
    for part, block in whitened_blocks(rows, whitening):
        Z[part] = block
    numbers = directed_rows(rows, row_states(Z).cpu().numpy())
    return (Z if len(numbers) == len(Z) else Z.index_select(0, upload(numbers, rows.device))), numbers


def whitened_blocks(rows: DeviceSource, whitening: DeviceWhitening) -> Iterator[tuple[slice, Tensor]]:
    """Yield (rows, Z (b, q)) in order, on the GPU; rows without a direction are zero."""
    for part, X in rows.blocks():
        yield part, whitening.whiten(X)


def row_states(Z: Tensor) -> Tensor:
    """For each row of Z: 0 without direction, 1 with one, 2 or more where it is not finite; uint8 (b,)."""
    return Z.any(1).byte() + 2 * (~Z.isfinite().all(1)).byte()


def directed_rows(rows: DeviceSource, states: np.ndarray) -> np.ndarray:
    """Numbers of the rows that have a direction, by `row_states` of all rows; raises for rows that are not finite."""
    if (states > 1).any():
        raise rows.source.not_finite_error(np.flatnonzero(states > 1))
    return np.flatnonzero(states)
