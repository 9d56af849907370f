"""Opening a source of embeddings: its files, their order, and the keys, checked before any row is read.

clip-retrieval writes ``img_emb/img_emb_0.npy`` with ``metadata/metadata_0.parquet``; embedding-reader reads a folder
of arrays with or without a folder of Parquet files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ..encoders.spec import EncoderSpec
from ..errors import CacheError, counted, one_line
from ..progress import Progress
from ..storage.limits import KEY_BYTES
from ..storage.table_columns import IMPORT_NAMES, KEY_COLUMNS
from ..storage.tables import LabelTable, read_table
from ..storage.urls import is_url, without_secrets
from .import_files import (
    ExportedState,
    FileState,
    Input,
    ParquetFile,
    array_input,
    npy_input,
    safetensors_input,
)

ARRAYS, PARQUET = (".npy", ".safetensors"), ".parquet"
_EMBEDDING_FOLDERS = ("img_emb", "text_emb")  # of clip-retrieval; the first that exists is taken
_METADATA_FOLDER = "metadata"
_IN_MEMORY = "the sequence of keys"
_KEYS_PER_BLOCK = 1 << 16
Opened = list[tuple[Input, ParquetFile | None]]  # each file of embeddings, and the table with its columns


@dataclass(frozen=True)
class ImportOptions:
    """What the user chose for an import; see `pucache.cache.importing.import_embeddings`."""

    keys: str | Path | LabelTable | Sequence[str] | None = None
    key_column: str | None = None
    row_numbers: bool = False
    embedding_column: str | None = None
    metadata: str | Path | None = None
    name: str | None = None
    dtype: str | None = None
    normalize: bool = False
    skip_invalid: bool = False

    def __post_init__(self) -> None:
        if (self.keys is not None) + (self.key_column is not None) + self.row_numbers > 1:
            raise ValueError("keys, key_column and row_numbers exclude each other; pass one of them")
        if isinstance(self.keys, set | frozenset) or not isinstance(self.keys, str | Path | Iterable | None):
            raise ValueError(f"keys in memory are one for each row, in their order, in a list; got {self.keys!r:.80}")
        index = _index_of(self.keys)
        if index is not None and index != list(range(len(index))):
            raise ValueError(
                f"the index of the keys begins with {index[0]!r}, and is not 0 to n - 1: pass keys.tolist() where they "
                "are in the order of the rows"
            )
        if self.dtype not in (None, "float16", "float32"):
            raise ValueError(f"dtype must be float16 or float32, got {self.dtype!r}")


def _index_of(given: Any) -> list[Any] | None:
    """Names of the rows of a Series or DataFrame of pandas; None for other objects."""
    index = getattr(given, "index", None)
    return None if index is None or callable(index) else list(index)


class ImportSource:
    """Files and keys of a source, opened and checked as far as that goes without reading rows."""

    def __init__(self, source: str | Path | np.ndarray, options: ImportOptions):
        opened: Opened
        if not isinstance(source, str | os.PathLike):
            index = _index_of(source)
            if index is not None and options.keys is None and index != list(range(len(index))):
                options = replace(options, keys=index, row_numbers=False)
            opened, origin, name = [(array_input(_array(source)), None)], "", "array"
        else:
            opened = [_open_file(*pair, options.embedding_column) for pair in find_files(source, options.metadata)]
            origin = os.path.abspath(source)
            name = Path(origin).name if os.path.isdir(origin) else Path(origin).stem
        _check_equal(opened)
        self._skips_invalid = options.skip_invalid
        self.inputs, tables = [each for each, _ in opened], [table for _, table in opened if table is not None]
        self.starts = np.cumsum([0, *(each.rows for each in self.inputs)])  # of the inputs; then the number of rows
        states = [each.state for each in self.inputs] + [table.state for table in tables]
        if isinstance(options.keys, str | os.PathLike):
            states.append(FileState.of(Path(options.keys)))
        self.states = [state for state in states if state is not None]  # of every file that is read
        self.keys, self._texts = _keys(options, tables, self.rows)  # what the keys are, in words
        exported = _exported(opened)
        if options.name is not None:  # says what the rows are, whatever the export does
            exported = []
        dim = self.inputs[0].dim
        encoder = replace(EncoderSpec.imported(options.name or name, dim), origin=origin)
        if exported:
            encoder = exported[0].encoder
            if encoder.dim != dim:
                problem = f"{self.inputs[0].name} holds rows of {dim} numbers, its encoder gives {encoder.dim}"
                raise CacheError(f"{problem}; pass --name")
        self.encoder = replace(encoder, normalization="l2") if options.normalize else encoder
        sources = {state.source for state in exported}
        self.image_source = sources.pop() if len(sources) == 1 else ""
        self.is_export = bool(exported) and options.keys is None  # of a cache, whose rows were sorted already
        self.reordered = any(state.reordered for state in exported)
        # reason by key, in an export of pucache
        self.failures = {key: reason for state in exported for key, reason in state.failures.items()}

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.starts[-1])

    def position(self, row: int) -> str:
        """Describe a row in messages: its number in its file."""
        number = int(np.searchsorted(self.starts, row, "right")) - 1
        return f"row {row - self.starts[number]} of {self.inputs[number].name}"

    def read_keys(self, progress: Progress) -> np.ndarray:
        """Read all keys, (n,) of dtype S; raises `CacheError` unless there is a valid one for each row.

        One that is not valid is empty where such rows are left out.
        """
        blocks, texts = [np.empty(0, "S1")], iter(self._texts)
        while block := list(islice(texts, _KEYS_PER_BLOCK)):
            blocks.append(np.array(list(map(_key_bytes, block)), "S"))
            progress.advance(len(block))
        keys = np.concatenate(blocks)
        if len(keys) != self.rows:
            holder = f"{self.inputs[0].name} has" if len(self.inputs) == 1 else f"{len(self.inputs)} parts have"
            problem = f"{holder} {counted(self.rows, 'row')}, and {self.keys} {counted(len(keys), 'key')}"
            raise CacheError(f"{problem}; expected one key for each row")
        if len(invalid := np.flatnonzero(keys == b"")) and not self._skips_invalid:
            problem = f"{self.position(int(invalid[0]))} has no valid key in {self.keys}"
            raise CacheError(
                f"{problem}; expected 1 to {KEY_BYTES} bytes of text without NUL characters: correct it, or record "
                "such rows as failures: --skip-invalid"
            )
        return keys


def _array(source: Any) -> np.ndarray:
    try:
        return np.asarray(source)
    except Exception as error:  # such as of a tensor on a GPU, or of rows of several lengths
        raise CacheError(f"the source cannot be read as an array: {one_line(error, 160)}") from error


def _open_file(path: Path, metadata: Path | None, column: str | None) -> tuple[Input, ParquetFile | None]:
    suffix = path.suffix.lower()
    if suffix == PARQUET:
        file = ParquetFile(path)
        return file.embeddings(column), file
    table = None if metadata is None else ParquetFile(metadata)
    if suffix == ".safetensors":
        return safetensors_input(path, column), table
    if column is not None:
        raise CacheError(f"{path} holds one array and no columns; leave --embedding-column out")
    return npy_input(path), table


def _check_equal(opened: Opened) -> None:
    """Raise `CacheError` unless all files have rows of one length and type, and as many as their metadata."""
    first = opened[0][0]
    for each, table in opened:
        if (each.dim, each.dtype.itemsize) != (first.dim, first.dtype.itemsize):
            problem = f"{each.name} holds rows of {each.dim} {each.dtype}, {first.name} of {first.dim} {first.dtype}"
            raise CacheError(f"{problem}; expected one length and type: correct the part, or move it away")
        if table is not None and each.rows != table.rows:
            problem = f"{each.name} has {counted(each.rows, 'row')}, its metadata {table.path} {table.rows}"
            raise CacheError(f"{problem}; expected one row of metadata for each: correct one of them")


def _exported(opened: Opened) -> list[ExportedState]:
    """State of each file that is an export of pucache; raises `CacheError` if they are of different encoders."""
    tables = [table for each, table in opened if table is not None and table.state == each.state]
    encoders = {"" if table.exported is None else table.exported.encoder.to_json(): table.path for table in tables}
    if len(encoders) > 1:
        first, second, *_ = encoders.values()
        problem = f"{first} and {second} are exports of different encoders, or one of them is no export"
        raise CacheError(f"{problem}; import them one by one")
    return [table.exported for table in tables if table.exported is not None]


# --- keys ----------------------------------------------------------------------------------------


def _keys(options: ImportOptions, tables: list[ParquetFile], n: int) -> tuple[str, Iterable[str | None]]:
    """What the keys are, and their texts; raises `CacheError` or `LabelError` if there is no such file or column."""
    if isinstance(options.keys, str | Path | LabelTable):
        return str(options.keys), (row["key"] for row in read_table(options.keys, KEY_COLUMNS))
    if options.keys is not None:
        return _IN_MEMORY, options.keys
    column, reason = None, ""
    if tables and not options.row_numbers:
        column = tables[0].key_column(options.key_column)
        listing = ", ".join(tables[0].columns)
        kinds = f"no column of text or integers in {tables[0].path.name} is called {', '.join(IMPORT_NAMES)}"
        reason = f" ({kinds}: it has {listing})"
    elif options.key_column is not None:
        raise CacheError(f"there is no metadata with a column {options.key_column!r}; name it with --metadata")
    elif not options.row_numbers:
        reason = " (there is no metadata)"
    if column is None:
        return f"row numbers{reason}", (f"{row:010}" for row in range(n))  # ten digits sort as numbers
    for table in tables:
        table.key_column(column)
    return f"column {column!r}", (key for table in tables for key in table.keys(column))


def _key_bytes(key: Any) -> bytes:
    """A key, of text or a whole number, as UTF-8; empty if it cannot be one."""
    key = key.as_py() if hasattr(key, "as_py") else key  # of pyarrow
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        key = str(key)
    try:
        encoded = key.encode() if isinstance(key, str) else b""
    except UnicodeEncodeError:
        return b""
    return b"" if b"\0" in encoded or len(encoded) > KEY_BYTES else encoded


# --- files ---------------------------------------------------------------------------------------


def find_files(source: str | Path, metadata: str | Path | None = None) -> list[tuple[Path, Path | None]]:
    """List the files of a source, each with its metadata, by the numbers in their names: 2 comes before 10.

    Raises `CacheError` if there is no such file, no part in the folder, or if metadata and parts do not pair up.
    """
    if is_url(source):
        raise CacheError(f"{without_secrets(str(source))} is a URL; expected a file or folder of this machine")
    source = Path(source)
    if not source.exists():
        raise CacheError(f"no such file: {source}")
    parts = _parts_of(source) if source.is_dir() else [source]
    if parts[0].suffix.lower() == PARQUET:
        if metadata is not None:
            raise CacheError(f"{parts[0]} is Parquet and has its own columns; leave the metadata {metadata} out")
        return [(path, None) for path in parts]
    tables: list[Path] = []
    if metadata is not None:
        tables = _parquet_files(Path(metadata))
        if not tables:
            raise CacheError(f"no metadata at {metadata}; expected a Parquet file, or a folder of .parquet files")
    elif source.is_dir():
        folder = parts[0].parent
        places = (folder, folder / _METADATA_FOLDER, folder.parent / _METADATA_FOLDER)
        tables = next((tables for tables in map(_parquet_files, places) if tables), [])
    return _paired(parts, tables) if tables else [(path, None) for path in parts]


def _parts_of(source: Path) -> list[Path]:
    """The files of embeddings in a folder, all of one kind."""
    folder = source
    if not _files(source, [*ARRAYS, PARQUET]):
        folder = next((source / name for name in _EMBEDDING_FOLDERS if (source / name).is_dir()), source)
    arrays = _files(folder, ARRAYS)
    if other := next((path for path in arrays if path.suffix.lower() != arrays[0].suffix.lower()), None):
        problem = f"{folder} holds both {arrays[0].name} and {other.name}"
        raise CacheError(f"{problem}; expected one kind of file: name one of them, or move one kind elsewhere")
    parts = arrays or _parquet_files(folder)
    if not parts:
        raise CacheError(f"no embeddings in folder {folder}; expected {', '.join(ARRAYS)} or {PARQUET} files")
    return parts


def _parquet_files(source: Path) -> list[Path]:
    return _files(source, [PARQUET]) if source.is_dir() or not source.exists() else [source]


def _files(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """Files with one of the endings, in natural order; none if there is no such folder."""
    paths = folder.iterdir() if folder.is_dir() else ()
    found = [path for path in paths if path.suffix.lower() in suffixes and path.is_file()]
    return sorted((path for path in found if not path.name.startswith(".")), key=_natural_key)


def _natural_key(path: Path) -> tuple[list[str | int], str]:
    """Sort key of a file name in which numbers count as numbers."""
    pieces = re.split(r"([0-9]+)", path.stem)
    return [int(piece) if number % 2 else piece for number, piece in enumerate(pieces)], path.name


def _paired(parts: list[Path], tables: list[Path]) -> list[tuple[Path, Path | None]]:
    """Pair parts and tables by the last number in their names, or else by the whole name."""
    if len(parts) == len(tables) == 1:
        return [(parts[0], tables[0])]
    by_part, by_table = _by_number(parts), _by_number(tables)
    if len(by_part) < len(parts) or len(by_table) < len(tables):
        by_part, by_table = {path.stem: path for path in parts}, {path.stem: path for path in tables}
    for these, others, lacking in ((by_part, by_table, "metadata"), (by_table, by_part, "embeddings")):
        for name in [name for name in these if name not in others]:
            folder = next(iter(others.values())).parent
            raise CacheError(f"{these[name]} has no {lacking} in {folder}; restore it, or move the file away")
    return [(path, by_table[name]) for name, path in by_part.items()]


def _by_number(paths: list[Path]) -> dict[int | str, Path]:
    """Paths by the last number in the name; by the name where it has none."""
    numbers = ((re.findall("[0-9]+", path.stem), path) for path in paths)
    return {int(digits[-1]) if digits else path.stem: path for digits, path in numbers}
