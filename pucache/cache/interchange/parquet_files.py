"""Parquet files: the embeddings in a list column, text columns of keys, and what an export of pucache adds.

The only user of pyarrow in `pucache.cache`. Rows are read page by page, whatever the size of a row group.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CacheError, MissingExtraError, one_line
from .parts import FileState, PartRows

EMBEDDING_NAMES = ("embedding", "embeddings", "emb", "vector")  # tried in this order
KEY_NAMES = ("key", "image_path", "path", "file_name", "filename", "url", "id", "image_id", "uid")
METADATA = b"pucache"  # entry of the schema's metadata in an export
EXTRA = ("digest", "size", "mtime_ns")  # further columns of an export
_BATCH_BYTES = 8 << 20
_BATCH_KEYS = 1 << 16
_MAX_FOOTER = 1 << 30


def pyarrow() -> Any:
    """Import pyarrow.

    Raises
    ------
    MissingExtraError
        It is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("Parquet needs pyarrow; pip install 'pucache[parquet]'") from error
    return pyarrow


@dataclass(frozen=True)
class ExportedState:
    """What an export of pucache holds beside its rows.

    Attributes
    ----------
    encoder : str
        `EncoderSpec` as JSON.
    source : str
    failures : dict of str to str
    """

    encoder: str
    source: str
    failures: dict[str, str]

    def to_json(self) -> str:
        """JSON for the schema's metadata."""
        content = {"version": 1, "encoder": self.encoder, "source": self.source, "failures": self.failures}
        return json.dumps(content, sort_keys=True)

    @classmethod
    def from_json(cls, path: Path, text: bytes) -> ExportedState:
        """Read what `to_json` wrote; raises `CacheError` if it is damaged or of another version."""
        try:
            content = json.loads(text)
            if content["version"] != 1:
                raise ValueError(f"version {content['version']}, expected 1")
            failures = {str(key): str(reason) for key, reason in content["failures"].items()}
            return cls(str(content["encoder"]), str(content["source"]), failures)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CacheError(f"{path} has metadata of pucache that cannot be read ({one_line(error)})") from error


