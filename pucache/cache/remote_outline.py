"""What a remote cache says of itself, read by ranges: attributes, failures and checksums, but no rows.

In a cache file these are a few kilobytes at the beginning and at the end. They are copied into a file of the same
size whose rest is a hole, which `CacheFile` then reads and checks as it does any cache file.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import CacheError, OutputError, PUCacheError
from ..storage.filesystem import open_filesystem
from ..storage.partial_copy import PartialCopy
from ..storage.retries import RetriesExhausted, with_retries
from ..storage.transfer import object_stamp
from ..storage.urls import without_secrets
from .checksums import ChecksumError, ChecksumTable
from .layout import FAILURES
from .reader import CacheFile
from .remote_files import cache_files, store_errors

_END_BYTES = 1 << 16  # fetched first; they hold the checksums of a file of up to 60,000 rows
_MAX_BYTES = 1 << 25  # of a file that is not fetched whole
_FILES_AT_ONCE = 8


class OutlineError(PUCacheError):
    """A cache has to be fetched whole: its outline is large, or the store gives no ranges."""


@contextmanager
def remote_outlines(url: str) -> Iterator[list[tuple[str, CacheFile]]]:
    """Open the files of a remote cache for their attributes and failures; their columns must not be read.

    Parameters
    ----------
    url : str
        URL of a cache file, or of a folder of ``.h5`` files.

    Yields
    ------
    list of (str, CacheFile)
        URL of each file, without secrets, and the opened file, valid within the block.

    Raises
    ------
    CacheError
        The URL does not exist, the store fails, or a file is no cache or damaged.
    MissingExtraError
        The package for this kind of store is not installed.
    OutlineError
        The cache has to be fetched whole.
    OutputError
        The folder for temporary files cannot be written to.
    """
    name = without_secrets(url)
    with store_errors(CacheError, "read", name):
        fs, path = open_filesystem(url)
        files, is_folder = cache_files(fs, path, name)
    names = [f"{name.rstrip('/')}/{file_name}" if is_folder else name for file_name in files]
    with _temporary_folder() as folder:
        targets = [folder / f"{number}.h5" for number in range(len(files))]
        with store_errors(CacheError, "read", name), ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            copies = zip(files.values(), targets, strict=True)
            list(pool.map(lambda copy: _copy_outline(fs, copy[0][0], copy[1]), copies))
        urls = dict(zip(map(str, targets), names, strict=True))
        with _named_by_url(urls):
            yield [(name, CacheFile(target)) for target, name in urls.items()]


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="pucache-")
    except OSError as error:
        raise OutputError(f"no folder for temporary files: {error.strerror}; name one in TMPDIR") from error
    with folder as name:
        yield Path(name)


def _copy_outline(fs: Any, path: str, target: Path) -> None:
    """Copy what is needed of one version of a remote file; repeated where the file is replaced meanwhile."""

    def attempt() -> None:
        before = with_retries(lambda: fs.info(path))
        with PartialCopy(fs, path, target, int(before["size"])) as copy:
            _fetch_outline(copy, int(before["size"]))
        fs.invalidate_cache()
        if object_stamp(with_retries(lambda: fs.info(path))) != object_stamp(before):
            raise OSError(f"{path} was replaced while it was read")

    try:
        with_retries(attempt, max_seconds=math.inf)
    except RetriesExhausted as error:
        raise OutlineError(str(error)) from error


def _fetch_outline(copy: PartialCopy, size: int) -> None:
    copy.read_at(0, 1)
    copy.read_at(max(0, size - _END_BYTES), _END_BYTES)
    try:
        table = ChecksumTable.read_end(copy.read_at, size)
    except ChecksumError:
        return  # which opening the copy finds and names
    failures = [(table.columns[name].offset, table.columns[name].size) for name in FAILURES if name in table.columns]
    wanted = [*table.outside_columns(), *failures]
    if sum(count for _, count in wanted) > _MAX_BYTES:
        raise OutlineError("it is large")
    for offset, count in wanted:
        copy.read_at(offset, count)


@contextmanager
def _named_by_url(urls: dict[str, str]) -> Iterator[None]:
    """Let errors about copies within the block name the URLs; `urls` holds them by path of the copy."""
    try:
        yield
    except CacheError as error:
        text = str(error)
        for path, url in urls.items():
            text = text.replace(path, url)
        raise CacheError(text) from error
