"""Files beside a cache file while it is written: the lock of its writer, and the parts of an unfinished run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import CacheLockedError
from ..storage.atomic import exclusive_lock


@contextmanager
def writer_lock(cache: Path) -> Iterator[None]:
    """Keep a second writer of `cache` away; the lock dies with the process that holds it."""
    lock = cache.with_name(f".{cache.name}.lock")
    taken = CacheLockedError(f"{cache} is being written by another process (lock {lock}); wait for it")
    with exclusive_lock(lock, taken):
        yield


def parts_folder(cache: Path) -> Path:
    """Where the parts of an unfinished cache lie."""
    return cache.with_name(cache.name + ".parts")


def part_files(cache: Path) -> list[Path]:
    """The parts that lie there now, in the order of their names."""
    try:
        return sorted(parts_folder(cache).glob("part-*.h5"))
    except FileNotFoundError:  # another writer has just removed the folder
        return []
