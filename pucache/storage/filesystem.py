"""Opening and reading local and remote file systems through fsspec.

Only `pucache.images.remote_walk` uses fsspec besides this module. fsspec's file systems retry requests
too: s3fs up to five times, botocore within each of these five times, and both again where a body breaks
off, which adds up to half an hour for a store that hangs. Their retries are therefore disabled in favour
of `pucache.storage.retries`. The exception is an operation of many requests (listings, uploads), for
which botocore retries single requests.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from ..errors import ImageError, MissingExtraError, SourceError
from .retries import error_text, max_attempts, remedy_for, with_retries
from .urls import without_secrets

READ_AHEAD_BYTES = 1 << 24  # bytes per request while a shard is indexed: its headers lie a few kilobytes apart
# fields of `fs.info`, the most reliable first
TIME_FIELDS = ("mtime", "LastModified", "last_modified", "updated", "created")
_TAG_FIELDS = ("ETag", "etag", "md5Hash", "content_md5", "Content-MD5", "Digest", "Last-Modified")
_CACHING_PROTOCOLS = {"simplecache", "filecache", "blockcache", "cached"}  # of fsspec; they store copies in a folder
_S3_PROTOCOLS = ("s3", "s3a")
# A forked process clears fsspec's instance cache. A file system that is then garbage-collected closes its session on
# the event loop that it shares with the parent process, whose pending requests never return. References kept here
# prevent the collection.
_KEPT_OPEN: dict[tuple[type, str], Any] = {}


def open_filesystem(where: str, *, retry_each_request: bool = False) -> tuple[Any, str]:
    """Open the file system of a URL or a local path.

    Parameters
    ----------
    where : str
        fsspec URL or local path.
    retry_each_request : bool
        Let botocore retry single requests: for operations of many requests.

    Returns
    -------
    fs : fsspec.AbstractFileSystem
    path : str
        The path within ``fs``.

    Raises
    ------
    MissingExtraError
        The package for this protocol is not installed.
    ValueError
        The protocol is unknown, or would keep copies.
    """
    caching = _CACHING_PROTOCOLS & {link.split("://")[0] for link in where.split("::")}
    if caching:
        raise ValueError(f"{caching.pop()} would keep copies of the files elsewhere; leave it out")
    protocol = where.split("://")[0]
    options = {}
    if protocol in _S3_PROTOCOLS:
        options = _s3_options(max_attempts() if retry_each_request else 1)
    try:
        fs, path = fsspec.core.url_to_fs(where, **options)
    except ImportError as error:
        if protocol in _S3_PROTOCOLS:
            package = "s3fs; pip install 'pucache[s3]'"
        else:
            package = f"another package ({error_text(error)})"
        raise MissingExtraError(f"{without_secrets(where)} needs {package}") from error
    if protocol in _S3_PROTOCOLS:
        fs.retries = 1
    _keep_open(fs)
    return fs, path


def _keep_open(fs: Any) -> None:
    while fs is not None:  # an archive has no event loop, but the file system that holds it may have one
        if fs.async_impl and fs.cachable:
            _KEPT_OPEN[type(fs), fs._fs_token] = fs  # the newest, if the instance cache was cleared in between
        fs = getattr(fs, "fs", None) or getattr(getattr(fs, "of", None), "fs", None)


def _s3_options(attempts: int) -> dict[str, Any]:
    """Options of s3fs: attempts per request, unless fsspec's configuration sets its own, and no cached listings."""
    configured = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
    return {"config_kwargs": {"retries": {"total_max_attempts": attempts}} | configured, "use_listings_cache": False}


@contextmanager
def source_errors(name: str) -> Iterator[None]:
    """Turn any error of a file system within the block into a `SourceError` about the source ``name``."""
    try:
        yield
    except (SourceError, MissingExtraError):
        raise
    except Exception as error:
        raise SourceError(f"cannot read {name}: {error_text(error)}{remedy_for(error)}") from error


def version_tag(info: dict[str, Any]) -> str:
    """A store's tag for the content of an object (ETag or checksum), or "" where it gives none."""
    return str(next((info[name] for name in _TAG_FIELDS if info.get(name)), ""))


def read_object(fs: Any, path: str, check_size: Callable[[int], None]) -> bytes:
    """Read all bytes of an object, with retries.

    Parameters
    ----------
    fs : fsspec.AbstractFileSystem
    path : str
    check_size : callable
        Called with the object's size in bytes before it is read; may raise.

    Returns
    -------
    bytes

    Raises
    ------
    RetriesExhausted
        Every attempt failed, or gave fewer bytes than the store had announced.
    ImageError
        The object was replaced by a larger one meanwhile.
    Exception
        The store's own error, where it is permanent.
    """

    def attempt() -> bytes:
        size = fs.info(path).get("size")
        if size is None:
            return bytes(fs.cat_file(path))
        check_size(int(size))
        if not size:  # an empty object has no valid range
            return b""
        data = bytes(fs.cat_file(path, start=0, end=int(size) + 1))  # one byte more, to notice a larger object
        if len(data) > size:
            raise ImageError(f"changed while it was read: {size} bytes at first, more now; embed again")
        return _complete(data, int(size))

    return with_retries(attempt)


def read_range(fs: Any, path: str, start: int, end: int) -> bytes:
    """Read the bytes [start, end) of an object, with retries.

    Raises
    ------
    RetriesExhausted
        Every attempt failed, or gave fewer bytes.
    Exception
        The store's own error, where it is permanent.
    """
    if start == end:
        return b""
    return with_retries(lambda: _complete(bytes(fs.cat_file(path, start=start, end=end)), end - start))


def _complete(data: bytes, size: int) -> bytes:
    """Return ``data``; raise OSError unless it has ``size`` bytes."""
    if len(data) != size:
        raise OSError(f"truncated: expected {size} bytes, got {len(data)}")
    return data


def is_local(fs: Any) -> bool:
    """Whether a file system is that of this machine."""
    return isinstance(fs, LocalFileSystem)


def open_object(fs: Any, path: str) -> Any:
    """Open an object as a seekable binary file; remote reads are retried."""
    if is_local(fs):
        return fs.open(path, "rb")
    return io.BufferedReader(_ObjectStream(fs, path), READ_AHEAD_BYTES)


class _ObjectStream(io.RawIOBase):
    """A remote object as an unbuffered file; each read is one request."""

    def __init__(self, fs: Any, path: str):
        self._fs, self._path, self._position = fs, path, 0
        self._size = int(with_retries(lambda: fs.info(path))["size"])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        end = min(self._size, self._position + len(buffer))
        if end <= self._position:
            return 0
        data = read_range(self._fs, self._path, self._position, end)
        buffer[: len(data)] = data
        self._position = end
        return len(data)
