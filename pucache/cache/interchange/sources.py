"""Opening a source of embeddings: its parts and its keys, checked before any row is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...encoders.spec import EncoderSpec
from ...errors import CacheError
from .array_parts import array_in_memory, open_npy, open_safetensors
from .key_sources import KeyColumn, KeyFile, KeySequence, KeySource
from .layouts import PARQUET, PartFiles, find_part_files
from .parquet_files import KEY_NAMES, ExportedState, ParquetFile, ParquetPart
from .parts import FileState, Part
from .row_blocks import RowTable

ROW_NUMBERS = "row numbers"


@dataclass(frozen=True)
class ImportOptions:
    """What the user chose for an import; see `import_embeddings`."""

    keys: str | Path | Sequence[str] | None = None
    key_column: str | None = None
    row_numbers: bool = False
    embedding_column: str | None = None
    metadata: str | Path | None = None
    name: str | None = None
    dtype: str | None = None
    normalize: bool = False

    def __post_init__(self) -> None:
        if (self.keys is not None) + (self.key_column is not None) + self.row_numbers > 1:
            raise ValueError("keys, key_column and row_numbers exclude each other; pass one of them")
        if self.dtype not in (None, "float16", "float32"):
            raise ValueError(f"dtype must be float16 or float32, got {self.dtype!r}")


@dataclass(frozen=True)
class OpenedSource:
    """Parts and keys of a source.

    Attributes
    ----------
    table : RowTable
    keys : KeySource or None
        None: the numbers of the rows.
    keys_taken : str
        What was taken as keys, for people.
    encoder : EncoderSpec
    image_source : str
        Path or URL of the images, known of an export of pucache alone.
    failures : dict of str to str
        Of an export; reason by key.
    states : list of FileState, or None
        Every file that is read; None if something is in memory.
    """

    table: RowTable
    keys: KeySource | None
    keys_taken: str
    encoder: EncoderSpec
    image_source: str
    failures: dict[str, str]
    states: list[FileState] | None


def open_import(source: str | Path | np.ndarray, options: ImportOptions) -> OpenedSource:
    """Open a source and check all that can be checked without reading rows.

    Raises
    ------
    CacheError
        See `import_embeddings`.
    MissingExtraError
        A file is Parquet, and pyarrow is not installed.
    """
    if isinstance(source, np.ndarray):
        files, parts, origin = [], [array_in_memory(source)], ""
    else:
        files = find_part_files(source, options.metadata)
        parts = [_open_part(file.embeddings, options.embedding_column) for file in files]
        origin = os.path.abspath(source)
    _check_equal(parts)
    table = RowTable(parts)
    tables = _tables(files, parts)
    keys, keys_taken = _key_source(options, tables)
    states = [file.state for file in tables] + (keys.states if keys else [])
    states += [FileState.of(file.embeddings) for file in files]
    exported = _exported(parts)
    encoder = _encoder(exported, options, table, origin, _name(source))
    kept = [] if options.name is not None else exported
    sources = {state.source for state in kept}
    return OpenedSource(
        table=table,
        keys=keys,
        keys_taken=keys_taken,
        encoder=encoder,
        image_source=sources.pop() if len(sources) == 1 else "",
        failures={key: reason for state in kept for key, reason in state.failures.items()},
        states=None if isinstance(keys, KeySequence) or not files else states,
    )


def _name(source: str | Path | np.ndarray) -> str:
    """Default name of the encoder."""
    if isinstance(source, np.ndarray):
        return "array"
    path = Path(os.path.abspath(source))
    return path.name if path.is_dir() else path.stem


def _open_part(path: Path, column: str | None) -> Part:
    suffix = path.suffix.lower()
    if suffix == PARQUET:
        return ParquetPart(ParquetFile(path), column)
    if suffix == ".safetensors":
        return open_safetensors(path, column)
    if column is not None:
        raise CacheError(f"{path} holds one array and no columns; leave --embedding-column out")
    return open_npy(path)


def _check_equal(parts: list[Part]) -> None:
    """Raise `CacheError` unless all parts have rows of one length and type."""
    first = parts[0]
    for part in parts:
        if part.dim != first.dim:
            raise CacheError(
                f"{part.name} holds rows of {part.dim} numbers, {first.name} of {first.dim}; expected one length: "
                "correct the part, or move it away"
            )
        if part.dtype.itemsize != first.dtype.itemsize:
            raise CacheError(
                f"{part.name} holds {part.dtype}, {first.name} {first.dtype}; expected one type: convert the part, or "
                "move it away"
            )


def _tables(files: list[PartFiles], parts: list[Part]) -> list[ParquetFile]:
    """Parquet files with the columns of the parts, one for each; none if the parts have no columns."""
    if parts and isinstance(parts[0], ParquetPart):
        return [part.file for part in parts if isinstance(part, ParquetPart)]
    tables = [ParquetFile(file.metadata) for file in files if file.metadata is not None]
    for part, table in zip(parts, tables, strict=False):
        if part.rows != table.rows:
            raise CacheError(
                f"{part.name} has {part.rows} rows, its metadata {table.path} {table.rows}; expected one row of "
                "metadata for each: correct one of them"
            )
    return tables


def _key_source(options: ImportOptions, tables: list[ParquetFile]) -> tuple[KeySource | None, str]:
    if isinstance(options.keys, str | Path):
        key_file = KeyFile(Path(options.keys))
        return key_file, key_file.name
    if options.keys is not None:
        return KeySequence(options.keys), KeySequence.name
    if options.row_numbers:
        return None, ROW_NUMBERS
    if not tables:
        if options.key_column is not None:
            raise CacheError(f"there is no metadata with a column {options.key_column!r}; name it with --metadata")
        return None, f"{ROW_NUMBERS} (there is no metadata)"
    column = tables[0].key_column(options.key_column)
    if column is None:
        reason = f"no column of {tables[0].path.name} is called {', '.join(KEY_NAMES)}"
        return None, f"{ROW_NUMBERS} ({reason}: it has {', '.join(tables[0].columns)})"
    for table in tables:
        table.key_column(column)
    return KeyColumn(tables, column), f"column {column!r}"


def _exported(parts: list[Part]) -> list[ExportedState]:
    """State of each part that is an export of pucache; raises `CacheError` if parts are of different encoders."""
    tables = [part.file for part in parts if isinstance(part, ParquetPart)]
    encoders = {"" if table.exported is None else table.exported.encoder: table.path for table in tables}
    if len(encoders) > 1:
        (one, first), (_, second) = list(encoders.items())[:2]
        plain = "" if one and all(encoders) else " (or one of them is no export)"
        raise CacheError(f"{first} and {second} are exports of different encoders{plain}; import them one by one")
    return [table.exported for table in tables if table.exported is not None]


def _encoder(
    exported: list[ExportedState], options: ImportOptions, table: RowTable, origin: str, default_name: str
) -> EncoderSpec:
    if exported and options.name is None:
        try:
            spec = EncoderSpec.from_json(exported[0].encoder)
        except (ValueError, TypeError, RecursionError) as error:
            raise CacheError(f"{table.parts[0].name} has an encoder that cannot be read; pass --name") from error
        if spec.dim != table.dim:
            raise CacheError(
                f"{table.parts[0].name} holds rows of {table.dim} numbers, its encoder gives {spec.dim}; pass --name"
            )
    else:
        spec = replace(EncoderSpec.imported(options.name or default_name, table.dim), origin=origin)
    return replace(spec, normalization="l2") if options.normalize else spec
