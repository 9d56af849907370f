"""One cache file, opened for reading: rows of one encoder.

docs/cache-format.md specifies the format. A file is written once (`pucache.cache.writer`), and never
changed; the arrays in it are contiguous, so readers map them, and it ends in a seal (`pucache.cache.checksums`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, cycle
from pathlib import Path

import numpy as np

from ..encoders.spec import EncoderSpec
from ..errors import CacheError
from ..version import __version__
from . import checksums, hdf5
from .checksums import Seal
from .keys import Keys, text
from .mapped_file import Opened, as_bytes

FORMAT = "pucache"
VERSION = 2
DTYPES: dict[str, np.dtype] = {"float16": np.dtype("<f2"), "float32": np.dtype("<f4")}
BLOCK_BYTES = 8 << 20  # how much of a column is in memory at once
_TEXTS = ("encoder", "created", "pucache_version", "source")
COLUMNS = ("embeddings", "keys", "digests", "size_mtime")
FAILURES = ("failures/keys", "failures/reasons")
_REMEDY = "restore it from a copy, or move it away and embed again"


def rows_per_block(array: np.ndarray) -> int:
    """How many rows of `array` make a block of at most `BLOCK_BYTES`."""
    return max(1, BLOCK_BYTES // max(1, array.itemsize * math.prod(array.shape[1:])))


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
                self._seal = self._read_seal(stream.fileno())
                attributes, self._layout = hdf5.read(stream, ("format", "version", *_TEXTS), (*COLUMNS, *FAILURES))
                self._file = Opened(self.path, stream.fileno(), hold)
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
        except checksums.Unsealed as error:
            raise CacheError(
                f"{self.path} ends without pucache's seal: it is truncated, or an HDF5 file from elsewhere; {_REMEDY}"
            ) from error
        except checksums.Broken as error:
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
        texts = [(self._layout[name].dtype.kind, len(self._layout[name].shape)) for name in ("keys", *FAILURES)]
        self._require(texts == [("S", 1)] * 3, "keys or failures are not fixed-width text")
        n = len(self)
        of = {name: (place.shape, place.dtype) for name, place in self._layout.items()}
        self._require(self.dtype in DTYPES.values(), f"embeddings are {self.dtype}, expected float16 or float32")
        self._require(of["embeddings"][0] == (n, self.encoder.dim), "embeddings have the wrong shape")
        self._require(of["digests"] == ((n, 32), np.dtype("u1")), "digests have the wrong layout")
        self._require(of["size_mtime"] == ((n, 2), np.dtype("<i8")), "size_mtime has the wrong layout")
        self._require(of[FAILURES[0]][0] == of[FAILURES[1]][0], "failures do not pair up")
        blocks = {
            self._seal.columns[name].block == checksums.rows_per_block(n) * self._layout[name].row_bytes
            for name in COLUMNS
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
    def raw_key_bytes(self) -> int:
        """Width of the keys as they are stored."""
        return self._layout["keys"].dtype.itemsize

    @property
    def checksum(self) -> str:
        """sha256 of the seal, hexadecimal: equal for equal files, and for no others."""
        return self._seal.checksum

    # --- mapped arrays ---------------------------------------------------------------------------

    def _array(self, name: str) -> np.ndarray:
        place = self._layout[name]
        if 0 in place.shape:
            return np.empty(place.shape, place.dtype)
        flat = np.frombuffer(self._file.map, place.dtype, math.prod(place.shape), place.offset or 0)
        return flat.reshape(place.shape)

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
        self.check(*FAILURES)
        keys, reasons = (self._array(name).tolist() for name in FAILURES)
        return {text(key): text(reason) for key, reason in zip(keys, reasons, strict=True)}

    def release(self) -> None:
        """Drop the mapping (and its file descriptor); the next access maps again."""
        self._file.release()

    # --- copies, read without the map: bounded in memory, and an error of the disk is an exception ---

    def blocks(self, *, check: bool = False) -> Iterator[tuple[slice, np.ndarray]]:
        """Go through the embeddings in row order: (row slice, (b, d)) pairs, each valid until the next.

        A block is read and hashed while the caller works on the one before.

        Parameters
        ----------
        check : bool
            Hold what is read against the seal; damage raises `CacheError`, before the last pair at the latest.
        """
        place, sealed = self._layout["embeddings"], self._seal.columns["embeddings"]
        step = max(1, BLOCK_BYTES // max(1, place.row_bytes))
        buffers = cycle(np.empty((2, min(step, len(self)), *place.shape[1:]), place.dtype))
        hasher = checksums.Hasher(sealed.block, sealed.sha256)

        def read(start: int) -> np.ndarray:
            block = next(buffers)[: min(step, len(self) - start)]
            fill(block, (place.offset or 0) + start * place.row_bytes)
            if check:
                self._hold(hasher, block, last=start + step >= len(self))
            return block

        with self._file.filling() as fill, ThreadPoolExecutor(1) as ahead:
            block = read(0) if len(self) else None
            for start in range(0, len(self), step):
                assert block is not None
                coming = ahead.submit(read, start + step) if start + step < len(self) else None
                yield slice(start, start + len(block)), block
                block = coming.result() if coming else None

    def _hold(self, hasher: checksums.Hasher, block: np.ndarray, last: bool) -> None:
        try:
            hasher.update(as_bytes(block))
            if last:
                hasher.finish()
        except checksums.Broken as error:
            raise self._damaged(["embeddings"]) from error

    def take(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Copy some rows of a column, (m, ...); `rows` rise. What lies between them is read too, stretch by stretch."""
        place = self._layout[name]
        size = place.row_bytes
        taken = np.empty((len(rows), *place.shape[1:]), place.dtype)
        step = max(1, BLOCK_BYTES // max(1, size))
        with self._file.filling() as fill:
            begin = 0
            while begin < len(rows):
                first = int(rows[begin])
                end = int(np.searchsorted(rows, first + step))
                stretch = np.empty((int(rows[end - 1]) + 1 - first, *place.shape[1:]), place.dtype)
                fill(stretch, (place.offset or 0) + first * size)
                taken[begin:end] = stretch[rows[begin:end] - first]
                begin = end
        return taken

    # --- damage ----------------------------------------------------------------------------------

    def damage(self, names: Iterable[str] = (*COLUMNS, *FAILURES)) -> tuple[np.ndarray, list[str]]:
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
        with self._file.reading() as read:
            found = self._seal.damage(read, names)
        rows = np.zeros(len(self), bool)
        step = checksums.rows_per_block(len(self))
        for number in {number for name in set(found) & set(COLUMNS) for number in found[name]}:
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
        self.check(*set(COLUMNS) - {"embeddings"}, *FAILURES)
        for rows, X in self.blocks(check=True):
            bad = np.flatnonzero(~np.isfinite(X).all(1))
            if len(bad):
                raise self.not_finite(bad + rows.start)
        keys = self.raw_keys
        self._require(bool(np.all(keys[1:] > keys[:-1])), "keys are not sorted and unique")
        for _ in chain(self.failures, Keys([keys])):
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
