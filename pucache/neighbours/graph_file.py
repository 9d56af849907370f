"""The graph of neighbours: weighted means over the neighbours of each row, and its file beside the cache.

The file ``cache.h5.neighbours`` is a safetensors file of pucache (`pucache.storage.tensor_file`): every byte is covered
by a checksum, and the checksums of the cache files tell whose graph it is. Reading it imports neither torch nor faiss.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..cache.local_copies import sidecar_base
from ..errors import CacheError, PUCacheError
from ..storage import tensor_file

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_log = logging.getLogger(__name__)

NEIGHBOURS = 30
TEMPERATURE = 0.1
FILE_FORMAT = tensor_file.FileFormat(
    format="pucache-neighbours",
    version=1,
    noun="graph of neighbours",
    error=CacheError,
    expected="the file that pucache keeps beside a cache",
    remedy="remove it, and it is made anew",
)
SUFFIX = "neighbours"
MAX_BYTES = 1 << 40
_TYPES = {"rows": np.int32, "cosines": np.float16}


@dataclass(frozen=True)
class NeighbourGraph:
    """Nearest rows of a pile, for each of its rows or for other rows.

    Attributes
    ----------
    rows : ndarray of int32, (m, k)
        Row numbers in the pile, nearest first; -1 where there are fewer neighbours.
    cosines : ndarray of float16, (m, k)
        Whitened cosines, falling; -inf where there are fewer neighbours.
    search : str
        How neighbours were searched: "exact search", where all rows were compared, or such as "search in 316 cells,
        recall 0.950 on 256 rows".
    search_by : str
        What searched, such as "torch on the GPU"; "" for a graph that was read from its file.
    """

    rows: np.ndarray
    cosines: np.ndarray
    search: str = "exact search"
    search_by: str = ""

    def __len__(self) -> int:
        return len(self.rows)

    def weighted_means(self, values: np.ndarray) -> np.ndarray:
        """Means of values over the neighbours of each row, weighted by exp(cosine / `TEMPERATURE`), (m,) or (m, C).

        `values`, float32 or float64, (n,) or (n, C), are of the rows of the pile; `ValueError` where they are fewer. A
        row without neighbours gets the mean of `values` over the pile.
        """
        n, last = len(values), self.rows.max(initial=-1)
        if n <= last:
            raise ValueError(f"values have {n} rows, but a neighbour has row number {last}: pass one per row")
        if n not in self._weights:
            self._weights[n] = _weight_matrix(self.rows, self.cosines, n)
        means: np.ndarray = self._weights[n] @ values
        means = means.astype(values.dtype, copy=False)
        without = (self.rows < 0).all(1)
        if without.any():
            means[without] = values.mean(0)
        return means

    @cached_property
    def _weights(self) -> dict[int, csr_matrix]:
        """Normalised weights, float32 (m, n), by n."""
        return {}


def _weight_matrix(rows: np.ndarray, cosines: np.ndarray, n: int) -> csr_matrix:
    from scipy.sparse import csr_matrix

    weights, absent = cosines.astype(np.float32), rows < 0
    greatest = weights.max(1, initial=-np.inf, keepdims=True)
    weights -= np.where(greatest > -np.inf, greatest, 0)
    weights /= TEMPERATURE
    np.exp(weights, out=weights)
    weights[absent] = 0
    weights /= np.maximum(weights.sum(1, keepdims=True), np.finfo(np.float32).tiny)
    columns = np.where(absent, 0, rows) if absent.any() else rows
    row_ends = np.arange(len(rows) + 1, dtype=np.int64 if rows.size >> 31 else np.int32) * rows.shape[1]
    return csr_matrix((weights.ravel(), columns.ravel(), row_ends), shape=(len(rows), n))


def sidecar_path(cache: EmbeddingCache, suffix: str) -> Path:
    """Path of a file of a cache, such as ``cache.h5.neighbours``: beside the first file of the cache.

    Of a cache behind a URL it lies on this machine, and is the same in every version of the cache.
    """
    first = sidecar_base(cache.files[0].path)
    return first.with_name(f"{first.name}.{suffix}")


def keep_beside(what: str, write: Callable[[], None]) -> None:
    """Write a file that is kept beside a cache; a warning where it cannot be, such as in a read-only folder."""
    try:
        write()
    except PUCacheError as error:
        _log.warning("%s is not kept, and made anew each time: %s", what, str(error).split(";")[0])


def graph_path(cache: EmbeddingCache) -> Path:
    """Path of a cache's graph: beside its first file."""
    return sidecar_path(cache, SUFFIX)


def write_graph(path: str | Path, graph: NeighbourGraph, checksums: list[str]) -> None:
    """Write a graph atomically."""
    state = {"checksums": checksums, "search": graph.search}
    tensor_file.write(path, FILE_FORMAT, {"rows": graph.rows, "cosines": graph.cosines}, state)


def read_graph(path: str | Path) -> tuple[NeighbourGraph, list[str]]:
    """Read a graph and the checksums of its cache's files; `CacheError` if missing, damaged or of another version."""
    tensors, state = tensor_file.read(path, FILE_FORMAT, max_bytes=MAX_BYTES)
    try:
        graph = NeighbourGraph(tensors["rows"], tensors["cosines"], search=str(state["search"]))
        checksums = [str(checksum) for checksum in state["checksums"]]
    except (KeyError, TypeError, ValueError) as error:
        raise CacheError(f"{path} is a graph of another version of pucache; {FILE_FORMAT.remedy}") from error
    if not _is_graph(tensors):
        raise CacheError(f"{path} holds no graph of neighbours; {FILE_FORMAT.remedy}")
    return graph, checksums


def kept_graph(cache: EmbeddingCache) -> NeighbourGraph | None:
    """The graph beside a cache; None where there is none, or one of another state of the cache."""
    path = graph_path(cache)
    try:
        graph, checksums = read_graph(path)
    except CacheError as error:
        _log.debug("%s; making it anew", error)
        return None
    if checksums != cache.checksums or graph.rows.shape != (len(cache), NEIGHBOURS):
        _log.debug("%s is of another state of the cache; making it anew", path)
        return None
    return graph


def _is_graph(tensors: dict[str, np.ndarray]) -> bool:
    rows, cosines = tensors["rows"], tensors["cosines"]
    return (
        all(tensors[name].dtype == expected for name, expected in _TYPES.items())
        and rows.ndim == 2
        and rows.shape == cosines.shape
        and bool(rows.min(initial=-1) >= -1)
        and bool(rows.max(initial=-1) < len(rows))
    )
