"""Local and remote file systems through fsspec: open, list, read ranges, whole objects in and out.

fsspec's file systems retry requests too: s3fs up to five times, botocore within each of these five times, and both
again where a body breaks off, which adds up to half an hour for a store that hangs. Their retries are therefore
disabled in favour of `pucache.storage.retries`. The exception is an operation of many requests (listings, uploads),
for which botocore retries single requests.
"""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from ..errors import ImageError, MissingExtraError, PUCacheError, SourceError
from .atomic import remove_partials, replacing
from .retries import RetriesExhausted, error_text, max_attempts, remedy_for, with_retries
from .urls import has_password, without_secrets

MB = 1 << 20
READ_AHEAD_BYTES = 16 * MB  # bytes per request while a shard is indexed: its headers lie a few kilobytes apart
BLOCK_BYTES = 32 * MB  # bytes per request of a download; a broken connection costs at most these
LOG_SECONDS = 10.0  # between two lines about a download
_KEPT_BYTES = 32 * MB  # of an object that is read in blocks
_THREADS = 8  # of a download: one connection to a store is slower than most networks
# fields of `fs.info`, the most reliable first
TIME_FIELDS = ("mtime", "LastModified", "last_modified", "updated", "created")
_TAG_FIELDS = ("ETag", "etag", "md5Hash", "content_md5", "Content-MD5", "Digest", "Last-Modified")
# Protocols of stores where an object appears once it is complete. With others a file grows visibly while it is written.
OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "oci"}
_CACHING_PROTOCOLS = {"simplecache", "filecache", "blockcache", "cached"}  # of fsspec; they store copies in a folder
_S3_PROTOCOLS = ("s3", "s3a")
_S3_URLS = ("s3://", "s3a://")
# A forked process clears fsspec's instance cache. A file system that is then garbage-collected closes its session on
# the event loop that it shares with the parent process, whose pending requests never return. References kept here
# prevent the collection.
_KEPT_OPEN: dict[tuple[type, str], Any] = {}
T = TypeVar("T")

log = logging.getLogger("pucache")


def open_filesystem(where: str, *, retry_each_request: bool = False) -> tuple[Any, str]:
    """Open the file system of a URL or a local path: fsspec's object, and the path within it.

    For operations of many requests, `retry_each_request` lets botocore retry single ones. Raises `MissingExtraError`
    where the package for the protocol is not installed, and `ValueError` where it is unknown, would keep copies, or
    takes no login.
    """
    import fsspec  # takes 0.06 s, for which commands on local files need not wait

    caching = _CACHING_PROTOCOLS & {link.split("://")[0] for link in where.split("::")}
    if caching:
        raise ValueError(f"{caching.pop()} would keep copies of the files elsewhere; leave it out")
    if any(link.startswith(_S3_URLS) and has_password(link) for link in where.split("::")):
        remedy = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, in place of the login in the URL"
        raise ValueError(f"{without_secrets(where)} takes no login: {remedy}")
    protocol = where.split("://")[0]
    options: dict[str, Any] = {}
    if protocol in _S3_PROTOCOLS:  # attempts per request, unless fsspec's configuration sets its own
        configured = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
        attempts = {"retries": {"total_max_attempts": max_attempts() if retry_each_request else 1}}
        options = {"config_kwargs": attempts | configured, "use_listings_cache": False}
    try:
        fs, path = fsspec.core.url_to_fs(where, **options)
    except ImportError as error:
        if protocol in _S3_PROTOCOLS:
            package = "s3fs; pip install -e '.[s3]'"
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


# --- errors ------------------------------------------------------------------------------------


@contextmanager
def store_errors(kind: type[PUCacheError], verb: str, name: str) -> Iterator[None]:
    """Turn any error of a file system into one of this kind: "cannot VERB NAME: ..."; ``name`` holds no secrets."""
    try:
        yield
    except PUCacheError:
        raise
    except NotImplementedError as error:
        raise kind(f"cannot {verb} {name}: this kind of store does not allow it; name another place") from error
    except Exception as error:
        missing = isinstance(error, FileNotFoundError) and verb == "write"
        remedy = "; make it first, or name another place" if missing else remedy_for(error)
        raise kind(f"cannot {verb} {name}: {error_text(error)}{remedy}") from error


def source_errors(name: str) -> AbstractContextManager[None]:
    """Turn any error of a file system into a `SourceError` about the source ``name``."""
    return store_errors(SourceError, "read", name)


# --- what is there -----------------------------------------------------------------------------


def object_info(fs: Any, path: str) -> dict[str, Any] | None:
    """Return fsspec's uncached info of a remote file or folder; None where it does not exist."""
    fs.invalidate_cache()
    try:
        return with_retries(lambda: fs.info(path))
    except FileNotFoundError:
        return None


def folder_files(fs: Any, path: str, ending: str) -> dict[str, dict[str, Any]]:
    """fsspec's info of the visible files of a remote folder by name, sorted; empty where the folder does not exist."""
    fs.invalidate_cache()
    try:
        entries = with_retries(lambda: fs.ls(path, detail=True))
    except FileNotFoundError:
        return {}
    infos = {entry["name"].rsplit("/", 1)[-1]: entry for entry in entries if entry["type"] == "file"}
    return {name: infos[name] for name in sorted(infos) if name.endswith(ending) and not name.startswith(".")}


def version_tag(info: dict[str, Any]) -> str:
    """A store's tag for the content of an object (ETag or checksum), or "" where it gives none."""
    return str(next((info[name] for name in _TAG_FIELDS if info.get(name)), ""))


def object_stamp(info: dict[str, Any] | None) -> str:
    """Text that differs between versions of an object: size, and tag or time; "none" where there is no object."""
    if info is None:
        return "none"
    times = (info[name] for name in TIME_FIELDS if info.get(name))
    return f"{info.get('size')} {version_tag(info) or next(times, '')}"


