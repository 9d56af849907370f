"""Caches and score tables behind URLs, prepared in a working folder of this machine.

A cache is memory-mapped and locked, which an object store cannot do. So it is written on this machine, and
finished files are sent. The store holds the truth, because this machine may be lost at any time: each
finished part is sent at once, and the next run, on whatever machine, continues from there. A local cache
that the store lacks, or has in another version, is not used: somebody removed or replaced the one in the
store, or the upload failed, and then the parts are still in the store.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..errors import CacheError, OutputError
from ..progress import Progress
from ..storage.atomic import make_folder
from ..storage.fetch_log import FetchLog
from ..storage.filesystem import is_local, open_filesystem
from ..storage.lease import Lease
from ..storage.retries import error_text, with_retries
from ..storage.transfer import (
    fetch_file,
    folder_files,
    is_copy,
    is_object_store,
    local_stamp,
    megabytes,
    object_info,
    object_stamp,
    record_copy,
    remove_copy,
    remove_files,
    send_file,
)
from ..storage.urls import without_secrets
from .paths import part_files, parts_folder, writer_lock
from .remote_files import cache_files, file_name, store_errors
from .working_folders import READING, working_folder

__all__ = ["RemoteCache", "local_copy", "upload"]

log = logging.getLogger("pucache")
RemoteFile = tuple[str, Path, dict[str, Any]]  # path in the store, local path, fsspec's info


class RemoteCache:
    """A cache file behind a URL, a `pucache.cache.destination.CacheDestination`.

    From `fetch` to `publish`, other writers are to be excluded by `exclusive`.

    Parameters
    ----------
    url : str
        URL of a file, such as ``s3://bucket/folder/cache.h5``.
    work : str or path, optional
        Parent of the working folder; by default ``$PUCACHE_WORK``, else ``pucache`` below
        ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Attributes
    ----------
    name : str
        The URL without passwords and tokens.
    local : Path
        The file that is written, in a folder of its own, which is created.

    Raises
    ------
    OutputError
        The folder cannot be created or written to.
    ValueError
        The URL names no file.
    """

    def __init__(self, url: str, work: str | Path | None = None):
        self.name, self._url = without_secrets(url), url
        self.local = working_folder(url, work) / file_name(url)
        self._lease: Lease | None = None  # within `exclusive`
        self._stored_parts: set[str] = set()  # names of the parts that this run knows to be in the store

    def check_writable(self) -> None:
        """Check, before any work, that a file can be written to the store and removed from it.

        Raises
        ------
        OutputError
            No bucket, no credentials, no permission, or the URL is that of a folder.
        LeaseHeldError
            Another writer holds the lease.
        MissingExtraError
            The package for this kind of store is not installed.
        """
        with store_errors(OutputError, "write", self.name):
            fs, path = open_filesystem(self._url)
            existing = object_info(fs, path)
            if existing and existing["type"] != "file":
                raise OutputError(f"{self.name} is a folder; name a file in it, such as {self.name}/cache.h5")
            self._new_lease(fs, path).refuse_if_held()
            folder, _, name = path.rpartition("/")
            probe = f"{folder}/.{name}.writable"
            if not is_object_store(fs):
                with_retries(lambda: fs.makedirs(folder, exist_ok=True))
            with_retries(lambda: fs.pipe_file(probe, b""))
            remove_files(fs, [probe])

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Exclude other writers of the URL within the block, on this machine and on others.

        The writer's lock of `local` keeps processes of this machine apart, a `pucache.storage.lease.Lease` those of
        several machines. A ``file://`` URL is locked as the path that it names.

        Raises
        ------
        CacheLockedError
            Another process of this machine writes the URL.
        LeaseHeldError
            Another writer holds the lease.
        OutputError
            The store, or the working folder, cannot be written to.
        """
        with writer_lock(self.local, self.name), ExitStack() as held:
            with store_errors(OutputError, "write", self.name):
                fs, path = open_filesystem(self._url)
                if is_local(fs):
                    make_folder(Path(path).parent)
                    held.enter_context(writer_lock(Path(path), self.name))
                else:
                    self._lease = held.enter_context(self._new_lease(fs, path))
            try:
                yield
            finally:
                self._lease = None

    def _new_lease(self, fs: Any, path: str) -> Lease:
        record = self.local.with_name(f".{self.local.name[:200]}.lease")
        return Lease(fs, path, name=self.name, record=record)

    def fetch(self) -> None:
        """Download the existing cache and its parts, if this machine does not have them.

        Raises
        ------
        CacheError
            The store fails.
        OutputError
            The working folder cannot be written to.
        """
        with store_errors(CacheError, "fetch", self.name):
            fs, path = open_filesystem(self._url, retry_each_request=True)
            info = object_info(fs, path)
            files = [] if info is None else [(path, self.local, info)]
            if info is None:
                remove_copy(self.local)
            stored = folder_files(fs, path + ".parts", ".h5")
            stored = {name: info for name, info in stored.items() if name.startswith("part-")}
            local = {part.name: part for part in part_files(self.local)}
            for name, info in stored.items():
                if name not in local or local[name].stat().st_size != info["size"]:
                    files.append((f"{path}.parts/{name}", parts_folder(self.local) / name, info))
            _fetch_files(fs, files, FetchLog(self.name))
        self._stored_parts |= set(stored)

    def store_part(self, part: Path) -> None:
        """Send a finished part; sending it again is harmless, as its name is a hash of its content.

        Raises
        ------
        LeaseLostError
            Another writer has taken over; the part stays on this machine.
        OutputError
            The upload failed.
        """
        if self._lease:
            self._lease.check()
        with store_errors(OutputError, "write", f"{self.name}.parts/{part.name}"):
            fs, path = open_filesystem(self._url)
            send_file(fs, part, f"{path}.parts/{part.name}")
        self._stored_parts.add(part.name)

    def store_parts(self, parts: list[Path]) -> None:
        """Send the parts that the store lacks: an earlier run on this machine could not send them.

        Raises
        ------
        OutputError
            An upload failed.
        """
        for part in parts:
            if part.name not in self._stored_parts:
                self.store_part(part)

    def publish(self) -> None:
        """Send the finished cache, which readers see once it is complete, and then remove its parts from the store.

        Raises
        ------
        LeaseLostError
            Another writer has taken over; nothing was sent, and the parts remain.
        OutputError
            The upload failed; an earlier cache is unchanged, and the parts remain.
        """
        self._confirm_lease()
        with store_errors(OutputError, "write", self.name):
            fs, path = open_filesystem(self._url, retry_each_request=True)
            stored = object_info(fs, path)
            if stored is None or not is_copy(self.local, object_stamp(stored)):
                sent = local_stamp(self.local)
                send_file(fs, self.local, path)
                record_copy(self.local, object_stamp(with_retries(lambda: fs.info(path))), sent)
        self._remove_parts(fs, path + ".parts")

    def remove_parts(self) -> None:
        """Remove the parts from the store; for work that ended without a cache."""
        self._confirm_lease()
        with store_errors(OutputError, "write", self.name):
            fs, path = open_filesystem(self._url)
        self._remove_parts(fs, path + ".parts")

    def _confirm_lease(self) -> None:
        if self._lease:
            with store_errors(OutputError, "write", self.name):
                self._lease.confirm()

    def send(self) -> None:
        """Send `local` as a finished file that has no parts, such as a table; readers see it once it is complete.

        Raises
        ------
        LeaseLostError
            Another writer has taken over; nothing was sent.
        OutputError
            The upload failed; an earlier file is unchanged.
        """
        self._confirm_lease()
        upload(self.local, self._url)

    def _remove_parts(self, fs: Any, folder: str) -> None:
        try:
            remove_files(fs, [f"{folder}/{name}" for name in sorted(self._stored_parts)])
            self._stored_parts.clear()
        except Exception as error:  # the cache is complete; parts that remain do no harm
            log.warning("%s is written, but %s.parts cannot be removed: %s", self.name, self.name, error_text(error))
        if not is_object_store(fs):
            with contextlib.suppress(Exception):  # the folder is not empty, or does not exist
                fs.rmdir(folder)


