"""The HDF5 cache: one immutable file, or several of one encoder read as one.

The only user of h5py. docs/cache-format.md specifies the format. A file is written once, under a
temporary name, and never changed; the arrays in it are contiguous, so readers map them.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import mmap
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import h5py
import numpy as np

from . import __version__
from .durable import check_writable, replacing
from .encoder_spec import EncoderSpec
from .errors import CacheError

FORMAT = "pucache"
VERSION = 1
DTYPES: dict[str, np.dtype] = {"float16": np.dtype("<f2"), "float32": np.dtype("<f4")}
BLOCK_BYTES = 32 << 20  # how much of a column is in memory at once
_ATTRIBUTES = ("encoder", "created", "pucache_version", "source", "checksum")
_COLUMNS = ("embeddings", "keys", "digests", "size_mtime")
_FAILURES = ("failures/keys", "failures/reasons")


def rows_per_block(array: np.ndarray) -> int:
    """How many rows of `array` make a block of at most `BLOCK_BYTES`."""
    return max(1, BLOCK_BYTES // max(1, array.itemsize * int(np.prod(array.shape[1:]))))


# --- keys --------------------------------------------------------------------------------------


class Keys(Sequence[str]):
    """Keys in cache order: a sequence of str over fixed-width UTF-8, decoded on demand.

    Parameters
    ----------
    parts : list of ndarray of bytes (dtype S)
        Each sorted and unique.
    """

    def __init__(self, parts: list[np.ndarray]):
        self._parts = parts
        self._starts = np.cumsum([0, *(len(part) for part in parts)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @overload
    def __getitem__(self, item: int) -> str: ...
    @overload
    def __getitem__(self, item: slice | np.ndarray) -> list[str]: ...  # type: ignore[override]
    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, int | np.integer):
            row = int(item) + (len(self) if item < 0 else 0)
            if not 0 <= row < len(self):
                raise IndexError(f"row {item} of {len(self)}")
            part = int(np.searchsorted(self._starts, row, "right")) - 1
            return bytes(self._parts[part][row - self._starts[part]]).decode()
        rows = np.arange(len(self))[item]
        return [self[int(row)] for row in rows]

    def __iter__(self) -> Iterator[str]:
        for part in self._parts:
            step = rows_per_block(part)
            for start in range(0, len(part), step):
                yield from (key.decode() for key in part[start : start + step].tolist())

    def rows(self, keys: Sequence[str]) -> np.ndarray:
        """Return the row of each key by binary search, -1 where it is absent; int64, (len(keys),)."""
        wanted = encode_keys(keys)
        found = np.full(len(keys), -1, np.int64)
        for part, start in zip(self._parts, self._starts[:-1], strict=True):
            at = find(part, wanted)
            found[at >= 0] = at[at >= 0] + start
        return found


def encode_keys(keys: Sequence[str]) -> np.ndarray:
    """Encode keys as fixed-width UTF-8, (n,) of dtype S."""
    return np.array([key.encode() for key in keys], dtype="S") if len(keys) else np.empty(0, "S1")


def find(sorted_keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the position of each wanted key among the sorted ones, -1 where it is absent; int64."""
    if not len(sorted_keys) or not len(wanted):
        return np.full(len(wanted), -1, np.int64)
    fits = np.char.str_len(wanted) <= sorted_keys.itemsize  # a longer one would be cut, or widen a mapped array
    narrow = wanted.astype(sorted_keys.dtype)
    at = np.minimum(np.searchsorted(sorted_keys, narrow), len(sorted_keys) - 1)
    return np.where(fits & (sorted_keys[at] == narrow), at, -1)


# --- one file ----------------------------------------------------------------------------------


