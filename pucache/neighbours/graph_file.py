"""File of the graph of neighbours, kept beside its cache: ``cache.h5.neighbours``.

A safetensors file of pucache (`pucache.storage.tensor_file`): every byte is covered by a checksum, and the
checksums of the cache files tell whose graph it is. Reading it imports neither torch nor faiss.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..cache.local_copies import sidecar_base
from ..errors import CacheError
from ..storage import tensor_file
from .weighted_graph import NeighbourGraph
from .whitening import Whitening


def sidecar_path(cache: EmbeddingCache, suffix: str) -> Path:
    """Path of a file of a cache, such as ``cache.h5.neighbours``: beside the first file of the cache.

    Of a cache behind a URL it lies on this machine, and is the same in every version of the cache.
    """
    first = sidecar_base(cache.files[0].path)
    return first.with_name(f"{first.name}.{suffix}")


KIND = tensor_file.Kind(
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


def graph_path(cache: EmbeddingCache) -> Path:
    """Path of a cache's graph: beside its first file."""
    return sidecar_path(cache, SUFFIX)


def checksums_of(cache: EmbeddingCache) -> list[str]:
    """Checksums of the files of a cache, in their order."""
    return [file.checksum for file in cache.files]


def write_graph(path: str | Path, graph: NeighbourGraph, checksums: list[str]) -> None:
    """Write a graph atomically."""
    assert graph.whitening is not None  # of a graph that was searched
    state = {
        "checksums": checksums,
        "search": graph.search,
        "exact": graph.exact,
        "d": len(graph.whitening.mean),
        "whitening": graph.whitening.to_text(),
    }
    tensor_file.write(path, KIND, {"rows": graph.rows, "cosines": graph.cosines}, state)


def read_graph(path: str | Path) -> tuple[NeighbourGraph, list[str]]:
    """Read a graph and the checksums of its cache's files; `CacheError` if missing, damaged or of another version."""
    tensors, state = tensor_file.read(path, KIND, max_bytes=MAX_BYTES)
    try:
        graph = NeighbourGraph(
            rows=tensors["rows"],
            cosines=tensors["cosines"],
            search=str(state["search"]),
            exact=bool(state["exact"]),
            whitening=Whitening.from_text(state["whitening"], int(state["d"])),
        )
        checksums = [str(checksum) for checksum in state["checksums"]]
    except (KeyError, TypeError, ValueError) as error:
        raise CacheError(f"{path} is a graph of another version of pucache; {KIND.remedy}") from error
    if not _is_graph(tensors):
        raise CacheError(f"{path} holds no graph of neighbours; {KIND.remedy}")
    return graph, checksums


def _is_graph(tensors: dict[str, np.ndarray]) -> bool:
    rows, cosines = tensors["rows"], tensors["cosines"]
    return (
        all(tensors[name].dtype == expected for name, expected in _TYPES.items())
        and rows.ndim == 2
        and rows.shape == cosines.shape
        and bool(rows.min(initial=-1) >= -1)
        and bool(rows.max(initial=-1) < len(rows))
    )
