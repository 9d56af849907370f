"""What is read through a cache: the images that it was made from, and the files that belong to it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import PUCacheError
from ..storage.urls import is_url, path_or_url
from .embedding_cache import EmbeddingCache, expand_paths, is_cache
from .reader import CacheFile


def files_read(*inputs: object) -> Iterator[str]:
    """Paths and URLs among the inputs of a verb, and of each cache its sources and the files beside it.

    Inputs that are no paths, caches or sequences of these give nothing. This is an iterator, as a cache is opened only
    where `pucache.storage.outputs` asks for it: where something would be replaced. A file that cannot be read gives
    nothing more; whoever reads it says why.
    """
    for one in inputs:
        if isinstance(one, EmbeddingCache):
            yield from _of_caches([file.path for file in one.files])
        elif isinstance(one, str | os.PathLike):
            yield os.fspath(one)
            yield from _of_caches(_cache_files(os.fspath(one)))
        elif isinstance(one, Sequence):
            yield from files_read(*one)


def _of_caches(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        yield from (str(path), f"{path}.*", f"{path}.review")  # such as cache.h5.neighbours
        try:
            source = CacheFile(path).source
        except PUCacheError:
            continue
        if source:
            yield source


def _cache_files(where: str) -> list[Path]:
    try:
        return [] if is_url(path_or_url(where)) or not is_cache(where) else expand_paths(where)
    except PUCacheError:
        return []
