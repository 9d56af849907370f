"""Approximate search: an index of a cache, kept in a file beside it.

The file is faiss's own, followed by a trailer: JSON (what the index is of, how it is searched, how much
it finds), its length, the sha256 of all bytes before, and `_MAGIC`. faiss reads the beginning and stops,
and nothing is believed before the hash is right. An index is tied to the seals of the cache files and
rebuilt when these differ.

    ivf    cells around centroids, of which a query visits some (inverted file)
    hnsw   a graph of neighbours (Malkov and Yashunin 2016); finds more in less time, and takes long to build

Rows are kept in float16, or in 8 bits where that does not fit into the memory allowed. How many cells are
visited, or how far the graph is followed, is the least that finds `RECALL` of the true neighbours of
a sample of rows.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..errors import CacheError, PUCacheError
from ..progress import Progress, Silent
from ..storage.atomic import check_writable, replacing
from .knn import MOST_ON_GPU, nearest, to_gpu
from .whitening import Space

KINDS = ("ivf", "hnsw")
RECALL, AT = 0.99, 100  # of the AT true neighbours of a row, the share to be found
_MAGIC = b"PUINDEX1"
_LENGTH, _END = 8, 8 + 32 + len(_MAGIC)  # bytes of the length; of it, the hash and the magic
_SAMPLE = 256  # rows whose true neighbours are sought, to measure the recall
_PER_CELL = 64  # rows that a centroid is learned from
_LINKS, _EFFORT = 32, 80  # of a graph: neighbours kept per row, candidates looked at while it is built
_EQUAL = 1e-6  # of inner products in float32
_HASHED_AT_ONCE = 1 << 24
_CGROUP = Path("/sys/fs/cgroup")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trailer:
    """What stands behind the index.

    Attributes
    ----------
    kind : str
    checksums : list of str
        Of the cache files, in their order.
    n, d : int
    storage : str
        ``float16`` or ``8 bit``.
    effort : int
        Cells visited (ivf), or candidates kept while the graph is followed (hnsw).
    recall : float
        Share of the `AT` true neighbours found, mean over the sample.
    sample : int
    space : str
        `Space.to_text`.
    faiss : str
        Version that wrote it.
    """

    kind: str
    checksums: list[str]
    n: int
    d: int
    storage: str
    effort: int
    recall: float
    sample: int
    space: str
    faiss: str


class Index:
    """An index in memory, ready to be searched.

    Attributes
    ----------
    trailer : Trailer
    space : Space
        That its rows are in.
    """

    def __init__(self, index: Any, trailer: Trailer):
        self._index, self.trailer = index, trailer
        self.space = Space.from_text(trailer.space, trailer.d)

    def search(self, queries: np.ndarray, k: int, *, device: str = "cpu") -> np.ndarray:
        """Rows near each query, int64 (q, k), best first; -1 where fewer were found.

        A GPU serves cells of up to 2,048 neighbours and visits; all else is the CPU's.
        """
        effort = self.trailer.effort * max(k, AT) // AT  # more is farther away
        index = None
        if self.trailer.kind == "ivf" and max(k, min(effort, self._index.nlist)) <= MOST_ON_GPU:
            index = to_gpu(self._index, device)
        index = index or self._index
        _set_effort(index, self.trailer.kind, effort)
        return index.search(np.ascontiguousarray(queries, np.float32), k)[1]


def path_of(cache: EmbeddingCache, kind: str) -> Path:
    """Where the index of a cache is kept: beside its first file."""
    first = cache.files[0].path
    return first.with_name(f"{first.name}.{kind}")


def open_or_build(
    cache: EmbeddingCache, kind: str, *, memory: int | None = None, progress: Progress | None = None
) -> Index:
    """Read the index of a cache; build it where there is none, or where it is of another state of the cache.

    Parameters
    ----------
    cache : EmbeddingCache
    kind : {"ivf", "hnsw"}
    memory : int, optional
        Bytes that building may take; half of what is free by default.
    progress : Progress, optional

    Raises
    ------
    ValueError
        Unknown kind, or not even 8 bits a number fit into the memory allowed.
    CacheError
        The cache is damaged.
    OutputError
        The index cannot be written.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown index {kind!r}; use exact, {' or '.join(KINDS)}")
    path = path_of(cache, kind)
    try:
        found = _read(path)
    except PUCacheError as error:
        _log.info("%s; building it anew", error)
        found = None
    if found is not None and found.trailer.checksums == _checksums(cache) and found.trailer.kind == kind:
        return found
    if found is not None:
        _log.info("%s is of another state of the cache; building it anew", path)
    memory = _free_memory() // 2 if memory is None else memory
    return _build(cache, kind, path, memory, progress or Silent())


