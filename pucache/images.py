"""Where images come from.

A *source* is a folder, a manifest (text or CSV) or tar shards, on this machine or behind any
fsspec URL. It lists keys with size and modification time, and reads the bytes of one key.
Nothing here knows about encoders; downstream of the cache only the pages use this module, to show images.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import stat
import tarfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import fsspec
import numpy as np

from .errors import ImageError, SourceError, one_line

EXTENSIONS = frozenset(".jpg .jpeg .jpe .jfif .png .webp .gif .tif .tiff .bmp .ppm .pgm".split())
MAX_BYTES = 1 << 30  # encoded bytes of one image
MAX_KEY_BYTES = 4096
UNKNOWN = -1


@dataclass
class Listing:
    """What a source holds.

    Attributes
    ----------
    keys : list of str
        Sorted by their UTF-8 bytes, unique.
    size_mtime : ndarray of int64, (n, 2)
        Bytes, and modification time in nanoseconds (behind a URL, where a store tells no time, a
        63-bit fingerprint of what it does tell; -1 where it tells nothing).
    failures : dict of str to str
        Keys that cannot even be listed (a directory without permission, a name that is not
        UTF-8), with the reason.
    ignored : Counter
        Files left out because their name ends unlike an image's, counted by ending.
    """

    keys: list[str]
    size_mtime: np.ndarray
    failures: dict[str, str] = field(default_factory=dict)
    ignored: Counter[str] = field(default_factory=Counter)


class Source(Protocol):
    """A place that lists and reads images; picklable, so that worker processes can read too."""

    name: str

    def scan(self) -> Listing:
        """List every image."""

    def read(self, key: str) -> bytes:
        """Return the encoded bytes of one listed image; raise `ImageError` if that fails."""


def open_source(where: str | os.PathLike[str]) -> Source:
    """Open a folder, manifest (``.txt .lst .csv .tsv``) or tar shard(s), local or behind a URL.

    Parameters
    ----------
    where : str or path
        A folder, a manifest, a ``.tar`` file, a glob of ``.tar`` files, or an fsspec URL of any
        of these.

    Raises
    ------
    SourceError
        Nothing is there, or the kind of source cannot be told.
    """
    where = os.fspath(where)
    remote = "://" in where
    name = where if remote else os.path.abspath(where)
    suffix = os.path.splitext(where.rstrip("/"))[1].lower()
    if not remote and os.path.isdir(where):
        return LocalFolder(name)
    if suffix == ".tar":
        return TarSource(name)
    if where.lower().endswith((".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")):
        raise SourceError(
            f"{where} is a compressed tar, which cannot be read at random; decompress it to .tar (images hardly shrink)"
        )
    if suffix in _MANIFESTS:
        return ManifestSource(name)
    if remote:
        return RemoteFolder(name)
    if not os.path.exists(where):
        raise SourceError(f"no such source: {where}; expected a folder, a manifest (.txt, .csv) or .tar shards")
    raise SourceError(f"{where} is not a source; expected a folder, a manifest (.txt, .csv, .tsv) or .tar shards")


def digest(data: bytes) -> bytes:
    """Content digest of encoded image bytes: sha256, 32 bytes."""
    return hashlib.sha256(data).digest()


# --- folders -----------------------------------------------------------------------------------


_Directory = tuple[str, str, frozenset[tuple[int, int]]]  # path, prefix of its keys, directories above it


class LocalFolder:
    """Every image file below a folder; symbolic links are followed, loops are not."""

    def __init__(self, root: str):
        self.name = root

    def scan(self) -> Listing:
        """Walk the folder; a directory that cannot be read becomes a failure."""
        found = _Found()
        below: list[_Directory] = [(self.name, "", frozenset())]
        while below:
            below += self._list(*below.pop(), found)
        return found.listing()

    def _list(self, directory: str, prefix: str, above: frozenset[tuple[int, int]], found: _Found) -> list[_Directory]:
        """Enter the images of one directory, and return the directories in it."""
        try:
            here = os.stat(directory)
            with os.scandir(directory) as entries:
                children = list(entries)
        except OSError as error:
            if not prefix:
                raise SourceError(f"cannot list {directory}: {error.strerror}") from error
            found.fail(prefix, f"directory cannot be listed: {error.strerror}")
            return []
        identity = (here.st_dev, here.st_ino)
        if identity in above:
            found.fail(prefix, "symbolic link back to a folder above it")
            return []
        below: list[_Directory] = []
        for entry in children:
            if entry.name.startswith("."):
                continue
            key = prefix + entry.name
            try:
                if entry.is_dir():
                    below.append((entry.path, key + "/", above | {identity}))
                elif found.wants(key):
                    info = entry.stat()
                    found.add(key, info.st_size, info.st_mtime_ns)
            except OSError as error:
                found.fail(key, f"cannot be read: {error.strerror}")
        return below

    def read(self, key: str) -> bytes:
        """Read one file; raises `ImageError`."""
        return read_local(os.path.join(self.name, key))


class RemoteFolder:
    """Every image below an fsspec URL such as ``s3://bucket/folder``."""

    def __init__(self, url: str):
        self.name = url

    def scan(self) -> Listing:
        """List everything below the URL."""
        fs, root = _filesystem(self.name)
        with _remote_errors(self.name):
            entries = fs.find(root, detail=True)
        if not entries:
            raise SourceError(f"no such source: {self.name} (nothing is there)")
        if list(entries) == [root]:
            raise SourceError(f"{self.name} is a file; expected a folder, a manifest (.txt, .csv, .tsv) or .tar shards")
        found = _Found()
        for path, info in entries.items():
            key = path[len(root) :].lstrip("/")
            if not _is_hidden(key) and found.wants(key):
                found.add(key, *_size_mtime(info))
        return found.listing()

    def read(self, key: str) -> bytes:
        """Fetch one object; raises `ImageError`."""
        fs, root = _filesystem(self.name)
        return _read_remote(fs, f"{root.rstrip('/')}/{key}")


