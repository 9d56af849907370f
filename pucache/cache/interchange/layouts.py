"""Folders of embeddings as other programs write them: which files are parts, in which order, and their metadata.

clip-retrieval writes ``img_emb/img_emb_0.npy`` with ``metadata/metadata_0.parquet``; embedding-reader
reads a folder of arrays with or without a folder of Parquet files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ...errors import CacheError
from ...storage.urls import is_url, without_secrets

ARRAYS = (".npy", ".safetensors")
PARQUET = ".parquet"
_EMBEDDING_FOLDERS = ("img_emb", "text_emb")  # of clip-retrieval; the first that exists is taken
_METADATA_FOLDER = "metadata"


@dataclass(frozen=True)
class PartFiles:
    """Files of one part.

    Attributes
    ----------
    embeddings : Path
    metadata : Path or None
        Parquet file with one row for each embedding.
    """

    embeddings: Path
    metadata: Path | None = None


def find_part_files(source: str | Path, metadata: str | Path | None = None) -> list[PartFiles]:
    """List the parts of a source in order: by the numbers in their names, so that 2 comes before 10.

    Parameters
    ----------
    source : str or path
        A file, a folder of ``.npy``, ``.safetensors`` or ``.parquet`` files, or a folder with ``img_emb``
        or ``text_emb`` in it.
    metadata : str or path, optional
        Parquet file, or folder of them. By default those in the folder itself, in ``metadata`` in it, or in
        ``metadata`` beside it.

    Returns
    -------
    list of PartFiles

    Raises
    ------
    CacheError
        There is no such file, no part in the folder, or metadata and parts do not pair up.
    """
    if is_url(source):
        raise CacheError(
            f"{without_secrets(str(source))} is a URL; expected a file or folder of this machine: fetch it first"
        )
    source, metadata = Path(source), None if metadata is None else Path(metadata)
    if not source.exists():
        raise CacheError(f"no such file: {source}")
    folder, parts = (source, [source]) if source.is_file() else _parts_of(source)
    if metadata is not None:
        if parts[0].suffix.lower() == PARQUET:
            raise CacheError(f"{parts[0]} is Parquet and has its own columns; leave the metadata {metadata} out")
        return _paired(parts, _metadata_files(metadata))
    if parts[0].suffix.lower() == PARQUET or source.is_file():
        return [PartFiles(path) for path in parts]
    for candidate in (folder, folder / _METADATA_FOLDER, folder.parent / _METADATA_FOLDER):
        if tables := _files(candidate, [PARQUET]):
            return _paired(parts, tables)
    return [PartFiles(path) for path in parts]


def _parts_of(source: Path) -> tuple[Path, list[Path]]:
    """The folder that holds the parts, and the parts; all of one kind."""
    folder = source
    if not _files(source, [*ARRAYS, PARQUET]):
        folder = next((source / name for name in _EMBEDDING_FOLDERS if (source / name).is_dir()), source)
    arrays = _files(folder, ARRAYS)
    if other := next((path for path in arrays if path.suffix.lower() != arrays[0].suffix.lower()), None):
        raise CacheError(
            f"{folder} holds both {arrays[0].name} and {other.name}; expected one kind of file: name one of them, or "
            "move one kind elsewhere"
        )
    parts = arrays or _files(folder, [PARQUET])
    if not parts:
        raise CacheError(f"no embeddings in folder {folder}; expected {', '.join(ARRAYS)} or {PARQUET} files")
    return folder, parts


def _metadata_files(metadata: Path) -> list[Path]:
    files = [metadata] if metadata.is_file() else _files(metadata, [PARQUET])
    if not files:
        raise CacheError(f"no metadata at {metadata}; expected a Parquet file, or a folder of .parquet files")
    return files


def _files(folder: Path, suffixes: Iterable[str]) -> list[Path]:
    """Files with one of the endings, in natural order; none if there is no such folder."""
    if not folder.is_dir():
        return []
    return sorted(
        (
            path
            for path in folder.iterdir()
            if path.suffix.lower() in suffixes and path.is_file() and not path.name.startswith(".")
        ),
        key=natural_key,
    )


def natural_key(path: Path) -> tuple[list[str | int], str]:
    """Sort key of a file name in which numbers count as numbers."""
    pieces = re.split(r"([0-9]+)", path.stem)
    return [int(piece) if number % 2 else piece for number, piece in enumerate(pieces)], path.name


def _paired(parts: list[Path], tables: list[Path]) -> list[PartFiles]:
    """Pair parts and tables by the last number in their names, or else by the whole name."""
    if len(parts) == len(tables) == 1:
        return [PartFiles(parts[0], tables[0])]
    named = _by_number(parts), _by_number(tables)
    if any(len(names) < len(files) for names, files in zip(named, (parts, tables), strict=True)):
        named = {path.stem: path for path in parts}, {path.stem: path for path in tables}
    by_part, by_table = named
    for name in [*by_part, *by_table]:
        if name not in by_table:
            raise CacheError(f"{by_part[name]} has no metadata in {tables[0].parent}; restore it, or move that part")
        if name not in by_part:
            raise CacheError(
                f"{by_table[name]} has no embeddings in {parts[0].parent}; restore them, or move the file away"
            )
    return [PartFiles(path, by_table[name]) for name, path in by_part.items()]


def _by_number(paths: list[Path]) -> dict[int | str, Path]:
    """Paths by the last number in the name; by the name where it has none."""
    numbers = ((re.findall("[0-9]+", path.stem), path) for path in paths)
    return {int(digits[-1]) if digits else path.stem: path for digits, path in numbers}
