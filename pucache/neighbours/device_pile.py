"""Whitened rows of a pile on a GPU, and exact searches among them (`pucache.neighbours.device_search`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..heads.device_rows import free_memory, upload
from .blocked_search import Neighbours, no_neighbours
from .device_search import DeviceSearch, host_lists
from .device_source import SHARE, DeviceSource
from .device_whitening import DeviceWhitening, directed_rows, row_states, whitened_blocks, whitened_rows
from .neighbour_lists import merge_neighbours
from .row_source import subset
from .whitening import Whitening

_MIN_PART = 16  # rows
_log = logging.getLogger(__name__)


class DevicePile:
    """Whitened rows of a source on a GPU, ready for any number of searches.

    Rows that fit into half of the free memory stay there; others are whitened anew, part by part, for each search.

    Parameters
    ----------
    rows : DeviceSource
    whitening : Whitening
    """

    def __init__(self, rows: DeviceSource, whitening: Whitening):
        self._rows, self._whitening = rows, DeviceWhitening(whitening, rows.device)
        bytes_per_row = 16 * len(whitening.variances)  # float32 and float16, and what makes them
        self._step = max(_MIN_PART, int(SHARE * free_memory(rows.device)) // bytes_per_row)
        self._kept: tuple[DeviceSearch | None, Tensor, np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def part_count(self) -> int:
        """Number of parts that the rows are divided into: 1 where they stay on the GPU."""
        return -(-len(self) // self._step)

    def parts(self) -> Iterator[tuple[Tensor, np.ndarray]]:
        """Yield the rows that have a direction, (m, q) on the GPU, and their numbers."""
        if self.part_count <= 1:
            yield self._whole
            return
        for start in range(0, len(self), self._step):
            numbers = np.arange(start, min(start + self._step, len(self)))
            part = DeviceSource(subset(self._rows.source, numbers), self._rows.device)
            Z, directed = whitened_rows(part, self._whitening)
            yield Z, numbers[directed]

    def searches(self) -> Iterator[tuple[DeviceSearch, np.ndarray]]:
        """Yield a search among each of `parts` that has rows, and the numbers of these rows."""
        if self.part_count <= 1:
            if self._search is not None:
                yield self._search, self._whole[1]
            return
        _log.info("%s whitened rows do not fit into the memory of the GPU; they are streamed", f"{len(self):,}")
        yield from ((DeviceSearch(Z), numbers) for Z, numbers in self.parts() if len(numbers))

    @cached_property
    def _whole(self) -> tuple[Tensor, np.ndarray]:
        return whitened_rows(self._rows, self._whitening)

    @cached_property
    def _search(self) -> DeviceSearch | None:
        Z, numbers = self._whole
        return DeviceSearch(Z) if len(numbers) else None

    def nearest_of_all(self, k: int, advance: Callable[[int], None]) -> Neighbours:
        """Find the k nearest rows of every row, which itself is left out; rows without direction have none.

        Parameters
        ----------
        k : int
        advance : callable
            Is called with the number of rows that have been compared with a part, `part_count` times for each.

        Returns
        -------
        cosines, rows : ndarray of float32 and int64, (n, k)
            -inf and -1 where there are fewer rows.
        """
        best = no_neighbours(len(self), k)
        for search, numbers in self.searches():
            for Z, asked in self.parts():
                for part in search.blocks(len(Z), k):
                    itself = upload(_positions(asked[part], numbers), Z.device)
                    neighbours = host_lists(search.greatest(Z[part], k, itself).cpu(), k)
                    self._merge(best, asked[part], neighbours, numbers)
                    advance(len(asked[part]))
        return best

    def nearest_to(self, queries: DeviceSource, k: int, advance: Callable[[int], None]) -> Neighbours:
        """Find the k nearest rows of other rows, whitened as these; rows without direction have none.

        Returns
        -------
        cosines, rows : ndarray of float32 and int64, (m, k)

        Raises
        ------
        CacheError, ValueError
            A query is not finite.
        """
        best, states = no_neighbours(len(queries), k), np.zeros(len(queries), np.int64)
        for search, numbers in self.searches():
            for rows, Q in whitened_blocks(queries, self._whitening):
                for part in search.blocks(len(Q), k):
                    asked = np.arange(rows.start + part.start, rows.start + part.stop)
                    keys = search.greatest(Q[part], k)
                    packed = torch.cat([keys, row_states(Q[part]).long()[:, None]], 1).cpu()
                    states[asked] = packed[:, -1].numpy()
                    self._merge(best, asked, host_lists(packed[:, :-1], k), numbers)
            advance(len(numbers))
        directed = directed_rows(queries, states)
        without = np.setdiff1d(np.arange(len(queries)), directed)
        best[0][without], best[1][without] = -np.inf, -1
        return best

    def _merge(self, best: Neighbours, asked: np.ndarray, neighbours: Neighbours, numbers: np.ndarray) -> None:
        """Merge the neighbours in a part into the best lists of the rows that asked."""
        lists = neighbours[0], np.append(numbers, -1)[neighbours[1]]
        if self.part_count > 1:
            lists = merge_neighbours((best[0][asked], best[1][asked]), lists, neighbours[0].shape[1])
        best[0][asked], best[1][asked] = lists


def _positions(rows: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Positions of rows in ascending numbers; the count of these where a row is not among them."""
    insertion = np.searchsorted(numbers, rows)
    return np.where(numbers[np.minimum(insertion, len(numbers) - 1)] == rows, insertion, len(numbers))
