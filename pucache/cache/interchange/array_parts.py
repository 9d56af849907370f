"""Parts that are arrays: in memory, ``.npy`` and ``.safetensors``. Files are read by calls, never mapped."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from ...errors import CacheError, one_line
from .parts import FileState, Part, PartRows, read_into, reading

_GAP_BYTES = 1 << 13  # reading this much between two rows costs less than another call
_READ_BYTES = 1 << 22
_SAFETENSORS_TYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2"}


@dataclass(frozen=True)
class ArrayPart:
    """An array in memory."""

    X: np.ndarray
    name: str = "the array"
    sequential: bool = False

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.X)

    @property
    def dim(self) -> int:
        """Number of columns."""
        return self.X.shape[1]

    @property
    def dtype(self) -> np.dtype:
        """Type of the values."""
        return self.X.dtype

    def take(self, rows: np.ndarray) -> PartRows:
        """Copy rows."""
        return PartRows(self.X[rows])


@dataclass(frozen=True)
class RecordFile:
    """Records of fixed size in a file.

    Attributes
    ----------
    state : FileState
    offset : int
        Of the first record.
    record : numpy.dtype
    """

    state: FileState
    offset: int
    record: np.dtype

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Read records; `rows` ascend. Neighbouring ones are read by one call."""
        size = self.record.itemsize
        taken = np.empty((len(rows), size), np.uint8)
        ends_piece = np.diff(rows) * size > size + _GAP_BYTES
        ends_piece |= np.diff(rows * size // _READ_BYTES) > 0
        bounds = [0, *(np.flatnonzero(ends_piece) + 1).tolist(), len(rows)] if len(rows) else []
        with self.state.opened() as descriptor:
            for begin, end in pairwise(bounds):
                first, last = int(rows[begin]), int(rows[end - 1])
                offset = self.offset + first * size
                if last - first == end - 1 - begin:
                    read_into(descriptor, taken[begin:end].reshape(-1).data, offset, self.state.path)
                else:
                    stretch = np.empty((last - first + 1, size), np.uint8)
                    read_into(descriptor, stretch.reshape(-1).data, offset, self.state.path)
                    taken[begin:end] = stretch[rows[begin:end] - first]
        return taken.view(self.record.base).reshape(len(rows), *self.record.shape)


@dataclass(frozen=True)
class RowOrderPart:
    """Array of a file, row after row; `bfloat16` values are stored as uint16."""

    records: RecordFile
    rows: int
    dim: int
    bfloat16: bool = False
    sequential: bool = False

    @property
    def name(self) -> str:
        """Path of the file."""
        return str(self.records.state.path)

    @property
    def dtype(self) -> np.dtype:
        """Type of the values."""
        return np.dtype("<f4") if self.bfloat16 else self.records.record.base

    def take(self, rows: np.ndarray) -> PartRows:
        """Read rows."""
        values = self.records.take(rows)
        if self.bfloat16:
            values = (values.astype("<u4") << 16).view("<f4")
        return PartRows(values)


@dataclass(frozen=True)
class ColumnOrderPart:
    """Array of a file, column after column (Fortran order)."""

    state: FileState
    offset: int
    rows: int
    dim: int
    dtype: np.dtype
    sequential: bool = False

    @property
    def name(self) -> str:
        """Path of the file."""
        return str(self.state.path)

    def take(self, rows: np.ndarray) -> PartRows:
        """Read rows: of each column the stretch from the first to the last."""
        X = np.empty((len(rows), self.dim), self.dtype)
        first = int(rows[0])
        stretch = np.empty(int(rows[-1]) + 1 - first, self.dtype)
        with self.state.opened() as descriptor:
            for column in range(self.dim):
                offset = self.offset + (column * self.rows + first) * self.dtype.itemsize
                read_into(descriptor, stretch.view(np.uint8).data, offset, self.state.path)
                X[:, column] = stretch[rows - first]
        return PartRows(X)


def array_in_memory(X: np.ndarray) -> Part:
    """Check an array in memory; raises `CacheError` unless it holds rows of floats."""
    _check_array("the array", X.dtype, X.shape)
    return ArrayPart(X)


def open_npy(path: Path) -> Part:
    """Open a ``.npy`` file, which is never unpickled.

    Raises
    ------
    CacheError
        The file is no array of floats with two axes.
    """
    state = FileState.of(path)
    try:
        X = np.load(path, mmap_mode="r", allow_pickle=False)  # parses the header; no row is read
    except Exception as error:  # numpy parses the header as Python, and damage raises almost anything
        raise CacheError(f"{path} is not a .npy array of numbers, or is cut short; save it with numpy.save") from error
    if not isinstance(X, np.ndarray):
        raise CacheError(f"{path} holds an archive of arrays; expected one array of floats with rows and columns")
    _check_array(str(path), X.dtype, X.shape)
    offset = int(getattr(X, "offset", 0))
    n, dim = X.shape
    if not X.flags.c_contiguous:
        return ColumnOrderPart(state, offset, n, dim, X.dtype)
    return RowOrderPart(RecordFile(state, offset, np.dtype((X.dtype, (dim,)))), n, dim)


def open_safetensors(path: Path, tensor: str | None) -> Part:
    """Open one tensor of a ``.safetensors`` file.

    Parameters
    ----------
    path : Path
    tensor : str, optional
        Its name; by default the only tensor of floats with two axes.

    Raises
    ------
    CacheError
        The file is damaged, or has no such tensor or several.
    """
    import safetensors

    state = FileState.of(path)
    try:
        with safetensors.safe_open(path, framework="np") as checked:  # checks the header and the offsets
            names = list(checked.keys())
        with open(path, "rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length))
    except OSError:
        with reading(path):
            raise
    except (safetensors.SafetensorError, ValueError) as error:
        raise CacheError(f"{path} cannot be read as safetensors ({one_line(error)[:120]})") from error
    name = _chosen_tensor(path, {name: header[name] for name in names}, tensor)
    dtype, shape = header[name]["dtype"], tuple(header[name]["shape"])
    stored = np.dtype(_SAFETENSORS_TYPES.get(dtype, "V1"))
    _check_array(f"{path} as {name!r}", np.dtype("<f4") if dtype == "BF16" else stored, shape, dtype)
    offset = 8 + length + int(header[name]["data_offsets"][0])
    n, dim = shape
    return RowOrderPart(RecordFile(state, offset, np.dtype((stored, (dim,)))), n, dim, dtype == "BF16")


def _chosen_tensor(path: Path, tensors: dict[str, dict], name: str | None) -> str:
    listing = ", ".join(f"{each} ({tensors[each]['dtype']} {tensors[each]['shape']})" for each in sorted(tensors))
    if name is not None:
        if name not in tensors:
            raise CacheError(f"{path} has no tensor {name!r}; it has {listing or 'none'}")
        return name
    fitting = [
        each
        for each, tensor in tensors.items()
        if tensor["dtype"] in _SAFETENSORS_TYPES and len(tensor["shape"]) == 2 and 0 not in tensor["shape"]
    ]
    if len(fitting) != 1:
        raise CacheError(
            f"{path} holds {len(fitting)} tensors of embeddings (it has {listing or 'none'}); expected one: name it "
            "with --embedding-column"
        )
    return fitting[0]


def _check_array(holder: str, dtype: np.dtype, shape: tuple[int, ...], type_name: str = "") -> None:
    if len(shape) != 2 or dtype.kind != "f" or 0 in shape:
        raise CacheError(
            f"{holder} holds {type_name or dtype} {shape}; expected one array of floats with rows and columns"
        )
