"""Exact nearest neighbours by inner product, computed by faiss on a GPU where it sees one, else on the CPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import faiss
import numpy as np

MAX_GPU_NEIGHBOURS = 2048  # limit of faiss's selection on a GPU


def nearest(queries: np.ndarray, rows: np.ndarray, k: int, *, device: str = "auto") -> tuple[np.ndarray, np.ndarray]:
    """Find the k rows of greatest inner product with each query.

    Parameters
    ----------
    queries : ndarray of float32, (b, d)
    rows : ndarray of float32, (m, d)
    k : int
        At most m are returned.
    device : str
        The CPU is used where faiss sees no GPU, and for more than 2,048 neighbours.

    Returns
    -------
    products : ndarray of float32, (b, k), falling
    indices : ndarray of int64, (b, k)
        Into `rows`.
    """
    k = min(k, len(rows))
    if k <= MAX_GPU_NEIGHBOURS and (gpu := _gpu(device)) is not None:
        return faiss.knn_gpu(_resources(), queries, rows, k, metric=faiss.METRIC_INNER_PRODUCT, device=gpu)
    return faiss.knn(queries, rows, k, metric=faiss.METRIC_INNER_PRODUCT)


def to_gpu(index: Any, device: str) -> Any | None:
    """Copy a faiss index to the GPU; None where faiss sees none, or `device` is the CPU."""
    gpu = _gpu(device)
    return None if gpu is None else faiss.index_cpu_to_gpu(_resources(), gpu, index)


def _gpu(device: str) -> int | None:
    """Number of the GPU to use; None for the CPU."""
    if faiss.get_num_gpus() == 0:
        return None
    from ..devices import choose_device  # imports torch

    chosen = choose_device(device)
    return (chosen.index or 0) if chosen.type == "cuda" else None


@cache
def _resources() -> Any:
    return faiss.StandardGpuResources()
