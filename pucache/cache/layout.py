"""The layout that the cache format requires of a file: its attributes and datasets (docs/cache-format.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..encoders.spec import EncoderSpec
from ..errors import CacheError
from ..version import __version__
from .checksums import ChecksumTable, rows_per_hash
from .hdf5 import Attributes, DatasetExtent

FORMAT = "pucache"
VERSION, PARTS_VERSION = 2, 3  # of caches of whole images, and of parts of images
DTYPES: dict[str, np.dtype] = {"float16": np.dtype("<f2"), "float32": np.dtype("<f4")}
ATTRIBUTES = ("format", "version", "encoder", "created", "pucache_version", "source")
OPTIONAL_ATTRIBUTES = ("shard", "reordered")
COLUMNS = ("embeddings", "keys", "digests", "size_mtime")
FAILURES = ("failures/keys", "failures/reasons")
PARTIAL = "read in part: "  # begins the reason of an image that has a row, though not all of it was read
REMEDY = "restore it from a copy, or move it away and make it again"


@dataclass(frozen=True)
class FileAttributes:
    """Attributes of a cache file; `pucache.cache.cache_info.CacheFileInfo` explains them."""

    encoder: EncoderSpec
    created: str
    pucache_version: str
    source: str
    shard: str
    reordered: bool  # whether sorting by key changed the order that the rows had in an import or a table of images

    @classmethod
    def parse(cls, path: str | Path, attributes: Attributes) -> FileAttributes:
        """Check and parse attributes; `CacheError` for a file that is not pucache's, or of another format version."""
        version = attributes["version"]
        if attributes["format"] != FORMAT:
            raise CacheError(f"{path} is an HDF5 file but not a pucache cache (no format attribute 'pucache')")
        if version is not None and version not in (VERSION, PARTS_VERSION):
            raise CacheError(
                f"{path} is a pucache cache of format version {version}; this pucache {__version__} reads "
                f"versions {VERSION} and {PARTS_VERSION}: upgrade pucache, or embed again"
            )
        for name in ATTRIBUTES:
            require(path, attributes[name] is not None, f"it lacks the attribute {name}")
        try:
            encoder = EncoderSpec.from_json(str(attributes["encoder"]))
        except (ValueError, TypeError, RecursionError) as error:
            raise CacheError(f"{path} is damaged: its encoder attribute cannot be read; {REMEDY}") from error
        require(path, version == version_of(encoder), f"its encoder is not one of format version {version}")
        return cls(
            encoder=encoder,
            created=str(attributes["created"]),
            pucache_version=str(attributes["pucache_version"]),
            source=str(attributes["source"]),
            shard=str(attributes["shard"] or ""),
            reordered=bool(attributes["reordered"]),
        )


def version_of(encoder: EncoderSpec) -> int:
    """Format version of a cache of an encoder."""
    return PARTS_VERSION if encoder.tiles else VERSION


def check_layout(path: str | Path, extents: dict[str, DatasetExtent], table: ChecksumTable, *, dim: int) -> None:
    """Raise `CacheError` unless the datasets have the shapes, types and positions that the format requires."""
    for name, extent in extents.items():
        _check_position(path, name, extent, table)
    texts = [(extents[name].dtype.kind, len(extents[name].shape)) for name in ("keys", *FAILURES)]
    require(path, texts == [("S", 1)] * 3, "keys or failures are not fixed-width text")
    n = extents["keys"].shape[0]
    dtype, shape = extents["embeddings"].dtype, extents["embeddings"].shape
    require(path, dtype in DTYPES.values(), f"embeddings are {dtype}, expected float16 or float32")
    require(path, shape == (n, dim), "embeddings have the wrong shape")
    for name, expected in {"digests": ((n, 32), np.dtype("u1")), "size_mtime": ((n, 2), np.dtype("<i8"))}.items():
        layout = (extents[name].shape, extents[name].dtype)
        require(path, layout == expected, f"{name} {'have' if name == 'digests' else 'has'} the wrong layout")
    require(path, extents[FAILURES[0]].shape == extents[FAILURES[1]].shape, "failures do not pair up")
    hashed_by_rows = all(table.columns[name].block == rows_per_hash(n) * extents[name].row_bytes for name in COLUMNS)
    require(path, n == 0 or hashed_by_rows, "its checksums are for another number of rows")


def _check_position(path: str | Path, name: str, extent: DatasetExtent, table: ChecksumTable) -> None:
    """Check that a dataset is contiguous, and that the checksum table covers exactly its bytes."""
    count = math.prod(extent.shape)
    require(path, count == 0 or extent.offset is not None, f"{name} is not contiguous")
    column = table.columns.get(name)
    expected = (extent.offset if count else 0, count * extent.dtype.itemsize)
    matches = column is not None and (column.offset, column.size) == expected
    require(path, matches, f"{name} is not where its checksums say")


def require(path: str | Path, condition: bool, problem: str) -> None:
    """Raise `CacheError` with the problem and the remedy unless the condition holds."""
    if not condition:
        raise CacheError(f"{path} is damaged: {problem}; {REMEDY}")


def damage_error(path: str | Path, datasets: list[str]) -> CacheError:
    """Return the error for datasets that differ from their checksums."""
    return CacheError(
        f"{path} is damaged: {', '.join(datasets)} are not as they were written; restore it from a copy, or "
        "make it again: embed --verify does so with the damaged rows alone"
    )
