"""Rows of X on a CUDA device: they go up once, as they are stored, and become float32 there.

What does not fit streams. Where X as stored is larger than the memory, each pass uploads its blocks; where
only the float32 rows are, each pass converts its blocks on the device.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ..storage.rows import RowMatrix, release_pages, row_slices, take_rows
from .moments import Moments

STORED_SHARE = 0.6  # of the free device memory that X as stored may take
FLOAT32_SHARE = 0.5  # of the memory then free that float32 rows may take
_MARGINS_SHARE = 0.25  # of the free memory that margins of a block and what follows from them may take
_BYTES_PER_MARGIN = 48  # the margin, losses, derivatives, weights and what they are computed from
_CONVERTED_VALUES = 1 << 28  # of a block that every pass converts
_SUMMED_VALUES = 1 << 26  # of the rows that moments sum at once
_LEAST_ROWS = 256  # of a block

log = logging.getLogger("pucache")


def free_memory(device: torch.device) -> int:
    """Bytes that tensors may take on a CUDA device; what torch holds for later tensors counts as free."""
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + held


def upload(values: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to a device; the host does not wait for a GPU.

    Parameters
    ----------
    values : ndarray
        float64 becomes float32; on the CPU the tensor shares its memory.
    device : torch.device
    """
    if device.type == "cpu":
        return torch.from_numpy(values)
    pinned = torch.empty(values.shape, dtype=_tensor_type(values.dtype), pin_memory=True)
    pinned.numpy()[...] = values
    return pinned.to(device, non_blocking=True)


def download(*tensors: Tensor) -> list[np.ndarray]:
    """Copy tensors of one type and device to the host, which waits once."""
    packed = torch.cat([values.flatten() for values in tensors]).cpu().numpy()
    parts = np.split(packed, np.cumsum([values.numel() for values in tensors])[:-1])
    return [part.reshape(values.shape) for part, values in zip(parts, tensors, strict=True)]


class DeviceRows:
    """X as it is stored, on a CUDA device if it fits there.

    Parameters
    ----------
    X : ndarray or StackedRows of float16 or float32, (n, d)
        May be mapped.
    device : torch.device
    """

    def __init__(self, X: RowMatrix, device: torch.device):
        self._X, self.device = X, device
        self._resident: Tensor | None = None
        free = free_memory(device)
        if X.nbytes <= STORED_SHARE * free:
            self._resident = self._uploaded()
        else:
            log.warning(
                "X of %.1f GiB does not fit into %.1f GiB of free memory on %s: "
                "its rows are uploaded again in every pass, which takes longer",
                *(X.nbytes / 2**30, free / 2**30, device),
            )

    def __len__(self) -> int:
        return len(self._X)

    @property
    def d(self) -> int:
        """Number of dimensions."""
        return int(self._X.shape[1])

    @property
    def resident(self) -> Tensor | None:
        """All rows, (n, d); None where they do not fit."""
        return self._resident

    def take(self, rows: np.ndarray) -> Tensor:
        """Some rows as they are stored.

        Parameters
        ----------
        rows : ndarray of int64, (m,)
            Ascending row numbers.

        Returns
        -------
        (m, d) tensor
            A copy.
        """
        if self._resident is not None:
            return self._resident.index_select(0, upload(rows, self.device))
        if not len(rows):
            return upload(self._X[:0], self.device)
        begin, end = int(rows[0]), int(rows[-1]) + 1
        if end - begin >= 2 * len(rows):
            return upload(take_rows(self._X, rows), self.device)
        run = upload(self._X[begin:end], self.device)  # reading one run of the file is faster than row by row
        release_pages(self._X)
        return run if len(run) == len(rows) else run.index_select(0, upload(rows - begin, self.device))

    def standardised(self, rows: np.ndarray, centre: Tensor, spread: float) -> Tensor:
        """Some rows of (X - centre) / spread, float32 (m, d).

        Parameters
        ----------
        rows : ndarray of int64, (m,), ascending
        centre : (d,) tensor
        spread : float
        """
        return self.take(rows).float().sub_(centre).mul_(1 / spread)

    def moments(self) -> Moments:
        """Moments of the rows; the host waits once."""
        step = max(_LEAST_ROWS, _SUMMED_VALUES // self.d)
        origin = self.take(np.zeros(1, np.int64)).float()[0]  # against cancellation where the mean is far from zero
        total = torch.zeros(self.d + 1, dtype=torch.float64, device=self.device)
        for begin in range(0, len(self), step):
            values = self.take(np.arange(begin, min(begin + step, len(self)))).float().sub_(origin)
            total[:-1] += values.sum(0, dtype=torch.float64)
            total[-1] += values.square_().sum(dtype=torch.float64)
        centre, sums = download(origin.double(), total)
        return Moments.of_sums(centre.astype(np.float32), sums[:-1], float(sums[-1]), len(self))

    def _uploaded(self) -> Tensor:
        resident = torch.empty(self._X.shape, dtype=_tensor_type(self._X.dtype), device=self.device)
        for rows in row_slices(*self._X.shape):
            resident[rows] = upload(self._X[rows], self.device)
            release_pages(self._X)
        return resident


class DeviceBlocks:
    """Some rows of X as float32 blocks of (X - centre) / spread on a CUDA device.

    Blocks are as large as the memory allows for the heads that are trained, so that there are few of them.

    Parameters
    ----------
    stored : DeviceRows
    rows : ndarray of int64, (m,)
        Ascending row numbers.
    moments : Moments

    Attributes
    ----------
    reduces : bool
        False: there are no blocks in bfloat16; products are rounded in their place.
    """

    reduces = False

    def __init__(self, stored: DeviceRows, rows: np.ndarray, moments: Moments):
        self._stored, self._rows, self._spread = stored, rows, moments.spread
        self._centre = upload(moments.centre, stored.device)
        size = 4 * len(rows) * stored.d
        self._kept = self._all() if size <= FLOAT32_SHARE * free_memory(stored.device) else None

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield (slice into ``rows``, block (b, d)) pairs."""
        return self.blocks(self.groups()[0])

    def groups(self, heads: int = 1) -> list[list[slice]]:
        """One group of blocks, whose size suits the number of heads."""
        room = _MARGINS_SHARE * free_memory(self._stored.device)
        step = int(room / (_BYTES_PER_MARGIN * heads))
        if self._kept is None:
            step = min(step, _CONVERTED_VALUES // self._stored.d)
        return [self._slices(step)]

    def blocks(self, slices: list[slice], reduced: bool = False) -> Iterator[tuple[slice, Tensor]]:
        """Yield blocks by their slices; ``reduced`` is for the CPU."""
        for part in slices:
            yield part, self._make(part) if self._kept is None else self._kept[part]

    def _slices(self, step: int) -> list[slice]:
        step = max(_LEAST_ROWS, step)
        return [slice(begin, min(begin + step, len(self))) for begin in range(0, len(self), step)]

    def _all(self) -> Tensor:
        kept = torch.empty((len(self), self._stored.d), dtype=torch.float32, device=self._stored.device)
        for part in self._slices(_CONVERTED_VALUES // self._stored.d):
            kept[part] = self._make(part)
        return kept

    def _make(self, part: slice) -> Tensor:
        return self._stored.standardised(self._rows[part], self._centre, self._spread)


def _tensor_type(dtype: np.dtype) -> torch.dtype:
    if np.issubdtype(dtype, np.floating) and dtype != np.float16:
        return torch.float32
    return torch.from_numpy(np.empty(0, dtype.newbyteorder("="))).dtype
