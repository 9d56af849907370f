"""Files beside a cache file while it is written: the writer's lock, and the parts of an unfinished run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import CacheLockedError
from ..storage.atomic import exclusive_lock


@contextmanager
def writer_lock(cache: Path, name: str = "") -> Iterator[None]:
    """Exclude a second writer of `cache`; the kernel releases the lock when the process ends.

    Parameters
    ----------
    cache : Path
    name : str
        Name of the cache in the message, where that is a URL.

    Raises
    ------
    CacheLockedError
        Another process writes the cache.
    """
    lock = cache.with_name(f".{cache.name}.lock")
    locked = CacheLockedError(f"{name or cache} is being written by another process (lock {lock}); wait for it")
    with exclusive_lock(lock, locked):
        yield


def parts_folder(cache: Path) -> Path:
    """Folder of the parts of an unfinished cache."""
    return cache.with_name(cache.name + ".parts")


def part_files(cache: Path) -> list[Path]:
    """Existing parts of an unfinished cache, sorted by name."""
    try:
        return sorted(parts_folder(cache).glob("part-*.h5"))
    except FileNotFoundError:  # another writer has just removed the folder
        return []
