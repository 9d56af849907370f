"""The HDF5 of a cache file: attributes, and contiguous datasets that can be read without HDF5.

The only user of h5py. Nothing here knows what the datasets mean.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np

from ..storage.interrupts import deferred_signals

SIGNATURE = b"\x89HDF\r\n\x1a\n"
DAMAGE = (
    OSError,
    KeyError,
    RuntimeError,
    ValueError,
    TypeError,
)  # what h5py raises on files that are not what they say


@dataclass(frozen=True)
class Place:
    """Where a dataset lies in the file.

    Attributes
    ----------
    offset : int or None
        In bytes; None where it is not contiguous, or empty.
    shape : tuple of int
    dtype : numpy.dtype
    """

    offset: int | None
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * math.prod(self.shape[1:])


Attributes = dict[str, str | int | None]


def begins_as_hdf5(path: str | Path) -> bool:
    """Whether a file begins as HDF5 files do."""
    path = Path(path)
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(len(SIGNATURE)) == SIGNATURE


def read(
    stream: BinaryIO, attributes: tuple[str, ...], datasets: tuple[str, ...]
) -> tuple[Attributes, dict[str, Place]]:
    """Read attributes of the root (None where one is missing), and where datasets lie.

    Raises
    ------
    OSError, KeyError, RuntimeError, ValueError, TypeError
        As `DAMAGE`: whatever h5py makes of a file that is not what it says.
    """
    with deferred_signals(), h5py.File(stream, "r") as file:
        return {name: _attribute(file, name) for name in attributes}, {name: _place(file[name]) for name in datasets}


def _place(dataset: Any) -> Place:
    if not isinstance(dataset, h5py.Dataset):
        raise KeyError("not a dataset")
    return Place(dataset.id.get_offset(), dataset.shape or (), np.dtype(dataset.dtype.str))


def _attribute(file: h5py.File, name: str) -> str | int | None:
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


class Writer:
    """A new file whose datasets are made, filled and located one by one."""

    def __init__(self, file: h5py.File, let_through: Callable[[], None]):
        self._file, self._let_through = file, let_through

    def create(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        """Make room for a dataset."""
        stored = h5py.string_dtype("utf-8", dtype.itemsize) if dtype.kind == "S" else dtype
        self._file.create_dataset(name, shape, stored, fill_time="never")

    def write(self, name: str, start: int, values: np.ndarray) -> None:
        """Fill rows from `start` on."""
        self._let_through()
        if len(values):  # the view tells HDF5 that bytes are UTF-8
            dataset: Any = self._file[name]
            dataset[start : start + len(values)] = values.view(dataset.dtype) if values.dtype.kind == "S" else values

    def offset(self, name: str) -> int:
        """Where the bytes of a dataset begin; 0 where it has none."""
        place: Any = self._file[name]
        return int(place.id.get_offset() or 0)

    def describe(self, attributes: Attributes) -> None:
        """Set attributes of the root; texts become fixed-width."""
        for name, value in attributes.items():
            if isinstance(value, str):
                encoded = value.encode("utf-8", "surrogateescape")
                self._file.attrs.create(name, encoded, dtype=h5py.string_dtype("utf-8", max(1, len(encoded))))
            else:
                self._file.attrs[name] = value


@contextmanager
def new_file(path: Path) -> Iterator[Writer]:
    """Write HDF5's oldest structures to `path`, which exists and is empty.

    Raises
    ------
    OSError
        The file system refused.
    """
    with _Output(path, "r+") as stream:
        with deferred_signals() as let_through, h5py.File(stream, "w", libver="earliest") as file:
            yield Writer(file, let_through)
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