def local_copy(url: str, work: str | Path | None = None, progress: Progress | None = None) -> Path:
    """Download a cache for reading, unless this machine has the same version already.

    Parameters
    ----------
    url : str
        URL of a cache file, or of a folder of ``.h5`` files.
    work : str or path, optional
        See `RemoteCache`; reading and writing use separate folders.
    progress : Progress, optional
        Counts megabytes; by default a line in the log every ten seconds.

    Returns
    -------
    Path
        The local file or folder.

    Raises
    ------
    CacheError
        The URL does not exist, or the store fails.
    MissingExtraError
        The package for this kind of store is not installed.
    OutputError
        The working folder cannot be written to.
    """
    name, target = without_secrets(url), working_folder(url, work, READING) / file_name(url.rstrip("/"))
    with store_errors(CacheError, "fetch", name), progress or FetchLog(name) as shown_progress:
        fs, path = open_filesystem(url, retry_each_request=True)
        _fetch_files(fs, _files_to_copy(fs, path, target, name), shown_progress)
    return target


def _fetch_files(fs: Any, files: list[RemoteFile], progress: Progress) -> None:
    """Download the files of which this machine has no copy of the current version."""
    outdated = [info for _, file, info in files if not is_copy(file, object_stamp(info))]
    if outdated:
        progress.start(sum(map(megabytes, outdated)), "fetching (MB)")
    for remote_path, file, _ in files:
        fetch_file(fs, remote_path, file, progress)


def _files_to_copy(fs: Any, path: str, target: Path, name: str) -> list[RemoteFile]:
    """List the files of a cache and remove copies of other files."""
    files, is_folder = cache_files(fs, path, name)
    if is_folder:
        _remove_other_copies(target, set(files))
    return [
        (remote_path, target / file_name if is_folder else target, info)
        for file_name, (remote_path, info) in files.items()
    ]


def _remove_other_copies(folder: Path, names: set[str]) -> None:
    """Remove copies of files that are gone from the store, and a copy from when the folder was a file."""
    if folder.is_file():
        remove_copy(folder)
    for file in folder.glob("*.h5"):
        if file.name not in names:
            remove_copy(file)


def upload(path: Path, url: str) -> None:
    """Send a file to a URL; readers see it once it is complete.

    Raises
    ------
    OutputError
        The upload failed; an earlier file is unchanged.
    MissingExtraError
        The package for this kind of store is not installed.
    """
    with store_errors(OutputError, "write", without_secrets(url)):
        fs, remote_path = open_filesystem(url, retry_each_request=True)
        send_file(fs, path, remote_path)
