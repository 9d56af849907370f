r"""The graph of nearest neighbours of a pile of embeddings, and weighted means over neighbours.

    (W v)_i  =  sum_j w_ij v_j,     w_ij ~ exp(c_ij / T),     sum_j w_ij = 1

over the k rows of greatest whitened cosine c_ij (`pucache.neighbours.whitening`), the row itself left out. Rows
that equal another one are its neighbours. A row that equals the mean of the pile has no direction: it has no
neighbours, and is none of any other row.

Every row is compared with every other one where that takes seconds. Larger piles are searched by an inverted file:
rows are divided into cells around centroids, and each is compared with the rows of the cells nearest to it. The graph
is kept beside its cache (`pucache.neighbours.graph_file`).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..progress import Progress, Silent
from ..storage.rows import RowMatrix, evenly_spaced
from .graph_file import NEIGHBOURS, NeighbourGraph, graph_path, keep_beside, kept_graph, write_graph
from .row_source import row_source, subset
from .search import (
    FAISS_CPU,
    TORCH_GPU,
    Lists,
    WhitenedRows,
    find_gpu,
    nearest_rows,
    no_neighbours,
    search_index,
)
from .whitening import whitening_of

_EXACT_PAIRS = {"cpu": 1 << 33, "cuda": 1 << 41}  # rows times rows that are compared in seconds
_VISITS, _MIN_VISITS, _MAX_SHARE = 1 << 33, 1 << 13, 0.125  # rows visited: by all rows; by one; share of the pile
_SAMPLE_PER_CELL = 64  # rows that a centroid is learned from
_TRUE_ROWS = 256  # that the recall is measured on
_EQUAL = 5e-4  # difference of cosines from rounding to float16


def neighbour_graph(
    X: EmbeddingCache | RowMatrix,
    *,
    k: int = NEIGHBOURS,
    rows: np.ndarray | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> NeighbourGraph:
    """Find the k nearest rows of every row of X, (n, d), by whitened cosine.

    X may be mapped, and is read in blocks. `rows`, int64 (m,), ascending: the graph of these rows alone, numbered from
    0 to m - 1, which are whitened as rows of X. Raises `CacheError` where a cache is damaged or holds embeddings that
    are not finite, and `ValueError` for such an array, or a parameter outside its domain.
    """
    _check(k)
    source = row_source(X)
    part = source if rows is None else subset(source, rows)
    if not len(part):
        return _graph(no_neighbours(0, k))
    gpu = find_gpu(device)
    whitening = whitening_of(source)
    exact = len(part) ** 2 <= _EXACT_PAIRS["cuda" if gpu else "cpu"]
    whitened = WhitenedRows(part, whitening, gpu if exact else None)
    with progress or Silent() as progress:
        if not exact:
            lists, search = _nearest_in_cells(whitened, k, progress)
            return _graph(lists, search=search)
        progress.start(whitened.block_count * len(part), "finding neighbours")
        itself = np.arange(len(part))
        lists = nearest_rows(whitened, whitened.searches(), k, itself=itself, advance=progress.advance)
    return _graph(lists, search_by=TORCH_GPU if gpu else FAISS_CPU)


def cached_graph(cache: EmbeddingCache, *, device: str = "auto", progress: Progress | None = None) -> NeighbourGraph:
    """Read the graph kept beside a cache; where there is none of this cache, make it and keep it.

    Where it cannot be kept, such as in a folder that is read-only, a warning says so. Parameters and errors are those
    of `neighbour_graph`.
    """
    graph = kept_graph(cache)
    if graph is None:
        graph = neighbour_graph(cache, device=device, progress=progress)
        made = graph
        keep_beside("the graph of neighbours", lambda: write_graph(graph_path(cache), made, cache.checksums))
    return graph


class NeighbourSearch:
    """Searches in one pile for the neighbours of other rows."""

    def __init__(self, X: EmbeddingCache | np.ndarray, *, device: str = "auto"):
        self._source, self._device = row_source(X), device

    @cached_property
    def _rows(self) -> WhitenedRows:
        return WhitenedRows(self._source, whitening_of(self._source), find_gpu(self._device))

    def nearest(self, queries: np.ndarray, k: int = NEIGHBOURS, *, progress: Progress | None = None) -> NeighbourGraph:
        """Find the k nearest rows of the pile to each query (m, d), which is whitened as the pile; all are compared.

        A query that equals a row of the pile has it as a neighbour. Row numbers are those of the pile, so
        `NeighbourGraph.weighted_means` takes values of its rows. Raises `CacheError` for a damaged cache, and
        `ValueError` for queries of other dimensions or values that are not finite.
        """
        _check(k)
        source, asked = self._source, row_source(np.asarray(queries))
        if asked.d != source.d:
            raise ValueError(f"queries have {asked.d} dimensions, the rows {source.d}: use one encoder for both")
        if not len(asked) or not len(source):
            return _graph(no_neighbours(len(asked), k))
        rows = self._rows
        with progress or Silent() as progress:
            progress.start(rows.block_count * len(asked), "finding neighbours")
            whitened = WhitenedRows(asked, rows.whitening, rows.gpu)
            lists = nearest_rows(whitened, rows.searches(), k, advance=progress.advance)
        return _graph(lists, search_by=TORCH_GPU if rows.gpu else FAISS_CPU)


def _graph(lists: Lists, **options: Any) -> NeighbourGraph:
    cosines, rows = lists
    return NeighbourGraph(
        rows=rows.astype(np.int32),
        cosines=cosines.astype(np.float16),
        **{"search_by": FAISS_CPU, **options},
    )


def _nearest_in_cells(rows: WhitenedRows, k: int, progress: Progress) -> tuple[Lists, str]:
    """Lists of the nearest of the rows in the nearest cells, as `nearest_rows`; number of cells and recall."""
    import faiss

    n, cells = len(rows), max(1, round(len(rows) ** 0.5))
    progress.start(2 * n, "finding neighbours")
    learned_from = rows.take(evenly_spaced(n, _SAMPLE_PER_CELL * cells))[1]
    cells = min(cells, len(learned_from))
    if not cells:
        return no_neighbours(n, k), "search in cells"
    index: Any = faiss.index_factory(rows.q, f"IVF{cells},SQfp16", faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid = 1  # no warning for small piles
    visits = min(max(_VISITS // n, _MIN_VISITS), max(round(_MAX_SHARE * n), _MIN_VISITS), n)
    index.nprobe, index.max_codes = -(-visits * cells // n), 2 * visits  # a cell of equal rows may be large
    with ThreadPoolExecutor(1, initializer=lambda: faiss.omp_set_num_threads(1)) as one_thread:  # the same bits always
        one_thread.submit(index.train, learned_from).result()
        for numbers, Z in rows:
            one_thread.submit(index.add_with_ids, Z, numbers).result()
            progress.advance(len(numbers))
    itself = np.arange(n)
    lists = nearest_rows(rows, [(itself, partial(search_index, index))], k, itself=itself, advance=progress.advance)
    sample = evenly_spaced(n, _TRUE_ROWS)
    queries = WhitenedRows(subset(rows.source, sample), rows.whitening)
    true = nearest_rows(queries, rows.searches(), k, itself=sample)[0]
    least = np.where(true > -np.inf, true, np.inf).min(1, keepdims=True)  # cosine of the last true neighbour
    found = lists[0][sample]
    hits = np.count_nonzero((found > -np.inf) & (found >= least - _EQUAL))
    recall = hits / max(int(np.count_nonzero(true > -np.inf)), 1)
    return lists, f"search in {cells:,} cells, recall {recall:.3f} on {len(sample)} rows"


def _check(k: int) -> None:
    """Raise ValueError for less than one neighbour."""
    if k < 1:
        raise ValueError(f"k must be at least 1 neighbour, got {k}")
