"""Nearest rows of every row by cells (an inverted file): each row is compared with the rows of its nearest cells.

Cells are those of spherical k-means on a sample. Rows are stored cell by cell, in pages of `PAGE` rows, and the
rows that visit a cell are multiplied with it in one matrix product, which is many times as fast as comparing
them one by one. The number of rows visited falls with the size of the pile, so that time grows little.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ..progress import Progress
from .blocked_search import CPU, SPARE, Neighbours, greatest, product_type, search_threads, sorted_neighbours
from .row_source import RowSource, subset
from .whitening import Whitening, whitened_blocks, whitened_rows

PAGE = 128  # rows
_SAMPLE_PER_CELL, _ITERATIONS = 64, 8  # of k-means
_VISITS, _MIN_VISITS, _MAX_SHARE = 1 << 34, 1 << 13, 0.25  # rows visited: by all rows; by one; share of the pile
_MAX_PAGES_PER_CELL = 4  # times the mean; a cell is larger where many rows are equal
_BLOCK_VALUES = 1 << 26  # products in memory at once, per thread
_TRUE_ROWS, _TRUE_BLOCK = 256, 1 << 16  # rows that the recall is measured on; rows they are compared with at once
_EQUAL = 5e-4  # difference of cosines from rounding to float16


@dataclass(frozen=True)
class Cells:
    """Rows stored cell by cell; each cell begins with a page of its own.

    Attributes
    ----------
    rows : Tensor of bfloat16 or float16, (pages * PAGE, q)
        Zero where a page is not full.
    first_page, sizes : ndarray of int64, (cells,)
        First page of each cell, and its number of rows.
    positions : ndarray of int64, (n,)
        Of each row in `rows`.
    row_at : ndarray of int32, (pages * PAGE + 1,)
        The row at each position; -1 for none, and at the end.
    nearest : ndarray of int16 or int32, (n, p)
        Cells nearest to each row, the nearest first: its own.
    """

    rows: Tensor
    first_page: np.ndarray
    sizes: np.ndarray
    positions: np.ndarray
    row_at: np.ndarray
    nearest: np.ndarray

    @property
    def pages(self) -> np.ndarray:
        """Number of pages of each cell, (cells,)."""
        return -(-self.sizes // PAGE)

    @cached_property
    def _most_pages(self) -> int:
        occupied = int(np.count_nonzero(self.sizes))
        return max(1, -(-_MAX_PAGES_PER_CELL * len(self.positions) // (occupied * PAGE)))

    @cached_property
    def visited_pages(self) -> np.ndarray:
        """Pages of each cell that are visited, (cells,)."""
        return np.minimum(self.pages, self._most_pages)

    @cached_property
    def _budget(self) -> int:
        # a cell whose pages begin within the budget is visited; the last page of each is not full
        return -(-visits_of(len(self.positions)) // PAGE) + self.nearest.shape[1]

    @property
    def slots(self) -> int:
        """Slots, of a page each, that the pages which a row visits need."""
        return self._budget + self._most_pages

    def visits(self, rows: np.ndarray, stride: int) -> Visits:
        """Visits of some rows (m,) to cells, by cell; the slots of each row begin `stride` after those of the last."""
        visited = self.nearest[rows].astype(np.int64)
        pages = self.visited_pages[visited]
        first_slot = np.cumsum(pages, axis=1) - pages
        inside = (first_slot < self._budget) & (pages > 0)
        cell, visitor = visited[inside], np.nonzero(inside)[0]
        first_slot = first_slot[inside] + visitor * stride
        order = np.argsort(cell, kind="stable")
        return Visits(cell[order], visitor=visitor[order], first_slot=first_slot[order])

    def own_columns(self, rows: np.ndarray) -> np.ndarray:
        """Column of each row among the products of the slots that it visits; -1 where its page is not visited."""
        own = self.nearest[rows, 0]  # the first cell visited, so its pages have the first slots
        column = self.positions[rows] - self.first_page[own] * PAGE
        return np.where(column < self.visited_pages[own] * PAGE, column, -1)


@dataclass(frozen=True)
class Visits:
    """Visits of rows to cells, ordered by cell.

    Attributes
    ----------
    cell, visitor, first_slot : ndarray of int64, (v,)
        Number of the cell, position of the row in its block, and the slot of the first page.
    """

    cell: np.ndarray
    visitor: np.ndarray
    first_slot: np.ndarray

    def by_cell(self) -> Iterator[tuple[int, slice]]:
        """Yield the number of each cell, and its visits."""
        bounds = np.flatnonzero(np.diff(self.cell, prepend=-1, append=-1))
        for begin, end in pairwise(bounds.tolist()):
            yield int(self.cell[begin]), slice(begin, end)


def nearest_by_cells(
    source: RowSource, whitening: Whitening, k: int, *, progress: Progress
) -> tuple[np.ndarray, Neighbours, str]:
    """Find rows near each row of a source, on the CPU.

    Parameters
    ----------
    source : RowSource
        At least one row.
    whitening : Whitening
    k : int
    progress : Progress

    Returns
    -------
    numbers : ndarray of int64, (n,)
        Rows that have a direction.
    cosines, rows : ndarray of float16 and int32, (n, k)
        Cosines falling, and positions in `numbers`; -inf and -1 where there are fewer rows.
    search : str
        Number of cells, and recall on a sample.
    """
    progress.start(2 * len(source), "finding neighbours")
    learned_from = torch.from_numpy(whitened_rows(sampled_rows(source), whitening)[0])
    centroids = centroids_of(learned_from, cell_count(len(source)))
    numbers, cells = _sorted_into_cells(source, whitening, centroids, progress.advance)
    if not len(numbers):
        return numbers, (np.empty((0, k), np.float16), np.empty((0, k), np.int32)), "search in cells"
    search = _CellSearch(cells)
    n = len(numbers)
    cosines, neighbours = np.empty((n, k), np.float16), np.empty((n, k), np.int32)
    order = np.argsort(cells.nearest[:, 0], kind="stable")  # rows of one cell visit the same cells
    parts = [order[begin : begin + search.queries_per_block] for begin in range(0, n, search.queries_per_block)]
    with search_threads(len(parts)) as run_all:
        for part, block in zip(parts, run_all([partial(search.nearest, part, k) for part in parts]), strict=True):
            cosines[part], neighbours[part] = block
            progress.advance(len(part))
        recall, sample = recall_of(cells, cosines)
    search_note = f"search in {len(cells.sizes):,} cells, recall {recall:.3f} on {sample} rows"
    return numbers, (cosines, neighbours), search_note


def sampled_rows(source: RowSource) -> RowSource:
    """Rows that centroids are learned from, evenly spaced."""
    count = min(len(source), _SAMPLE_PER_CELL * cell_count(len(source)))
    return subset(source, np.unique(np.linspace(0, len(source) - 1, count).astype(np.int64)))


def cell_count(n: int) -> int:
    """Cells of n rows: about as many as rows in one."""
    return max(1, round(n**0.5))


def centroids_of(sample: Tensor, count: int) -> Tensor:
    """Centroids of cells, unit rows in the type of products, (count, q); one of zeros where the sample is empty."""
    dtype = product_type(sample.device)
    centroids = (
        sample[torch.linspace(0, len(sample) - 1, count).long().to(sample.device)]
        if len(sample)
        else sample.new_zeros(1, sample.shape[1])
    )
    for _ in range(_ITERATIONS if len(sample) else 0):
        factors = centroids.to(dtype)
        cell = torch.cat([(part.to(dtype) @ factors.T).argmax(1) for part in sample.split(_TRUE_BLOCK // 8)])
        sums = torch.zeros_like(centroids).index_add_(0, cell, sample)
        norms = sums.norm(dim=1, keepdim=True)
        centroids = torch.where(norms > 0, sums / norms.clamp(min=1e-12), centroids)  # an empty cell stays
    return centroids.to(dtype)


def _sorted_into_cells(
    source: RowSource, whitening: Whitening, centroids: Tensor, advance: Callable[[int], None]
) -> tuple[np.ndarray, Cells]:
    """Numbers of the rows that have a direction, and these rows in their cells."""
    count, q = centroids.shape[0], len(whitening.variances)
    visited = visited_cells(len(source), count)
    stored_type = torch.bfloat16 if centroids.dtype == torch.bfloat16 else torch.float16
    Z = torch.empty(len(source), q, dtype=stored_type)
    nearest = np.empty((len(source), visited), cell_type(count))
    numbers, done = [], 0
    for rows, directed, whitened in whitened_blocks(source, whitening):
        part = slice(done, done + len(whitened))
        Z[part] = torch.from_numpy(whitened)
        similarity = torch.from_numpy(whitened).to(centroids.dtype) @ centroids.T
        nearest[part] = similarity.topk(visited).indices.numpy()
        numbers.append(directed)
        done = part.stop
        advance(rows.stop - rows.start)
    return np.concatenate(numbers), rows_in_cells(Z[:done], nearest[:done], count)


def visited_cells(n: int, count: int) -> int:
    """Cells that each of n rows in so many cells visits at most."""
    return min(count, -(-visits_of(n) // max(1, n // count)))


def cell_type(count: int) -> type[np.signedinteger]:
    """Type of the numbers of so many cells."""
    return np.int16 if count < 1 << 15 else np.int32


def visits_of(n: int) -> int:
    """Rows that each of n rows is compared with."""
    return min(max(_VISITS // n, _MIN_VISITS), max(round(_MAX_SHARE * n), _MIN_VISITS), n)


def rows_in_cells(Z: Tensor, nearest: np.ndarray, count: int) -> Cells:
    """Store rows (n, q) cell by cell, in pages."""
    own = nearest[:, 0].astype(np.int64)
    sizes = np.bincount(own, minlength=count)
    pages = -(-sizes // PAGE)
    first_page = np.cumsum(pages) - pages
    order = np.argsort(own, kind="stable")
    within = np.arange(len(own)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    ordered_positions = np.repeat(first_page * PAGE, sizes) + within  # of the rows in `order`
    positions = np.empty(len(own), np.int64)
    positions[order] = ordered_positions
    row_at = np.full(int(pages.sum()) * PAGE + 1, -1, np.int32)
    row_at[ordered_positions] = order
    rows = torch.zeros(len(row_at) - 1, Z.shape[1], dtype=Z.dtype, device=Z.device)
    rows[torch.from_numpy(positions).to(Z.device)] = Z
    return Cells(rows, first_page=first_page, sizes=sizes, positions=positions, row_at=row_at, nearest=nearest)


class _CellSearch:
    """Compares blocks of rows with the rows of their nearest cells.

    The products of a row with the pages that it visits lie side by side, in `_slots` slots of a page each.
    """

    def __init__(self, cells: Cells):
        self._cells, self._type = cells, product_type(CPU)
        self._slots = cells.slots
        self._buffers = threading.local()

    @property
    def queries_per_block(self) -> int:
        """Rows to search for at once."""
        return max(1, _BLOCK_VALUES // (self._slots * PAGE))

    def nearest(self, rows: np.ndarray, k: int) -> Neighbours:
        """Find the k nearest of the rows visited by some rows, (m,); as `BlockedSearch.nearest`."""
        cells = self._cells
        Q = cells.rows[torch.from_numpy(cells.positions[rows])]
        products, page_in_slot = self._buffer(len(rows))
        products.fill_(-torch.inf)
        for cell, visitors, slots in self._visits(rows):
            self._multiply(cell, Q[visitors], slots, products, page_in_slot)
        self._leave_out_itself(rows, products)
        spare = SPARE if self._type == torch.bfloat16 else 0
        values, columns = greatest(products, k + spare)
        positions = page_in_slot.gather(1, columns // PAGE) * PAGE + columns % PAGE
        cosines, nearest_positions = sorted_neighbours(Q, cells.rows, values, positions, k)
        return cosines, cells.row_at[nearest_positions]

    def _visits(self, rows: np.ndarray) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield each cell that some of the rows visit, which of them (v,), and the slots of its pages, (v, pages)."""
        visits = self._cells.visits(rows, self._slots)
        for number, some in visits.by_cell():
            slots = visits.first_slot[some, None] + np.arange(self._cells.visited_pages[number])
            yield number, torch.from_numpy(visits.visitor[some]), torch.from_numpy(slots)

    def _multiply(self, cell: int, Q: Tensor, slots: Tensor, products: Tensor, page_in_slot: Tensor) -> None:
        """Put the products of Q (v, q) with the rows of a cell into its slots, (v, pages)."""
        first, count = int(self._cells.first_page[cell]), slots.shape[1]
        rows = self._cells.rows[first * PAGE : (first + count) * PAGE]
        block = torch.mm(Q.to(self._type), rows.to(self._type).T)
        block[:, int(self._cells.sizes[cell]) :] = -torch.inf
        products.view(-1, PAGE).index_copy_(0, slots.view(-1), block.view(-1, PAGE))
        page_in_slot.view(-1)[slots] = torch.arange(first, first + count)

    def _leave_out_itself(self, rows: np.ndarray, products: Tensor) -> None:
        column = self._cells.own_columns(rows)
        visited = np.flatnonzero(column >= 0)
        products[torch.from_numpy(visited), torch.from_numpy(column[visited])] = -torch.inf

    def _buffer(self, count: int) -> tuple[Tensor, Tensor]:
        """Memory for the products of `count` rows, and for the page in each slot; kept for this thread's next block."""
        kept = self._buffers
        if len(getattr(kept, "products", ())) < count:
            kept.products = torch.empty(count, self._slots * PAGE, dtype=self._type)
            kept.page_in_slot = torch.zeros(count, self._slots, dtype=torch.int64)
        return kept.products[:count], kept.page_in_slot[:count]


