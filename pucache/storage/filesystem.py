"""What is behind a URL: opened, read, written, and tried again where it fails; only user of fsspec, beside `walk`.

A store that is asked for millions of objects fails now and then, and breaks connections in the middle
of a body. So every request is tried `TRIES` times, with growing pauses: those of a fraction of a second
get over a broken connection, the longest over a store that asks for less. More would not help often,
and where a store is down for good every image waits as long. fsspec's file systems retry too: s3fs up
to five times a request, within it botocore five times, and both again where a body breaks off, which
makes half an hour of a store that hangs. They are told not to, so that our count is the count, but for
work of many requests (listings, uploads), where botocore tries each of them again by itself.
"""

from __future__ import annotations

import errno
import io
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import fsspec
from fsspec.implementations.local import LocalFileSystem

from ..errors import ImageError, MissingExtraError, PUCacheError, SourceError, one_line
from .urls import without_secrets

RETRY_PAUSES = [0.2, 0.8, 3.2]  # seconds before the second try and the later ones
MAX_RETRY_SECONDS = 60.0  # seconds after which nothing is tried again: a store that hangs does so each time
READ_AHEAD_BYTES = 1 << 24  # bytes that are read at once of a shard: its headers lie a few kilobytes apart
_KEEPING = {"simplecache", "filecache", "blockcache", "cached"}  # of fsspec; they write copies into a folder of theirs
_S3 = ("s3", "s3a")
_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"}  # of botocore
_CERTAIN = (
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    ImportError,
    NotImplementedError,
    PUCacheError,
    ValueError,
)
_TAGS = ("ETag", "etag", "md5Hash", "content_md5", "Content-MD5", "Digest", "Last-Modified")  # by trust in them
TIME_FIELDS = ("mtime", "LastModified", "last_modified", "updated", "created")  # as stores call it, by trust in them
_LATER = {408, 425, 429}  # refusals by HTTP that another try may get over
_GONE = {404, 410}
_ENDLESS = {errno.ELOOP, errno.ENAMETOOLONG}
# A forked process forgets fsspec's file systems, and what it lets go it closes: in the event loop that it shares with
# its parent, who would then wait for answers that nobody tells it of. So none that has such a loop is ever let go.
_KEPT_OPEN: dict[tuple[type, str], Any] = {}
T = TypeVar("T")


class RetriesExhausted(Exception):
    """Something that a store failed to do each time; its text says how often it was asked."""


def open_filesystem(where: str, *, patient: bool = False) -> tuple[Any, str]:
    """Return the file system of a URL or a path, and the path in it.

    Parameters
    ----------
    where : str
    patient : bool
        For work of many requests, each of which is then tried again by itself.

    Raises
    ------
    MissingExtraError
        What speaks to this kind of store is not installed.
    ValueError
        There is no such kind of store, or it would keep copies.
    """
    kept = _KEEPING & {link.split("://")[0] for link in where.split("::")}
    if kept:
        raise ValueError(f"{kept.pop()} would keep copies of the files elsewhere; leave it out")
    scheme = where.split("://")[0]
    options = _s3_options(len(RETRY_PAUSES) + 1 if patient else 1) if scheme in _S3 else {}
    try:
        fs, path = fsspec.core.url_to_fs(where, **options)
    except ImportError as error:
        if scheme in _S3:
            needed = "s3fs; pip install 'pucache[s3]'"
        else:
            needed = f"another package ({error_text(error)})"
        raise MissingExtraError(f"{without_secrets(where)} needs {needed}") from error
    if scheme in _S3:
        fs.retries = 1
    _hold(fs)
    return fs, path


def _hold(fs: Any) -> None:
    while fs is not None:  # an archive has no loop, but what it lies in may
        if fs.async_impl and fs.cachable:
            _KEPT_OPEN.setdefault((type(fs), fs._fs_token), fs)
        fs = getattr(fs, "fs", None) or getattr(getattr(fs, "of", None), "fs", None)


def _s3_options(attempts: int) -> dict[str, Any]:
    """How often botocore tries, unless fsspec's own configuration says something else; no listing is remembered."""
    configured = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
    return {"config_kwargs": {"retries": {"total_max_attempts": attempts}} | configured, "use_listings_cache": False}


# --- again -------------------------------------------------------------------------------------


def with_retries(action: Callable[[], T], *, patience: float | None = None) -> T:
    """Ask a store for something, and ask again after a pause where that may help.

    Parameters
    ----------
    action : callable
    patience : float, optional
        Seconds after which a failure is the last; by default `MAX_RETRY_SECONDS`.

    Raises
    ------
    GaveUp
        It failed each time.
    Exception
        The store's own, where it is certain: no such object, no permission.
    """
    until = time.monotonic() + (MAX_RETRY_SECONDS if patience is None else patience)
    for number, pause in enumerate([*RETRY_PAUSES, None], 1):
        try:
            return action()
        except Exception as raised:  # every file system has exceptions of its own
            error = _beneath(raised)
            if is_permanent(error):
                raise error from error.__cause__
            if pause is None or time.monotonic() + pause > until:
                raise RetriesExhausted(f"{error_text(error)} (tried {number} time{'s' * (number > 1)})") from error
            time.sleep(pause)
    raise AssertionError("the last try returns or raises")