class ParquetFile:
    """One Parquet file, opened for reading forward.

    Attributes
    ----------
    path : Path
    rows : int
    columns : list of str
    exported : ExportedState or None

    Raises
    ------
    CacheError
        The file is missing or damaged.
    """

    def __init__(self, path: Path):
        self._arrow = pyarrow()
        self.path, self.state = path, FileState.of(path)
        with self._opened() as file:
            self.schema = file.schema_arrow
            self.rows = file.metadata.num_rows
            self._groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        self.columns: list[str] = self.schema.names
        text = (self.schema.metadata or {}).get(METADATA)
        self.exported = None if text is None else ExportedState.from_json(path, text)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """Open the file, and turn errors of pyarrow into a `CacheError`."""
        self.state.check()
        try:
            with self._arrow.parquet.ParquetFile(
                self.path,
                pre_buffer=False,
                buffer_size=1 << 20,  # without it, pyarrow reads whole column chunks
                page_checksum_verification=True,  # of pages that have one, such as those of an export
                thrift_string_size_limit=_MAX_FOOTER,
                thrift_container_size_limit=_MAX_FOOTER,
            ) as file:
                yield file
        except (self._arrow.ArrowException, OSError, ValueError) as error:
            self.state.check()
            raise CacheError(f"{self.path} cannot be read as Parquet ({one_line(error)[:160]})") from error

    def batches(self, columns: list[str], *, start: int, batch_rows: int) -> Iterator[Any]:
        """Read columns from a row on.

        Yields
        ------
        pyarrow.RecordBatch
        """
        group, begin = 0, 0
        while group < len(self._groups) and begin + self._groups[group] <= start:
            begin += self._groups[group]
            group += 1
        groups = list(range(group, len(self._groups)))
        with self._opened() as file:
            for batch in file.iter_batches(batch_rows, row_groups=groups, columns=columns, use_threads=False):
                skipped = min(max(start - begin, 0), len(batch))
                begin += len(batch)
                if skipped < len(batch):
                    self.state.check()
                    yield batch.slice(skipped)

    def key_column(self, name: str | None) -> str | None:
        """Name of the column of keys: the given one, or the first usual name; None if there is none.

        Raises
        ------
        CacheError
            There is no such column, or it holds neither text nor integers.
        """
        if name is None:
            return next((each for each in KEY_NAMES if each in self.columns and self._is_key(each)), None)
        if name not in self.columns:
            raise CacheError(f"{self.path} has no column {name!r}; it has {', '.join(self.columns) or 'none'}")
        if not self._is_key(name):
            kind = self.schema.field(name).type
            raise CacheError(f"the column {name!r} of {self.path} holds {kind}; expected text or integers as keys")
        return name

    def _is_key(self, name: str) -> bool:
        types, kind = self._arrow.types, self.schema.field(name).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        return types.is_string(kind) or types.is_large_string(kind) or types.is_integer(kind)

    def keys(self, column: str) -> Iterator[np.ndarray]:
        """Read keys in row order.

        Yields
        ------
        ndarray of bytes (dtype S)
            UTF-8; as wide as the longest.
        """
        start = 0
        for batch in self.batches([column], start=0, batch_rows=_BATCH_KEYS):
            texts = batch.column(0).cast(self._arrow.large_string())
            if texts.null_count:
                row = start + int(np.flatnonzero(texts.is_null().to_numpy(zero_copy_only=False))[0])
                raise CacheError(f"row {row} of {self.path} has no {column!r}; expected a key in each row")
            yield _fixed_width(texts, self.path)
            start += len(batch)
        if start != self.rows:
            raise CacheError(f"{self.path} has {start} keys, expected {self.rows}; restore it from a copy")

    def embedding_column(self, name: str | None) -> str:
        """Name of the list column of floats: the given one, a usual name, or the only one.

        Raises
        ------
        CacheError
            There is none, or several.
        """
        fitting = [each for each in self.columns if self._value_type(each) is not None]
        listing = ", ".join(f"{field.name} ({field.type})" for field in self.schema) or "none"
        if name is not None:
            if name not in self.columns:
                raise CacheError(f"{self.path} has no column {name!r}; it has {listing}")
            if name not in fitting:
                kind = self.schema.field(name).type
                raise CacheError(f"the column {name!r} of {self.path} holds {kind}; expected lists of floats")
            return name
        usual = [each for each in EMBEDDING_NAMES if each in fitting] or (fitting if len(fitting) == 1 else [])
        if not usual:
            raise CacheError(
                f"{self.path} has {len(fitting)} columns with lists of floats (its columns are {listing}); expected "
                "one: name it with --embedding-column"
            )
        return usual[0]

    def _value_type(self, name: str) -> np.dtype | None:
        """Type of the floats in a list column; None for another column."""
        types, kind = self._arrow.types, self.schema.field(name).type
        if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
            return None
        return np.dtype(kind.value_type.to_pandas_dtype()) if types.is_floating(kind.value_type) else None