def recall_of(cells: Cells, cosines: np.ndarray) -> tuple[float, int]:
    """Share of the true neighbours, or of equally near rows, that were found on a sample; size of the sample."""
    n, k = cosines.shape
    sample = np.unique(np.linspace(0, n - 1, min(n, _TRUE_ROWS)).astype(np.int64))
    own_positions = torch.from_numpy(cells.positions[sample]).to(cells.rows.device)
    absent = torch.from_numpy(cells.row_at[:-1] < 0).to(cells.rows.device)
    Q, best = cells.rows[own_positions].float(), torch.full((len(sample), k), -torch.inf, device=cells.rows.device)
    for begin in range(0, len(cells.rows), _TRUE_BLOCK):
        rows = cells.rows[begin : begin + _TRUE_BLOCK]
        products = (Q @ rows.float().T).masked_fill_(absent[begin : begin + len(rows)], -torch.inf)
        positions = torch.arange(begin, begin + len(rows), device=Q.device)
        products.masked_fill_(positions == own_positions[:, None], -torch.inf)
        best = torch.cat([best, products], 1).topk(k).values
    true = best.cpu().numpy()
    least = np.where(true > -np.inf, true, np.inf).min(1, keepdims=True)  # cosine of the last true neighbour
    hits = np.count_nonzero((cosines[sample] > -np.inf) & (cosines[sample] >= least - _EQUAL))
    return float(hits / np.maximum(np.count_nonzero(true > -np.inf), 1)), len(sample)