def _beneath(error: Exception) -> Exception:
    """What went wrong: fsspec's HTTP says of whatever it is that there is no such file."""
    cause = error.__cause__
    if not isinstance(error, FileNotFoundError) or not isinstance(cause, Exception):
        return error
    of_http = isinstance(cause, OSError) or type(cause).__module__.split(".")[0] == "aiohttp"
    return cause if of_http and getattr(cause, "status", 0) not in _GONE else error


def is_permanent(error: Exception) -> bool:
    """Whether what failed would fail again."""
    if isinstance(error, (RetriesExhausted, *_CERTAIN)) or type(error).__name__ in _NO_CREDENTIALS:
        return True
    if getattr(error, "errno", None) in _ENDLESS:  # links that lead back to a folder above them
        return True
    status = getattr(error, "status", None)  # of aiohttp
    return isinstance(status, int) and (400 <= status < 500 or status == 501) and status not in _LATER


def version_tag(info: dict[str, Any]) -> str:
    """What a store tells about an object that differs once it is another one, beside its size and time; or ""."""
    return str(next((info[name] for name in _TAGS if info.get(name)), ""))


# --- reading -----------------------------------------------------------------------------------


def read_object(fs: Any, path: str, check: Callable[[int], None]) -> bytes:
    """Return all bytes of an object; `check` gets its size first and may raise.

    Raises
    ------
    GaveUp
        It failed each time, or gave another number of bytes than the store had said.
    ImageError
        The object was replaced by a larger one meanwhile.
    Exception
        The store's own, where it is certain.
    """

    def attempt() -> bytes:
        size = fs.info(path).get("size")
        if size is None:
            return bytes(fs.cat_file(path))
        check(int(size))
        if not size:  # of which no range can be asked for
            return b""
        data = bytes(fs.cat_file(path, start=0, end=int(size) + 1))  # one more than there should be
        if len(data) > size:
            raise ImageError(f"changed while it was read: {size} bytes at first, more now; embed again")
        return _whole(data, int(size))

    return with_retries(attempt)


def read_range(fs: Any, path: str, start: int, end: int) -> bytes:
    """Return the bytes of an object from `start` to before `end`.

    Raises
    ------
    GaveUp
        It failed each time, or gave fewer bytes.
    Exception
        The store's own, where it is certain.
    """
    if start == end:
        return b""
    return with_retries(lambda: _whole(bytes(fs.cat_file(path, start=start, end=end)), end - start))


def _whole(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise OSError(f"truncated: expected {size} bytes, got {len(data)}")
    return data


def open_object(fs: Any, path: str) -> Any:
    """Open an object to read and seek in it; what is read behind a URL is tried again where it fails."""
    if isinstance(fs, LocalFileSystem):
        return fs.open(path, "rb")
    return io.BufferedReader(_Stream(fs, path), READ_AHEAD_BYTES)


class _Stream(io.RawIOBase):
    """An object as a file, each read of which is one request."""

    def __init__(self, fs: Any, path: str):
        self._fs, self._path, self._at = fs, path, 0
        self._size = int(with_retries(lambda: fs.info(path))["size"])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._size, self._at + len(buffer))
        if end <= self._at:
            return 0
        data = read_range(self._fs, self._path, self._at, end)
        buffer[: len(data)] = data
        self._at = end
        return len(data)


# --- saying ------------------------------------------------------------------------------------


@contextmanager
def source_errors(name: str) -> Iterator[None]:
    """Turn whatever a file system raises while a source is opened into one `SourceError`."""
    try:
        yield
    except (SourceError, MissingExtraError):
        raise
    except Exception as error:
        raise SourceError(f"cannot read {name}: {error_text(error)}{remedy_for(error)}") from error


def error_text(error: BaseException) -> str:
    """What an error says, on one line, without the secrets of any URL in it."""
    text = without_secrets(one_line(error))
    if isinstance(error, FileNotFoundError) and not re.search("no such|exist", text, re.IGNORECASE):
        return f"no such file: {text}"  # some file systems name the file alone
    return text


def remedy_for(error: BaseException) -> str:
    """What to do about a refusal, to follow what it says; empty where that is not known."""
    if type(error).__name__ in _NO_CREDENTIALS:
        return "; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    if isinstance(error, PermissionError) or getattr(error, "status", 0) in (401, 403):
        return "; check the credentials, and what they allow there"
    if isinstance(error, RetriesExhausted):
        return "; run again when the store answers"
    return ""
