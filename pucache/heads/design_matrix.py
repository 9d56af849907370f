"""Embeddings as the linear solvers take them: centred, scaled, float32, on the device, in blocks of rows.

Blocks that fit stay in memory. Others are read and converted again in every pass, so resident
memory stays bounded whatever the size of the cache. On a CPU that multiplies bfloat16, all blocks are also
there in that type: products with few heads then take half the time. Rows on CUDA: `pucache.heads.device_rows`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ..devices import multiplies_bfloat16
from ..storage.rows import RowMatrix, release_pages, row_step, take_rows
from ..threads import limited_threads, worker_threads
from .device_rows import DeviceBlocks, DeviceRows, upload
from .leading_directions import LeadingDirections, leading_directions, leading_directions_on_device, sample_rows
from .linear_heads import FittedHeads
from .moments import Moments

CPU_RESIDENT = 1 << 29  # bytes of float32 rows kept in memory on the CPU
_BLOCKS_PER_GROUP, _MAX_GROUPS = 4, 32  # see `RowBlocks.groups`
_CPU_BLOCK_VALUES = 1 << 20  # of a block on the CPU: float32 rows that stay in the processor's cache
_REDUCED_VALUES = 1 << 22  # from which on rows are also kept in bfloat16; in fewer rows, rounding does not average out
_DIRECTIONS = 64  # leading directions that preconditioners use


class RowBlocks:
    """Some rows of X as float32 blocks of (X - centre) / spread on the CPU.

    Blocks are made when they are first read, by the thread that reads them, and kept if all fit.

    Parameters
    ----------
    X : ndarray or StackedRows of float16 or float32, (n, d)
        May be mapped.
    rows : ndarray of int, (m,)
        Ascending row numbers.
    moments : Moments

    Attributes
    ----------
    reduces : bool
        Whether there are blocks in bfloat16.
    """

    def __init__(self, X: RowMatrix, rows: np.ndarray, moments: Moments):
        self._X, self._rows = X, rows
        self._centre, self._spread = torch.from_numpy(moments.centre), moments.spread
        step = min(row_step(X.shape[1]), max(256, _CPU_BLOCK_VALUES // X.shape[1]))
        self._slices = [slice(begin, min(begin + step, len(rows))) for begin in range(0, len(rows), step)]
        self._keeps = 4 * len(rows) * X.shape[1] <= CPU_RESIDENT
        self.reduces = multiplies_bfloat16(torch.device("cpu")) and len(rows) * X.shape[1] >= _REDUCED_VALUES
        self._kept: dict[tuple[int, bool], Tensor] = {}

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield (slice into ``rows``, block (b, d)) pairs."""
        return self.blocks(self._slices)

    def blocks(self, slices: list[slice], reduced: bool = False) -> Iterator[tuple[slice, Tensor]]:
        """Yield blocks by their slices, which `groups` lists; several threads may do so at once.

        Parameters
        ----------
        slices : list of slice
        reduced : bool
            In bfloat16, where the processor multiplies it.
        """
        return ((part, self._block(part, reduced and self.reduces)) for part in slices)

    def groups(self, heads: int = 1) -> list[list[slice]]:
        """Slices of the blocks in groups of consecutive ones, for sums that several threads add up.

        The groups depend on the shape alone, so the sums depend neither on the number of threads nor on that
        of the heads.
        """
        count = max(1, min(_MAX_GROUPS, len(self._slices) // _BLOCKS_PER_GROUP))
        bounds = [round(len(self._slices) * group / count) for group in range(count + 1)]
        return [self._slices[begin:end] for begin, end in pairwise(bounds)]

    def __len__(self) -> int:
        return len(self._rows)

    def _block(self, part: slice, reduced: bool = False) -> Tensor:
        block = self._kept.get((part.start, reduced))
        if block is None:
            block = self._block(part).bfloat16() if reduced else self._make(part)
            if self._keeps:
                self._kept[part.start, reduced] = block
        return block

    def _make(self, part: slice) -> Tensor:
        rows = self._rows[part]
        begin, end = int(rows[0]), int(rows[-1]) + 1
        if end - begin < 2 * len(rows):  # reading one run of the file is faster than reading row by row
            block = _to_float32(self._X[begin:end])
            block = block if len(block) == len(rows) else block[torch.from_numpy(rows - begin)]
        else:
            block = _to_float32(take_rows(self._X, rows))
        release_pages(self._X)
        return block.sub_(self._centre).mul_(1 / self._spread)


class DesignMatrix:
    """Rows of X with their labels, prepared once and shared by all fits on them.

    Moments, blocks and leading directions are computed on first use and kept. On CUDA, X goes up once for
    these rows and for all that are taken of them.

    Parameters
    ----------
    X : ndarray or StackedRows of float16 or float32, (n, d), or None
        May be mapped. None for rows that are taken of another design matrix, see `take`.
    s : ndarray, (n,)
        1 labelled positive, 0 unlabelled: the labels that heads are trained on.
    moments : Moments or None
        Of X, where they have been computed already.
    device : torch.device

    Attributes
    ----------
    is_positive : ndarray of bool, (n,)
    device : torch.device
    """

    def __init__(self, X: RowMatrix | None, s: np.ndarray, moments: Moments | None, device: torch.device):
        self.is_positive, self.device = np.asarray(s) == 1, device
        self._source: tuple[DesignMatrix, np.ndarray] | None = None  # that rows of these numbers were taken from
        if X is not None:
            self.X = X
        if moments is not None:
            self.moments = moments

    @cached_property
    def X(self) -> RowMatrix:
        """The rows as they are stored, (n, d)."""
        assert self._source is not None
        whole, rows = self._source
        return take_rows(whole.X, rows)

    @cached_property
    def moments(self) -> Moments:
        """Moments of X, or of the rows that these were taken from; by default computed on the device."""
        return self._stored.moments() if self.device.type == "cuda" else Moments.of(self.X)

    @property
    def d(self) -> int:
        """Number of dimensions."""
        return self._source[0].d if self._source else int(self.X.shape[1])

    def __len__(self) -> int:
        return len(self.is_positive)

    @cached_property
    def positive_rows(self) -> np.ndarray:
        """Row numbers of the positives, int64, ascending."""
        return np.flatnonzero(self.is_positive)

    @cached_property
    def unlabelled_rows(self) -> np.ndarray:
        """Row numbers of the unlabelled, int64, ascending."""
        return np.flatnonzero(~self.is_positive)

    @cached_property
    def positive(self) -> RowBlocks | DeviceBlocks:
        """Blocks of the positives."""
        return self._blocks(self.positive_rows)

    @cached_property
    def unlabelled(self) -> RowBlocks | DeviceBlocks:
        """Blocks of the unlabelled rows."""
        return self._blocks(self.unlabelled_rows)

    @cached_property
    def leading(self) -> LeadingDirections:
        """Leading directions of all rows, or of those that these were taken from."""
        if self._source:
            return self._source[0].leading
        if self.device.type == "cuda":
            return leading_directions_on_device(self.standardised(sample_rows(len(self))), _DIRECTIONS)
        return leading_directions(self.X, self.moments, _DIRECTIONS)

    @cached_property
    def leading_tensors(self) -> tuple[Tensor, Tensor]:
        """Leading directions (d, q) and the variances along them (q,), float32, on the device."""
        directions = np.array(self.leading.directions, np.float32, order="C")
        return upload(directions, self.device), upload(np.array(self.leading.variances, np.float32), self.device)

    def standardised(self, rows: np.ndarray) -> Tensor:
        """Some rows of (X - centre) / spread.

        Parameters
        ----------
        rows : ndarray of int64, (m,), ascending

        Returns
        -------
        (m, d) tensor of float32, on the device
        """
        if self.device.type == "cuda":
            centre = upload(self.moments.centre, self.device)
            return self._stored.standardised(self._numbers(rows), centre, self.moments.spread)
        centred = take_rows(self.X, rows).astype(np.float32) - self.moments.centre
        return torch.from_numpy(centred / np.float32(self.moments.spread))

    def stored_rows(self) -> tuple[DeviceRows, np.ndarray]:
        """Rows on CUDA as they are stored, and the numbers of these rows among them, int64, (n,)."""
        return self._stored, self._numbers(np.arange(len(self)))

    def take(self, rows: np.ndarray, s: np.ndarray) -> DesignMatrix:
        """Design matrix of some rows with the centre, the scale and the leading directions of all.

        Parameters
        ----------
        rows : ndarray of int64, (m,), ascending
        s : ndarray, (m,)
            Labels of these rows.

        Returns
        -------
        DesignMatrix
        """
        taken = DesignMatrix(None, s, self.moments, self.device)
        taken._source = self, rows
        return taken

    def margins(self, heads: FittedHeads, chosen: np.ndarray | None = None) -> np.ndarray:
        """Margins of heads, computed on the blocks.

        Parameters
        ----------
        heads : FittedHeads
            K heads for `X`.
        chosen : ndarray of int, (n, J), optional
            Numbers of J heads for each row; by default all heads.

        Returns
        -------
        ndarray of float32, (n, K) or (n, J)
        """
        parameters = upload(heads.standardised(self.moments), self.device)
        coef, intercept = parameters[:, :-1], parameters[:, -1:]
        result = np.empty((len(self), len(coef)) if chosen is None else chosen.shape, np.float32)

        def fill(row_numbers: np.ndarray, blocks: RowBlocks | DeviceBlocks, group: list[slice]) -> None:
            for part, X in blocks.blocks(group):
                rows, margins = row_numbers[part], torch.addmm(intercept, coef, X.T).T.cpu().numpy()
                result[rows] = margins if chosen is None else np.take_along_axis(margins, chosen[rows], axis=1)

        sides = ((self.positive_rows, self.positive), (self.unlabelled_rows, self.unlabelled))
        tasks = [partial(fill, rows, blocks, group) for rows, blocks in sides for group in blocks.groups(len(coef))]
        with torch.inference_mode(), limited_threads(0) as threads, worker_threads(self.workers(threads)) as run_all:
            for _ in run_all(tasks):
                pass
        return result

    @property
    def reduces(self) -> bool:
        """Whether products at reduced precision are faster."""
        return self.device.type == "cuda" or self.unlabelled.reduces

    def workers(self, threads: int) -> int:
        """Threads that sum over the blocks, of those allowed."""
        return min(threads, len(self.unlabelled.groups())) if self.device.type == "cpu" else 1

    @cached_property
    def _stored(self) -> DeviceRows:
        """X on the device, also for all rows that are taken."""
        return self._source[0]._stored if self._source else DeviceRows(self.X, self.device)

    def _numbers(self, rows: np.ndarray) -> np.ndarray:
        """Numbers of these rows in the design matrix that the first of them were taken from."""
        return self._source[0]._numbers(self._source[1][rows]) if self._source else rows

    def _blocks(self, rows: np.ndarray) -> RowBlocks | DeviceBlocks:
        if self.device.type == "cuda":
            return DeviceBlocks(self._stored, self._numbers(rows), self.moments)
        return RowBlocks(self.X, rows, self.moments)


def _to_float32(part: np.ndarray) -> Tensor:
    """A float32 copy in C order."""
    return torch.tensor(np.ascontiguousarray(part), dtype=torch.float32)
