"""Where outputs are written: a file of this machine, or one behind a URL that is worked on here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from ..encoders.spec import EncoderSpec
from ..errors import CacheError, OutputError
from ..storage.atomic import check_writable, exclusive_lock, replacing
from ..storage.urls import is_url
from .paths import part_files, writer_lock
from .reader import CacheFile
from .remote import RemoteCache, upload


class Place(Protocol):
    """Where a cache is written, and what is to be done there and when.

    Attributes
    ----------
    name : str
        As users know it.
    local : Path
        The file of this machine that is worked on.
    """

    name: str
    local: Path

    def check_writable(self) -> None:
        """Before any work: raise `OutputError` where the cache cannot be written."""

    def fetch(self) -> None:
        """Within the writer's lock: bring what is there already."""

    def keep(self, part: Path) -> None:
        """Once a part is safe on this machine."""

    def keep_all(self, parts: list[Path]) -> None:
        """Once it is known that parts which were found here are of this work."""

    def publish(self) -> None:
        """Once the cache is whole."""

    def drop_parts(self) -> None:
        """Once nothing came of the work."""


class Here:
    """A file of this machine: nothing is to be brought or sent."""

    def __init__(self, path: Path):
        self.name, self.local = str(path), path

    def check_writable(self) -> None:
        """See `pucache.storage.atomic.check_writable`."""
        check_writable(self.local)

    def fetch(self) -> None:
        """It is here."""

    def keep(self, part: Path) -> None:
        """It is kept."""

    def keep_all(self, parts: list[Path]) -> None:
        """They are kept."""

    def publish(self) -> None:
        """It is there."""

    def drop_parts(self) -> None:
        """The caller removes them."""


def place_of(cache: str | Path) -> Place:
    """Where a cache of this path or URL is written."""
    return RemoteCache(os.fspath(cache)) if is_url(cache) else Here(Path(cache))


@contextmanager
def delivering(out: str | Path) -> Iterator[Path]:
    """Yield a path to write to; on success what is there becomes `out`, a file or at a URL, whole or not at all.

    Raises
    ------
    OutputError
        It cannot be written, or does not arrive.
    """
    if not is_url(out):
        with replacing(out) as temporary:
            yield temporary
        return
    remote = RemoteCache(os.fspath(out))
    here, lock = remote.local, remote.local.with_name(f".{remote.local.name}.lock")
    with exclusive_lock(lock, OutputError(f"{remote.name} is being written by another process; wait for it")):
        with replacing(here) as temporary:
            yield temporary
        upload(here, os.fspath(out))
        here.unlink()


def encoder_of_existing(cache: str | Path) -> EncoderSpec | None:
    """Return the encoder of a cache that is there already, or of its unfinished parts; None for a new one."""
    place = place_of(cache)
    cache = place.local
    if is_url(place.name):
        with writer_lock(cache):
            place.fetch()
    for path in [cache, *part_files(cache)]:
        try:
            return CacheFile(path).encoder
        except CacheError:
            continue  # `embed` says what is wrong with it
    return None
