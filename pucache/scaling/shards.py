"""The shards of a cache, as values that another machine can open, and paths as every node finds them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..cache.local_copies import url_of_copy
from ..cache.reader import CacheFile
from ..cache.remote import local_copies
from ..errors import CacheError
from ..storage.atomic import folder_for_output, temporary_file
from ..storage.urls import is_url, path_or_url

if TYPE_CHECKING:
    from .tasks import ShardTasks


@dataclass(frozen=True)
class Shard:
    """One file of a cache: its absolute path, its checksum, the URL that it is a copy of or "", its rows."""

    path: str
    checksum: str
    url: str
    rows: slice

    def __str__(self) -> str:
        return self.path

    def open(self) -> EmbeddingCache:
        """Open the file; raises `CacheError` where it is missing, damaged, or not the one that was listed."""
        path = Path(self.path)
        file = None if self.url and not path.exists() else CacheFile(path, was_listed=True)
        if self.url and (file is None or file.checksum != self.checksum):  # none here, or an older copy
            (path,) = local_copies(self.url)
            file = CacheFile(path)
        if file is None or file.checksum != self.checksum:
            raise CacheError(f"{path} was replaced while it was read; run the command again")
        return EmbeddingCache(file)


def shards_of(cache: EmbeddingCache) -> list[Shard]:
    """The files of a cache, in row order."""
    bounds = np.cumsum([0, *map(len, cache.files)]).tolist()
    paths = [file.path.absolute() for file in cache.files]
    return [
        Shard(str(path), file.checksum, url_of_copy(path), slice(start, stop))
        for path, file, start, stop in zip(paths, cache.files, bounds[:-1], bounds[1:], strict=True)
    ]


def check_readable(tasks: ShardTasks, shards: list[Shard]) -> None:
    """Check that every machine has this pucache and reads the first shard; else raises `EngineError`."""
    tasks.check(partial(_problem, shards[0]), ("numpy",))


def _problem(shard: Shard) -> str:
    try:
        if not (shard.url or Path(shard.path).exists()):
            raise CacheError(f"no such cache: {shard.path}")
        shard.open()
    except CacheError as error:
        return f"cannot read the cache ({error}); mount its files at the same path on every node, or use a URL"
    return ""


def absolute(path: str | Path) -> str:
    """The path as every node finds it: tasks run in a folder of Ray."""
    location = path_or_url(path)
    return location if is_url(location) else os.path.abspath(location)


@contextmanager
def probe_file(folder: str | Path) -> Iterator[str]:
    """Path of a file by which nodes know that they see the folder; "" where it is a URL."""
    location = absolute(folder)
    if is_url(location):
        yield ""
        return
    with folder_for_output(Path(location)), temporary_file(Path(location, "nodes")) as file:
        yield str(file)
