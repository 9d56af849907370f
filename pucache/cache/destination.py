"""Destinations of output: a file of this machine, or a URL, whose file is written on this machine and then sent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from ..encoders.spec import EncoderSpec
from ..errors import CacheError, OutputError
from ..storage.atomic import make_folder, replacing
from ..storage.file_kinds import CACHE, kind_of_content
from ..storage.filesystem import (
    is_object_store,
    object_info,
    object_stamp,
    open_filesystem,
    put_file,
    read_range,
    store_errors,
)
from ..storage.outputs import Paths, check_output, check_replaces
from ..storage.retries import with_retries
from ..storage.urls import is_url, path_or_url, without_secrets
from .local_copies import READING, remove_copies, working_folder
from .parts import part_files, writer_lock
from .reader import CacheFile
from .remote import copy_path, file_name, local_copies


class LocalDestination:
    """A cache file of this machine: written in place, so that nothing is fetched or sent."""

    def __init__(self, path: Path):
        self.name, self.local = str(path), path

    def check(self, kind: str = CACHE, *, inputs: Paths = (), force: bool = False) -> None:
        """See `pucache.storage.outputs.check_output`."""
        check_output(self.local, kind, inputs=inputs, force=force)

    def exclusive(self) -> AbstractContextManager[None]:
        """See `pucache.cache.parts.writer_lock`."""
        return writer_lock(self.local)

    def existing(self) -> Path | None:
        """Return the cache that is there already; None where there is none."""
        return self.local if self.local.exists() else None

    def publish(self, *, force: bool = False) -> Path:
        """Return the path: the file was written in place."""
        return self.local


class RemoteDestination:
    """A file behind a URL, with the methods of `LocalDestination`.

    It is written in a working folder of this machine, with its lock and its parts, and sent as a whole. Nothing smaller
    than the file is in the store, so a lost machine costs what it had not published.
    """

    def __init__(self, url: str):
        self.name, self._url = without_secrets(url), url
        self.local = working_folder(url) / file_name(url)
        self._version: str | None = None  # stamp of the object that the output is to replace

    def check(self, kind: str = CACHE, *, inputs: Paths = (), force: bool = False) -> None:
        """As `LocalDestination.check`, of the store: a file can be written to it, and removed from it."""
        with store_errors(OutputError, "write", self.name):
            fs, path = open_filesystem(self._url)
            existing = object_info(fs, path)
            if existing and existing["type"] != "file":
                raise OutputError(f"{self.name} is a folder; name a file in it, such as {self.name}/cache.h5")
            if existing and kind != CACHE:  # a cache is fetched, or refused, by `existing`
                found = with_retries(
                    lambda: kind_of_content(path, existing["size"], lambda start, end: read_range(fs, path, start, end))
                )
                check_replaces(self._url, kind, found, inputs, force=force)
            folder, _, name = path.rpartition("/")
            probe = f"{folder}/.{name}.writable"
            if not is_object_store(fs):
                with_retries(lambda: fs.makedirs(folder, exist_ok=True))
            with_retries(lambda: fs.pipe_file(probe, b""))
            with_retries(lambda: fs.rm_file(probe))

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Exclude other writers on this machine within the block, and note the version that is in the store."""
        with writer_lock(self.local, self.name):
            with store_errors(OutputError, "write", self.name):
                self._version = object_stamp(object_info(*open_filesystem(self._url)))
            yield

    def existing(self) -> Path | None:
        """Copy the cache that is there already to this machine; None where there is none."""
        with store_errors(CacheError, "fetch", self.name):
            info = object_info(*open_filesystem(self._url))
        return None if info is None else local_copies(self._url)[0]

    def publish(self, *, force: bool = False) -> Path:
        """Send the finished cache; returns it as a copy for reading, so that nothing is fetched again."""
        path, info = self.send("to add to it, or with --force to overwrite it", force=force)
        folder = working_folder(self._url, READING)
        copy = copy_path(folder, path, info)
        try:
            make_folder(copy.parent)
            os.replace(self.local, copy)
        except OSError as error:
            raise OutputError(f"{self.name} is written, but {self.local} cannot become its copy: {error}") from error
        remove_copies(folder, keep=[copy])
        return copy

    def send(self, remedy: str, *, force: bool = False) -> tuple[str, dict[str, Any]]:
        """Put the local file; returns its path in the store, and fsspec's info of it.

        Raises `OutputError` if the upload failed, or the object has changed since its version was noted, unless forced.
        The local file is kept then, and an earlier object is unchanged.
        """
        with store_errors(OutputError, "write", self.name):
            fs, path = open_filesystem(self._url, retry_each_request=True)
            if not force and object_stamp(object_info(fs, path)) != self._version:
                raise OutputError(
                    f"{self.name} was changed by another writer while this command ran; nothing was sent, and "
                    f"{self.local} is kept: run the command again {remedy}"
                )
            return path, put_file(fs, self.local, path)


Destination = LocalDestination | RemoteDestination


def open_destination(cache: str | Path) -> Destination:
    """Return the destination for a path or URL."""
    where = path_or_url(cache)
    if str(cache).endswith("/"):
        raise OutputError(f"{cache} names a folder; name a file to write instead")
    return RemoteDestination(where) if is_url(where) else LocalDestination(Path(where))


@contextmanager
def atomic_output(out: str | Path) -> Iterator[Path]:
    """Yield a temporary path; on success its content replaces `out`, a file or a URL, as a whole.

    Raises `OutputError` where `out` cannot be written, or the object behind a URL changed within the block, and
    `CacheLockedError` where another process of this machine writes the file of this URL.
    """
    destination = open_destination(out)
    if isinstance(destination, LocalDestination):
        with replacing(destination.local) as temporary:
            yield temporary
        return
    with destination.exclusive():
        with replacing(destination.local) as temporary:
            yield temporary
        destination.send("to overwrite it")
        destination.local.unlink()


def encoder_of_existing(cache: str | Path) -> EncoderSpec | None:
    """Return the encoder of the cache that is there already, or of its unfinished parts; None if there is neither."""
    destination = open_destination(cache)
    existing = destination.existing()
    for path in [*([existing] if existing else []), *part_files(destination.local)]:
        try:
            return CacheFile(path).encoder
        except CacheError:
            continue  # `embed` reports the damage
    return None
