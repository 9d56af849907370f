"""One writer per URL: a lease object beside the file.

The lease is a small JSON text, ``.NAME.lease``, which the writer renews while it works. It is only ever written on
the condition that nobody else has written it meanwhile (`pucache.storage.conditional`), so that of two writers one
is refused. A lease that was not renewed for `LEASE_SECONDS` by the store's clock, as that of a killed writer, is taken
over by the next writer. A writer whose lease was taken over notices when it renews, at the latest before it publishes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import socket
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import LeaseHeldError, LeaseLostError
from .atomic import replacing
from .conditional import ConditionalObject, ObjectChangedError, StoredObject, conditional_object
from .retries import error_text, with_retries

LEASE_SECONDS = 120  # without renewal, until another writer may take over
RENEWAL_SECONDS = 30.0
RELEASE_SECONDS = 5.0  # no attempt to remove the lease starts later than this: it ends by itself
_ATTEMPTS = 4  # to acquire, where others write the lease at the same moment
_MAX_SECONDS = 3600
_ID = re.compile("[0-9a-f]{32}")
_TIME = "%Y-%m-%dT%H:%M:%SZ"

log = logging.getLogger("pucache")


class LeaseFormatError(ValueError):
    """Not the text of a lease."""


@dataclass(frozen=True)
class LeaseText:
    """Content of a lease object.

    Attributes
    ----------
    id : str
        32 random hexadecimal digits of the writer.
    host : str
        Name of the writer's machine.
    pid : int
        Process number of the writer.
    since : str
        UTC time at which the writer began, by its own clock.
    seconds : int
        The lease ends so long after it was last written, 1 to 3600.
    renewals : int
        Counts how often it was written; no two texts of a writer are the same.
    """

    id: str
    host: str
    pid: int
    since: str
    seconds: int = field(default_factory=lambda: LEASE_SECONDS)
    renewals: int = 0

    @classmethod
    def of_this_process(cls) -> LeaseText:
        """Describe a new writer."""
        since = datetime.now(UTC).strftime(_TIME)
        return cls(secrets.token_hex(16), socket.gethostname()[:255], os.getpid(), since)

    def encode(self) -> bytes:
        """Return the bytes of the lease object."""
        return (json.dumps({"pucache_lease": 1, **asdict(self)}, ensure_ascii=True) + "\n").encode("ascii")

    @classmethod
    def parse(cls, data: bytes) -> LeaseText:
        """Read what `encode` wrote.

        Raises
        ------
        LeaseFormatError
            Anything else.
        """
        try:
            content = json.loads(data)
            version = content.pop("pucache_lease")
            lease = cls(**content)
            datetime.strptime(lease.since, _TIME)
            valid = (
                version == 1
                and _ID.fullmatch(lease.id)
                and isinstance(lease.host, str)
                and len(lease.host) <= 255
                and all(type(number) is int for number in (version, lease.pid, lease.seconds, lease.renewals))
                and 1 <= lease.seconds <= _MAX_SECONDS
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise LeaseFormatError("not a lease") from error
        if not valid:
            raise LeaseFormatError("not a lease")
        return lease

    def holder(self) -> str:
        """Who writes, and since when, for messages."""
        host = "".join(c if c.isprintable() else "?" for c in self.host) or "?"
        began = self.since.replace("T", " ").replace("Z", " UTC")
        return f"process {self.pid} on {host} since {began}"


class Lease:
    """The right of this process to write one file of a store.

    Use as a context manager: it holds the lease within the block, and renews it in a thread. In a store without
    conditional writes there is no lease, and a warning says so.

    Parameters
    ----------
    fs : fsspec.AbstractFileSystem
    path : str
        The file that is written; the lease lies beside it.
    name : str
        URL of the file for messages, without secrets.
    record : Path
        A file of this machine that keeps the lease's id. Only one process at a time may use it, under a lock of
        this machine: a lease with that id is then one of a process of this machine that has ended, and is taken over
        at once.

    Raises
    ------
    LeaseHeldError
        On entering: another writer holds the lease, or there is an object of that name that is no lease.
    OutputError
        On entering: `record` cannot be written.
    """

    def __init__(self, fs: Any, path: str, *, name: str, record: Path):
        folder, _, file_name = path.rpartition("/")
        self._name, self._record = name, record
        self._object_name = f"{name.rpartition('/')[0]}/.{file_name}.lease"
        self._object = conditional_object(fs, f"{folder}/.{file_name}.lease")
        self._text = LeaseText.of_this_process()
        self._tag = ""
        self._written = 0.0  # of `_clock`: when the last renewal began
        self._taken_by: str | None = None
        self._exclusive = threading.Lock()
        self._released = threading.Event()
        self._thread: threading.Thread | None = None

    # --- beginning -------------------------------------------------------------------------------

    def refuse_if_held(self) -> None:
        """Raise `LeaseHeldError` if another writer holds the lease now; changes nothing."""
        if self._object is not None:
            self._require_free(with_retries(self._object.read))

    def __enter__(self) -> Lease:
        if self._object is None or not self._acquire(self._object):
            log.warning("%s: this store does not keep two writers apart; let only one write this file", self._name)
            self._object = None
            return self
        self._thread = threading.Thread(target=self._keep_renewing, name="pucache-lease", daemon=True)
        self._thread.start()
        return self

    def _acquire(self, stored_lease: ConditionalObject) -> bool:
        """Write the lease; returns False where the store keeps no conditions."""
        for _ in range(_ATTEMPTS):
            stored = with_retries(stored_lease.read)
            self._require_free(stored)
            with replacing(self._record) as temporary:
                temporary.write_text(self._text.id)
            self._written = _clock()
            try:
                self._tag = self._write(None if stored is None else stored.tag)
            except ObjectChangedError:  # another writer was faster, or an attempt arrived whose answer was lost
                continue
            except NotImplementedError:
                return False
            return self._is_kept_apart(stored_lease)
        raise LeaseHeldError(f"{self._name} is being taken by several writers at this moment; run again")

    def _is_kept_apart(self, stored_lease: ConditionalObject) -> bool:
        """Whether the store keeps conditions; removes the lease where it does not."""
        with contextlib.suppress(NotImplementedError):
            if stored_lease.keeps_conditions(self._text.encode()):
                return True
        with contextlib.suppress(Exception):  # the probe may have changed it, and it ends by itself
            stored_lease.remove(self._tag)
        return False

    def _require_free(self, stored: StoredObject | None) -> None:
        if stored is None:
            return
        try:
            lease = LeaseText.parse(stored.data)
        except LeaseFormatError as error:
            raise LeaseHeldError(
                f"{self._object_name} is not a lease of this version of pucache; make sure that nobody writes "
                f"{self._name}, then remove that object"
            ) from error
        left = lease.seconds - stored.age
        if left > 0 and lease.id != self._recorded_id():
            raise LeaseHeldError(
                f"{self._name} is being written by {lease.holder()}; its lease ends in {max(1, round(left))} s unless "
                "it is renewed: wait for that process, or, if it is dead, run again then"
            )

    def _recorded_id(self) -> str:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return self._record.read_text()
        return ""

    # --- while the file is written ----------------------------------------------------------------

    def _write(self, tag: str | None) -> str:
        assert self._object is not None
        stored_lease, data = self._object, self._text.encode()
        return with_retries(lambda: stored_lease.write(data, tag), max_seconds=RENEWAL_SECONDS)

    def _keep_renewing(self) -> None:
        while not self._released.wait(RENEWAL_SECONDS):
            try:
                self.confirm()
            except LeaseLostError:
                return
            except Exception as error:  # the store may answer again before the lease ends
                log.debug("%s cannot be renewed: %s", self._object_name, error_text(error))

    def check(self) -> None:
        """Raise `LeaseLostError` if this process knows already that it has lost the lease; makes no request."""
        if self._taken_by is not None:
            raise LeaseLostError(
                f"{self._name} was taken over by {self._taken_by}, because this process did not renew its lease for "
                f"{self._text.seconds} s (a suspended machine, or a store that was out of reach); nothing was "
                "published and nothing is lost: run the same command again when that writer has ended"
            )

    def confirm(self) -> None:
        """Renew the lease now, to be called before the file is published.

        A lease that has run out, but that nobody else has taken, is renewed too.

        Raises
        ------
        LeaseLostError
            Another writer has taken over.
        RetriesExhausted, or the store's own error
            The store fails.
        """
        if self._object is None:
            return
        with self._exclusive:
            self.check()
            self._text = replace(self._text, renewals=self._text.renewals + 1)
            began = _clock()
            try:
                self._tag = self._write(self._tag)
            except ObjectChangedError:
                self._tag = self._write(self._own_tag())
            self._written = began

    def _own_tag(self) -> str:
        """Tag of the lease, if an attempt to write it arrived whose answer was lost; else the lease is lost."""
        assert self._object is not None
        stored = with_retries(self._object.read)
        with contextlib.suppress(LeaseFormatError):
            lease = LeaseText.parse(stored.data) if stored else None
            if stored and lease and lease.id == self._text.id:
                return stored.tag
            self._taken_by = lease.holder() if lease else "another writer, which has ended"
        self._taken_by = self._taken_by or "another writer"
        self.check()
        raise AssertionError("`check` raises")

    # --- end -------------------------------------------------------------------------------------

    def __exit__(self, *error: object) -> None:
        if self._object is None:
            return
        self._released.set()
        try:
            if _clock() - self._written > self._text.seconds / 2:  # nobody may take it over while it is removed
                self.confirm()
            with self._exclusive:  # a renewal that has begun ends first
                self.check()
                stored_lease, tag = self._object, self._tag
                with_retries(lambda: stored_lease.remove(tag), max_seconds=RELEASE_SECONDS)
        except (LeaseLostError, ObjectChangedError):
            pass  # it is another writer's now
        except Exception as failure:
            log.warning("%s remains for %s s: %s", self._object_name, self._text.seconds, error_text(failure))
            return  # with its record: this machine need not wait
        self._record.unlink(missing_ok=True)


def _clock() -> float:
    """Seconds of a clock that never jumps and goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
