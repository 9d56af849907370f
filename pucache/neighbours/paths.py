"""Files that are kept beside a cache."""

from __future__ import annotations

from pathlib import Path

from ..cache.embedding_cache import EmbeddingCache


def beside(cache: EmbeddingCache, suffix: str) -> Path:
    """Path of a file of a cache, such as ``cache.h5.neighbours``: beside the first file of the cache."""
    first = cache.files[0].path
    return first.with_name(f"{first.name}.{suffix}")
