"""One cache file: its HDF5 format, read and written.

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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from . import __version__
from .durable import replacing
from .encoder_spec import EncoderSpec
from .errors import CacheError
from .keys import encode_keys

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


def is_hdf5(path: str | Path) -> bool:
    """Whether a file begins as HDF5 files do."""
    return Path(path).is_file() and bool(h5py.is_hdf5(path))


# --- reading -----------------------------------------------------------------------------------


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
