"""Destinations of output: a file of this machine, or a URL whose file is prepared on this machine first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from ..encoders.spec import EncoderSpec
from ..errors import CacheError
from ..storage.atomic import check_writable, replacing
from ..storage.urls import is_url
from .paths import part_files, writer_lock
from .reader import CacheFile
from .remote import RemoteCache


class CacheDestination(Protocol):
    """Where a cache is written; `embed` calls these methods at the stages of its work.

    Attributes
    ----------
    name : str
        Path or URL for messages, without secrets.
    local : Path
        The file of this machine that is written.
    """

    name: str
    local: Path

    def check_writable(self) -> None:
        """Raise `OutputError` if the cache cannot be written; called before any work."""

    def exclusive(self) -> AbstractContextManager[None]:
        """Exclude other writers within the block; raises `CacheLockedError` where there is one."""

    def fetch(self) -> None:
        """Bring the existing cache and parts to this machine; called while other writers are excluded."""

    def store_part(self, part: Path) -> None:
        """Store a part that was finished on this machine."""

    def store_parts(self, parts: list[Path]) -> None:
        """Store the parts of an earlier run on this machine that the destination lacks."""

    def publish(self) -> None:
        """Store the finished cache."""

    def remove_parts(self) -> None:
        """Remove the stored parts; called when the work ends without a cache."""


class LocalDestination:
    """A cache file of this machine: written in place, so that nothing is fetched or sent."""

    def __init__(self, path: Path):
        self.name, self.local = str(path), path

    def check_writable(self) -> None:
        """See `pucache.storage.atomic.check_writable`."""
        check_writable(self.local)

    def exclusive(self) -> AbstractContextManager[None]:
        """See `pucache.cache.paths.writer_lock`."""
        return writer_lock(self.local)

    def fetch(self) -> None:
        """Do nothing."""

    def store_part(self, part: Path) -> None:
        """Do nothing."""

    def store_parts(self, parts: list[Path]) -> None:
        """Do nothing."""

    def publish(self) -> None:
        """Do nothing."""

    def remove_parts(self) -> None:
        """Do nothing; the caller removes local parts."""


def open_destination(cache: str | Path) -> CacheDestination:
    """Return the destination for a path or URL."""
    return RemoteCache(os.fspath(cache)) if is_url(cache) else LocalDestination(Path(cache))


@contextmanager
def atomic_output(out: str | Path) -> Iterator[Path]:
    """Yield a temporary path; on success its content replaces `out`, a file or a URL, as a whole.

    Raises
    ------
    OutputError
        `out` cannot be written.
    CacheLockedError
        Another process writes the file of this URL.
    """
    if not is_url(out):
        with replacing(out) as temporary:
            yield temporary
        return
    remote = RemoteCache(os.fspath(out))
    with remote.exclusive():
        with replacing(remote.local) as temporary:
            yield temporary
        remote.send()
        remote.local.unlink()


def encoder_of_existing(cache: str | Path) -> EncoderSpec | None:
    """Return the encoder of an existing cache, or of its unfinished parts; None if there is neither."""
    destination = open_destination(cache)
    if is_url(destination.name):
        with writer_lock(destination.local):
            destination.fetch()
    for path in [destination.local, *part_files(destination.local)]:
        try:
            return CacheFile(path).encoder
        except CacheError:
            continue  # `embed` reports the damage
    return None