# --- manifests ---------------------------------------------------------------------------------

_MANIFESTS = {".txt": None, ".lst": None, ".csv": ",", ".tsv": "\t"}
_PATH_COLUMNS = ("path", "image", "file", "filename", "url", "key")


class ManifestSource:
    """Images named one by one in a text file (a path a line) or a CSV/TSV with a header.

    Paths are relative to the manifest, absolute, or URLs. The key is the path as written, unless
    the table has a ``key`` column beside its ``path`` column.
    """

    def __init__(self, manifest: str):
        self.name = manifest
        self._paths: dict[str, str] | None = None

    @property
    def paths(self) -> dict[str, str]:
        """Key to the full path or URL of each image."""
        if self._paths is None:
            self._paths = self._load()
        return self._paths

    def _load(self) -> dict[str, str]:
        base = self.name.rsplit("/", 1)[0]
        paths: dict[str, str] = {}
        for key, path in self._rows():
            if key in paths:
                raise SourceError(f"{self.name} names {key!r} twice; keys must be unique (add a 'key' column)")
            paths[key] = path if "://" in path or os.path.isabs(path) else f"{base}/{path}"
        if not paths:
            raise SourceError(f"{self.name} names no image")
        return paths

    def _rows(self) -> Iterator[tuple[str, str]]:
        with _remote_errors(self.name):
            data = _read_any(self.name)
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise SourceError(f"{self.name} is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
        delimiter = _MANIFESTS[os.path.splitext(self.name)[1].lower()]
        if delimiter is None:
            lines = (line.rstrip("\n") for line in io.StringIO(text, newline=None))
            yield from ((line, line) for line in lines if line.strip())
            return
        table = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        try:
            columns = table.fieldnames or []
            path_column = next((name for name in _PATH_COLUMNS if name in columns), None)
            if path_column is None:
                named = " ".join(", ".join(columns).split()) or "(none)"
                raise SourceError(f"{self.name} has columns {named}; expected one called 'path'")
            key_column = "key" if "key" in columns else path_column
            for row in table:
                if row[path_column]:
                    yield row[key_column] or row[path_column], row[path_column]
        except csv.Error as error:
            raise SourceError(f"{self.name} line {table.reader.line_num}: {error}") from error

    def scan(self) -> Listing:
        """Look up size and time of every named image; a missing one becomes a failure."""
        found = _Found()

        def examine(item: tuple[str, str]) -> tuple[str, tuple[int, int] | str]:
            key, path = item
            try:
                if "://" in path:
                    fs, inner = _filesystem(path)
                    return key, _size_mtime(fs.info(inner))
                info = os.stat(path)
                return key, (info.st_size, info.st_mtime_ns)
            except Exception as error:  # whatever a remote file system raises is this key's failure
                return key, f"cannot be read: {one_line(error)}"

        remote = any("://" in path for path in self.paths.values())
        with ThreadPoolExecutor(16 if remote else 1) as pool:
            for key, result in pool.map(examine, self.paths.items()):
                if isinstance(result, str):
                    found.fail(key, result)
                else:
                    found.add(key, *result)
        return found.listing()

    def read(self, key: str) -> bytes:
        """Read the file or URL behind a key; raises `ImageError`."""
        path = self.paths[key]
        if "://" in path:
            return _read_remote(*_filesystem(path))
        return read_local(path)


# --- tar shards --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Member:
    shard: str
    offset: int
    size: int


class TarSource:
    """Images inside uncompressed tar shards, read in place; nothing is extracted.

    One shard: the key is the member's name. A glob of shards: the shard's name below the glob's
    fixed part, a slash, and the member's name. Of members with one name the last counts, as in tar.
    """

    def __init__(self, where: str):
        self.name = where
        self._members: dict[str, _Member] | None = None

    def scan(self) -> Listing:
        """Index the members of every shard; a damaged shard becomes a failure."""
        found = _Found()
        self._members = {}
        for shard, prefix in self._shards():
            self._index(shard, prefix, found)
        return found.listing()

    def _shards(self) -> list[tuple[str, str]]:
        fs, pattern = _filesystem(self.name)
        if not any(c in pattern for c in "*?["):
            return [(self.name, "")]
        with _remote_errors(self.name):
            if fs.isfile(pattern):  # its own name holds the brackets
                return [(self.name, "")]
            shards = sorted(str(path) for path in fs.glob(pattern))
        if not shards:
            raise SourceError(f"no such source: no shard matches {self.name}")
        fixed = pattern[: min(pattern.index(c) for c in "*?[" if c in pattern)].rpartition("/")[0]
        scheme = self.name.split("://")[0] + "://" if "://" in self.name else ""
        return [(scheme + shard if scheme else shard, shard[len(fixed) :].lstrip("/") + "/") for shard in shards]

    def _index(self, shard: str, prefix: str, found: _Found) -> None:
        assert self._members is not None
        fs, path = _filesystem(shard)
        try:
            with fs.open(path, "rb") as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
                for member in tar:
                    self._add(member, shard, prefix, found)
                stream.seek(tar.offset)
                if stream.read(tarfile.BLOCKSIZE).strip(b"\0"):  # tarfile takes a damaged header for the end
                    raise tarfile.ReadError(f"bad header at byte {tar.offset}")
        except Exception as error:  # remote file systems and damaged headers raise almost anything
            if not prefix and not found.entries:
                raise SourceError(f"cannot read {shard} as tar: {one_line(error)}") from error
            found.fail(prefix.rstrip("/") or shard, f"tar shard is damaged or truncated: {one_line(error)}")

    def _add(self, member: tarfile.TarInfo, shard: str, prefix: str, found: _Found) -> None:
        assert self._members is not None
        key = prefix + member.name.removeprefix("./")
        if member.isdir() or _is_hidden(member.name) or not found.wants(key):
            return
        found.forget(key)
        if not member.isreg() or member.sparse is not None:
            found.fail(key, "a link or special file inside a tar; only plain members are read")
            return
        found.add(key, member.size, int(member.mtime * 1e9))
        self._members[key] = _Member(shard, member.offset_data, member.size)

    def read(self, key: str) -> bytes:
        """Read one member in place; raises `ImageError`."""
        if self._members is None:
            self.scan()
        assert self._members is not None
        member = self._members[key]
        _check_size(member.size)
        fs, path = _filesystem(member.shard)
        try:
            data = fs.cat_file(path, start=member.offset, end=member.offset + member.size)
        except Exception as error:
            raise ImageError(f"cannot be read: {one_line(error)}") from error
        if len(data) != member.size:
            raise ImageError(f"truncated tar member: expected {member.size} bytes, got {len(data)}")
        return bytes(data)


# --- what sources share ------------------------------------------------------------------------


class _Found:
    """Collects what a source lists, refusing keys that a cache cannot hold."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[int, int]] = {}
        self.failures: dict[str, str] = {}
        self.ignored: Counter[str] = Counter()

    def wants(self, key: str) -> bool:
        ending = os.path.splitext(key)[1].lower()
        if ending in EXTENSIONS:
            return True
        self.ignored[ending or "(none)"] += 1
        return False

    def add(self, key: str, size: int, mtime: int) -> None:
        problem = _key_problem(key)
        if problem:
            self.fail(key, problem)
        else:
            self.entries[key] = (_int64(size), _int64(mtime))

    def fail(self, key: str, reason: str) -> None:
        self.failures[_printable(key)] = reason

    def forget(self, key: str) -> None:
        self.entries.pop(key, None)
        self.failures.pop(_printable(key), None)

    def listing(self) -> Listing:
        keys = sorted(self.entries)
        table = np.array([self.entries[key] for key in keys], np.int64).reshape(-1, 2)
        return Listing(keys, table, dict(sorted(self.failures.items())), self.ignored)


def _int64(number: int) -> int:
    return number if -(1 << 63) <= number < 1 << 63 else UNKNOWN


def _is_hidden(key: str) -> bool:
    return any(part.startswith(".") and part not in (".", "..") for part in key.split("/"))


def _printable(key: str) -> str:
    raw = key.encode("utf-8", "surrogateescape")
    text = raw.decode("utf-8", "backslashreplace").replace("\0", "\\x00")
    return text.encode()[:MAX_KEY_BYTES].decode("utf-8", "ignore")


def _key_problem(key: str) -> str | None:
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        return "file name is not UTF-8; rename the file"
    if len(encoded) > MAX_KEY_BYTES:
        return f"key of {len(encoded)} bytes; at most {MAX_KEY_BYTES} are kept"
    if "\0" in key:
        return "key contains a NUL character"
    return None


def read_local(path: str | Path) -> bytes:
    """Read one local file as encoded image bytes, refusing what no image can be.

    Raises
    ------
    ImageError
        Missing, unreadable, not a regular file, or above `MAX_BYTES`.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a named pipe without a writer would block
        try:
            info = os.fstat(file)
            if not stat.S_ISREG(info.st_mode):
                raise ImageError("not a regular file")
            _check_size(info.st_size)
            return _read_all(file, info.st_size)
        finally:
            os.close(file)
    except OSError as error:
        raise ImageError(f"cannot be read: {error.strerror}") from error


def _read_all(file: int, size: int) -> bytes:
    """Read to the end, in one go where the size is as told."""
    pieces, total = [os.read(file, size + 1)], size
    while more := os.read(file, 1 << 20):
        pieces.append(more)
        total += len(more)
        _check_size(total)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _read_remote(fs: Any, path: str) -> bytes:
    try:
        _check_size(int(fs.info(path).get("size") or 0))
        return bytes(fs.cat_file(path))
    except ImageError:
        raise
    except Exception as error:  # every remote file system has exceptions of its own
        raise ImageError(f"cannot be read: {one_line(error)}") from error


def _read_any(where: str) -> bytes:
    fs, path = _filesystem(where)
    return bytes(fs.cat_file(path))


_KEEPING = {"simplecache", "filecache", "blockcache", "cached"}  # of fsspec; they write copies into a folder of theirs


def _filesystem(where: str) -> tuple[Any, str]:
    kept = _KEEPING & {link.split("://")[0] for link in where.split("::")}
    if kept:
        raise SourceError(f"cannot open {where}: {kept.pop()} would keep copies of the files elsewhere; leave it out")
    try:
        fs, path = fsspec.core.url_to_fs(where)
    except (ImportError, ValueError) as error:
        raise SourceError(f"cannot open {where}: {one_line(error)}") from error
    return fs, path


@contextmanager
def _remote_errors(name: str) -> Iterator[None]:
    """Turn whatever a file system raises while a source is opened into one `SourceError`."""
    try:
        yield
    except SourceError:
        raise
    except Exception as error:
        raise SourceError(f"cannot read {name}: {one_line(error)}") from error


def _size_mtime(info: dict[str, Any]) -> tuple[int, int]:
    size = int(info["size"]) if info.get("size") is not None else UNKNOWN
    for name in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value: Any = info.get(name)
        if isinstance(value, int | float):
            return size, int(value * 1e9)
        if hasattr(value, "timestamp"):
            return size, int(value.timestamp() * 1e9)
    tag = info.get("ETag") or info.get("etag")
    if tag:
        return size, int.from_bytes(hashlib.sha256(str(tag).encode()).digest()[:8], "big") >> 1
    return size, UNKNOWN


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise ImageError(f"file of {size:,} bytes; at most {MAX_BYTES:,} are read")
