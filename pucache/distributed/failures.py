"""Errors of Ray as errors of one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import ray.exceptions

from ..errors import EngineError, PUCacheError, one_line


def last_line(error: BaseException) -> str:
    """Last line of an error of Ray, below the tracebacks in its text."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1].strip()[:300]


@contextmanager
def as_one_line() -> Iterator[None]:
    """Turn an error of Ray's into the pucache error that caused it, or into an `EngineError` of one line."""
    try:
        yield
    except Exception as error:
        if isinstance(error, PUCacheError) and not isinstance(error, ray.exceptions.RayError):
            raise
        reason = last_line(error)
        for cause in _causes(error):
            if isinstance(cause, ray.exceptions.RayError):
                continue
            if isinstance(cause, PUCacheError | ValueError):
                raise cause from error
            if str(cause):
                reason = f"{type(cause).__name__}: {one_line(cause)}"
        raise EngineError(f"Ray gave up ({reason}); what was finished is kept: run again to go on") from error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = getattr(error, "cause", None) or error.__cause__ or error.__context__