class ParquetPart:
    """The embeddings of a Parquet file.

    Parameters
    ----------
    file : ParquetFile
    column : str, optional
        See `ParquetFile.embedding_column`.
    """

    sequential = True

    def __init__(self, file: ParquetFile, column: str | None):
        self.file, self.column = file, file.embedding_column(column)
        self.name, self.rows = str(file.path), file.rows
        dtype = file._value_type(self.column)
        assert dtype is not None
        self.dtype = dtype
        self.dim = self._dim()
        if 0 in (self.rows, self.dim):
            raise CacheError(f"{self.name} holds {self.rows} embeddings of {self.dim} numbers; expected some")
        columns = set(file.columns) if file.exported else set()
        self._extra = list(EXTRA) if set(EXTRA) <= columns else []
        self._source: Iterator[PartRows] | None = None
        self._rest = PartRows(np.empty((0, self.dim), self.dtype))
        self._next = 0

    def _dim(self) -> int:
        size = getattr(self.file.schema.field(self.column).type, "list_size", -1)
        if size >= 0 or not self.rows:
            return max(int(size), 0)
        with closing(self.file.batches([self.column], start=0, batch_rows=1)) as batches:  # type: ignore[type-var]
            lengths = next(batches).column(0).value_lengths()
        return int(lengths[0].as_py() or 0)

    def take(self, rows: np.ndarray) -> PartRows:
        """Read contiguous rows; fastest if they follow those read before."""
        start, count = int(rows[0]), len(rows)
        assert int(rows[-1]) == start + count - 1
        if self._source is None or start != self._next:
            batch_rows = max(1, _BATCH_BYTES // (self.dim * self.dtype.itemsize))
            self._source = self._read(start, batch_rows)
            self._rest = PartRows(np.empty((0, self.dim), self.dtype))
        pieces, rows_read = [self._rest], len(self._rest.X)
        while rows_read < count:
            pieces.append(next(self._source))
            rows_read += len(pieces[-1].X)
        joined = _joined(pieces if len(pieces[0].X) else pieces[1:])
        self._rest = _sliced(joined, count, None)
        self._next = start + count
        return _sliced(joined, 0, count)

    def _read(self, start: int, batch_rows: int) -> Iterator[PartRows]:
        for batch in self.file.batches([self.column, *self._extra], start=start, batch_rows=batch_rows):
            X = self._values(batch.column(self.column), start)
            start += len(batch)
            yield PartRows(X, *self._extras(batch))
        raise CacheError(f"{self.name} ends after {start} embeddings, expected {self.rows}; restore it from a copy")

    def _values(self, lists: Any, start: int) -> np.ndarray:
        """Embeddings of a batch, (b, d); raises `CacheError` if a row is missing or has another length."""
        lengths = lists.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False)
        if lists.null_count:  # the length of a missing list of fixed size is not null
            lengths = np.where(lists.is_null().to_numpy(zero_copy_only=False), -1, lengths)
        wrong = np.flatnonzero(lengths != self.dim)
        if len(wrong):
            got = "is missing" if lengths[wrong[0]] < 0 else f"has {lengths[wrong[0]]} numbers"
            raise CacheError(f"row {start + wrong[0]} of {self.name} {got}; expected {self.dim} numbers")
        values = lists.flatten()
        if values.null_count:
            row = start + int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0]) // self.dim
            raise CacheError(f"row {row} of {self.name} has missing numbers; expected {self.dim} of them")
        return values.to_numpy(zero_copy_only=False).reshape(-1, self.dim)

    def _extras(self, batch: Any) -> tuple[np.ndarray, np.ndarray] | tuple[()]:
        if not self._extra:
            return ()
        digest, size, mtime = (batch.column(name) for name in self._extra)
        if any(column.null_count for column in (digest, size, mtime)) or getattr(digest.type, "byte_width", 0) != 32:
            raise CacheError(f"{self.name} has damaged columns {', '.join(EXTRA)}; export the cache again")
        bytes_ = np.frombuffer(digest.buffers()[1], np.uint8)[digest.offset * 32 :][: len(digest) * 32]
        pairs = np.stack([size.to_numpy(zero_copy_only=False), mtime.to_numpy(zero_copy_only=False)], 1)
        return bytes_.reshape(-1, 32), pairs.astype("<i8")


def _fixed_width(texts: Any, path: Path) -> np.ndarray:
    """Arrow texts without nulls as fixed-width bytes, (n,) of dtype S."""
    _, offsets_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]] if data_buffer else np.empty(0, np.uint8)
    lengths = np.diff(offsets)
    width = max(1, int(lengths.max(initial=0)))
    fixed = np.zeros((len(texts), width), np.uint8)
    fixed[np.arange(width) < lengths[:, None]] = data
    if (data == 0).any():
        raise CacheError(f"a key in {path} holds a NUL character; expected text")
    return fixed.view(f"S{width}")[:, 0]


def _joined(pieces: list[PartRows]) -> PartRows:
    if len(pieces) == 1:
        return pieces[0]
    digests = [piece.digests for piece in pieces if piece.digests is not None]
    size_mtime = [piece.size_mtime for piece in pieces if piece.size_mtime is not None]
    return PartRows(
        np.concatenate([piece.X for piece in pieces]),
        np.concatenate(digests) if digests else None,
        np.concatenate(size_mtime) if size_mtime else None,
    )


def _sliced(rows: PartRows, begin: int, end: int | None) -> PartRows:
    part = slice(begin, end)
    return PartRows(
        rows.X[part],
        None if rows.digests is None else rows.digests[part],
        None if rows.size_mtime is None else rows.size_mtime[part],
    )
