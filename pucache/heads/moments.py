"""Mean and spread of the rows of X, accumulated block by block."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import torch

from ..devices import upload
from ..errors import EmbeddingsError
from ..storage.rows import RowMatrix, release_pages, row_slices, row_step

log = logging.getLogger("pucache")
_CPU = torch.device("cpu")
_LEAST_SPREAD = 1e-17  # whose squares are still exact in float32


@dataclass(frozen=True)
class Moments:
    """First and second moment of the rows of X."""

    centre: np.ndarray  # float32, (d,): mean row
    spread: float  # root mean square distance of the rows from the mean; 1 where all rows are equal

    @classmethod
    def of(cls, X: RowMatrix, device: torch.device = _CPU) -> Moments:
        """Compute the moments of X, (n, d), in blocks on a device."""
        sums = MomentSums(device)
        for rows in row_slices(len(X), X.shape[1]):
            sums.add(X[rows])
            release_pages(X)
        return sums.moments()

    @property
    def root_mean_square(self) -> float:
        """Root mean square of all values of X."""
        centre = self.centre.astype(np.float64)
        return float(np.sqrt((centre @ centre + self.spread**2) / len(centre)))


class MomentSums:
    """Sums from which `Moments` follow, accumulated over consecutive blocks of rows.

    Rows are summed in float32 in runs of a fixed length, whatever the blocks they come in, and the runs
    in float64. So the moments of several files are those of one file with the same rows, to the last bit.
    """

    def __init__(self, device: torch.device = _CPU) -> None:
        self._device, self._count = device, 0
        self._pending: list[np.ndarray] = []  # rows that do not fill a run yet

    def add(self, block: np.ndarray) -> None:
        """Add a block of rows, (b, d)."""
        step = row_step(block.shape[1])
        while len(block):
            room = step - sum(map(len, self._pending))
            if not self._pending and len(block) >= step:
                self._sum(block[:step])
            else:
                self._pending.append(block[:room].copy())
                if len(block) >= room:
                    self._sum_pending()
            block = block[room:]

    def moments(self) -> Moments:
        """Moments of all rows added so far, at least one; raises `EmbeddingsError` where their squares overflow."""
        self._sum_pending()
        total, squares = self._total.cpu().numpy(), float(self._squares)
        mean = total / self._count  # minus the origin
        spread = np.sqrt(max(squares / self._count - float(mean @ mean), 0.0))
        if not np.isfinite(spread):
            raise EmbeddingsError(
                "the squares of the embeddings overflow float32; scale them, such as by import-embeddings --normalize"
            )
        centre = (mean + self._origin.cpu().numpy()).astype(np.float32)
        if squares / self._count < _LEAST_SPREAD**2 and (total.any() or squares):
            log.warning(
                "the embeddings differ by less than %g, whose squares float32 cannot hold, so they count as equal: "
                "scale them, such as by import-embeddings --normalize",
                _LEAST_SPREAD,
            )
            spread = 0.0
        return Moments(centre=centre, spread=float(spread) or 1.0)

    def _sum_pending(self) -> None:
        if self._pending:
            self._sum(np.concatenate(self._pending))
            self._pending = []

    def _sum(self, rows: np.ndarray) -> None:
        values = upload(rows, self._device).float()
        if not self._count:
            self._origin = values[0].clone()  # against cancellation where the mean is far from zero
            self._total = torch.zeros_like(self._origin, dtype=torch.float64)
            self._squares = self._total.new_zeros(())
        values.sub_(self._origin)
        self._total += values.sum(0).double()
        self._squares += values.square_().sum(1).double().sum()
        self._count += len(values)
