"""Exact nearest rows by inner product on the CPU: products of blocks of rows, and the greatest values of each row.

A row of products is reduced to the maxima of groups of `_GROUP` values. Its c greatest values lie in the c
groups of greatest maximum, so only these are looked into: selection then costs less than the products.

Where the processor multiplies bfloat16, the products are bfloat16: factors and results are rounded, by at most
0.003 for unit rows. So `SPARE` more rows than wanted are selected, and compared again in float32.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..devices import multiplies_bfloat16
from ..threads import RunAll, limited_threads, worker_threads

CPU = torch.device("cpu")
_GROUP = 16  # products whose maximum is taken before the greatest are selected
SPARE = 10  # candidates beyond those wanted where products are rounded
_BLOCK_VALUES = 1 << 24  # products in memory at once, per thread
_ROWS_COMPARED = 16  # query rows whose candidates are compared again at once: they stay in the processor's cache
Neighbours = tuple[np.ndarray, np.ndarray]  # cosines float32 (m, k), falling; rows int64 (m, k)


class BlockedSearch:
    """Rows in memory, ready to be compared with blocks of queries.

    Parameters
    ----------
    rows : ndarray of float32, (n, q)
        Unit rows; n >= 1.
    """

    def __init__(self, rows: np.ndarray):
        self.n, self.type = len(rows), product_type(CPU)
        self._rows = torch.from_numpy(rows)
        padded = torch.zeros(-(-self.n // _GROUP) * _GROUP, rows.shape[1], dtype=self.type)
        padded[: self.n] = self._rows
        self._factors = padded
        self._buffers = threading.local()

    @property
    def queries_per_block(self) -> int:
        """Query rows to compare at once."""
        return max(1, _BLOCK_VALUES // len(self._factors))

    def nearest(self, queries: np.ndarray, k: int, itself: np.ndarray | None = None) -> Neighbours:
        """Find the k rows of greatest inner product with each query.

        Parameters
        ----------
        queries : ndarray of float32, (b, q)
        k : int
        itself : ndarray of int64, (b,), optional
            A row to leave out for each query.

        Returns
        -------
        cosines, rows
            -inf and -1 where there are fewer rows.
        """
        Q = torch.from_numpy(queries)
        products = torch.mm(Q.to(self.type), self._factors.T, out=self._buffer(len(Q)))
        products[:, self.n :] = -torch.inf
        if itself is not None:
            products[torch.arange(len(Q)), torch.from_numpy(itself)] = -torch.inf
        values, columns = greatest(products, k + (SPARE if self.type == torch.bfloat16 else 0))
        return sorted_neighbours(Q, self._rows, values, columns, k)

    def _buffer(self, count: int) -> Tensor:
        """Memory for the products of `count` queries, kept for the next block of this thread."""
        if len(getattr(self._buffers, "products", ())) < count:
            self._buffers.products = torch.empty(count, len(self._factors), dtype=self.type)
        return self._buffers.products[:count]


def nearest_rows(
    queries: np.ndarray,
    rows: np.ndarray,
    k: int,
    *,
    among_themselves: bool = False,
    advance: Callable[[int], None] | None = None,
) -> Neighbours:
    """Find the k rows of greatest inner product with each query.

    Parameters
    ----------
    queries : ndarray of float32, (m, q)
        Unit rows, as are `rows`.
    rows : ndarray of float32, (n, q)
    k : int
    among_themselves : bool
        The queries are the rows: each leaves itself out.
    advance : callable, optional
        Is called with the number of queries done, block by block.

    Returns
    -------
    cosines : ndarray of float32, (m, k), falling
        -inf where there are fewer rows.
    rows : ndarray of int64, (m, k)
        -1 where there are fewer rows.
    """
    cosines, neighbour_rows = no_neighbours(len(queries), k)
    if not len(rows):
        return cosines, neighbour_rows
    search = BlockedSearch(rows)
    starts = range(0, len(queries), search.queries_per_block)
    parts = [slice(start, min(start + search.queries_per_block, len(queries))) for start in starts]

    def task(part: slice) -> Neighbours:
        return search.nearest(queries[part], k, np.arange(part.start, part.stop) if among_themselves else None)

    with search_threads(len(parts)) as run_all:
        for part, block in zip(parts, run_all([partial(task, part) for part in parts]), strict=True):
            cosines[part], neighbour_rows[part] = block
            if advance:
                advance(part.stop - part.start)
    return cosines, neighbour_rows


@contextmanager
def search_threads(tasks: int) -> Iterator[RunAll]:
    """Threads that search blocks: one per core."""
    with (
        limited_threads(0) as threads,
        worker_threads(min(threads, tasks)) as run_all,
        torch.inference_mode(),
    ):
        yield run_all


def product_type(device: torch.device) -> torch.dtype:
    """Type of the factors and results of products: bfloat16 on a CPU that multiplies it natively, else float32."""
    return torch.bfloat16 if device.type == "cpu" and multiplies_bfloat16(device) else torch.float32


def no_neighbours(m: int, k: int) -> Neighbours:
    """Cosines and rows of queries for which no row has been found yet."""
    return np.full((m, k), -np.inf, np.float32), np.full((m, k), -1, np.int64)


def greatest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` greatest values of each row, in any order, and their columns; all values where there are fewer.

    Parameters
    ----------
    values : Tensor, (b, w)
        w is a multiple of `_GROUP`.
    count : int
    """
    b, width = values.shape
    groups = width // _GROUP
    if groups <= count:
        best = values.topk(min(count, width), sorted=False)
        return best.values, best.indices
    maxima = values.view(b, _GROUP, groups).amax(1)  # a group is every `groups`-th column
    chosen = maxima.topk(count, sorted=False).indices
    columns = (chosen[:, None] + groups * torch.arange(_GROUP, device=values.device)[:, None]).view(b, -1)
    best = values.gather(1, columns).topk(count, sorted=False)
    return best.values, columns.gather(1, best.indices)


def sorted_neighbours(queries: Tensor, rows: Tensor, values: Tensor, columns: Tensor, k: int) -> Neighbours:
    """Best k of the candidates of each query, compared again in float32 where products are rounded.

    Parameters
    ----------
    queries : Tensor, (b, q)
    rows : Tensor, (n, q)
    values : Tensor, (b, c)
        Products; -inf for no row.
    columns : Tensor of int64, (b, c)
        Numbers of the candidates in `rows`; of no row where the product is -inf.
    k : int
    """
    cosines = values.float()
    if values.dtype == torch.bfloat16:
        absent = cosines == -torch.inf
        columns = columns.masked_fill(absent, 0)
        cosines = _cosines(queries, rows, columns).masked_fill_(absent, -torch.inf)
    best, order = cosines.topk(min(k, cosines.shape[1]))
    best_columns = columns.gather(1, order).masked_fill_(best == -torch.inf, -1)
    padded = no_neighbours(len(queries), k)
    padded[0][:, : best.shape[1]], padded[1][:, : best.shape[1]] = best.cpu().numpy(), best_columns.cpu().numpy()
    return padded


def _cosines(queries: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Inner products of each query with its candidates, float32 (b, c)."""
    b, c = columns.shape
    products = torch.empty(b, c)
    for start in range(0, b, _ROWS_COMPARED):
        part = slice(start, start + _ROWS_COMPARED)
        candidates = rows.index_select(0, columns[part].reshape(-1)).float().view(-1, c, rows.shape[1])
        torch.sum(candidates.mul_(queries[part, None].float()), -1, out=products[part])
    return products