class CacheFile:
    """One cache file, opened for reading: attributes read, shapes checked, arrays mapped on use.

    Raises
    ------
    CacheError
        Missing, not HDF5, truncated, not a pucache file, of a newer version, or inconsistent.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        try:
            with open(self.path, "rb") as stream:
                self._identity = _identity(stream.fileno())
                with h5py.File(stream, "r") as file:
                    self._read(file)
        except FileNotFoundError as error:
            raise CacheError(f"no such cache: {self.path}") from error
        except IsADirectoryError as error:
            raise CacheError(f"{self.path} is a directory, not a cache file") from error
        except PermissionError as error:
            raise CacheError(f"cannot read {self.path}: {error.strerror}") from error
        except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:  # what h5py makes of damage
            raise CacheError(f"{self.path} {_hdf5_problem(error, self.path)}") from error

    def _read(self, file: h5py.File) -> None:
        if _attribute(file, "format") != FORMAT:
            raise CacheError(f"{self.path} is an HDF5 file but not a pucache cache (no format attribute 'pucache')")
        version = _attribute(file, "version")
        if version not in (VERSION, None):
            raise CacheError(
                f"{self.path} is a pucache cache of format version {version}; this pucache {__version__} reads "
                f"version {VERSION}: upgrade pucache, or embed again"
            )
        attributes = {name: _attribute(file, name) for name in _ATTRIBUTES}
        for name, value in {"version": version, **attributes}.items():
            self._require(value is not None, f"it lacks the attribute {name}")
        try:
            self.encoder = EncoderSpec.from_json(attributes["encoder"])
        except (ValueError, TypeError) as error:
            raise CacheError(f"{self.path} is damaged: its encoder attribute cannot be read") from error
        self.created, self.pucache_version = attributes["created"], attributes["pucache_version"]
        self.source, self.checksum = attributes["source"], attributes["checksum"]
        self._layout = {name: _layout(file[name]) for name in (*_COLUMNS, *_FAILURES)}
        self._check_layout()

    def _check_layout(self) -> None:
        size = self._identity[2]
        for name, (offset, shape, dtype) in self._layout.items():
            count = math.prod(shape)
            self._require(count == 0 or offset is not None, f"{name} is not contiguous")
            self._require(count == 0 or offset + count * dtype.itemsize <= size, f"{name} runs past the end")  # type: ignore[operator]
        texts = [(self._layout[name][2].kind, len(self._layout[name][1])) for name in ("keys", *_FAILURES)]
        self._require(texts == [("S", 1)] * 3, "keys or failures are not fixed-width text")
        n, dtype = len(self), self.dtype
        self._require(dtype in DTYPES.values(), f"embeddings are {dtype}, expected float16 or float32")
        self._require(self._layout["embeddings"][1] == (n, self.encoder.dim), "embeddings have the wrong shape")
        self._require(self._layout["digests"][1:] == ((n, 32), np.dtype("u1")), "digests have the wrong layout")
        self._require(self._layout["size_mtime"][1:] == ((n, 2), np.dtype("<i8")), "size_mtime has the wrong layout")
        self._require(self._layout[_FAILURES[0]][1] == self._layout[_FAILURES[1]][1], "failures do not pair up")

    def _require(self, condition: bool, problem: str) -> None:
        if not condition:
            raise CacheError(f"{self.path} is damaged: {problem}; restore it from a copy, or embed again")

    def __len__(self) -> int:
        return int(self._layout["keys"][1][0])

    @property
    def dtype(self) -> np.dtype:
        """Type of the embeddings, float16 or float32."""
        return self._layout["embeddings"][2]

    @cached_property
    def _map(self) -> mmap.mmap:
        try:
            with open(self.path, "rb") as stream:
                if _identity(stream.fileno()) != self._identity:
                    raise CacheError(f"{self.path} was replaced while it was open; open it again")
                return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:  # removed meanwhile, or more files than `ulimit -n` allows
            raise CacheError(f"cannot map {self.path}: {error.strerror}") from error

    def _array(self, name: str) -> np.ndarray:
        offset, shape, dtype = self._layout[name]
        if 0 in shape:
            return np.empty(shape, dtype)
        return np.frombuffer(self._map, dtype, math.prod(shape), offset).reshape(shape)  # type: ignore[arg-type]

    @property
    def X(self) -> np.ndarray:
        """Embeddings, (n, d), mapped read-only."""
        return self._array("embeddings")

    @property
    def raw_keys(self) -> np.ndarray:
        """Keys as fixed-width UTF-8, (n,) of dtype S, sorted."""
        return self._array("keys")

    @property
    def digests(self) -> np.ndarray:
        """sha256 of each image's bytes, (n, 32) uint8."""
        return self._array("digests")

    @property
    def size_mtime(self) -> np.ndarray:
        """Bytes and modification time (ns) of each image, (n, 2) int64."""
        return self._array("size_mtime")

    @property
    def failures(self) -> dict[str, str]:
        """Key to reason of every image that could not be read."""
        keys, reasons = (self._array(name).tolist() for name in _FAILURES)
        return {key.decode(): reason.decode() for key, reason in zip(keys, reasons, strict=True)}

    def release(self) -> None:
        """Drop the mapping (and its file descriptor); the next access maps again."""
        self.__dict__.pop("_map", None)

    def verify(self) -> None:
        """Read everything and compare it with the checksum.

        Raises
        ------
        CacheError
            A byte of data or attributes differs from what was written.
        """
        sums = {name: hashlib.sha256() for name in self._layout}
        for name, state in sums.items():
            _hash(state, self._array(name))
        described = _describe({name: self._layout[name][1:] for name in sums}, sums)
        if _checksum(self.encoder, self.source, self.created, self.pucache_version, described) != self.checksum:
            raise CacheError(
                f"{self.path} is damaged: content and checksum disagree; restore it from a copy, or embed again"
            )
        keys = self.raw_keys
        self._require(bool(np.all(keys[1:] > keys[:-1])), "keys are not sorted and unique")


