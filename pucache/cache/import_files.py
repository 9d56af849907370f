"""Files of embeddings from other programs: `.npy`, `.safetensors` and Parquet, read forward in blocks of rows.

Arrays are mapped for one block at a time, so that their pages do not stay in memory. Parquet is read page by page.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import safetensors
from pyarrow import compute

from ..encoders.spec import EncoderSpec
from ..errors import CacheError, PUCacheError, SourceError, one_line
from ..storage.arrow import floats_of, is_key, open_parquet, texts
from ..storage.atomic import check_regular, open_regular
from ..storage.file_kinds import ARRAY, BINARY, CACHE, PARQUETS, PICTURES, SAFETENSORS, kind_of
from ..storage.table_columns import IMPORT_NAMES, find_column

METADATA = b"pucache"  # entry of the schema's metadata in an export
EXTRA = ("digest", "size", "mtime_ns")  # further columns of an export
_EMBEDDING_NAMES = ("embedding", "embeddings", "emb", "vector")  # tried in this order
_ENDINGS = {ARRAY: ".npy", SAFETENSORS: ".safetensors", **dict.fromkeys(PARQUETS, ".parquet")}
_SAVE_ROWS = "save its rows as an array of floats, with numpy.save"
_SAFETENSORS_TYPES = {"F16": "f2", "F32": "f4", "F64": "f8", "BF16": "f4"}  # as they are read
BATCH_KEYS, FIRST_ROWS = 1 << 16, 1 << 10


class Columns(NamedTuple):
    """Columns of a block; a row of `X` that the file does not hold is NaN, and `problems` says why, by its number."""

    X: np.ndarray  # (b, d)
    digests: np.ndarray  # (b, 32)
    size_mtime: np.ndarray  # (b, 2)
    problems: Mapping[int, str]


@dataclass(frozen=True)
class FileState:
    """Size and time of change of a file, by which another file of its name is noticed."""

    path: Path
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> FileState:
        """Look at a file now; raises `SourceError` if it is gone, and `CacheError` unless it is a regular file."""
        try:
            status = check_regular(path)
        except FileNotFoundError as error:
            problem = f"cannot read {path}: {one_line(error)}"
            raise SourceError(f"{problem}; restore it and run the same command again") from error
        except OSError as error:
            raise CacheError(f"{path} {one_line(error)}; write its content to a file, and name that") from error
        return cls(path, status.st_size, status.st_mtime_ns)

    def check(self) -> None:
        """Raise `SourceError` if the file is gone, or is another one."""
        if FileState.of(self.path) != self:
            raise SourceError(f"{self.path} changed during the import; run the same command to import it as it is")

    @contextmanager
    def reading(self, problem: str) -> Iterator[None]:
        """Turn any error of reading the file into one line, such as "FILE cannot be read as Parquet (...)"."""
        self.check()
        try:
            yield
        except PUCacheError:
            raise
        except Exception as error:  # damage makes the libraries raise almost anything
            self.check()
            kind = SourceError if getattr(error, "errno", None) else CacheError  # of the drive, or of the content
            raise kind(f"{self.path} {problem} ({one_line(error, 160)})") from error


@dataclass(frozen=True)
class Input:
    """The embeddings of one file, or of an array in memory."""

    state: FileState | None  # None: the rows are in memory
    rows: int
    dim: int
    dtype: np.dtype
    blocks: Callable[[int], Iterator[Columns]]  # takes the rows per block

    @property
    def name(self) -> str:
        """Name in messages."""
        return str(self.state.path) if self.state else "the array"


def _require_kind(path: Path, *expected: str) -> None:
    """Raise `CacheError` where a file is of a known kind that is none of those `expected`."""
    kind = kind_of(path)
    if kind in (*expected, BINARY):  # what a reader says of the latter
        return
    if kind in _ENDINGS:
        raise CacheError(f"{path} is {kind}; rename it so that it ends in {_ENDINGS[kind]}")
    remedy = "pictures are for pucache embed" if kind in PICTURES else _SAVE_ROWS
    if kind == CACHE:  # as every HDF5 file may be
        kind, remedy = "an HDF5 file", f"a cache is named where a command takes one, and of another file {_SAVE_ROWS}"
    raise CacheError(f"{path} is {kind}, where {expected[0]} is expected; {remedy}")


# --- arrays --------------------------------------------------------------------------------------


def array_input(X: np.ndarray) -> Input:
    """Open an array in memory; raises `CacheError` unless it holds rows of floats."""
    return _input_of(None, X.shape, X.dtype, lambda rows: X[rows])


def npy_input(path: Path) -> Input:
    """Open a ``.npy`` file, which is never unpickled; raises `CacheError` unless it holds rows of floats."""
    state = FileState.of(path)
    _require_kind(path, ARRAY)

    def mapped() -> np.ndarray:
        with state.reading("is not a .npy array of numbers, or is cut short; save it with numpy.save"):
            return np.lib.format.open_memmap(path, mode="r")  # unlike `numpy.load` it refuses archives

    X = mapped()
    return _input_of(state, X.shape, X.dtype, lambda rows: np.array(mapped()[rows]))


def safetensors_input(path: Path, tensor: str | None) -> Input:
    """Open the tensor of this name, or the one of embeddings; raises `CacheError` if there is none."""
    state = FileState.of(path)
    _require_kind(path, SAFETENSORS)

    @contextmanager
    def opened(framework: str) -> Iterator[Any]:
        with state.reading("cannot be read as safetensors"), safetensors.safe_open(path, framework) as file:
            yield file

    with opened("np") as file:
        slices = {name: file.get_slice(name) for name in sorted(file.keys())}
        headers = {name: (each.get_dtype(), tuple(each.get_shape())) for name, each in slices.items()}
    types = {name: f"{kind} {shape}" for name, (kind, shape) in headers.items()}
    fitting = [name for name, (kind, shape) in headers.items() if kind in _SAFETENSORS_TYPES and len(shape) == 2]
    name = _choose(path, tensor, types, fitting, expected="tensors with rows of floats")
    kind, shape = headers[name]

    def read(rows: slice) -> np.ndarray:
        if kind == "BF16":  # numpy lacks it; torch is imported for it alone
            with opened("pt") as file:
                return file.get_slice(name)[rows].float().numpy()
        with opened("np") as file:
            return file.get_slice(name)[rows]

    return _input_of(state, shape, np.dtype(_SAFETENSORS_TYPES[kind]), read)


def _choose(path: Path, name: str | None, types: dict[str, str], fitting: list[str], *, expected: str) -> str:
    """Name of the tensor or column of embeddings: the given one, a usual name, or the only one of `fitting`."""
    listing = ", ".join(f"{each} ({types[each]})" for each in types) or "none"
    if name is not None:
        if name not in fitting:
            raise CacheError(f"{path} has no {name!r} among its {expected}; it has {listing}")
        return name
    usual = [each for each in _EMBEDDING_NAMES if each in fitting] or fitting
    if not usual:
        raise CacheError(f"{path} has no {expected} (it has {listing}); convert them, and write them with numpy.save")
    if len(usual) > 1 and usual is fitting:
        problem = f"{path} has {len(fitting)} {expected} (it has {listing})"
        raise CacheError(f"{problem}; expected one: name it with --embedding-column")
    return usual[0]


def _input_of(
    state: FileState | None, shape: tuple[int, ...], dtype: np.dtype, read: Callable[[slice], np.ndarray]
) -> Input:
    """An array of which slices of rows can be read; raises `CacheError` unless it holds rows of floats."""
    if len(shape) != 2 or dtype.kind != "f" or 0 in shape:
        holder = state.path if state else "the array"
        problem = f"{holder} holds {dtype} {shape}; expected one array of floats with rows and columns"
        raise CacheError(f"{problem}: convert it by reshape or astype('f4')")
    n, dim = shape

    def blocks(step: int) -> Iterator[Columns]:
        return (_without_origin(read(slice(start, min(start + step, n)))) for start in range(0, n, step))

    return Input(state, n, dim, dtype, blocks)


def _without_origin(X: np.ndarray, problems: Mapping[int, str] = MappingProxyType({})) -> Columns:
    """Rows of which neither digest, size nor time of change are known."""
    return Columns(X, np.zeros((len(X), 32), np.uint8), np.full((len(X), 2), -1, "<i8"), problems)


# --- Parquet -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExportedState:
    """What an export of pucache holds beside its rows: encoder, source, reasons by key, and `CacheFile.reordered`."""

    encoder: EncoderSpec
    source: str
    failures: dict[str, str]
    reordered: bool

    @classmethod
    def parse(cls, path: Path, text: bytes) -> ExportedState:
        """Read the schema's metadata of an export; raises `CacheError` if it is damaged or of another version."""
        try:
            content = json.loads(text)
            if content["version"] != 1:
                raise ValueError(f"version {content['version']}, expected 1")
            failures = {str(key): str(reason) for key, reason in content["failures"].items()}
            encoder, reordered = EncoderSpec.from_json(content["encoder"]), bool(content.get("reordered"))
            return cls(encoder, str(content["source"]), failures, reordered)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            problem = f"{path} has metadata of pucache that cannot be read ({one_line(error)})"
            raise CacheError(f"{problem}; export the cache again") from error


