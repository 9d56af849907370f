"""Approximate nearest rows: an index of faiss, made from a factory string and kept in a file beside its cache.

The index finds candidates, `CANDIDATES` for each row that is wanted, which are then compared with the rows of the
cache. It records the checksums of its cache files, and is made anew when these differ.

The file holds the sha256 of all that follows, one line of JSON, and faiss's own bytes. Nothing is read before the hash
has been verified.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..errors import CacheError, OutputError, PUCacheError
from ..progress import Progress, Silent
from ..storage.atomic import replacing
from ..storage.file_kinds import INDEX
from ..storage.outputs import check_output
from ..storage.rows import evenly_spaced
from .graph_file import sidecar_path
from .search import merged, no_neighbours, row_search, search_index
from .whitening import Whitening

RECALL_AT = 100  # true neighbours of a row that the recall is measured on
CANDIDATES = 8  # found for each row that is wanted
_TRAINING_ROWS, _ROWS_PER_CELL = 1 << 16, 64  # rows that an index learns from; more where it has many cells
_SAMPLE = 256  # rows whose true neighbours are searched
_MIN_CELLS, _CELL_SHARE = 32, 8  # cells visited: at least so many, and one of so many
_GRAPH_EFFORT = 80  # candidates considered for each row while a graph is built
_EQUAL = 1e-6  # difference of inner products in float32
_FORMAT, _SHA256_BYTES = "pucache-index-2", 32
_log = logging.getLogger(__name__)


@dataclass
class Index:
    """An index in memory of the centred unit rows of `whitening`, ready to be searched."""

    index: Any
    factory: str
    checksums: list[str]  # of the cache files, in their order
    whitening: Whitening
    recall: float = 0.0  # share of the true nearest neighbours among the candidates, the mean over `sample` rows
    sample: int = 0

    def candidates(self, queries: np.ndarray, k: int) -> np.ndarray:
        """Rows, int64 (q, min(`CANDIDATES` * k, n)), among which the k nearest are sought; -1 where fewer are found."""
        width, cells = min(CANDIDATES * k, self.index.ntotal), _cells(self.index)
        visited = max(_MIN_CELLS, cells // _CELL_SHARE) * max(k, RECALL_AT) // RECALL_AT  # more lie farther away
        _set_parameter(self.index, "nprobe", min(cells, visited))
        _set_parameter(self.index, "efSearch", 2 * width)
        return search_index(self.index, queries, width)[1]


def open_or_build(cache: EmbeddingCache, factory: str, *, progress: Progress | None = None) -> Index:
    """Read the index of a cache; build it where there is none, or where the cache has changed since.

    Raises `ValueError` where faiss refuses the factory string or the cache has too few rows for it.
    """
    d, path = cache.encoder.dim, index_path(cache, factory)
    try:
        empty = faiss.index_factory(d, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise ValueError(
            f"faiss makes no index {factory!r} of {d} dimensions ({_reason(error)}); use exact, or a factory string "
            "such as IVF1024,SQ8 or HNSW32"
        ) from error
    try:
        stored = read_index(path)
        if stored.checksums == cache.checksums and stored.factory == factory:
            return stored
        _log.info("%s is of another state of the cache; building it anew", path)
    except FileNotFoundError:
        pass
    except PUCacheError as error:
        _log.info("%s; building it anew", error)
    with progress or Silent() as progress:
        progress.start(2 * len(cache), f"building the index {factory}")
        index = _filled(empty, factory, cache, progress)
    try:
        write_index(index, path)
    except OutputError as error:
        _log.warning("the index is not kept, and made anew each time: %s", str(error).split(";")[0])
    return index


def index_path(cache: EmbeddingCache, factory: str) -> Path:
    """Path of a cache's index, such as ``cache.h5.IVF1024-SQ8.index``: beside its first file."""
    return sidecar_path(cache, re.sub("[^A-Za-z0-9_]+", "-", factory)[:100] + ".index")


def _reason(error: Exception) -> str:
    """What faiss says, without its own lines of code."""
    return re.split(r"\.cpp:\d+: |failed: ", str(error).replace("\n", " "))[-1].strip()[:200]


def _set_parameter(index: Any, name: str, value: int) -> None:
    with contextlib.suppress(RuntimeError):  # of an index of another kind
        faiss.ParameterSpace().set_index_parameter(index, name, value)


