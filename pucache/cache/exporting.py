"""The verb `export`: a cache as one Parquet file, from which `import_embeddings` makes the same cache again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from ..encoders.spec import EncoderSpec
from ..progress import Progress, Silent
from ..storage.file_kinds import EXPORT
from ..storage.urls import path_or_url
from .destination import atomic_output, open_destination
from .embedding_cache import CacheLike, EmbeddingCache, files_read, open_cache
from .import_files import EXTRA, METADATA
from .keys import decode_texts
from .merging import without_embedded
from .reader import CacheFile

GROUP_BYTES = 64 << 20  # of embeddings in a row group
_COMPRESSION = {"key": "zstd", "size": "zstd", "mtime_ns": "zstd", "digest": "none", "embedding.list.element": "none"}
Column = tuple[Any, Callable[[np.ndarray], Any]]  # pyarrow's field, and what gives the cells of some rows


@dataclass(frozen=True)
class ExportReport:
    """Result of an export.

    Attributes
    ----------
    out : str
    rows : int
    dtype : str
        Type of the embeddings, "float16" or "float32".
    encoder : EncoderSpec
    """

    out: str
    rows: int
    dtype: str
    encoder: EncoderSpec


def check_parquet(out: str | Path) -> None:
    """Raise `ValueError` unless a name ends in ``.parquet``."""
    if os.path.splitext(path_or_url(out))[1].lower() != ".parquet":
        raise ValueError(f"{out} must end in .parquet (a cache), or .onnx (a model)")


def export(
    cache: CacheLike,
    out: str | Path,
    *,
    columns: Sequence[Column] = (),
    progress: Progress | None = None,
) -> ExportReport:
    """Write a cache as a Parquet file.

    Columns: ``key`` (text), ``embedding`` (list of fixed size, float16 or float32, not compressed), ``digest`` (32
    bytes), ``size`` and ``mtime_ns`` (int64). The entry ``pucache`` of the schema's metadata holds encoder, source and
    failures as JSON. `import_embeddings` of the file gives the same rows, keys and encoder bit for bit.

    Parameters
    ----------
    cache : str, path, EmbeddingCache, or a sequence of these
        A cache file, a folder of them, or a URL of either; several are written in their order.
    out : path or str
        The file to write, which ends in ``.parquet``; a path or a URL.
    columns : sequence of (pyarrow.Field, callable), optional
        Further columns, such as `pucache.pages.thumbnails.thumbnail_column` gives; each is called with row numbers
        of the cache, and returns a pyarrow array.
    progress : Progress, optional

    Returns
    -------
    ExportReport

    Raises
    ------
    ValueError
        The name does not end in ``.parquet``.
    CacheError
        The cache cannot be read, or is damaged.
    OutputError
        `out` cannot be written.
    """
    check_parquet(out)
    out = path_or_url(out)
    opened = open_cache(cache)
    open_destination(out).check(EXPORT, inputs=files_read(opened))
    schema = _schema(opened)
    for field, _ in columns:
        schema = schema.append(field)
    with (
        progress or Silent() as progress,
        atomic_output(out) as temporary,
        pyarrow.parquet.ParquetWriter(
            temporary,
            schema,
            compression=_COMPRESSION,
            use_dictionary=False,  # keys are unique, and numbers rarely repeat
            write_statistics=["key"],
            write_page_checksum=True,
        ) as writer,
    ):
        progress.start(len(opened), "rows")
        first = 0
        for file in opened.files:
            for batch in _batches(file, schema, columns, first):
                writer.write_batch(batch, row_group_size=len(batch))
                progress.advance(len(batch))
            first += len(file)
    return ExportReport(os.fspath(out), len(opened), str(opened.files[0].dtype), opened.encoder)


def _schema(cache: EmbeddingCache) -> Any:
    value = pyarrow.float16() if cache.files[0].dtype == np.float16 else pyarrow.float32()
    sources = {file.source for file in cache.files}
    state = {
        "version": 1,
        "encoder": cache.encoder.to_json(),
        "source": sources.pop() if len(sources) == 1 else "",
        "failures": without_embedded(cache.failures | cache.partial, (file.raw_keys for file in cache.files)),
    }
    if cache.reordered:
        state["reordered"] = True
    types = {
        "key": pyarrow.string(),
        "embedding": pyarrow.list_(pyarrow.field("element", value, nullable=False), cache.encoder.dim),
        **dict(zip(EXTRA, (pyarrow.binary(32), pyarrow.int64(), pyarrow.int64()), strict=True)),
    }
    fields = [pyarrow.field(name, kind, nullable=False) for name, kind in types.items()]
    return pyarrow.schema(fields, metadata={METADATA: json.dumps(state, sort_keys=True).encode()})


def _batches(file: CacheFile, schema: Any, more: Sequence[Column], first: int) -> Iterator[Any]:
    """Read a file in batches of `GROUP_BYTES`; damage raises `CacheError`. Its rows begin at `first` in the cache."""
    file.check("keys", "digests", "size_mtime")
    n, dim = len(file), file.encoder.dim
    step = max(1, GROUP_BYTES // (dim * file.dtype.itemsize))
    with ThreadPoolExecutor(1) as pool, file.embedding_reader(pool) as read:
        for start in range(0, n, step):
            numbers = np.arange(start, min(start + step, n))
            X = np.empty((len(numbers), dim), file.dtype)
            read(X, start)()
            digests, size_mtime = file.take("digests", numbers), file.take("size_mtime", numbers)
            columns: list[Any] = [
                pyarrow.array(decode_texts(file.take("keys", numbers).tolist()), pyarrow.string()),
                pyarrow.FixedSizeListArray.from_arrays(X.reshape(-1), type=schema.field("embedding").type),
                pyarrow.Array.from_buffers(pyarrow.binary(32), len(digests), [None, pyarrow.py_buffer(digests)]),
                pyarrow.array(size_mtime[:, 0]),
                pyarrow.array(size_mtime[:, 1]),
                *(column(first + numbers) for _, column in more),
            ]
            yield pyarrow.RecordBatch.from_arrays(columns, schema=schema)
