"""Rows of a source on a GPU: uploaded once where they fit into its memory, else block by block in each pass."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import torch
from torch import Tensor

from ..heads.device_rows import free_memory, upload
from .row_source import RowSource

SHARE = 0.5  # of the free memory that rows may take
_log = logging.getLogger(__name__)


class DeviceSource:
    """Rows of a source on a GPU, as they are stored.

    Rows that fit into half of the free memory are uploaded in the first pass, and kept. Others are read and
    uploaded again in each pass, which a message says.

    Parameters
    ----------
    source : RowSource
    device : torch.device
        A GPU.
    """

    def __init__(self, source: RowSource, device: torch.device):
        self.source, self.device = source, device
        self._kept: list[tuple[slice, Tensor]] | None = None
        self._fits: bool | None = None

    def __len__(self) -> int:
        return len(self.source)

    def blocks(self, *, check: bool = False) -> Iterator[tuple[slice, Tensor]]:
        """Yield (rows, X (b, d)) in order, X on the GPU.

        Parameters
        ----------
        check : bool
            Check the blocks that are read against the checksums of a cache.
        """
        if self._kept is not None:
            yield from self._kept
            return
        kept = []
        for rows, X in self.source.blocks(check=check):
            block = upload(X, self.device)
            if self._has_room(X.itemsize):
                kept.append((rows, block))
            yield rows, block
        if self._fits:
            self._kept = kept

    def _has_room(self, itemsize: int) -> bool:
        if self._fits is None:
            needed, free = len(self) * self.source.d * itemsize, free_memory(self.device)
            self._fits = needed <= SHARE * free
            if not self._fits:
                _log.info(
                    "%s rows (%.1f GB) do not fit into half of the free memory of the GPU (%.1f GB free); they are "
                    "streamed in blocks",
                    f"{len(self):,}",
                    needed / 1e9,
                    free / 1e9,
                )
        return self._fits
