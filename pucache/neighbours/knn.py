"""Exact nearest neighbours by inner product, by faiss or torch, on a GPU or on the CPU (`backends`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .backends import (
    FAISS_CPU,
    FAISS_GPU,
    TORCH_CPU,
    TORCH_GPU,
    faiss_gpu,
    faiss_resources,
    find_faiss,
    find_gpu,
    require_faiss,
)

if TYPE_CHECKING:
    import torch

Lists = tuple[np.ndarray, np.ndarray]  # products float32 (b, k), falling; row numbers int64 (b, k)
Search = Callable[[np.ndarray, int], Lists]
MAX_GPU_NEIGHBOURS = 2048  # limit of faiss's selection on a GPU


class RowSearch:
    """Rows to find the nearest of; on a GPU they are uploaded once for any number of searches.

    Parameters
    ----------
    rows : ndarray of float32, (m, d)
    k : int
        Neighbours to find; at most m are found. On a GPU, torch searches where k is above 2,048.
    device : str
        ``auto`` is a GPU where there is one.

    Attributes
    ----------
    search_by : str
        What searches, such as "torch on the GPU".
    """

    def __init__(self, rows: np.ndarray, k: int, *, device: str = "auto"):
        self._k = min(k, len(rows))
        self.search_by, self._search = _search_among(rows, self._k, device)

    def nearest(self, queries: np.ndarray) -> Lists:
        """Find the rows of greatest inner product with each query.

        Parameters
        ----------
        queries : ndarray of float32, (b, d)

        Returns
        -------
        products : ndarray of float32, (b, k), falling
        indices : ndarray of int64, (b, k)
            Row numbers.
        """
        return self._search(queries, self._k)


def _search_among(rows: np.ndarray, k: int, device: str) -> tuple[str, Search]:
    """What searches, and the search itself."""
    by_faiss = faiss_gpu(device) if k <= MAX_GPU_NEIGHBOURS else None
    if by_faiss is not None:
        return FAISS_GPU, _faiss_gpu_search(rows, by_faiss)
    gpu = find_gpu(device)
    if gpu is not None and len(rows):
        return TORCH_GPU, _torch_gpu_search(rows, gpu)
    if find_faiss() is not None:
        return FAISS_CPU, _faiss_cpu_search(rows)
    return TORCH_CPU, _torch_cpu_search(rows)


def nearest(queries: np.ndarray, rows: np.ndarray, k: int, *, device: str = "auto") -> Lists:
    """Find the k rows of greatest inner product with each query.

    Parameters
    ----------
    queries : ndarray of float32, (b, d)
    rows : ndarray of float32, (m, d)
    k : int
        At most m are returned.
    device : str

    Returns
    -------
    products : ndarray of float32, (b, k), falling
    indices : ndarray of int64, (b, k)
        Into `rows`.
    """
    return RowSearch(rows, k, device=device).nearest(queries)


def to_gpu(index: Any, device: str) -> Any | None:
    """Copy a faiss index to the GPU; None where faiss sees none, or `device` is the CPU."""
    gpu = faiss_gpu(device)
    return None if gpu is None else require_faiss().index_cpu_to_gpu(faiss_resources(), gpu, index)


def _faiss_gpu_search(rows: np.ndarray, gpu: int) -> Search:
    """Search by faiss on a GPU."""
    faiss = require_faiss()
    flat = faiss.IndexFlatIP(rows.shape[1])
    flat.add(np.ascontiguousarray(rows))
    index = faiss.index_cpu_to_gpu(faiss_resources(), gpu, flat)
    return lambda queries, k: index.search(np.ascontiguousarray(queries), k)


def _torch_gpu_search(rows: np.ndarray, gpu: torch.device) -> Search:
    """Search by torch on a GPU."""
    from ..heads.device_rows import upload
    from .device_search import DeviceSearch, host_lists

    search = DeviceSearch(upload(rows, gpu), half=False)

    def nearest(queries: np.ndarray, k: int) -> Lists:
        products, neighbour_rows = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        Q = upload(queries, gpu)
        for part in search.blocks(len(Q), k):
            products[part], neighbour_rows[part] = host_lists(search.greatest(Q[part], k).cpu(), k)
        return products, neighbour_rows

    return nearest


def _faiss_cpu_search(rows: np.ndarray) -> Search:
    faiss = require_faiss()
    return lambda queries, k: faiss.knn(queries, rows, k, metric=faiss.METRIC_INNER_PRODUCT)


def _torch_cpu_search(rows: np.ndarray) -> Search:
    from .blocked_search import nearest_rows

    return lambda queries, k: nearest_rows(queries, rows, k)
