"""HDF5 access of cache files: attributes, and contiguous datasets that can be read without HDF5.

The only user of h5py. This module does not know what the datasets mean.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np

from ..storage.interrupts import deferred_signals

SIGNATURE = b"\x89HDF\r\n\x1a\n"
DAMAGE = (OSError, KeyError, RuntimeError, ValueError, TypeError)  # raised by h5py on malformed files


@dataclass(frozen=True)
class DatasetExtent:
    """Position, shape and type of a dataset."""

    offset: int | None  # in bytes from the beginning of the file; None if the dataset is empty or not contiguous
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * math.prod(self.shape[1:])

    def row_offset(self, row: int) -> int:
        """Position of a row in the file, in bytes."""
        return (self.offset or 0) + row * self.row_bytes

    def empty(self, n: int) -> np.ndarray:
        """Return an uninitialised array for n rows, (n, ...)."""
        return np.empty((n, *self.shape[1:]), self.dtype)


Attributes = dict[str, str | int | None]


def read(
    stream: BinaryIO, attributes: tuple[str, ...], datasets: tuple[str, ...]
) -> tuple[Attributes, dict[str, DatasetExtent]]:
    """Read attributes of the root group (None for a missing one), and the extents of datasets; may raise `DAMAGE`."""
    with deferred_signals(), h5py.File(stream, "r") as file:
        # h5py's low level, which opens a file of a thousand in half of the time
        root = h5py.h5o.open(file.id, b"/")
        return (
            {name: _attribute(root, name.encode()) for name in attributes},
            {name: _extent(file.id, name.encode()) for name in datasets},
        )


def _extent(file: h5py.h5f.FileID, name: bytes) -> DatasetExtent:
    dataset = h5py.h5o.open(file, name)
    if not isinstance(dataset, h5py.h5d.DatasetID):
        raise KeyError("not a dataset")
    return DatasetExtent(dataset.get_offset(), dataset.shape or (), np.dtype(dataset.dtype.str))


def _attribute(root: h5py.h5g.GroupID, name: bytes) -> str | int | None:
    """Read an integer or a fixed-width text; None if there is no such attribute.

    Text of variable width is not read: it lies in HDF5's global heap, where damage makes the library
    loop or crash.
    """
    if not h5py.h5a.exists(root, name):
        return None
    stored = h5py.h5a.open(root, name)
    if stored.shape != () or stored.dtype.kind not in "iuS":
        return None
    value = np.empty((), stored.dtype)
    stored.read(value)
    content = value[()]
    return content.decode("utf-8", "surrogateescape") if isinstance(content, bytes) else int(content)


def create(path: Path, attributes: Attributes, datasets: dict[str, tuple[tuple[int, ...], np.dtype]]) -> dict[str, int]:
    """Lay out a file of the oldest format version in `path`, an existing empty file; returns where each dataset lies.

    `datasets` are shapes and types by name; their bytes are to be written to these positions. Texts are marked as
    UTF-8, and stored in fixed width.
    """
    at_once = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    at_once.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    with _Output(path, "r+") as stream:
        with deferred_signals(), h5py.File(stream, "w", libver="earliest") as file:
            for name, (shape, dtype) in datasets.items():
                stored = h5py.string_dtype("utf-8", dtype.itemsize) if dtype.kind == "S" else dtype
                file.create_dataset(name, shape, stored, fill_time="never", dcpl=at_once.copy())
            for name, value in attributes.items():
                if isinstance(value, str):
                    encoded = value.encode("utf-8", "surrogateescape")
                    file.attrs.create(name, encoded, dtype=h5py.string_dtype("utf-8", max(1, len(encoded))))
                else:
                    file.attrs[name] = value
            offsets = {name: int(file[name].id.get_offset() or 0) for name in datasets}
        if stream.error is not None:
            raise stream.error
    return offsets


class _Output(io.FileIO):
    """A file that stores its first error instead of raising it: HDF5 crashes if a write fails while it closes."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all of `data`; never raises."""
        rest = memoryview(data)
        try:
            while rest and self.error is None:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.error = error
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        """Set the size; never raises."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0
