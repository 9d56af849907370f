"""Embeddings as the linear solvers take them: centred, scaled, float32, on the device, in blocks of rows.

Blocks that fit stay in memory. Others are read and converted again in every pass, so memory stays bounded
whatever the size of the cache.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ..devices import free_memory, upload
from ..storage.rows import RowMatrix, evenly_spaced, release_pages, take_rows
from ..threads import limited_threads, worker_threads
from .linear_heads import FittedHeads
from .moments import Moments
from .preconditioner import SAMPLE, LeadingDirections

CPU_RESIDENT = 1 << 29  # bytes of float32 rows kept in memory on the CPU
DEVICE_SHARE = 0.5  # of the free memory of a GPU that float32 rows may take
_BLOCKS_PER_GROUP, _MAX_GROUPS = 4, 32  # see `RowBlocks.groups`
# of a block: float32 rows that stay in the processor's cache, or enough of them for a GPU
_BLOCK_VALUES = {"cpu": 1 << 20, "cuda": 1 << 25}
_DIRECTIONS = 64  # leading directions that preconditioners use
_WIDE_SHARE, _TINY = 0.99, 1e-30  # of the variance in one column, from which on a warning says so

log = logging.getLogger("pucache")


def fits(values: int, device: torch.device) -> bool:
    """Whether so many float32 values of rows fit into the memory of a device; logs a warning where a GPU lacks it."""
    if device.type == "cpu":
        return 4 * values <= CPU_RESIDENT
    free = free_memory(device)
    if 4 * values <= DEVICE_SHARE * free:
        return True
    log.warning(
        "X of %.1f GiB does not fit into %.1f GiB of free memory on %s: "
        "its rows are uploaded again in every pass, which takes longer",
        *(4 * values / 2**30, free / 2**30, device),
    )
    return False


class RowBlocks:
    """Some rows of X as float32 blocks of (X - centre) / spread.

    Blocks are made when they are first read, by the thread that reads them, and kept if all fit.
    """

    def __init__(self, X: RowMatrix, rows: np.ndarray, moments: Moments, device: torch.device):
        self._X, self._rows, self._device = X, rows, device
        self._centre, self._spread = torch.tensor(moments.centre, device=device), moments.spread
        step = max(256, _BLOCK_VALUES[device.type] // X.shape[1])
        self._slices = [slice(begin, min(begin + step, len(rows))) for begin in range(0, len(rows), step)]
        self._keeps = fits(len(rows) * X.shape[1], device)
        self._kept: dict[int, Tensor] = {}

    def groups(self) -> list[list[slice]]:
        """Slices into ``rows`` of the blocks, in groups of consecutive ones for sums that several threads add up.

        The groups depend on the shape alone, so the sums do not depend on the number of threads.
        """
        count = max(1, min(_MAX_GROUPS, len(self._slices) // _BLOCKS_PER_GROUP))
        bounds = [round(len(self._slices) * group / count) for group in range(count + 1)]
        return [self._slices[begin:end] for begin, end in pairwise(bounds)]

    def blocks(self, slices: list[slice]) -> Iterator[tuple[slice, Tensor]]:
        """Yield (slice, block (b, d)) pairs of a group; several threads may do so at once."""
        for part in slices:
            block = self._kept.get(part.start)
            if block is None:
                block = self._make(part)
                if self._keeps:
                    self._kept[part.start] = block
            yield part, block

    def _make(self, part: slice) -> Tensor:
        rows = self._rows[part]
        begin, end = int(rows[0]), int(rows[-1]) + 1
        if end - begin < 2 * len(rows):  # reading one run of the file is faster than reading row by row
            block = _copied(self._X[begin:end], self._device)
            block = block if len(block) == len(rows) else block[torch.from_numpy(rows - begin).to(self._device)]
        else:
            block = _copied(take_rows(self._X, rows), self._device)
        release_pages(self._X)
        return block.sub_(self._centre).mul_(1 / self._spread)


class DesignMatrix:
    """Rows of X with their labels, prepared once and shared by all fits on them.

    Moments, blocks and leading directions are computed on first use and kept. X (n, d) is of float16 or float32, and
    may be mapped. `s` (n,) are the labels that heads are trained on, 1 labelled positive and 0 unlabelled; `moments`
    are of X, where they have been computed already.
    """

    def __init__(self, X: RowMatrix, s: np.ndarray, moments: Moments | None, device: torch.device):
        self.X, self.is_positive, self.device = X, np.asarray(s) == 1, device
        self.positive_rows, self.unlabelled_rows = np.flatnonzero(self.is_positive), np.flatnonzero(~self.is_positive)
        self._whole: DesignMatrix | None = None  # that these rows were taken from
        if moments is not None:
            self.moments = moments

    def __len__(self) -> int:
        return len(self.is_positive)

    @property
    def d(self) -> int:
        """Number of dimensions."""
        return int(self.X.shape[1])

    @cached_property
    def moments(self) -> Moments:
        """Moments of X, or of the rows that these were taken from."""
        return Moments.of(self.X, self.device)

    @cached_property
    def sides(self) -> list[tuple[np.ndarray, RowBlocks]]:
        """Row numbers and blocks of the positives, and of the unlabelled rows."""
        numbers = (self.positive_rows, self.unlabelled_rows)
        return [(rows, RowBlocks(self.X, rows, self.moments, self.device)) for rows in numbers]

    @cached_property
    def leading(self) -> LeadingDirections:
        """Leading directions of evenly spaced rows, or of the rows that these were taken from."""
        if self._whole is not None:
            return self._whole.leading
        leading = LeadingDirections.of_sample(self.standardised(evenly_spaced(len(self), SAMPLE)), _DIRECTIONS)
        _warn_of_wide_column(leading)
        return leading

    def standardised(self, rows: np.ndarray) -> Tensor:
        """Rows, ascending, of (X - centre) / spread, float32 (m, d) on the device."""
        centre = torch.tensor(self.moments.centre, device=self.device)
        return _copied(take_rows(self.X, rows), self.device).sub_(centre).mul_(1 / self.moments.spread)

    def take(self, rows: np.ndarray, s: np.ndarray) -> DesignMatrix:
        """Design matrix of some rows, ascending, with the centre, the scale and the leading directions of all."""
        taken = DesignMatrix(take_rows(self.X, rows), s, self.moments, self.device)
        taken._whole = self
        return taken

    def with_labels(self, s: np.ndarray) -> DesignMatrix:
        """Design matrix of these rows with other labels; centre, scale and leading directions are shared."""
        labelled = DesignMatrix(self.X, s, self.moments, self.device)
        labelled._whole = self
        return labelled

    def margins(self, heads: FittedHeads, chosen: np.ndarray | None = None) -> np.ndarray:
        """Margins of K heads for X, computed on the blocks, float32 (n, K).

        With `chosen` (n, J), the numbers of J heads for each row, only the margins of these are returned, (n, J).
        """
        parameters = torch.tensor(heads.standardised(self.moments), device=self.device)
        coef, intercept = parameters[:, :-1], parameters[:, -1:]
        result = np.empty((len(self), len(coef)) if chosen is None else chosen.shape, np.float32)

        def fill(row_numbers: np.ndarray, blocks: RowBlocks, group: list[slice]) -> None:
            for part, X in blocks.blocks(group):
                rows, margins = row_numbers[part], torch.addmm(intercept, coef, X.T).T.cpu().numpy()
                result[rows] = margins if chosen is None else np.take_along_axis(margins, chosen[rows], axis=1)

        tasks = [partial(fill, rows, blocks, group) for rows, blocks in self.sides for group in blocks.groups()]
        with torch.inference_mode(), limited_threads(0) as threads, worker_threads(self.workers(threads)) as run_all:
            for _ in run_all(tasks):
                pass
        return result

    def workers(self, threads: int) -> int:
        """Threads that sum over the blocks, of those allowed."""
        return min(threads, len(self.sides[1][1].groups())) if self.device.type == "cpu" else 1


def _warn_of_wide_column(leading: LeadingDirections) -> None:
    """Name a column that has nearly all of the variance, beside which no penalty lets the others count."""
    by_column = leading.directions.square() @ leading.variances
    column, rest = int(by_column.argmax()), leading.rest * (len(by_column) - len(leading.variances))
    share = float(by_column[column]) / max(float(leading.variances.sum()) + rest, _TINY)
    if share > _WIDE_SHARE and len(by_column) > 1:
        log.warning(
            "column %d (of 0 to %d) has %.4g %% of the variance of the rows, so the others hardly count: scale the "
            "columns, (X - X.mean(0)) / X.std(0), as of new rows too, or leave it out, and import or fit again",
            *(column, len(by_column) - 1, 100 * share),
        )


def _copied(rows: np.ndarray, device: torch.device) -> Tensor:
    """A float32 copy in C order on the device, where it is converted."""
    return upload(rows, device).float()