def _identity(descriptor: int) -> tuple[int, int, int, int]:
    info = os.fstat(descriptor)
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def _layout(dataset: Any) -> tuple[int | None, tuple[int, ...], np.dtype]:
    if not isinstance(dataset, h5py.Dataset):
        raise KeyError("not a dataset")
    return dataset.id.get_offset(), dataset.shape or (), np.dtype(dataset.dtype.str)


def _attribute(file: h5py.File, name: str) -> Any:
    """Read one number or fixed-width text, or None where there is none.

    Text of variable width is not even tried: it lies in HDF5's global heap, and damage there makes
    the library loop or crash.
    """
    if name not in file.attrs:
        return None
    stored = file.attrs.get_id(name)
    if stored.shape != () or stored.dtype.kind not in "iuS":
        return None
    value = file.attrs[name]
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else int(value)


def _hdf5_problem(error: Exception, path: Path) -> str:
    text = str(error)
    if "signature not found" in text:
        empty = path.stat().st_size == 0
        return "is empty (0 bytes); embed again" if empty else "is not a pucache cache (not an HDF5 file)"
    if "truncated" in text:
        return "is truncated; restore it from a copy, or embed again"
    if isinstance(error, KeyError):
        return "is damaged or incomplete: a dataset is missing; restore it from a copy, or embed again"
    return f"cannot be read ({text[:160]}); restore it from a copy, or embed again"


# --- several files as one ----------------------------------------------------------------------


