"""Approximate nearest neighbours: an index of a cache, kept in a file beside it.

    ivf    cells around centroids, of which a query visits some (inverted file)
    hnsw   a graph of neighbours (Malkov and Yashunin 2016); finds more in less time, and takes long to build
    ivfpq  cells as of ivf, with rows stored as 64 bytes (`product_codes`); finds candidates for a comparison

The rows of ivf and hnsw are stored in float16, or in 8 bits where that does not fit into the memory allowed. An
index records the checksums of its cache files, and is rebuilt when these differ.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..errors import PUCacheError
from ..progress import Progress, Silent
from ..storage.atomic import check_writable
from .ann_index_file import Trailer, index_path, read_index, write_index
from .backends import FAISS_CPU, FAISS_GPU, require_faiss
from .index_memory import GRAPH_LINKS, choose_storage, free_memory
from .index_tuning import RECALL_AT, set_effort, spaced_rows, true_neighbours, tune
from .knn import MAX_GPU_NEIGHBOURS, to_gpu
from .product_codes import projection, trained_index
from .whitening import Whitening

KINDS = ("ivf", "hnsw", "ivfpq")
_ROWS_PER_CELL = 64  # rows that a centroid is learned from
_GRAPH_ROWS = 1 << 15  # rows that the bounds of 8-bit storage are learned from
_GRAPH_EFFORT = 80  # candidates considered for each row while a graph is built
_QUANTIZERS = {"float16": "QT_fp16", "8 bit": "QT_8bit"}
_log = logging.getLogger(__name__)


class Index:
    """An index in memory, ready to be searched.

    Parameters
    ----------
    index : faiss.Index
    trailer : Trailer

    Attributes
    ----------
    trailer : Trailer
    whitening : Whitening
        Of the indexed rows, which are its centred unit rows.
    """

    def __init__(self, index: Any, trailer: Trailer):
        self._index, self.trailer = index, trailer
        self._on_gpu: dict[str, Any] = {}  # copies, by device; None where faiss sees no such GPU
        self.whitening = Whitening.from_text(trailer.space, trailer.d)

    def search(self, queries: np.ndarray, k: int, *, device: str = "cpu") -> np.ndarray:
        """Find rows near each query.

        Parameters
        ----------
        queries : ndarray, (q, d)
        k : int
        device : str
            A GPU searches cells where at most 2,048 neighbours and visits are asked for; else the CPU does.

        Returns
        -------
        ndarray of int64, (q, `width(k)`)
            Row numbers, nearest first; -1 where fewer are found. An ivfpq index gives candidates, in the order of
            their codes: the k nearest are among them.
        """
        index = self._copy_on_gpu(k, device) or self._index
        set_effort(index, self.trailer.kind, self._effort(k))
        return index.search(np.ascontiguousarray(queries, np.float32), self.width(k))[1]

    def width(self, k: int) -> int:
        """Rows that `search` returns for k neighbours: k, and of an ivfpq index a multiple of it."""
        return max(k, min(k * self.trailer.candidates, self.trailer.n))

    def search_by(self, k: int, *, device: str = "cpu") -> str:
        """What `search` uses: "faiss on the GPU" or "faiss on the CPU"."""
        return FAISS_CPU if self._copy_on_gpu(k, device) is None else FAISS_GPU

    def _effort(self, k: int) -> int:
        return self.trailer.effort * max(k, RECALL_AT) // RECALL_AT  # more neighbours lie farther away

    def _copy_on_gpu(self, k: int, device: str) -> Any | None:
        """The index on a GPU, uploaded at the first call; None where the CPU searches for k neighbours."""
        if self.trailer.kind != "ivf" or max(k, min(self._effort(k), self._index.nlist)) > MAX_GPU_NEIGHBOURS:
            return None
        if device not in self._on_gpu:
            self._on_gpu[device] = to_gpu(self._index, device)
        return self._on_gpu[device]


def open_or_build(
    cache: EmbeddingCache, kind: str, *, memory: int | None = None, progress: Progress | None = None
) -> Index:
    """Read the index of a cache; build it where there is none, or where the cache has changed since.

    Parameters
    ----------
    cache : EmbeddingCache
    kind : {"ivf", "hnsw", "ivfpq"}
    memory : int, optional
        Bytes that building may take; half of what is free by default.
    progress : Progress, optional

    Returns
    -------
    Index

    Raises
    ------
    ValueError
        Unknown kind, or an index does not fit into the memory allowed.
    MissingExtraError
        faiss cannot be imported.
    CacheError
        The cache is damaged.
    OutputError
        The index cannot be written.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown index {kind!r}; use exact, {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    require_faiss()
    path = index_path(cache, kind)
    try:
        stored = read_index(path)
    except PUCacheError as error:
        _log.info("%s; building it anew", error)
        stored = None
    if stored is not None:
        index, trailer = stored
        if trailer.checksums == _checksums(cache) and trailer.kind == kind:
            return Index(index, trailer)
        _log.info("%s is of another state of the cache; building it anew", path)
    memory = free_memory() // 2 if memory is None else memory
    return _build(cache, kind, path, memory, progress or Silent())


def _checksums(cache: EmbeddingCache) -> list[str]:
    return [file.checksum for file in cache.files]


def _build(cache: EmbeddingCache, kind: str, path: Path, memory: int, progress: Progress) -> Index:
    """Build, tune and write an index."""
    check_writable(path)
    whitening = Whitening.estimate(cache)
    directions = projection(whitening) if kind == "ivfpq" else None
    dim = cache.encoder.dim if directions is None else len(directions)
    training_rows = _training_rows(cache, kind, memory, dim)
    storage = choose_storage(cache, kind, memory - 2 * 4 * training_rows * dim)
    with progress:
        progress.start(2 * len(cache), f"building the {kind} index")
        sample = spaced_rows(cache, whitening, training_rows, directions)
        cells = min(_cells(len(cache)), training_rows)
        if directions is None:
            index = _trained(sample, kind, storage, cells)
        else:
            index = trained_index(directions, sample, cells)
        for rows, X in cache.blocks(check=True):
            index.add(whitening.centred_units(X))
            progress.advance(rows.stop - rows.start)
        sample, neighbours = true_neighbours(cache, whitening, progress)
    tuning = tune(index, kind, sample, neighbours)
    trailer = Trailer(
        kind=kind,
        checksums=_checksums(cache),
        n=len(cache),
        d=cache.encoder.dim,
        storage=storage,
        effort=tuning.effort,
        candidates=tuning.candidates,
        recall=tuning.recall,
        sample=len(sample),
        space=whitening.to_text(),
    )
    write_index(index, trailer, path)
    return Index(index, trailer)


def _training_rows(cache: EmbeddingCache, kind: str, memory: int, dim: int) -> int:
    """Rows that cells or bounds are learned from; their copies take at most a quarter of the memory."""
    wanted = _GRAPH_ROWS if kind == "hnsw" else _cells(len(cache)) * _ROWS_PER_CELL
    return max(1, min(wanted, len(cache), memory // (4 * 2 * 4 * dim)))


def _cells(n: int) -> int:
    return max(1, min(round(4 * n**0.5), n // _ROWS_PER_CELL))


def _trained(sample: np.ndarray, kind: str, storage: str, cells: int) -> Any:
    """A faiss index that has learned its cells or bounds, and holds no row."""
    faiss = require_faiss()
    d, metric = sample.shape[1], faiss.METRIC_INNER_PRODUCT
    quantizer = getattr(faiss.ScalarQuantizer, _QUANTIZERS[storage])
    if kind == "hnsw":
        index = faiss.IndexHNSWSQ(d, quantizer, GRAPH_LINKS, metric)
        index.hnsw.efConstruction = _GRAPH_EFFORT
    else:
        index = faiss.IndexIVFScalarQuantizer(faiss.IndexFlatIP(d), d, cells, quantizer, metric)
        index.by_residual = False
        index.cp.min_points_per_centroid = 1  # no warning for small caches
    index.train(sample)
    return index