# --- the file ----------------------------------------------------------------------------------


def _read(path: Path) -> Index | None:
    """Read an index whose bytes are as they were written; None where there is none."""
    try:
        with path.open("rb") as stream:
            trailer = _trailer(stream, path)
            return Index(_read_open(stream), trailer)
    except FileNotFoundError:
        return None
    except (OSError, RuntimeError, ValueError) as error:
        raise CacheError(f"cannot read {path}: {str(error).splitlines()[0][:200]}") from error


def _read_open(stream: Any) -> Any:
    """Read an index from an open file, whatever has taken its name since."""
    same = f"/proc/self/fd/{stream.fileno()}"
    if os.path.exists(same):
        return faiss.read_index(same)
    stream.seek(0)
    return faiss.read_index(faiss.PyCallbackIOReader(stream.read))  # type: ignore[attr-defined]  # the stubs lack it


def _trailer(stream: Any, path: Path) -> Trailer:
    """What the file says of its index, where every byte is as it was written."""
    before = os.fstat(stream.fileno()).st_size - _END
    stream.seek(max(before, 0))
    end = stream.read(_END)
    length = int.from_bytes(end[:_LENGTH], "little")
    if end[-len(_MAGIC) :] != _MAGIC or not 0 < length <= before:
        raise CacheError(f"{path} is no index of pucache, or is truncated")
    if _hash(stream, before + _LENGTH) != end[_LENGTH : -len(_MAGIC)]:
        raise CacheError(f"{path} is damaged: its bytes are not as they were written")
    stream.seek(before - length)
    try:
        return Trailer(**json.loads(stream.read(length)))
    except (TypeError, ValueError) as error:
        raise CacheError(f"{path} is an index of another version of pucache") from error


def _hash(stream: Any, size: int) -> bytes:
    digest, left = hashlib.sha256(), size
    stream.seek(0)
    while left and (block := stream.read(min(left, _HASHED_AT_ONCE))):
        digest.update(block)
        left -= len(block)
    return digest.digest()


def _write(index: Any, path: Path, told: dict[str, Any]) -> Trailer:
    with replacing(check_writable(path)) as temporary:
        try:
            faiss.write_index(index, str(temporary))
        except RuntimeError as error:  # faiss does not say why
            raise OSError(f"faiss could not write it ({str(error).splitlines()[-1][:120]})") from error
        with temporary.open("rb+") as stream:
            trailer = Trailer(**told, faiss=faiss.__version__)
            text = json.dumps(asdict(trailer)).encode()
            size = stream.seek(0, os.SEEK_END) + stream.write(text + len(text).to_bytes(_LENGTH, "little"))
            digest = _hash(stream, size)
            stream.seek(size)
            stream.write(digest + _MAGIC)
    return trailer


def _checksums(cache: EmbeddingCache) -> list[str]:
    return [file.checksum for file in cache.files]


# --- building ----------------------------------------------------------------------------------


def _build(cache: EmbeddingCache, kind: str, path: Path, memory: int, progress: Progress) -> Index:
    check_writable(path)
    space = Space.of(cache)
    learned_from = _to_learn_from(cache, kind, memory)
    storage, bits = _storage(cache, kind, memory - 2 * 4 * learned_from * cache.encoder.dim)
    with progress:
        progress.start(2 * len(cache), f"building the {kind} index")
        index = _empty(cache, space, kind, bits, learned_from)
        for rows, X in cache.blocks(check=True):
            index.add(space.unit(X))
            progress.advance(rows.stop - rows.start)
        sample, truth = _true_neighbours(cache, space, progress)
    effort, recall = _least_effort(index, kind, sample, truth)
    told = {
        "kind": kind,
        "checksums": _checksums(cache),
        "n": len(cache),
        "d": cache.encoder.dim,
        "storage": storage,
        "effort": effort,
        "recall": recall,
        "sample": len(sample),
        "space": space.to_text(),
    }
    return Index(index, _write(index, path, told))


