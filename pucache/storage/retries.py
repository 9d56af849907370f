"""Retrying requests to remote stores, and the texts of their errors.

A store that serves millions of objects fails now and then, and breaks connections in the middle of a
body. Every request is therefore made up to four times, with growing pauses: the short ones bridge a
broken connection, the longest a store that asks for fewer requests. More attempts would rarely help,
and with a store that is down for good every image waits as long.
"""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Callable
from typing import TypeVar

from ..errors import PUCacheError, one_line
from .urls import without_secrets

RETRY_PAUSES = [0.2, 0.8, 3.2]  # seconds before the second attempt and the later ones
MAX_RETRY_SECONDS = 60.0  # no attempt starts later than this: a store that hangs does so each time
_PERMANENT_ERRORS = (
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
_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"}  # class names of botocore
_TEMPORARY_STATUSES = {408, 425, 429}  # HTTP statuses below 500 that another attempt may overcome
_MISSING_STATUSES = {404, 410}
_ENDLESS_PATHS = {errno.ELOOP, errno.ENAMETOOLONG}  # symbolic links that lead back to a folder above them
T = TypeVar("T")


class RetriesExhausted(Exception):
    """A request to a store failed at every attempt; the text names the last error and the number of attempts."""


def with_retries(action: Callable[[], T], *, max_seconds: float | None = None) -> T:
    """Call ``action``, and call it again after a pause where its error may be temporary.

    No attempt starts later than `max_seconds` after the first, by default `MAX_RETRY_SECONDS`. Raises
    `RetriesExhausted`, or the store's own error where that is permanent: no such object, no permission.
    """
    deadline = time.monotonic() + (MAX_RETRY_SECONDS if max_seconds is None else max_seconds)
    for attempt, pause in enumerate([*RETRY_PAUSES, None], 1):
        try:
            return action()
        except Exception as raised:  # every file system has exceptions of its own
            error = _underlying(raised)
            if is_permanent(error):
                raise error from error.__cause__
            if pause is None or time.monotonic() + pause > deadline:
                raise RetriesExhausted(f"{error_text(error)} (tried {attempt} time{'s' * (attempt > 1)})") from error
            time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


def _underlying(error: Exception) -> Exception:
    """The cause of a FileNotFoundError, with which fsspec's HTTP file system masks any other failure."""
    cause = error.__cause__
    if not isinstance(error, FileNotFoundError) or not isinstance(cause, Exception):
        return error
    of_http = isinstance(cause, OSError) or type(cause).__module__.split(".")[0] == "aiohttp"
    return cause if of_http and getattr(cause, "status", 0) not in _MISSING_STATUSES else error


def max_attempts() -> int:
    """Number of attempts that `with_retries` makes."""
    return len(RETRY_PAUSES) + 1


def is_permanent(error: Exception) -> bool:
    """Whether the same request would fail again."""
    if isinstance(error, (RetriesExhausted, *_PERMANENT_ERRORS)) or type(error).__name__ in _NO_CREDENTIALS:
        return True
    if getattr(error, "errno", None) in _ENDLESS_PATHS:
        return True
    status = getattr(error, "status", None)  # of aiohttp
    return isinstance(status, int) and (400 <= status < 500 or status == 501) and status not in _TEMPORARY_STATUSES


_OF_HTTP = re.compile(
    r"\b(\d{3}), message='([^']*)', url='[^']*'"
)  # as aiohttp writes an answer; whoever asks names the URL


def error_text(error: BaseException) -> str:
    """Text of an error on one line, without the secrets of any URL in it."""
    text = _OF_HTTP.sub(r"\1 \2", without_secrets(one_line(error)))
    if isinstance(error, FileNotFoundError) and not re.search("no such|exist", text, re.IGNORECASE):
        return f"no such file: {text}"  # some file systems give the file name alone
    return text


def remedy_for(error: BaseException) -> str:
    """Advice that follows the text of an error, beginning with a semicolon; empty where there is none."""
    if type(error).__name__ in _NO_CREDENTIALS:
        return "; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    if isinstance(error, PermissionError) or getattr(error, "status", 0) in (401, 403):
        return "; check the credentials, and what they allow there"
    if isinstance(error, RetriesExhausted):
        return "; run again when the store answers"
    return ""
