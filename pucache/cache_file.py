"""One cache file: rows of one encoder, read and written.

docs/cache-format.md specifies the format. A file is written once, under a temporary name, and never
changed; the arrays in it are contiguous, so readers map them, and it ends in a seal (`pucache.seal`).
"""

from __future__ import annotations

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

import numpy as np

from . import __version__, hdf5, seal
from .durable import replacing
from .encoder_spec import EncoderSpec
from .errors import CacheError
from .hdf5 import Place
from .keys import Keys, encode_keys, text
from .seal import Seal

FORMAT = "pucache"
VERSION = 2
DTYPES: dict[str, np.dtype] = {"float16": np.dtype("<f2"), "float32": np.dtype("<f4")}
BLOCK_BYTES = 8 << 20  # how much of a column is in memory at once
_TEXTS = ("encoder", "created", "pucache_version", "source")
_COLUMNS = ("embeddings", "keys", "digests", "size_mtime")
_FAILURES = ("failures/keys", "failures/reasons")
_REMEDY = "restore it from a copy, or move it away and embed again"


def rows_per_block(array: np.ndarray) -> int:
    """How many rows of `array` make a block of at most `BLOCK_BYTES`."""
    return max(1, BLOCK_BYTES // max(1, _row_bytes(array)))


def _row_bytes(of: np.ndarray | Place) -> int:
    return of.dtype.itemsize * math.prod(of.shape[1:])


# --- reading -----------------------------------------------------------------------------------


class CacheFile:
    """One cache file, opened for reading: all but the columns checked, arrays mapped on use.

    Parameters
    ----------
    path : str or path
    hold : bool
        Map the file at once, so that it can be read to the end even if another takes its name
        meanwhile; costs a file descriptor, until `release`.

    Raises
    ------
    CacheError
        Missing, not HDF5, truncated, not a pucache file, of another version, or inconsistent.
    """

    def __init__(self, path: str | Path, *, hold: bool = False):
        self.path = Path(path)
        try:
            with open(self.path, "rb") as stream:
                self._identity = _identity(stream.fileno())
                self._seal = self._read_seal(stream.fileno())
                attributes, self._layout = hdf5.read(stream, ("format", "version", *_TEXTS), (*_COLUMNS, *_FAILURES))
                if hold:
                    self._map = _mapped(stream.fileno())
        except FileNotFoundError as error:
            raise CacheError(f"no such cache: {self.path}") from error
        except IsADirectoryError as error:
            raise CacheError(f"{self.path} is a directory, not a cache file") from error
        except KeyError as error:
            raise CacheError(f"{self.path} is damaged or incomplete: a dataset is missing; {_REMEDY}") from error
        except hdf5.DAMAGE as error:
            if isinstance(error, OSError) and error.strerror:
                raise CacheError(f"cannot read {self.path}: {error.strerror}") from error
            raise CacheError(f"{self.path} cannot be read ({str(error)[:160]}); {_REMEDY}") from error
        self._check_attributes(attributes)
        self._check_layout()

    def _read_seal(self, stream: int) -> Seal:
        beginning = os.pread(stream, len(hdf5.SIGNATURE), 0)
        if not beginning:
            raise CacheError(f"{self.path} is empty (0 bytes); remove it and embed again")
        if beginning != hdf5.SIGNATURE:
            raise CacheError(f"{self.path} is not a pucache cache (not an HDF5 file)")
        try:
            return Seal.read(stream)
        except seal.Unsealed as error:
            raise CacheError(
                f"{self.path} ends without pucache's seal: it is truncated, or an HDF5 file from elsewhere; {_REMEDY}"
            ) from error
        except seal.Broken as error:
            raise CacheError(f"{self.path} is damaged: {error}; {_REMEDY}") from error

    def _check_attributes(self, attributes: hdf5.Attributes) -> None:
        version = attributes["version"]
        if attributes["format"] != FORMAT:
            raise CacheError(f"{self.path} is an HDF5 file but not a pucache cache (no format attribute 'pucache')")
        if version is not None and version != VERSION:
            raise CacheError(
                f"{self.path} is a pucache cache of format version {version}; this pucache {__version__} reads "
                f"version {VERSION}: upgrade pucache, or embed again"
            )
        for name, value in attributes.items():
            self._require(value is not None, f"it lacks the attribute {name}")
        try:
            self.encoder = EncoderSpec.from_json(str(attributes["encoder"]))
        except (ValueError, TypeError, RecursionError) as error:
            raise CacheError(f"{self.path} is damaged: its encoder attribute cannot be read; {_REMEDY}") from error
        self.created, self.pucache_version = str(attributes["created"]), str(attributes["pucache_version"])
        self.source = str(attributes["source"])

    def _check_layout(self) -> None:
        for name, place in self._layout.items():
            count = math.prod(place.shape)
            self._require(count == 0 or place.offset is not None, f"{name} is not contiguous")
            sealed = self._seal.columns.get(name)
            expected = (place.offset if count else 0, count * place.dtype.itemsize)
            self._require(
                sealed is not None and (sealed.offset, sealed.size) == expected, f"{name} is not where its seal says"
            )
        texts = [(self._layout[name].dtype.kind, len(self._layout[name].shape)) for name in ("keys", *_FAILURES)]
        self._require(texts == [("S", 1)] * 3, "keys or failures are not fixed-width text")
        n = len(self)
        of = {name: (place.shape, place.dtype) for name, place in self._layout.items()}
        self._require(self.dtype in DTYPES.values(), f"embeddings are {self.dtype}, expected float16 or float32")
        self._require(of["embeddings"][0] == (n, self.encoder.dim), "embeddings have the wrong shape")
        self._require(of["digests"] == ((n, 32), np.dtype("u1")), "digests have the wrong layout")
        self._require(of["size_mtime"] == ((n, 2), np.dtype("<i8")), "size_mtime has the wrong layout")
        self._require(of[_FAILURES[0]][0] == of[_FAILURES[1]][0], "failures do not pair up")
        blocks = {
            self._seal.columns[name].block == seal.rows_per_block(n) * _row_bytes(self._layout[name])
            for name in _COLUMNS
        }
        self._require(n == 0 or blocks == {True}, "its seal is for another number of rows")

    def _require(self, condition: bool, problem: str) -> None:
        if not condition:
            raise CacheError(f"{self.path} is damaged: {problem}; {_REMEDY}")

    def __len__(self) -> int:
        return int(self._layout["keys"].shape[0])

    @property
    def dtype(self) -> np.dtype:
        """Type of the embeddings, float16 or float32."""
        return self._layout["embeddings"].dtype

    @property
    def checksum(self) -> str:
        """sha256 of the seal, hexadecimal: equal for equal files, and for no others."""
        return self._seal.checksum

    # --- mapped arrays ---------------------------------------------------------------------------

    @cached_property
    def _map(self) -> mmap.mmap:
        with self._reading() as stream:
            if stream is None:
                raise CacheError(f"{self.path} was replaced or removed while it was open; open it again")
            return _mapped(stream)

    def _array(self, name: str) -> np.ndarray:
        place = self._layout[name]
        if 0 in place.shape:
            return np.empty(place.shape, place.dtype)
        return np.frombuffer(self._map, place.dtype, math.prod(place.shape), place.offset or 0).reshape(place.shape)

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
        """Key to reason of every image that could not be read; held against the seal."""
        self.check(*_FAILURES)
        keys, reasons = (self._array(name).tolist() for name in _FAILURES)
        return {text(key): text(reason) for key, reason in zip(keys, reasons, strict=True)}

    def release(self) -> None:
        """Drop the mapping (and its file descriptor); the next access maps again."""
        self.__dict__.pop("_map", None)

    # --- copies, read without the map: bounded in memory, and an error of the disk is an exception ---

    def blocks(self, *, check: bool = False) -> Iterator[tuple[slice, np.ndarray]]:
        """Go through the embeddings in row order: (row slice, (b, d)) pairs, each valid until the next.

        Parameters
        ----------
        check : bool
            Hold what is read against the seal; damage raises `CacheError`, before the last pair at the latest.
        """
        place, sealed = self._layout["embeddings"], self._seal.columns["embeddings"]
        step = max(1, BLOCK_BYTES // max(1, _row_bytes(place)))
        buffer = np.empty((min(step, len(self)), *place.shape[1:]), place.dtype)
        hasher = seal.Hasher(sealed.block, sealed.sha256)
        with self._reading() as stream:
            for start in range(0, len(self), step):
                block = buffer[: min(step, len(self) - start)]
                self._fill(block, stream, (place.offset or 0) + start * _row_bytes(place))
                if check:
                    self._hold(hasher, block, last=start + step >= len(self))
                yield slice(start, start + len(block)), block

    def _hold(self, hasher: seal.Hasher, block: np.ndarray, last: bool) -> None:
        try:
            hasher.update(_bytes(block))
            if last:
                hasher.finish()
        except seal.Broken as error:
            raise self._damaged(["embeddings"]) from error

    def take(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Copy some rows of a column, (m, ...); `rows` rise. What lies between them is read too, stretch by stretch."""
        place = self._layout[name]
        size = _row_bytes(place)
        taken = np.empty((len(rows), *place.shape[1:]), place.dtype)
        step = max(1, BLOCK_BYTES // max(1, size))
        with self._reading() as stream:
            begin = 0
            while begin < len(rows):
                first = int(rows[begin])
                end = int(np.searchsorted(rows, first + step))
                stretch = np.empty((int(rows[end - 1]) + 1 - first, *place.shape[1:]), place.dtype)
                self._fill(stretch, stream, (place.offset or 0) + first * size)
                taken[begin:end] = stretch[rows[begin:end] - first]
                begin = end
        return taken

    @contextmanager
    def _reading(self) -> Iterator[int | None]:
        """The file as it was opened, or None where another has its name now."""
        try:
            stream = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield None
            return
        except OSError as error:  # more files than `ulimit -n` allows, say
            raise CacheError(f"cannot read {self.path}: {error.strerror}") from error
        try:
            yield stream if _identity(stream) == self._identity else None
        except OSError as error:
            raise CacheError(f"cannot read {self.path}: {error.strerror}") from error
        finally:
            os.close(stream)

    def _read_map(self, offset: int, count: int) -> bytes:
        return self._map[offset : offset + count]

    def _fill(self, array: np.ndarray, stream: int | None, offset: int) -> None:
        view = _bytes(array)
        if stream is None:
            view[:] = memoryview(self._map)[offset : offset + len(view)]
            return
        while view:
            count = os.preadv(stream, [view], offset)
            if not count:
                raise CacheError(f"{self.path} was cut short while it was read; {_REMEDY}")
            view, offset = view[count:], offset + count

    # --- damage ----------------------------------------------------------------------------------

    def damage(self, names: Iterable[str] = (*_COLUMNS, *_FAILURES)) -> tuple[np.ndarray, list[str]]:
        """Read datasets and hold them against the seal.

        Returns
        -------
        rows : ndarray of bool, (n,)
            Of which some byte may differ from what was written.
        datasets : list of str
            In which that is.

        Raises
        ------
        CacheError
            The file cannot be read.
        """
        with self._reading() as stream:
            read = self._read_map if stream is None else seal.reader(stream)
            found = self._seal.damage(read, names)
        rows = np.zeros(len(self), bool)
        step = seal.rows_per_block(len(self))
        for number in {number for name in set(found) & set(_COLUMNS) for number in found[name]}:
            rows[number * step : (number + 1) * step] = True
        return rows, sorted(found)

    def check(self, *names: str) -> None:
        """Read whole datasets and hold them against the seal.

        Raises
        ------
        CacheError
            A byte differs from what was written, or the file cannot be read.
        """
        _, datasets = self.damage(names)
        if datasets:
            raise self._damaged(datasets)

    def verify(self) -> None:
        """Read everything and hold it against the seal.

        Raises
        ------
        CacheError
            A byte differs from what was written, the file cannot be read, or a stranger wrote it: keys
            out of order or not UTF-8, embeddings that are not finite.
        """
        self.check(*set(_COLUMNS) - {"embeddings"}, *_FAILURES)
        for rows, X in self.blocks(check=True):
            bad = np.flatnonzero(~np.isfinite(X).all(1))
            if len(bad):
                raise self.not_finite(bad + rows.start)
        keys = self.raw_keys
        self._require(bool(np.all(keys[1:] > keys[:-1])), "keys are not sorted and unique")
        for _ in (*self.failures, *Keys([keys])):
            pass  # each is UTF-8, or an error

    def not_finite(self, rows: np.ndarray) -> CacheError:
        """What to raise where some rows are NaN or infinite, which pucache itself never writes."""
        named = ", ".join(repr(text(bytes(key))) for key in self.raw_keys[rows[:3]])
        return CacheError(f"{self.path} holds NaN or infinite embeddings ({named}); import or embed these anew")

    def _damaged(self, datasets: list[str]) -> CacheError:
        return CacheError(
            f"{self.path} is damaged: {', '.join(datasets)} are not as they were written; restore it from a copy, or "
            "run embed with --verify to embed the damaged rows again"
        )


def _bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _identity(descriptor: int) -> tuple[int, int, int, int]:
    info = os.fstat(descriptor)
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def _mapped(stream: int) -> mmap.mmap:
    return mmap.mmap(stream, 0, access=mmap.ACCESS_READ)


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
    columns: dict[str, tuple[tuple[int, ...], np.dtype]] = {
        "embeddings": ((n, encoder.dim), dtype),
        "keys": ((n,), np.dtype(f"S{max(width, 1)}")),
        "digests": ((n, 32), np.dtype("u1")),
        "size_mtime": ((n, 2), np.dtype("<i8")),
    }
    texts = {name: encode_keys(list(said)) for name, said in zip(_FAILURES, (failures, failures.values()), strict=True)}
    with replacing(path) as temporary:
        with hdf5.new_file(temporary) as file:
            sealed = {name: _Sealed(file, name, *column, seal.rows_per_block(n)) for name, column in columns.items()}
            start = 0
            for rows in blocks:
                for name, values in zip(columns, (rows.X, rows.keys, rows.digests, rows.size_mtime), strict=True):
                    sealed[name].write(start, np.ascontiguousarray(values, columns[name][1]))
                start += len(rows.keys)
            assert start == n, f"{start} rows written, {n} announced"
            for name, values in texts.items():
                sealed[name] = _Sealed(file, name, values.shape, values.dtype, len(values))
                sealed[name].write(0, values)
            described: dict[str, Any] = {"format": FORMAT, "version": VERSION, "encoder": encoder.to_json()}
            file.describe({**described, "created": creation_time(), "pucache_version": __version__, "source": source})
            found = {name: column.found() for name, column in sealed.items()}
        seal.append(temporary, found)


class _Sealed:
    """A dataset that is hashed while it is written."""

    def __init__(self, file: hdf5.Writer, name: str, shape: tuple[int, ...], dtype: np.dtype, rows: int):
        self._file, self._name = file, name
        file.create(name, shape, dtype)
        self._hasher = seal.Hasher(rows * _row_bytes(Place(None, shape, dtype)))

    def write(self, start: int, values: np.ndarray) -> None:
        self._file.write(self._name, start, values)
        if values.size:
            self._hasher.update(_bytes(values))

    def found(self) -> seal.Column:
        return self._hasher.column(self._file.offset(self._name))


def creation_time() -> str:
    """UTC time, or SOURCE_DATE_EPOCH where it is set, so that two runs can give the same bytes.

    Raises
    ------
    ValueError
        SOURCE_DATE_EPOCH is no time.
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(epoch) if epoch else None))
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(f"SOURCE_DATE_EPOCH is {epoch!r}; expected seconds since 1970, or leave it unset") from error