def tells_versions(stamp: str) -> bool:
    """Whether an `object_stamp` holds more than the size, which another version may have too."""
    return not stamp.endswith(" ")


# --- reading -----------------------------------------------------------------------------------


def read_object(fs: Any, path: str, check_size: Callable[[int], None]) -> bytes:
    """Read all bytes of an object, with retries; `check_size` takes its size before it is read, and may raise.

    Raises `RetriesExhausted` where every attempt failed, or gave fewer bytes than the store had announced, `ImageError`
    where the object was replaced by a larger one meanwhile, and the store's own error where that is permanent.
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
    """Read the bytes [start, end) of an object, with retries; raises as `read_object`."""
    if start == end:
        return b""
    return with_retries(lambda: _complete(bytes(fs.cat_file(path, start=start, end=end)), end - start))


def _complete(data: bytes, size: int) -> bytes:
    """Return ``data``; raise OSError unless it has ``size`` bytes."""
    if len(data) != size:
        raise OSError(f"truncated: expected {size} bytes, got {len(data)}")
    return data


def open_object(fs: Any, path: str, block_bytes: int = READ_AHEAD_BYTES) -> Any:
    """Open an object as a seekable binary file; a remote one is read in blocks, each with retries."""
    if "file" in protocols(fs):
        return fs.open(path, "rb")
    return io.BufferedReader(_ObjectStream(fs, path, block_bytes))


class _ObjectStream(io.RawIOBase):
    """A remote object as an unbuffered file, read in blocks, of which the last `_KEPT_BYTES` are kept."""

    def __init__(self, fs: Any, path: str, block_bytes: int):
        size = int(with_retries(lambda: fs.info(path))["size"])
        self._size, self._block_bytes, self._position = size, block_bytes, 0
        self._block = lru_cache(_KEPT_BYTES // block_bytes)(
            lambda start: read_range(fs, path, start, min(start + block_bytes, size))
        )

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
        if self._position >= self._size:
            return 0
        begin = self._position % self._block_bytes
        data = self._block(self._position - begin)[begin : begin + len(buffer)]
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


# --- whole objects -----------------------------------------------------------------------------


class DownloadLog:
    """A line in the log every `LOG_SECONDS` of a download of ``total`` bytes; ``name`` holds no secrets."""

    def __init__(self, name: str, total: int):
        self._name, self._total, self._done = name, total, 0
        self._began = self._last_line = monotonic()

    def advance(self, count: int) -> None:
        """Count bytes that have arrived."""
        self._done += count
        now = monotonic()
        if now - self._last_line >= LOG_SECONDS:
            self._last_line = now
            rate = self._done / max(now - self._began, 1e-9)
            left = max(self._total - self._done, 0) / rate
            done = f"{self._done / MB:,.0f} MB of {max(self._total, self._done) / MB:,.0f}"
            log.info("fetching %s: %s, %s MB/s, %s s left", self._name, done, f"{rate / MB:,.1f}", f"{left:,.0f}")


class ObjectReplacedError(Exception):
    """An object was replaced while it was fetched; another attempt may get the new one."""


def get_file(fs: Any, path: str, info: dict[str, Any], target: Path, progress: DownloadLog) -> None:
    """Download the version of an object that `info` describes to a file of this machine, which appears as a whole.

    Raises `ObjectReplacedError` where the store has another version now, `RetriesExhausted` and `OutputError`.
    """
    size = int(info["size"])
    remove_partials(target)
    with replacing(target) as temporary:

        def copy_block(start: int) -> int:
            data = _store_call(lambda: read_range(fs, path, start, min(start + BLOCK_BYTES, size)))
            with temporary.open("r+b") as file:
                file.seek(start)
                return file.write(data)

        with ThreadPoolExecutor(_THREADS if fs.async_impl else 1) as pool:
            for count in pool.map(copy_block, range(0, size, BLOCK_BYTES)):
                progress.advance(count)
        if _store_call(lambda: object_stamp(object_info(fs, path))) != object_stamp(info):
            raise ObjectReplacedError(f"{path} was replaced while it was fetched")


def _store_call(action: Callable[[], T]) -> T:
    """Call ``action`` while a local file is open, where an OSError of the store must not pass for one of the disk."""
    try:
        return action()
    except RetriesExhausted:
        raise
    except Exception as error:
        raise RetriesExhausted(error_text(error)) from error


def put_file(fs: Any, local: Path, path: str) -> dict[str, Any]:
    """Upload a file as one object, which gets its name once it is complete; returns fsspec's info of it.

    Raises `RetriesExhausted`, or the store's own error; an existing object is unchanged then.
    """
    size = local.stat().st_size
    folder, _, name = path.rpartition("/")
    temporary = path if is_object_store(fs) else f"{folder}/.{name}.partial"

    def attempt() -> dict[str, Any]:
        if temporary != path:
            fs.makedirs(folder, exist_ok=True)
        fs.put_file(str(local), temporary)
        fs.invalidate_cache()
        arrived = fs.info(temporary)
        if arrived["size"] != size:
            raise OSError(f"{arrived['size']} bytes of {size} arrived")
        if temporary != path:
            fs.mv(temporary, path)
            fs.invalidate_cache()
            arrived = fs.info(path)
        return arrived

    return with_retries(attempt, max_seconds=math.inf)


def is_object_store(fs: Any) -> bool:
    """Whether objects of this store appear only once complete, and folders need not be created."""
    return bool(protocols(fs) & OBJECT_STORES)


def protocols(fs: Any) -> set[str]:
    """Protocols that a file system answers to."""
    return {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
