"""Memory of an approximate index: what is free, and what an index takes."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ..cache.embedding_cache import EmbeddingCache
from .product_codes import code_bytes

GRAPH_LINKS = 32  # neighbours kept per row of a graph
VALUE_BYTES = {"float16": 2, "8 bit": 1}  # storages, the most exact first
_ROW_NUMBER_BYTES = 8
_CGROUP = Path("/sys/fs/cgroup")
_UNKNOWN = 4 << 30  # assumed where the system does not tell


def free_memory() -> int:
    """Bytes available without swapping, within a container's limit; 4 GiB where the system does not tell."""
    limits = [_UNKNOWN]
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits = [1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])]
    with contextlib.suppress(OSError, ValueError):
        limit, used = (int((_CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        limits.append(max(0, limit - used))
    return min(limits)


def choose_storage(cache: EmbeddingCache, kind: str, memory: int) -> str:
    """The most exact storage of the rows with which an index fits into `memory` bytes.

    Returns
    -------
    str
        A key of `VALUE_BYTES`, or such as ``64-byte codes``.

    Raises
    ------
    ValueError
        None fits.
    """
    for storage, width in _row_bytes(cache, kind).items():
        needed = len(cache) * width
        if needed <= memory:
            return storage
    raise ValueError(
        f"an {kind} index of {cache.name} takes {needed / 1e9:.1f} GB in memory, {memory / 1e9:.1f} GB are allowed; "
        "allow more with --memory, or use --index exact, which streams the cache"
    )


def _row_bytes(cache: EmbeddingCache, kind: str) -> dict[str, int]:
    """Bytes that an index takes for each row, by storage, the most exact first."""
    if kind == "ivfpq":
        codes = code_bytes(cache)
        return {f"{codes}-byte codes": 3 * (codes + _ROW_NUMBER_BYTES) // 2}  # lists grow by doubling
    overhead = 8 * (2 * GRAPH_LINKS + 4) // 2 if kind == "hnsw" else 2 * _ROW_NUMBER_BYTES
    return {storage: width * cache.encoder.dim + overhead for storage, width in VALUE_BYTES.items()}
