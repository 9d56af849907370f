"""Objects of a store that are written only if nobody else has changed them: compare and swap.

Amazon S3 has it as ``If-Match`` and ``If-None-Match``, Google Cloud Storage as ``ifGenerationMatch``. fsspec has
no call for it, so that each kind of store has a class here.
"""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

from .retries import with_retries

_READ_BYTES = 1 << 16
_REFUSED, _MISSING = {"PreconditionFailed", "412"}, {"NoSuchKey", "404"}  # error codes of S3
_UNSUPPORTED = {"NotImplemented", "501", "InvalidArgument", "MethodNotAllowed", "405"}
_NO_TAG = '"00000000000000000000000000000000"'  # an ETag that no object of pucache has


class ObjectChangedError(FileExistsError):
    """A conditional request was refused: the object is not in the version that the caller had seen."""


@dataclass(frozen=True)
class StoredObject:
    """A small object as it was read.

    Attributes
    ----------
    data : bytes
        At most the first 64 KiB.
    tag : str
        The store's tag of this version.
    age : float
        Seconds since it was written, by the store's own clock.
    """

    data: bytes
    tag: str
    age: float


class ConditionalObject(Protocol):
    """One object of a store. Its methods make one request or two; the caller repeats them where they fail."""

    def read(self) -> StoredObject | None:
        """Read the object; None where there is none."""

    def write(self, data: bytes, tag: str | None) -> str:
        """Write the object if it has this tag, or if there is none and the tag is None; returns the new tag.

        Raises
        ------
        ObjectChangedError
            The object has another tag.
        NotImplementedError
            The store knows no conditional writes.
        """

    def remove(self, tag: str) -> None:
        """Remove the object if it has this tag; raises `ObjectChangedError` where it has another.

        Some stores have no condition for this: call it only while nobody else may write the object.
        """

    def keeps_conditions(self, data: bytes) -> bool:
        """Whether the store refuses writes whose condition is not met; to be called while the object is `data`."""


def conditional_object(fs: Any, path: str) -> ConditionalObject | None:
    """Return the object of this path, or None where fsspec's file system for this store has no conditional writes."""
    protocols = [fs.protocol] if isinstance(fs.protocol, str) else fs.protocol
    kind = next((_KINDS[protocol] for protocol in protocols if protocol in _KINDS), None)
    return kind(fs, path) if kind else None


class _S3Object:
    """An object of Amazon S3, or of a store that imitates it."""

    def __init__(self, fs: Any, path: str):
        self._fs, self._path = fs, path
        bucket, key, _ = fs.split_path(path)
        self._where = {"Bucket": bucket, "Key": key}

    def read(self) -> StoredObject | None:
        try:
            head = self._fs.call_s3("head_object", **self._where)
            data = self._fs.cat_file(self._path, start=0, end=_READ_BYTES) if head["ContentLength"] else b""
        except FileNotFoundError:
            return None
        date = head["ResponseMetadata"]["HTTPHeaders"].get("date")
        return StoredObject(bytes(data), head["ETag"], _age(head["LastModified"], date))

    def write(self, data: bytes, tag: str | None) -> str:
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        return str(self._request("put_object", Body=data, **condition)["ETag"])

    def remove(self, tag: str) -> None:
        try:
            self._request("delete_object", IfMatch=tag)
        except NotImplementedError:  # some stores have conditions for writes alone
            self._request("delete_object")

    def _request(self, method: str, **options: Any) -> dict[str, Any]:
        try:
            result: dict[str, Any] = self._fs.call_s3(method, **self._where, **options)
            return result
        except Exception as error:
            code = _s3_code(error)
            if code in _REFUSED or (code in _MISSING and "IfMatch" in options):
                raise ObjectChangedError(f"{self._path} has changed") from error
            if code in _UNSUPPORTED or getattr(error, "errno", None) == errno.ENOSYS:
                raise NotImplementedError("no conditional requests") from error
            raise

    def keeps_conditions(self, data: bytes) -> bool:
        return all(self._is_refused(data, tag) for tag in (None, _NO_TAG))

    def _is_refused(self, data: bytes, tag: str | None) -> bool:
        try:
            with_retries(lambda: self.write(data, tag))
        except ObjectChangedError:
            return True
        return False


def _s3_code(error: BaseException | None) -> str:
    """Error code of S3 behind an exception of s3fs, or ""."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
        error = error.__cause__
    return ""


class _GoogleObject:
    """An object of Google Cloud Storage."""

    def __init__(self, fs: Any, path: str):
        self._fs = fs
        self._bucket, self._key, _ = fs.split_path(path)
        self._where = ("b/{}/o/{}", self._bucket, self._key)

    def read(self) -> StoredObject | None:
        try:
            headers, text = self._fs.call("GET", *self._where)
            _, data = self._fs.call("GET", *self._where, alt="media")
        except FileNotFoundError:
            return None
        info = json.loads(text)
        age = _age(datetime.fromisoformat(info["updated"]), headers.get("Date"))
        return StoredObject(bytes(data[:_READ_BYTES]), info["generation"], age)

    def write(self, data: bytes, tag: str | None) -> str:
        uploads = self._fs.base.replace("/storage/v1/", "/upload/storage/v1/") + "b/{}/o"
        options = {"uploadType": "media", "name": self._key, "ifGenerationMatch": tag or "0"}
        written = _google_request(
            lambda: self._fs.call("POST", uploads, self._bucket, data=data, json_out=True, **options)
        )
        return str(written["generation"])

    def remove(self, tag: str) -> None:
        _google_request(lambda: self._fs.call("DELETE", *self._where, ifGenerationMatch=tag))

    def keeps_conditions(self, data: bytes) -> bool:
        return True  # and it allows one write a second to an object


def _google_request(request: Callable[[], Any]) -> Any:
    try:
        return request()
    except FileExistsError as error:  # gcsfs's name for a condition that is not met
        raise ObjectChangedError(str(error)) from error


class _MemoryObject:
    """An object of ``memory://``, which lives in this process."""

    _exclusive = threading.Lock()

    def __init__(self, fs: Any, path: str):
        self._fs, self._path = fs, path

    def read(self) -> StoredObject | None:
        try:
            data, info = self._fs.cat_file(self._path), self._fs.info(self._path)
        except FileNotFoundError:
            return None
        return StoredObject(data[:_READ_BYTES], self._tag(data), _age(self._fs.modified(info["name"]), None))

    def write(self, data: bytes, tag: str | None) -> str:
        with self._exclusive:
            self._require(tag)
            self._fs.pipe_file(self._path, data)
        return self._tag(data)

    def remove(self, tag: str) -> None:
        with self._exclusive:
            self._require(tag)
            self._fs.rm_file(self._path)

    def _require(self, tag: str | None) -> None:
        present = self._tag(self._fs.cat_file(self._path)) if self._fs.exists(self._path) else None
        if present != tag:
            raise ObjectChangedError(f"{self._path} has changed")

    @staticmethod
    def _tag(data: bytes) -> str:
        return data.hex()

    def keeps_conditions(self, data: bytes) -> bool:
        return True


_KINDS: dict[str, Callable[[Any, str], ConditionalObject]] = {
    "s3": _S3Object,
    "s3a": _S3Object,
    "gs": _GoogleObject,
    "gcs": _GoogleObject,
    "memory": _MemoryObject,
}


def _age(written: datetime, date: str | None) -> float:
    """Seconds from `written` to `date`, the HTTP date of the store's answer; to now where the store gives none."""
    now = parsedate_to_datetime(date).timestamp() if date else time.time()
    return max(0.0, now - written.timestamp())
