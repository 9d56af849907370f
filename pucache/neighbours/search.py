"""Exact nearest rows by inner product: by faiss on the CPU, by torch on a GPU; both in blocks of queries and of rows.

On the CPU each block of queries is compared by one thread, and its size is fixed: lists have the same bits whatever
the number of threads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..devices import choose_device, cores, device_name
from .row_source import RowSource, subset
from .whitening import ArrayOrTensor, Whitening, put

if TYPE_CHECKING:
    import torch

# products float32 (b, k), falling; row numbers int64 (b, k); both on the GPU that found them
Lists = tuple[ArrayOrTensor, ArrayOrTensor]
Search = Callable[[ArrayOrTensor, int], Lists]  # of queries (b, d), for k rows at most
TORCH_GPU, FAISS_CPU, NUMPY_CPU = "torch on the GPU", "faiss on the CPU", "numpy on the CPU"
_QUERIES = 1024  # that one thread compares at once
_ROWS = 1 << 16  # that queries are compared with at once
_KEPT_VALUES = 1 << 28  # of whitened rows that are kept from one pass to the next
_GPU_PRODUCTS = 1 << 28  # in the memory of a GPU at once
_TORCH_PAYS = 1 << 28  # values of a cache from which on a GPU gains more than importing torch and starting CUDA take


def find_gpu(device: str | torch.device, *, values: int | None = None) -> torch.device | None:
    """The GPU that a device names; None for the CPU.

    ``auto`` is a GPU where there is one, and the CPU where the rows to search have few `values` and torch is not
    imported yet. Raises `ValueError` for a device that has no such name or is not there.
    """
    few = values is not None and values <= _TORCH_PAYS
    name = device_name(device)
    if name == "cpu" or (name == "auto" and few and "torch" not in sys.modules):
        return None
    chosen = choose_device(device)
    return chosen if chosen.type == "cuda" else None


def row_search(rows: ArrayOrTensor, gpu: torch.device | None = None) -> Search:
    """Function that finds the k rows of greatest inner product with each query.

    It takes queries (b, d) and k, and returns products, float32 (b, min(k, m)), falling, and row numbers, int64, both
    on the GPU where there is one.
    """
    if gpu is not None:
        return partial(_search_on_gpu, rows)
    import faiss

    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(np.ascontiguousarray(rows))
    return partial(search_index, index)


def search_index(index: Any, queries: np.ndarray, k: int) -> Lists:
    """Search an index of faiss; each block of queries has one thread.

    Products are float32 (b, min(k, rows of the index)), falling, -inf where fewer are found; rows are then -1.
    """
    import faiss

    shape = len(queries), min(k, index.ntotal)
    products, rows = np.empty(shape, np.float32), np.empty(shape, np.int64)

    def search(start: int) -> None:
        part = slice(start, start + _QUERIES)
        products[part], rows[part] = index.search(np.ascontiguousarray(queries[part], np.float32), shape[1])

    if shape[1]:
        with ThreadPoolExecutor(cores(), initializer=lambda: faiss.omp_set_num_threads(1)) as pool:
            list(pool.map(search, range(0, len(queries), _QUERIES)))
    products[rows < 0] = -np.inf
    return products, rows


def _search_on_gpu(rows: torch.Tensor, queries: torch.Tensor, k: int) -> Lists:
    import torch

    k, step = min(k, len(rows)), max(1, _GPU_PRODUCTS // max(1, len(rows)))
    best = [(block @ rows.T).topk(k) for block in queries.split(step)]
    values, columns = (torch.cat(parts) for parts in zip(*best, strict=True))
    return values, columns


class WhitenedRows:
    """Whitened rows of a source in blocks, for several passes; many rows are whitened anew in each."""

    def __init__(self, source: RowSource, whitening: Whitening, gpu: torch.device | None = None):
        self.source, self.whitening, self.q, self.gpu = source, whitening, len(whitening.variances), gpu
        self._on_device = whitening if gpu is None else whitening.to(gpu)
        self._kept: list[tuple[np.ndarray, ArrayOrTensor]] | None = None

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[tuple[np.ndarray, ArrayOrTensor]]:
        """Iterate over the numbers of the rows of a block that have a direction, int64 (m,), and these rows, (m, q)."""
        starts = range(0, len(self), _ROWS)
        blocks = (self.take(np.arange(start, min(start + _ROWS, len(self)))) for start in starts)
        if len(self) * self.q > _KEPT_VALUES:
            return blocks
        self._kept = self._kept or list(blocks)
        return iter(self._kept)

    @property
    def block_count(self) -> int:
        """Number of blocks."""
        return -(-len(self) // _ROWS)

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, ArrayOrTensor]:
        """Some rows by their ascending numbers; those that have a direction, as `__iter__` yields them."""
        source, whitening, shape = subset(self.source, rows), self._on_device, (len(rows), self.q)
        Z: ArrayOrTensor = np.empty(shape, np.float32) if self.gpu is None else _empty_on(self.gpu, shape)
        squares = np.empty(len(rows))
        for part, X in source.blocks():
            Z[part] = whitening.whiten(whitening.centred_units(put(X, self.gpu)))
            sums = (Z[part] * Z[part]).sum(1)
            squares[part] = sums if self.gpu is None else sums.cpu().numpy()
            if not np.isfinite(squares[part]).all():
                raise source.not_finite_error(part.start + np.flatnonzero(~np.isfinite(squares[part])))
        numbers = np.flatnonzero(squares)
        return rows[numbers], Z if len(numbers) == len(Z) else Z[numbers]

    def searches(self) -> Iterator[tuple[np.ndarray, Search]]:
        """Yield the numbers of the rows of each block, and a search among them."""
        return ((numbers, row_search(Z, self.gpu)) for numbers, Z in self)


def _empty_on(gpu: torch.device, shape: tuple[int, int]) -> torch.Tensor:
    import torch

    return torch.empty(shape, device=gpu)


def nearest_rows(
    queries: WhitenedRows,
    searches: Iterable[tuple[np.ndarray, Search]],
    k: int,
    *,
    itself: np.ndarray | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> Lists:
    """Find the k nearest rows of each of m queries.

    `searches` yields numbers of rows and a search among them, as `WhitenedRows.searches`. `itself` (m,) is a row to
    leave out for each query. `advance` is called with the queries that have been searched for in a block of rows.
    Returns cosines, float32 (m, k), falling, and rows, int64 (m, k); -inf and -1 where there are fewer rows.
    """
    gpu = queries.gpu
    cosines, rows = (put(each, gpu) for each in no_neighbours(len(queries), k))
    for numbers, search in searches:
        numbers = put(numbers, gpu)
        for asked, Q in queries:
            products, found = search(Q, k + (itself is not None))
            lists, at = (products, numbers[found]), put(asked, gpu)
            if itself is not None:
                _leave_out(lists, put(itself[asked], gpu), k)
            cosines[at], rows[at] = _merged((cosines[at], rows[at]), lists, k)
            advance(len(asked))
    rows[cosines == -np.inf] = -1
    return (cosines, rows) if gpu is None else (cosines.cpu().numpy(), rows.cpu().numpy())


def no_neighbours(m: int, k: int) -> Lists:
    """Lists of queries for which no row has been found."""
    return np.full((m, k), -np.inf, np.float32), np.full((m, k), -1, np.int64)


def _leave_out(lists: Lists, itself: np.ndarray, k: int) -> None:
    """Leave the row itself out of lists of k + 1 rows at most; where it is not among k + 1, the last of these."""
    left_out = lists[1] == itself[:, None]
    if left_out.shape[1] > k:
        left_out[~left_out.any(1), -1] = True
    lists[0][left_out] = -np.inf


def _merged(first: Lists, second: Lists, k: int) -> Lists:
    """Merge two lists of (products, rows), each (m, any), into the k greatest; the first list wins ties.

    On a GPU by a sort there, as `topk` gives ties in no order.
    """
    if isinstance(first[0], np.ndarray):
        products, rows = (np.hstack(pair) for pair in zip(first, second, strict=True))
        order = np.argsort(-products, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(products, order, 1), np.take_along_axis(rows, order, 1)
    import torch

    both = [torch.hstack(pair) for pair in zip(first, second, strict=True)]
    greatest, at = both[0].sort(dim=1, descending=True, stable=True)
    return greatest[:, :k], both[1].gather(1, at[:, :k])
