"""A cache or scores behind a URL, worked on in a folder of this machine.

A cache is memory-mapped and locked, which a store cannot do; so it is worked on here, and what is finished is
sent. The store is the truth, and this machine may be lost at any time: each finished part is sent at once, so
that the next run, on whatever machine, goes on from there. A cache lying here that the store does not have, or
has otherwise, is not trusted: somebody removed or replaced it, or it was finished here and never arrived, and
then its parts are still there to make it again from.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import CacheError, OutputError, PUCacheError, one_line
from ..progress import Progress, Silent
from ..storage.atomic import make_folder
from ..storage.filesystem import open_filesystem
from ..storage.retries import error_text, remedy_for, with_retries
from ..storage.transfer import (
    OBJECT_STORES,
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
from ..storage.urls import without_password, without_secrets
from .paths import part_files, parts_folder

__all__ = ["RemoteCache", "local_copy", "upload"]

log = logging.getLogger("pucache")


class RemoteCache:
    """A cache file behind a URL, worked on in a folder of this machine.

    Use `fetch`, the work, and `publish` within the writer's lock of `local`.

    Parameters
    ----------
    url : str
        Of a file, such as ``s3://bucket/folder/cache.h5``.
    work : str or path, optional
        Folder to work in; by default ``$PUCACHE_WORK``, else ``pucache`` below ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Attributes
    ----------
    name : str
        The URL without passwords and tokens.
    local : Path
        The file that is worked on, in a folder of its own, which is made.

    Raises
    ------
    OutputError
        The folder cannot be made or written to.
    ValueError
        The URL names no file.
    """

    def __init__(self, url: str, work: str | Path | None = None):
        self.name, self._url = without_secrets(url), url
        self.local = _place(url, work) / _file_name(url)
        self._parts: set[str] = set()  # that this run knows to be there

    def check_writable(self) -> None:
        """Make sure, before any work, that a file can be written and removed there.

        Raises
        ------
        OutputError
            No bucket, no credentials, no permission, or a folder of that name.
        MissingExtraError
            What speaks to this kind of store is not installed.
        """
        with _errors(OutputError, "write", self.name):
            fs, path = open_filesystem(self._url)
            there = object_info(fs, path)
            if there and there["type"] != "file":
                raise OutputError(f"{self.name} is a folder; name a file in it, such as {self.name}/cache.h5")
            above, _, name = path.rpartition("/")
            probe = f"{above}/.{name}.writable"
            if not is_object_store(fs):
                with_retries(lambda: fs.makedirs(above, exist_ok=True))
            with_retries(lambda: fs.pipe_file(probe, b""))
            remove_files(fs, [probe])

    def fetch(self) -> None:
        """Bring the finished cache and its parts here as far as they are not.

        Raises
        ------
        CacheError
            The store fails.
        OutputError
            This machine's folder cannot be written.
        """
        with _errors(CacheError, "fetch", self.name):
            fs, path = open_filesystem(self._url, retry_each_request=True)
            if object_info(fs, path) is None:
                remove_copy(self.local)
            else:
                fetch_file(fs, path, self.local)
            there = {n: i for n, i in folder_files(fs, path + ".parts", ".h5").items() if n.startswith("part-")}
            here = {part.name: part for part in part_files(self.local)}
            for name, info in there.items():
                if name not in here or here[name].stat().st_size != info["size"]:
                    fetch_file(fs, f"{path}.parts/{name}", parts_folder(self.local) / name)
        self._parts |= set(there)

    def keep(self, part: Path) -> None:
        """Send a finished part; the same part again does no harm, as its name says what it holds.

        Raises
        ------
        OutputError
            It does not arrive.
        """
        with _errors(OutputError, "write", f"{self.name}.parts/{part.name}"):
            fs, path = open_filesystem(self._url)
            send_file(fs, part, f"{path}.parts/{part.name}")
        self._parts.add(part.name)

    def keep_all(self, parts: list[Path]) -> None:
        """Send those of some finished parts that are not there: left by a run here that could not send them.

        Raises
        ------
        OutputError
            One does not arrive.
        """
        for part in parts:
            if part.name not in self._parts:
                self.keep(part)

    def publish(self) -> None:
        """Send the finished cache, which readers see once it is whole, and then remove the parts that it was made from.

        Raises
        ------
        OutputError
            It does not arrive; what was there before is untouched, and the parts stay.
        """
        with _errors(OutputError, "write", self.name):
            fs, path = open_filesystem(self._url, retry_each_request=True)
            there = object_info(fs, path)
            if there is None or not is_copy(self.local, object_stamp(there)):
                here = local_stamp(self.local)
                send_file(fs, self.local, path)
                record_copy(self.local, object_stamp(with_retries(lambda: fs.info(path))), here)
        self._remove_parts(fs, path + ".parts")

    def drop_parts(self) -> None:
        """Remove the parts there, of which nothing came."""
        with _errors(OutputError, "write", self.name):
            fs, path = open_filesystem(self._url)
        self._remove_parts(fs, path + ".parts")

    def _remove_parts(self, fs: Any, folder: str) -> None:
        try:
            remove_files(fs, [f"{folder}/{name}" for name in sorted(self._parts)])
            self._parts.clear()
        except Exception as error:  # the cache is there, whatever stays beside it
            log.warning("%s is written, but %s.parts cannot be removed: %s", self.name, self.name, error_text(error))
        if not is_object_store(fs):
            with contextlib.suppress(Exception):  # not empty, or none
                fs.rmdir(folder)


def local_copy(url: str, work: str | Path | None = None, progress: Progress | None = None) -> Path:
    """Bring a cache behind a URL here for reading, unless it is here as it is there.

    Parameters
    ----------
    url : str
        Of a cache file, or of a folder of ``.h5`` files.
    work : str or path, optional
        As for `RemoteCache`; what that works on is not touched.
    progress : Progress, optional
        Counts megabytes.

    Returns
    -------
    Path
        The file, or the folder.

    Raises
    ------
    CacheError
        Nothing is there, or the store fails.
    MissingExtraError
        What speaks to this kind of store is not installed.
    OutputError
        This machine's folder cannot be written.
    """
    name, here = without_secrets(url), _place(url, work, "-read") / _file_name(url.rstrip("/"))
    with _errors(CacheError, "fetch", name), progress or Silent() as progress:
        fs, path = open_filesystem(url, retry_each_request=True)
        there = object_info(fs, path)
        if there is None:
            raise CacheError(f"no such cache: {name}; check the URL")
        if there["type"] == "file":
            found = {path: here}
            infos = [there]
        else:
            inside = folder_files(fs, path, ".h5")
            if not inside:
                raise CacheError(f"no cache in folder {name}; expected *.h5 files")
            found, infos = {f"{path.rstrip('/')}/{n}": here / n for n in inside}, list(inside.values())
            _drop_others(here, set(inside))
        wanted = [
            info for info, file in zip(infos, found.values(), strict=True) if not is_copy(file, object_stamp(info))
        ]
        if wanted:
            progress.start(sum(map(megabytes, wanted)), "fetching (MB)")
        for place, file in found.items():
            fetch_file(fs, place, file, progress)
    return here


def _drop_others(folder: Path, names: set[str]) -> None:
    """Remove copies of what is no longer there, and a file that was what is a folder now."""
    if folder.is_file():
        remove_copy(folder)
    for file in folder.glob("*.h5"):
        if file.name not in names:
            remove_copy(file)


def upload(path: Path, url: str) -> None:
    """Put a file at a URL, whole or not at all.

    Raises
    ------
    OutputError
        It does not arrive; what was there before is untouched.
    MissingExtraError
        What speaks to this kind of store is not installed.
    """
    with _errors(OutputError, "write", without_secrets(url)):
        fs, there = open_filesystem(url, retry_each_request=True)
        send_file(fs, path, there)


# --- where, and what is wrong ------------------------------------------------------------------


def _place(url: str, work: str | Path | None, ending: str = "") -> Path:
    """A folder of this machine for what is at a URL, whatever password it comes with; made."""
    kept = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    above = Path(work or os.environ.get("PUCACHE_WORK") or os.path.join(kept, "pucache")).absolute()
    folder = above / (hashlib.sha256(without_password(url).rstrip("/").encode()).hexdigest()[:16] + ending)
    try:
        make_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        reason = f"cannot keep what belongs to {without_secrets(url)} in {above}: {one_line(error)}"
        raise OutputError(f"{reason}; name another folder in PUCACHE_WORK") from error


def _file_name(url: str) -> str:
    scheme, _, rest = without_secrets(url).partition("://")
    above, _, name = rest.rpartition("/")
    if not name or name in (".", "..") or (scheme in OBJECT_STORES and not above):
        raise ValueError(f"{without_secrets(url)} names no file; expected a URL such as s3://bucket/folder/cache.h5")
    return name


@contextmanager
def _errors(kind: type[PUCacheError], doing: str, name: str) -> Iterator[None]:
    """Turn whatever a file system raises into one error of this kind."""
    try:
        yield
    except PUCacheError:
        raise
    except NotImplementedError as error:
        raise kind(f"cannot {doing} {name}: this kind of store does not allow it; name another place") from error
    except Exception as error:
        missing = isinstance(error, FileNotFoundError) and doing == "write"
        way_out = "; make it first, or name another place" if missing else remedy_for(error)
        raise kind(f"cannot {doing} {name}: {error_text(error)}{way_out}") from error
