"""Nearest rows of every row by cells on a GPU: the search of `pucache.neighbours.cell_search`, with few waits.

All that a block of rows visits is uploaded at once from pinned memory; the host waits once a block, for its result.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..heads.device_rows import free_memory, upload
from ..progress import Progress
from .blocked_search import SPARE, Neighbours, greatest
from .cell_search import (
    PAGE,
    Cells,
    Visits,
    cell_count,
    cell_type,
    centroids_of,
    recall_of,
    rows_in_cells,
    sampled_rows,
    visited_cells,
)
from .device_search import host_lists, ordered_keys, rows_of
from .device_source import SHARE, DeviceSource
from .device_whitening import DeviceWhitening, directed_rows, row_states, whitened_blocks, whitened_rows
from .whitening import Whitening

_MAX_BLOCK_BYTES = 1 << 32  # of the products of a block of rows


def fits(n: int, q: int, device: torch.device) -> bool:
    """Whether n whitened rows fit into half of the free memory, as they come and in their cells; both float16."""
    return 2 * 2 * n * q <= SHARE * free_memory(device)


def nearest_by_cells_on_gpu(
    rows: DeviceSource, whitening: Whitening, k: int, *, progress: Progress
) -> tuple[np.ndarray, Neighbours, str]:
    """As `pucache.neighbours.cell_search.nearest_by_cells`, on a GPU."""
    progress.start(2 * len(rows), "finding neighbours")
    on_device = DeviceWhitening(whitening, rows.device)
    learned_from = whitened_rows(DeviceSource(sampled_rows(rows.source), rows.device), on_device)[0]
    centroids = centroids_of(learned_from, cell_count(len(rows)))
    numbers, cells = _sorted_into_cells(rows, on_device, centroids, progress.advance)
    n = len(numbers)
    cosines, neighbours = np.empty((n, k), np.float16), np.empty((n, k), np.int32)
    if not n:
        return numbers, (cosines, neighbours), "search in cells"
    search = _DeviceCellSearch(cells)
    order = np.argsort(cells.nearest[:, 0], kind="stable")  # rows of one cell visit the same cells
    for begin in range(0, n, search.rows_per_block):
        part = order[begin : begin + search.rows_per_block]
        cosines[part], neighbours[part] = host_lists(search.greatest(part, k).cpu(), k)
        progress.advance(len(part))
    recall, sample = recall_of(cells, cosines)
    search_note = f"search in {len(cells.sizes):,} cells, recall {recall:.3f} on {sample} rows"
    return numbers, (cosines, neighbours), search_note


def _sorted_into_cells(
    rows: DeviceSource, whitening: DeviceWhitening, centroids: Tensor, advance: Callable[[int], None]
) -> tuple[np.ndarray, Cells]:
    """Numbers of the rows that have a direction, and these rows in their cells; waits once a block."""
    n, count = len(rows), len(centroids)
    Z = torch.empty(n, centroids.shape[1], dtype=torch.float16, device=rows.device)
    nearest, states = np.empty((n, visited_cells(n, count)), cell_type(count)), np.empty(n, np.int64)
    every_cell = torch.arange(count, device=rows.device)
    for part, whitened in whitened_blocks(rows, whitening):
        Z[part] = whitened
        keys = ordered_keys(torch.mm(whitened, centroids.T), every_cell).topk(nearest.shape[1]).values
        packed = torch.cat([rows_of(keys), row_states(whitened).long()[:, None]], 1).cpu().numpy()
        nearest[part], states[part] = packed[:, :-1], packed[:, -1]
        advance(part.stop - part.start)
    numbers = directed_rows(rows, states)
    if len(numbers) < n:
        Z, nearest = Z.index_select(0, upload(numbers, rows.device)), nearest[numbers]
    return numbers, rows_in_cells(Z, nearest, count)


class _DeviceCellSearch:
    """Compares blocks of rows with the rows of their nearest cells.

    The products of a row with the pages that it visits lie side by side, in slots of a page each; the last slot of
    each row stays empty.
    """

    def __init__(self, cells: Cells):
        self._cells, self._device = cells, cells.rows.device
        self._stride = cells.slots + 1
        self._row_at = upload(cells.row_at.astype(np.int64), self._device)
        self._pages = torch.arange(len(cells.rows) // PAGE, device=self._device)

    @property
    def rows_per_block(self) -> int:
        """Rows to search for at once, by the memory that is free."""
        per_row = self._stride * (6 * PAGE + 8)  # products, their maxima, and pages
        return int(max(1, min(_MAX_BLOCK_BYTES, free_memory(self._device) // 4) // per_row))

    def greatest(self, rows: np.ndarray, k: int) -> Tensor:
        """Keys (`ordered_keys`) of the k nearest of the rows visited by some rows (m,): int64 (m, at most k)."""
        cells, m = self._cells, len(rows)
        visits = cells.visits(rows, self._stride)
        own = cells.own_columns(rows)
        own[own < 0] = (self._stride - 1) * PAGE  # in the empty slot
        packed = upload(np.concatenate([cells.positions[rows], own, visits.visitor, visits.first_slot]), self._device)
        positions, own_columns, visitor, first_slot = packed.split([m, m, len(visits.cell), len(visits.cell)])
        products, page_in_slot = self._products(cells.rows.index_select(0, positions), visits, visitor, first_slot)
        products.scatter_(1, own_columns[:, None], -torch.inf)
        values, columns = greatest(products, k + SPARE)
        candidate_positions = page_in_slot.gather(1, columns // PAGE) * PAGE + columns % PAGE
        keys = ordered_keys(values, self._row_at[candidate_positions].clamp(min=0))
        return keys.topk(min(k, keys.shape[1])).values

    def _products(self, Q: Tensor, visits: Visits, visitor: Tensor, first_slot: Tensor) -> tuple[Tensor, Tensor]:
        """Products of rows Q (m, q) with all that they visit, (m, slots * PAGE), and the page in each slot."""
        cells, shape = self._cells, (len(Q), self._stride)
        products = torch.full((len(Q), self._stride * PAGE), -torch.inf, device=self._device)
        page_in_slot = torch.zeros(shape, dtype=torch.int64, device=self._device)
        for cell, some in visits.by_cell():
            first, count = int(cells.first_page[cell]), int(cells.visited_pages[cell])
            page_rows = cells.rows[first * PAGE : (first + count) * PAGE]
            block = torch.mm(Q.index_select(0, visitor[some]), page_rows.T, out_dtype=torch.float32)
            block[:, int(cells.sizes[cell]) :] = -torch.inf
            slots = (first_slot[some, None] + self._pages[:count]).view(-1)
            products.view(-1, PAGE).index_copy_(0, slots, block.view(-1, PAGE))
            pages = self._pages[first : first + count].repeat(some.stop - some.start)
            page_in_slot.view(-1).index_copy_(0, slots, pages)
        return products, page_in_slot
