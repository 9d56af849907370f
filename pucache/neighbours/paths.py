"""Files that are kept beside a cache."""

from __future__ import annotations

from pathlib import Path

from ..cache.embedding_cache import EmbeddingCache
from ..cache.local_copies import sidecar_base


def beside(cache: EmbeddingCache, suffix: str) -> Path:
    """Path of a file of a cache, such as ``cache.h5.neighbours``: beside the first file of the cache.

    Of a cache behind a URL it lies on this machine, and is the same in every version of the cache.
    """
    first = sidecar_base(cache.files[0].path)
    return first.with_name(f"{first.name}.{suffix}")