class EmbeddingCache:
    """One or more cache files of one encoder, read as one.

    Parameters
    ----------
    *paths : str or path
        Cache files, or folders of them (``*.h5``).

    Attributes
    ----------
    files : list of CacheFile
    encoder : EncoderSpec
    keys : Keys
        In row order; sorted within a file.

    Raises
    ------
    CacheError
        As `CacheFile`; also when encoders differ or a key stands in two files.
    """

    def __init__(self, *paths: str | Path):
        self.files = [CacheFile(path) for path in expand(paths)]
        first = self.files[0]
        for other in self.files[1:]:
            check_same_encoder(first, other)
        self.encoder = first.encoder
        self.keys = Keys([file.raw_keys for file in self.files])
        self._check_disjoint()

    def _check_disjoint(self) -> None:
        for position, file in enumerate(self.files[1:], 1):
            for earlier in self.files[:position]:
                twice = np.intersect1d(earlier.raw_keys, file.raw_keys, assume_unique=True)
                if len(twice):
                    raise CacheError(
                        f"{len(twice)} keys stand both in {earlier.path} and in {file.path} "
                        f"({twice[0].decode()!r}); open one of the two, or embed with --shard I/N"
                    )

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def name(self) -> str:
        """What to call this cache in a message."""
        return str(self.files[0].path) + (f" and {len(self.files) - 1} more" if len(self.files) > 1 else "")

    @property
    def X(self) -> np.ndarray:
        """Embeddings (n, d), float16 or float32: mapped for one file, gathered in memory for several."""
        if len(self.files) == 1:
            return self.files[0].X
        return np.concatenate([file.X for file in self.files])

    @property
    def digests(self) -> np.ndarray:
        """sha256 of each image's bytes, (n, 32) uint8."""
        return np.concatenate([file.digests for file in self.files])

    @property
    def failures(self) -> dict[str, str]:
        """Key to reason of every image that could not be read."""
        return {key: reason for file in self.files for key, reason in file.failures.items()}

    def blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Go through the embeddings in row order without holding them: (row slice, (b, d)) pairs."""
        offset = 0
        for file in self.files:
            X = file.X
            step = rows_per_block(X)
            for start in range(0, len(file), step):
                block = X[start : start + step]
                yield slice(offset + start, offset + start + len(block)), block
            offset += len(file)

    def verify(self) -> None:
        """Check every byte of every file against its checksum; raises `CacheError`."""
        for file in self.files:
            file.verify()


def expand(paths: Iterable[str | Path]) -> list[Path]:
    """Replace folders by the cache files in them, in name order."""
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(child for child in path.glob("*.h5") if not child.name.startswith("."))
            if not inside:
                raise CacheError(f"no cache in folder {path}; expected *.h5 files")
            found += inside
        else:
            found.append(path)
    if not found:
        raise CacheError("no cache given")
    return found


def is_cache(path: str | Path) -> bool:
    """Whether `path` is meant as a cache rather than as images: an HDF5 or ``.h5`` file, or a folder of these."""
    path = Path(path)
    return path.suffix == ".h5" or (path.is_file() and h5py.is_hdf5(path)) or (path.is_dir() and any(path.glob("*.h5")))


def check_same_encoder(expected: CacheFile, got: CacheFile) -> None:
    """Raise `CacheError` unless two files hold embeddings of one encoder in one type."""
    differing = expected.encoder.differences(got.encoder)
    if differing:
        raise CacheError(
            f"{expected.path} holds embeddings of {expected.encoder}; {got.path} of {got.encoder} "
            f"(they differ in {', '.join(differing)}): caches of different encoders cannot be mixed"
        )
    if expected.dtype != got.dtype:
        raise CacheError(f"{expected.path} holds {expected.dtype}, {got.path} {got.dtype}: pack one of them anew")


# --- writing -----------------------------------------------------------------------------------


@dataclass
class Rows:
    """Rows of a cache file, sorted by key.

    Attributes
    ----------
    keys : ndarray of bytes (dtype S), (n,)
    X : ndarray of float16 or float32, (n, d)
    digests : ndarray of uint8, (n, 32)
    size_mtime : ndarray of int64, (n, 2)
    """

    keys: np.ndarray
    X: np.ndarray
    digests: np.ndarray
    size_mtime: np.ndarray


def write_file(
    path: str | Path,
    encoder: EncoderSpec,
    source: str,
    blocks: Iterable[Rows],
    *,
    shape: tuple[int, int, np.dtype],
    failures: dict[str, str],
) -> None:
    """Write one cache file durably from blocks of rows in key order.

    Parameters
    ----------
    shape : (n, key width in bytes, dtype of the embeddings)
    """
    n, width, dtype = shape
    columns = {
        "embeddings": ((n, encoder.dim), dtype),
        "keys": ((n,), np.dtype(f"S{max(width, 1)}")),
        "digests": ((n, 32), np.dtype("u1")),
        "size_mtime": ((n, 2), np.dtype("<i8")),
    }
    sums = {name: hashlib.sha256() for name in (*columns, *_FAILURES)}
    with replacing(path) as temporary, _new_hdf5(temporary) as file:
        datasets = {name: _create(file, name, *column) for name, column in columns.items()}
        start = 0
        for rows in blocks:
            for name, values in zip(columns, (rows.X, rows.keys, rows.digests, rows.size_mtime), strict=True):
                values = np.ascontiguousarray(values, columns[name][1])
                _write(datasets[name], start, values)
                _hash(sums[name], values)
            start += len(rows.keys)
        assert start == n, f"{start} rows written, {n} announced"
        described = {name: (shape, dtype) for name, (shape, dtype) in columns.items()}
        for name, texts in zip(_FAILURES, (list(failures), list(failures.values())), strict=True):
            values = encode_keys(texts)
            _write(_create(file, name, values.shape, values.dtype), 0, values)
            _hash(sums[name], values)
            described[name] = (values.shape, values.dtype)
        created = _now()
        checksum = _checksum(encoder, source, created, __version__, _describe(described, sums))
        _write_attributes(
            file,
            format=FORMAT,
            encoder=encoder.to_json(),
            created=created,
            pucache_version=__version__,
            source=source,
            checksum=checksum,
        )


def _write_attributes(file: h5py.File, **texts: str) -> None:
    file.attrs["version"] = VERSION
    for name, text in texts.items():
        encoded = text.encode("utf-8", "surrogateescape")
        file.attrs.create(name, encoded, dtype=h5py.string_dtype("utf-8", max(1, len(encoded))))


@contextmanager
def _new_hdf5(path: Path) -> Iterator[h5py.File]:
    with _Output(path, "r+") as stream:
        with h5py.File(stream, "w", libver="earliest") as file:
            yield file
        if stream.error is not None:
            raise stream.error


class _Output(io.FileIO):
    """A file that keeps its first error for later: HDF5 crashes the process where a write fails in its close."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all of `data`, or remember why not; never raises."""
        rest = memoryview(data)
        try:
            while rest and self.error is None:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.error = error
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        """Set the size, or remember why not; never raises."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0


def _create(file: h5py.File, name: str, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    stored = h5py.string_dtype("utf-8", dtype.itemsize) if dtype.kind == "S" else dtype
    return file.create_dataset(name, shape, stored, fill_time="never")


def _write(dataset: Any, start: int, values: np.ndarray) -> None:
    if len(values):  # the view tells HDF5 that bytes are UTF-8
        dataset[start : start + len(values)] = values.view(dataset.dtype) if values.dtype.kind == "S" else values


def _now() -> str:
    """UTC time, or SOURCE_DATE_EPOCH where it is set, so that two runs can give the same bytes."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(float(epoch) if epoch else None))