def _cells(index: Any) -> int:
    """Number of cells of an inverted file, behind a projection or not; 0 of an index of another kind."""
    try:
        return int(faiss.extract_index_ivf(index).nlist)
    except RuntimeError:
        return 0


def _filled(empty: Any, factory: str, cache: EmbeddingCache, progress: Progress) -> Index:
    """An index of all rows, and its recall."""
    whitening = Whitening.estimate(cache)
    sample = evenly_spaced(len(cache), max(_TRAINING_ROWS, _ROWS_PER_CELL * _cells(empty)))
    with contextlib.suppress(RuntimeError):  # an index without cells
        faiss.extract_index_ivf(empty).cp.min_points_per_centroid = 1  # no warning for small caches
    _set_parameter(empty, "efConstruction", _GRAPH_EFFORT)
    try:
        empty.train(whitening.centred_units(cache.take(sample)))
    except RuntimeError as error:
        raise ValueError(
            f"an index {factory} cannot be made of the {len(cache):,} rows of {cache.name} ({_reason(error)}); use "
            "exact, or an index of fewer cells"
        ) from error
    for rows, X in cache.blocks(check=True):
        empty.add(whitening.centred_units(X))
        progress.advance(rows.stop - rows.start)
    index = Index(empty, factory, cache.checksums, whitening)
    index.recall, index.sample = _recall(index, cache, progress)
    return index


def _recall(index: Index, cache: EmbeddingCache, progress: Progress) -> tuple[float, int]:
    """Share of the true neighbours of evenly spaced rows that are among the candidates, and number of these rows.

    Rows whose last neighbours are equally near, such as those of blank pictures, are left out: any choice among
    equals is right.
    """
    k = min(RECALL_AT, len(cache))
    sample = index.whitening.centred_units(cache.take(evenly_spaced(len(cache), _SAMPLE)))
    true = no_neighbours(len(sample), k + 1)
    for rows, X in cache.blocks():
        products, numbers = row_search(index.whitening.centred_units(X))(sample, k + 1)
        true = merged(true, (products, numbers + rows.start), k + 1)
        progress.advance(rows.stop - rows.start)
    clear = true[0][:, -2] - true[0][:, -1] > _EQUAL
    clear |= not clear.any()
    found = index.candidates(sample[clear], k)
    shares = [len(np.intersect1d(*lists)) / k for lists in zip(found, true[1][clear, :k], strict=True)]
    return float(np.mean(shares)), len(shares)


def read_index(path: Path) -> Index:
    """Read an index.

    Raises `FileNotFoundError`, and `CacheError` where the file is damaged, of another version, or cannot be read.
    """
    try:
        with path.open("rb") as stream:  # opened once: another file may take its name after it has been hashed
            expected = stream.read(_SHA256_BYTES)
            if hashlib.file_digest(stream, "sha256").digest() != expected:
                raise CacheError(f"{path} is damaged, or no index of this version of pucache")
            stream.seek(_SHA256_BYTES)
            description = json.loads(stream.readline())
            if description.pop("format") != _FORMAT:
                raise CacheError(f"{path} is an index of another version of pucache")
            whitening = Whitening.from_text(description.pop("whitening"), description.pop("d"))
            index = faiss.read_index(faiss.PyCallbackIOReader(stream.read))  # type: ignore[attr-defined]
            return Index(index, whitening=whitening, **description)
    except FileNotFoundError:
        raise
    except (AttributeError, KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise CacheError(f"cannot read {path}: {str(error).splitlines()[0][:200]}") from error


def write_index(index: Index, path: Path) -> None:
    """Write an index, whole or not at all; raises `OutputError` where it cannot be, or would replace another file."""
    description = {
        "format": _FORMAT,
        "factory": index.factory,
        "checksums": index.checksums,
        "recall": index.recall,
        "sample": index.sample,
        "d": len(index.whitening.mean),
        "whitening": index.whitening.to_text(),
    }
    with replacing(check_output(path, INDEX)) as temporary, temporary.open("wb+") as stream:
        stream.write(bytes(_SHA256_BYTES) + json.dumps(description).encode() + b"\n")
        try:
            faiss.write_index(index.index, faiss.PyCallbackIOWriter(stream.write))  # type: ignore[attr-defined]
        except RuntimeError as error:
            raise OSError(f"faiss could not write it ({str(error).splitlines()[-1][:120]})") from error
        stream.seek(_SHA256_BYTES)
        digest = hashlib.file_digest(stream, "sha256").digest()
        stream.seek(0)
        stream.write(digest)