class ParquetFile:
    """One Parquet file, whose rows are read forward, page by page."""

    def __init__(self, path: Path):
        self.path, self.state = path, FileState.of(path)
        _require_kind(path, *PARQUETS)
        with self._opened() as file:
            self._schema, self.rows = file.schema_arrow, file.metadata.num_rows
        self.columns = {field.name: str(field.type) for field in self._schema}  # type by name
        text = (self._schema.metadata or {}).get(METADATA)
        self.exported = None if text is None else ExportedState.parse(path, text)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        with (
            self.state.reading("cannot be read as Parquet"),
            open_regular(self.path) as stream,
            open_parquet(stream) as file,
        ):
            yield file

    def _batches(self, columns: list[str], batch_rows: int) -> Iterator[Any]:
        with self._opened() as file:
            for batch in file.iter_batches(batch_rows, columns=columns, use_threads=False):
                self.state.check()
                yield batch

    def key_column(self, name: str | None) -> str | None:
        """Name of the column of keys, of text or integers: the given one, else the first usual name, else None."""
        fitting = [field.name for field in self._schema if is_key(field.type)]
        if name is None:
            return find_column(fitting, IMPORT_NAMES, str(self.path))
        return _choose(self.path, name, self.columns, fitting, expected="columns of text or integers")

    def keys(self, column: str) -> Iterator[str | None]:
        """Read keys in row order; None where there is none."""
        for batch in self._batches([column], BATCH_KEYS):
            try:
                yield from texts(batch.column(0))
            except ValueError as error:
                problem = f"{self.path} has the column {column!r} of {batch.column(0).type}, which is not UTF-8 text"
                raise CacheError(f"{problem}; name another with --key-column") from error

    def embeddings(self, name: str | None) -> Input:
        """Open the list column of floats: the given one, a usual name, or the only one."""
        value_types = {field.name: floats_of(field.type) for field in self._schema}
        fitting = [each for each, dtype in value_types.items() if dtype is not None]
        column = _choose(self.path, name, self.columns, fitting, expected="columns with lists of floats")
        size = self._usual_length(column)
        if not size:
            raise CacheError(f"{self.path} holds {self.rows} embeddings of {size} numbers; expected some")
        dtype = value_types[column]
        assert dtype is not None
        return Input(self.state, self.rows, size, dtype, partial(self._blocks, column, size))

    def _usual_length(self, column: str) -> int:
        """Length of most lists among the first ones that are not empty; 0 where there is none."""
        with closing(self._batches([column], FIRST_ROWS)) as batches:  # type: ignore[type-var]
            for batch in batches:
                lengths = Counter(_lists(batch).value_lengths().to_pylist())
                del lengths[0], lengths[None]
                if lengths:
                    return int(lengths.most_common(1)[0][0])
        return 0

    def _blocks(self, column: str, dim: int, step: int) -> Iterator[Columns]:
        """Read the batches of pyarrow, each a block of at most `step` rows."""
        extra = [name for name in EXTRA if self.exported and self.columns.keys() >= set(EXTRA)]
        start = 0
        for batch in self._batches([column, *extra], step):
            yield self._columns(batch, dim)
            start += len(batch)
        if start < self.rows:
            problem = f"{self.path} ends before row {self.rows}, which its footer announces"
            raise CacheError(f"{problem}; restore it from a copy")

    def _columns(self, batch: Any, dim: int) -> Columns:
        X, problems = _values(_lists(batch), dim)
        if batch.num_columns == 1:
            return _without_origin(X, problems)
        _, *extra = batch.columns
        digest, size, mtime = extra
        if any(column.null_count for column in extra) or getattr(digest.type, "byte_width", 0) != 32:
            raise CacheError(f"{self.path} has damaged columns {', '.join(EXTRA)}; export the cache again")
        digests = digest.to_numpy(zero_copy_only=False).astype("S32").view(np.uint8).reshape(-1, 32)
        return Columns(X, digests, np.stack([size.to_numpy(), mtime.to_numpy()], 1).astype("<i8"), problems)


def _lists(batch: Any) -> Any:
    """The first column of a batch as lists; a tensor of a fixed shape is one for each row."""
    return getattr(batch.column(0), "storage", batch.column(0))


def _values(lists: Any, dim: int) -> tuple[np.ndarray, dict[int, str]]:
    """Embeddings of a block, (b, dim), and why a row holds none: it is missing, or has another length."""
    # the length of a missing list is null, or that of its fixed size
    fits = compute.and_(lists.is_valid(), compute.equal(lists.value_lengths(), dim)).fill_null(False)
    rows = lists.filter(fits).flatten().to_numpy(zero_copy_only=False).reshape(-1, dim)  # a missing number becomes NaN
    if len(rows) == len(lists):
        return rows, {}
    held = fits.to_numpy(zero_copy_only=False)
    X = np.full((len(lists), dim), np.nan, rows.dtype)
    X[held] = rows
    expected = f"expected a list of {dim} numbers"
    wrong = np.flatnonzero(~held).tolist()
    return X, {row: f"holds {str(lists[row].as_py())[:60]}, {expected}" for row in wrong}