def _hash(state: Any, array: np.ndarray) -> None:
    step = rows_per_block(array)
    for start in range(0, len(array), step):
        block = np.ascontiguousarray(array[start : start + step])
        state.update(block.reshape(-1).view(np.uint8))


def _describe(layout: dict[str, Any], sums: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: [list(shape), np.dtype(dtype).str, sums[name].hexdigest()] for name, (shape, dtype) in layout.items()}


def _checksum(encoder: EncoderSpec, source: str, created: str, writer: str, datasets: dict[str, list[Any]]) -> str:
    content = {
        "format": FORMAT,
        "version": VERSION,
        "encoder": encoder.to_json(),
        "source": source,
        "created": created,
        "pucache_version": writer,
        "datasets": datasets,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


# --- merging -----------------------------------------------------------------------------------


def merge(
    out: str | Path,
    picks: list[tuple[CacheFile, np.ndarray]],
    *,
    encoder: EncoderSpec,
    dtype: np.dtype,
    source: str,
    failures: dict[str, str],
) -> int:
    """Write the picked rows of several files, sorted by key, as one file; in bounded memory.

    Parameters
    ----------
    picks : list of (CacheFile, ndarray of int)
        Row numbers to take from each file; no key may be picked twice.

    Returns
    -------
    int
        Rows written.
    """
    keys = []
    for file, rows in picks:
        keys.append(np.asarray(file.raw_keys[rows]))
        file.release()  # there may be more files than file descriptors
    width = max((part.dtype.itemsize for part in keys), default=1)
    keys_all = np.concatenate([part.astype(f"S{width}") for part in keys]) if keys else np.empty(0, "S1")
    piece = np.repeat(np.arange(len(picks)), [len(rows) for _, rows in picks])
    row = np.concatenate([rows for _, rows in picks]) if picks else np.empty(0, np.int64)
    order = np.argsort(keys_all, kind="stable")
    keys_all = keys_all[order]
    twice = np.flatnonzero(keys_all[1:] == keys_all[:-1])
    if len(twice):
        raise CacheError(f"{len(twice)} keys stand in more than one of the files ({keys_all[twice[0]].decode()!r})")
    longest = int(np.char.str_len(keys_all).max()) if len(keys_all) else 1

    def blocks() -> Iterator[Rows]:
        step = max(1, BLOCK_BYTES // (encoder.dim * dtype.itemsize))
        for start in range(0, len(order), step):
            part = order[start : start + step]
            yield _gather(picks, piece[part], row[part], keys_all[start : start + step], encoder.dim, dtype)

    shape = (len(order), longest, dtype)
    write_file(out, encoder, source, blocks(), shape=shape, failures=dict(sorted(failures.items())))
    return len(order)


def _gather(
    picks: list[tuple[CacheFile, np.ndarray]],
    piece: np.ndarray,
    row: np.ndarray,
    keys: np.ndarray,
    dim: int,
    dtype: np.dtype,
) -> Rows:
    n = len(keys)
    rows = Rows(keys, np.empty((n, dim), dtype), np.empty((n, 32), np.uint8), np.empty((n, 2), np.int64))
    for number in np.unique(piece):
        here = np.flatnonzero(piece == number)
        file, at = picks[number][0], row[here]
        rows.X[here], rows.digests[here], rows.size_mtime[here] = file.X[at], file.digests[at], file.size_mtime[at]
        file.release()
    return rows


def pack(paths: Iterable[str | Path], out: str | Path) -> int:
    """Merge cache files of one encoder into one; returns the number of rows.

    Raises
    ------
    CacheError
        A file is unusable, encoders differ, or a key stands in two files.
    """
    out = check_writable(out)
    files = [CacheFile(path) for path in expand(paths)]
    for other in files[1:]:
        check_same_encoder(files[0], other)
    failures: dict[str, str] = {}
    for file in files:
        file.verify()
        failures.update(file.failures)
        file.release()
    for file in files:
        rows = find(file.raw_keys, encode_keys(list(failures)))
        failures = {key: reason for (key, reason), row in zip(failures.items(), rows, strict=True) if row < 0}
        file.release()
    picks = [(file, np.arange(len(file))) for file in files]
    sources = sorted({file.source for file in files})
    source = sources[0] if len(sources) == 1 else ""
    return merge(out, picks, encoder=files[0].encoder, dtype=files[0].dtype, source=source, failures=failures)


def import_embeddings(
    embeddings: str | Path,
    keys: Sequence[str],
    out: str | Path,
    *,
    name: str | None = None,
    dtype: str | None = None,
) -> int:
    """Write embeddings that were made elsewhere, of any modality, as a cache file.

    Parameters
    ----------
    embeddings : path
        A NumPy ``.npy`` file of floats, (n, d); read through a map, never unpickled.
    keys : sequence of str
        One per row, unique; any order.
    out : path
    name : str, optional
        What to call the encoder; the file's stem by default.
    dtype : {"float16", "float32"}, optional
        Of the stored rows; by default float16 where the file is, else float32.

    Returns
    -------
    int
        Rows written.

    Raises
    ------
    CacheError
        The array cannot be read, has the wrong shape or type, or holds NaN or infinity.
    """
    out, source = check_writable(out), Path(embeddings)
    X = _open_npy(source)
    if len(keys) != len(X):
        raise CacheError(f"{source} has {len(X)} rows, but {len(keys)} keys were given; one key per row is needed")
    encoded = encode_keys(keys)
    order = np.argsort(encoded, kind="stable")
    twice = np.flatnonzero(encoded[order][1:] == encoded[order][:-1])
    if len(twice):
        raise CacheError(f"the key {encoded[order][twice[0]].decode()!r} is given twice; keys must be unique")
    stored = DTYPES[dtype or ("float16" if X.dtype == np.float16 else "float32")]
    encoder = EncoderSpec.imported(name or source.stem, X.shape[1])

    def blocks() -> Iterator[Rows]:
        step = rows_per_block(X)
        for start in range(0, len(X), step):
            rows = order[start : start + step]
            with np.errstate(over="ignore"):
                block = X[rows].astype(stored)
            bad = np.flatnonzero(~np.isfinite(block).all(1))
            if len(bad):
                raise CacheError(
                    f"row {rows[bad[0]]} of {source} ({keys[rows[bad[0]]]!r}) is NaN, infinite or overflows {stored}; "
                    "correct it, or pass --dtype float32"
                )
            empty = np.zeros((len(rows), 32), np.uint8), np.full((len(rows), 2), -1, np.int64)
            yield Rows(encoded[rows], block, *empty)

    shape = (len(X), encoded.itemsize, stored)
    write_file(out, encoder, "", blocks(), shape=shape, failures={})
    return len(X)


def _open_npy(path: Path) -> np.ndarray:
    try:
        X = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise CacheError(f"no such file: {path}") from error
    except (OSError, ValueError, EOFError) as error:
        raise CacheError(f"{path} is not a .npy array of numbers; save one with numpy.save") from error
    if not isinstance(X, np.ndarray) or X.ndim != 2 or X.dtype.kind != "f" or 0 in X.shape:
        got = f"{X.dtype} {X.shape}" if isinstance(X, np.ndarray) else "an archive of arrays"
        raise CacheError(f"{path} holds {got}; expected one array of floats with rows and columns")
    return X
