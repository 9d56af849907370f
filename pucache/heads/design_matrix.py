"""Rows of X as a linear solver wants them: centred, scaled, float32, on the device, in blocks.

What fits stays on the device; what does not is read and converted anew in every pass, so resident
memory stays bounded whatever the size of the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..devices import multiplies_bfloat16
from ..storage.mapped_arrays import release_pages, row_slices, take_rows
from .linear_algebra import leading_subspace

CPU_RESIDENT = 1 << 29  # bytes of float32 rows kept in memory on the CPU
CUDA_RESIDENT = 0.5  # of the free memory of the device
_SAMPLE = 4096  # rows that the directions of greatest variance are estimated from


@dataclass(frozen=True)
class Moments:
    """Where the rows lie.

    Attributes
    ----------
    centre : ndarray of float32, (d,)
        Their mean.
    spread : float
        Their root mean square distance from it; 1 where all are the same.
    """

    centre: np.ndarray
    spread: float

    @classmethod
    def of(cls, X: np.ndarray) -> Moments:
        """Sum up block by block, the sums of blocks in float64."""
        total, squares = np.zeros(X.shape[1]), 0.0
        origin = _floats(X[0])  # against cancellation where the mean is far from zero
        for rows in row_slices(len(X), X.shape[1]):
            block = _floats(X[rows]).sub_(origin)
            total += block.sum(0).double().numpy()
            squares += float(block.square_().sum(1).double().sum())
            release_pages(X)
        mean = total / len(X)
        spread = np.sqrt(max(squares / len(X) - float(mean @ mean), 0.0))
        return cls((mean + origin.numpy()).astype(np.float32), float(spread) if spread > 1e-12 else 1.0)

    @property
    def root_mean_square(self) -> float:
        """Of all numbers of X."""
        centre = self.centre.astype(np.float64)
        return float(np.sqrt((centre @ centre + self.spread**2) / len(centre)))


class Blocks:
    """Some rows of X as float32 blocks of (X - centre) / spread on the device.

    Parameters
    ----------
    X : ndarray of float16 or float32, (n, d)
        May be a memory map.
    rows : ndarray of int, (m,)
        Rising.
    moments : Moments
    device : torch.device
    """

    def __init__(self, X: np.ndarray, rows: np.ndarray, moments: Moments, device: torch.device):
        self._X, self._rows, self._device = X, rows, device
        self._centre, self._spread = torch.from_numpy(moments.centre), moments.spread
        self._slices = list(row_slices(len(rows), X.shape[1]))
        self._kept = [self._make(part) for part in self._slices] if self._fits() else None

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield the place of each block among `rows`, and the block, (b, d)."""
        for number, part in enumerate(self._slices):
            yield part, self._kept[number] if self._kept is not None else self._make(part)

    def __len__(self) -> int:
        return len(self._rows)

    def _fits(self) -> bool:
        needed = 4 * len(self._rows) * self._X.shape[1]
        if self._device.type == "cuda":
            return needed <= CUDA_RESIDENT * torch.cuda.mem_get_info(self._device)[0]
        return needed <= CPU_RESIDENT

    def _make(self, part: slice) -> Tensor:
        rows = self._rows[part]
        begin, end = int(rows[0]), int(rows[-1]) + 1
        if end - begin < 2 * len(rows):  # one stretch of the file rather than row by row
            block = _floats(self._X[begin:end])
            block = block if len(block) == len(rows) else block[torch.from_numpy(rows - begin)]
        else:
            block = _floats(take_rows(self._X, rows))
        release_pages(self._X)
        return block.sub_(self._centre).mul_(1 / self._spread).to(self._device)


def leading_directions(X: np.ndarray, moments: Moments, count: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Directions of greatest variance of (X - centre) / spread, estimated on evenly spaced rows.

    Returns
    -------
    directions : ndarray of float32, (d, q), orthonormal
    variances : ndarray of float32, (q,)
    rest : float
        Mean variance of all other directions; of all, where there are no others.
    """
    rows = np.linspace(0, len(X) - 1, min(len(X), _SAMPLE)).astype(np.int64)
    sample = (take_rows(X, np.unique(rows)).astype(np.float32) - moments.centre) / np.float32(moments.spread)
    d = X.shape[1]
    count = min(count, len(sample), d)
    basis = np.random.default_rng(0).normal(size=(d, count)).astype(np.float32)
    basis = leading_subspace(sample, basis)
    _, values, turn = np.linalg.svd(sample @ basis, full_matrices=False)
    variances = values**2 / len(sample)
    total = float(np.square(sample).sum() / len(sample))
    rest = max(total - float(variances.sum()), 0.0) / (d - count) if count < d else total / d
    return basis @ turn.T, variances, rest


@contextmanager
def reduced_precision(device: torch.device) -> Iterator[None]:
    """Let products of float32 matrices round to what the processor multiplies fastest; sums stay float32."""
    backend: Any = torch.backends.cuda.matmul
    fastest = "tf32"
    if device.type == "cpu":
        backend = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # the stubs lack it
        fastest = "bf16" if multiplies_bfloat16(device) else "ieee"
    before = backend.fp32_precision
    backend.fp32_precision = fastest
    try:
        yield
    finally:
        backend.fp32_precision = before


def _floats(part: np.ndarray) -> Tensor:
    """A float32 copy, in C order whatever the order of the original."""
    return torch.tensor(np.ascontiguousarray(part), dtype=torch.float32)
