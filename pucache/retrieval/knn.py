"""Nearest rows by inner product; what faiss does on a GPU where it sees one, and what it does on the CPU then too."""

from __future__ import annotations

from functools import cache
from typing import Any

import faiss
import numpy as np

from ..devices import choose_device

MOST_ON_GPU = 2048  # neighbours that faiss selects there


def nearest(rows: np.ndarray, among: np.ndarray, k: int, *, device: str = "auto") -> tuple[np.ndarray, np.ndarray]:
    """Find the k rows of `among` that have the greatest inner product with each row.

    Parameters
    ----------
    rows : ndarray of float32, (b, d)
    among : ndarray of float32, (m, d)
    k : int
        Cut to m.
    device : str
        ``cuda`` where faiss sees no GPU, and more than 2,048 neighbours, are the CPU's.

    Returns
    -------
    products : ndarray of float32, (b, k), falling
    places : ndarray of int64, (b, k)
        In `among`.
    """
    k = min(k, len(among))
    if k <= MOST_ON_GPU and (gpu := _gpu(device)) is not None:
        return faiss.knn_gpu(_resources(), rows, among, k, metric=faiss.METRIC_INNER_PRODUCT, device=gpu)
    return faiss.knn(rows, among, k, metric=faiss.METRIC_INNER_PRODUCT)


def to_gpu(index: Any, device: str) -> Any | None:
    """A copy of an index on the GPU; None where faiss sees none, or it is not asked for."""
    gpu = _gpu(device)
    return None if gpu is None else faiss.index_cpu_to_gpu(_resources(), gpu, index)


def _gpu(device: str) -> int | None:
    """Number of the GPU to use; None where there is none, or it is not asked for."""
    if faiss.get_num_gpus() == 0:
        return None
    chosen = choose_device(device)
    return (chosen.index or 0) if chosen.type == "cuda" else None


@cache
def _resources() -> Any:
    return faiss.StandardGpuResources()
