"""Embeddings as the linear solvers take them: centred, scaled, float32, on the device, in blocks of rows.

Blocks that fit stay on the device. Others are read and converted again in every pass, so resident
memory stays bounded whatever the size of the cache. On a CPU that multiplies bfloat16, all blocks are also
there in that type: products with few heads then take half the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..devices import multiplies_bfloat16
from ..storage.mapped_arrays import release_pages, row_step, take_rows
from ..threads import limited_threads, worker_threads
from .fitted import FittedHeads
from .linear_algebra import leading_subspace
from .moments import Moments

CPU_RESIDENT = 1 << 29  # bytes of float32 rows kept in memory on the CPU
CUDA_RESIDENT = 0.5  # share of the free device memory that rows may take
_BLOCKS_PER_GROUP, _MAX_GROUPS = 4, 32  # see `RowBlocks.groups`
_CPU_BLOCK_VALUES = 1 << 20  # of a block on the CPU: float32 rows that stay in the processor's cache
_REDUCED_VALUES = 1 << 22  # from which on rows are also kept in bfloat16; in fewer rows, rounding does not average out
_SAMPLE = 4096  # rows that the leading directions are estimated from
_DIRECTIONS = 64  # leading directions that preconditioners use


class RowBlocks:
    """Some rows of X as float32 blocks of (X - centre) / spread on a device.

    On the CPU, blocks are made when they are first read, by the thread that reads them, and kept if all fit.

    Parameters
    ----------
    X : ndarray of float16 or float32, (n, d)
        May be a memory map.
    rows : ndarray of int, (m,)
        Ascending row numbers.
    moments : Moments
    device : torch.device

    Attributes
    ----------
    reduces : bool
        Whether there are blocks in bfloat16.
    """

    def __init__(self, X: np.ndarray, rows: np.ndarray, moments: Moments, device: torch.device):
        self._X, self._rows, self._device = X, rows, device
        self._centre, self._spread = torch.from_numpy(moments.centre), moments.spread
        step = row_step(X.shape[1])
        if device.type == "cpu":
            step = min(step, max(256, _CPU_BLOCK_VALUES // X.shape[1]))
        self._slices = [slice(begin, min(begin + step, len(rows))) for begin in range(0, len(rows), step)]
        self._keeps = self._fits()
        self.reduces = (
            device.type == "cpu" and multiplies_bfloat16(device) and len(rows) * X.shape[1] >= _REDUCED_VALUES
        )
        self._kept: dict[tuple[int, bool], Tensor] = {}
        if device.type == "cuda":  # so that what fits beside them is known
            for _ in self:
                pass

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield (slice into ``rows``, block (b, d)) pairs."""
        return self.blocks(range(len(self._slices)))

    def blocks(self, numbers: range, reduced: bool = False) -> Iterator[tuple[slice, Tensor]]:
        """Yield some of the blocks by number; several threads may do so at once.

        Parameters
        ----------
        numbers : range
        reduced : bool
            In bfloat16, where the processor is a CPU that multiplies it.
        """
        return ((self._slices[number], self._block(number, reduced and self.reduces)) for number in numbers)

    def groups(self) -> list[range]:
        """Numbers of the blocks in groups of consecutive ones, for sums that several threads add up.

        The groups depend on the shape alone, so the sums do not depend on the number of threads.
        """
        count = max(1, min(_MAX_GROUPS, len(self._slices) // _BLOCKS_PER_GROUP))
        bounds = [round(len(self._slices) * group / count) for group in range(count + 1)]
        return [range(begin, end) for begin, end in pairwise(bounds)]

    def __len__(self) -> int:
        return len(self._rows)

    def _block(self, number: int, reduced: bool = False) -> Tensor:
        block = self._kept.get((number, reduced))
        if block is None:
            block = self._block(number).bfloat16() if reduced else self._make(self._slices[number])
            if self._keeps:
                self._kept[number, reduced] = block
        return block

    def _fits(self) -> bool:
        size = 4 * len(self._rows) * self._X.shape[1]
        if self._device.type == "cuda":
            return size <= CUDA_RESIDENT * torch.cuda.mem_get_info(self._device)[0]
        return size <= CPU_RESIDENT

    def _make(self, part: slice) -> Tensor:
        rows = self._rows[part]
        begin, end = int(rows[0]), int(rows[-1]) + 1
        if end - begin < 2 * len(rows):  # reading one run of the file is faster than reading row by row
            block = _to_float32(self._X[begin:end])
            block = block if len(block) == len(rows) else block[torch.from_numpy(rows - begin)]
        else:
            block = _to_float32(take_rows(self._X, rows))
        release_pages(self._X)
        return block.sub_(self._centre).mul_(1 / self._spread).to(self._device)


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


class DesignMatrix:
    """Rows of X with their labels, prepared once and shared by all fits on them.

    Blocks and leading directions are computed on first use and kept.

    Parameters
    ----------
    X : ndarray of float16 or float32, (n, d)
        May be a memory map.
    s : ndarray, (n,)
        1 labelled positive, 0 unlabelled: the labels that heads are trained on.
    moments : Moments, optional
        Of X, where they have been computed already.
    device : torch.device

    Attributes
    ----------
    X : ndarray, (n, d)
    is_positive : ndarray of bool, (n,)
    moments : Moments
    device : torch.device
    """

    def __init__(self, X: np.ndarray, s: np.ndarray, moments: Moments | None, device: torch.device):
        self.X, self.is_positive, self.device = X, np.asarray(s) == 1, device
        self.moments = moments or Moments.of(X)
        self._whole: DesignMatrix | None = None  # that these rows were taken from

    @property
    def d(self) -> int:
        """Number of dimensions."""
        return int(self.X.shape[1])

    def __len__(self) -> int:
        return len(self.X)

    @cached_property
    def positive_rows(self) -> np.ndarray:
        """Row numbers of the positives, int64, ascending."""
        return np.flatnonzero(self.is_positive)

    @cached_property
    def unlabelled_rows(self) -> np.ndarray:
        """Row numbers of the unlabelled, int64, ascending."""
        return np.flatnonzero(~self.is_positive)

    @cached_property
    def positive(self) -> RowBlocks:
        """Blocks of the positives."""
        return RowBlocks(self.X, self.positive_rows, self.moments, self.device)

    @cached_property
    def unlabelled(self) -> RowBlocks:
        """Blocks of the unlabelled rows."""
        return RowBlocks(self.X, self.unlabelled_rows, self.moments, self.device)

    @cached_property
    def leading(self) -> LeadingDirections:
        """Leading directions of all rows, or of those that these were taken from."""
        return self._whole.leading if self._whole else leading_directions(self.X, self.moments, _DIRECTIONS)

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
        taken = DesignMatrix(take_rows(self.X, rows), s, self.moments, self.device)
        taken._whole = self
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
        parameters = torch.from_numpy(heads.standardised(self.moments)).to(self.device)
        coef, intercept = parameters[:, :-1], parameters[:, -1:]
        result = np.empty((len(self), len(coef)) if chosen is None else chosen.shape, np.float32)

        def fill(row_numbers: np.ndarray, blocks: RowBlocks, group: range) -> None:
            for part, X in blocks.blocks(group):
                rows, margins = row_numbers[part], torch.addmm(intercept, coef, X.T).T.cpu().numpy()
                result[rows] = margins if chosen is None else np.take_along_axis(margins, chosen[rows], axis=1)

        sides = ((self.positive_rows, self.positive), (self.unlabelled_rows, self.unlabelled))
        tasks = [partial(fill, rows, blocks, group) for rows, blocks in sides for group in blocks.groups()]
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


def leading_directions(X: np.ndarray, moments: Moments, count: int) -> LeadingDirections:
    """Estimate the directions of greatest variance on evenly spaced rows, by subspace iteration.

    Parameters
    ----------
    X : ndarray, (n, d)
    moments : Moments
    count : int
        At most so many directions; no more than rows in the sample or dimensions.
    """
    rows = np.linspace(0, len(X) - 1, min(len(X), _SAMPLE)).astype(np.int64)
    sample = (take_rows(X, np.unique(rows)).astype(np.float32) - moments.centre) / np.float32(moments.spread)
    d = X.shape[1]
    count = min(count, len(sample), d)
    basis = np.random.default_rng(0).normal(size=(d, count)).astype(np.float32)
    basis = leading_subspace(sample, basis)
    _, values, rotation = np.linalg.svd(sample @ basis, full_matrices=False)
    variances = values**2 / len(sample)
    total = float(np.square(sample).sum() / len(sample))
    rest = max(total - float(variances.sum()), 0.0) / (d - count) if count < d else total / d
    return LeadingDirections(directions=basis @ rotation.T, variances=variances, rest=rest)


@contextmanager
def reduced_precision(device: torch.device) -> Iterator[None]:
    """Round the factors of float32 matrix products to the fastest type of the processor; sums stay float32."""
    backend: Any = torch.backends.cuda.matmul
    fastest = "tf32"
    if device.type == "cpu":
        backend = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # missing in the stubs
        fastest = "bf16" if multiplies_bfloat16(device) else "ieee"
    before = backend.fp32_precision
    backend.fp32_precision = fastest
    try:
        yield
    finally:
        backend.fp32_precision = before


def _to_float32(part: np.ndarray) -> Tensor:
    """A float32 copy in C order."""
    return torch.tensor(np.ascontiguousarray(part), dtype=torch.float32)