def _to_learn_from(cache: EmbeddingCache, kind: str, memory: int) -> int:
    """Rows that the index learns cells or bounds from; their copies take at most a quarter of the memory."""
    wanted = _cells(len(cache)) * _PER_CELL if kind == "ivf" else 1 << 15
    return max(1, min(wanted, len(cache), memory // (4 * 2 * 4 * cache.encoder.dim)))


def _cells(n: int) -> int:
    return max(1, min(round(4 * n**0.5), n // _PER_CELL))


def _storage(cache: EmbeddingCache, kind: str, memory: int) -> tuple[str, Any]:
    """The finest storage of the rows that fits."""
    types = {"float16": faiss.ScalarQuantizer.QT_fp16, "8 bit": faiss.ScalarQuantizer.QT_8bit}
    around = 8 * (2 * _LINKS + 4) // 2 if kind == "hnsw" else 16  # bytes a row, for links or for row numbers
    for (name, chosen), width in zip(types.items(), (2, 1), strict=True):
        if len(cache) * (width * cache.encoder.dim + around) <= memory:
            return name, chosen
    needed = len(cache) * (cache.encoder.dim + around)
    raise ValueError(
        f"an {kind} index of {cache.name} takes {needed / 1e9:.1f} GB in memory, {memory / 1e9:.1f} GB are allowed; "
        "allow more with --memory, or use --index exact, which streams the cache"
    )


def _empty(cache: EmbeddingCache, space: Space, kind: str, bits: Any, learned_from: int) -> Any:
    """An index that has learned what it must, and holds no row."""
    d, metric = cache.encoder.dim, faiss.METRIC_INNER_PRODUCT
    index: Any  # faiss's classes have little in common that its stubs know of
    if kind == "hnsw":
        index = faiss.IndexHNSWSQ(d, bits, _LINKS, metric)
        index.hnsw.efConstruction = _EFFORT
    else:
        cells = min(_cells(len(cache)), learned_from)
        index = faiss.IndexIVFScalarQuantizer(faiss.IndexFlatIP(d), d, cells, bits, metric)
        index.by_residual = False
        index.cp.min_points_per_centroid = 1  # a small cache has few, and is told nothing for it
    index.train(_evenly(cache, space, learned_from))
    return index


def _evenly(cache: EmbeddingCache, space: Space, count: int) -> np.ndarray:
    """At most `count` rows in the space, evenly spaced, float32 (m, d)."""
    step = -(-len(cache) // count)
    taken = np.empty((-(-len(cache) // step), cache.encoder.dim), np.float32)
    for rows, X in cache.blocks():
        first = -(-rows.start // step)
        part = space.unit(X[first * step - rows.start :: step])
        taken[first : first + len(part)] = part
    return taken


def _true_neighbours(cache: EmbeddingCache, space: Space, progress: Progress) -> tuple[np.ndarray, np.ndarray]:
    """Some rows, (m, d), and the numbers of their nearest, (m, AT), by brute force.

    Rows of which others are just as near as the last of these, such as those of blank pictures, are left
    out: which of equals is found is no matter.
    """
    sample = _evenly(cache, space, _SAMPLE)
    k = min(AT + 1, len(cache))
    best = np.full((len(sample), k), -np.inf, np.float32), np.zeros((len(sample), k), np.int64)
    for rows, X in cache.blocks():
        products, places = nearest(sample, space.unit(X), k, device="cpu")
        every, of = np.hstack([best[0], products]), np.hstack([best[1], places + rows.start])
        order = np.argsort(-every, axis=1, kind="stable")[:, :k]
        best = np.take_along_axis(every, order, 1), np.take_along_axis(of, order, 1)
        progress.advance(rows.stop - rows.start)
    clear = best[0][:, -2] - best[0][:, -1] > _EQUAL if k > AT else np.ones(len(sample), bool)
    clear |= not clear.any()
    return sample[clear], best[1][clear, :AT]


def _least_effort(index: Any, kind: str, sample: np.ndarray, truth: np.ndarray) -> tuple[int, float]:
    """The least effort that reaches `RECALL`, else the greatest, and the recall it reaches."""
    effort, recall = 1, 0.0
    for effort in _efforts(index, kind, truth.shape[1]):
        _set_effort(index, kind, effort)
        _, found = index.search(sample, truth.shape[1])
        recall = float(np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in zip(found, truth, strict=True)]))
        if recall >= RECALL:
            break
    return effort, recall


def _efforts(index: Any, kind: str, k: int) -> Iterator[int]:
    effort, most = (k, 1 << 13) if kind == "hnsw" else (1, index.nlist)
    while effort < most:
        yield effort
        effort = max(effort + 1, effort * 5 // 4)
    yield most


def _set_effort(index: Any, kind: str, effort: int) -> None:
    if kind == "hnsw":
        index.hnsw.efSearch = effort
    else:
        index.nprobe = min(effort, index.nlist)


def _free_memory() -> int:
    """Bytes that can be had without swapping; 4 GiB where the system does not tell."""
    told = [4 << 30]
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        told = [1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])]
    with contextlib.suppress(OSError, ValueError):  # of a container
        most, used = (int((_CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        told.append(max(0, most - used))
    return min(told)
