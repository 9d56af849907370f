"""The verb `export`: a cache as one Parquet file, from which `import_embeddings` makes the same cache again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...encoders.spec import EncoderSpec
from ...progress import Progress, Silent
from ...storage.atomic import check_writable
from ...storage.urls import is_url
from ..destination import atomic_output, open_destination
from ..embedding_cache import CacheLike, EmbeddingCache, open_cache
from ..keys import decode_texts
from ..reader import CacheFile
from .parquet_files import EXTRA, METADATA, ExportedState, pyarrow

_GROUP_BYTES = 64 << 20  # of embeddings in a row group


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


def export(cache: CacheLike, out: str | Path, *, progress: Progress | None = None) -> ExportReport:
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
    MissingExtraError
        pyarrow is not installed.
    OutputError
        `out` cannot be written.
    """
    check_export(out)
    opened = open_cache(cache)
    if not is_url(out):
        check_writable(out, inputs=[file.path for file in opened.files])
    with progress or Silent() as progress, atomic_output(out) as temporary:
        progress.start(len(opened), "rows")
        _write(temporary, opened, progress)
    return ExportReport(os.fspath(out), len(opened), str(opened.files[0].dtype), opened.encoder)


def check_export(out: str | Path) -> None:
    """Check, before any work, that `out` can be written; raises as `export` does."""
    if os.path.splitext(out)[1].lower() != ".parquet":
        raise ValueError(f"{out} must end in .parquet")
    pyarrow()
    open_destination(out).check_writable()


def _write(path: Path, cache: EmbeddingCache, progress: Progress) -> None:
    arrow = pyarrow()
    schema = _schema(cache)
    with arrow.parquet.ParquetWriter(
        path,
        schema,
        compression={
            "key": "zstd",
            "digest": "none",
            "size": "zstd",
            "mtime_ns": "zstd",
            "embedding.list.element": "none",
        },
        use_dictionary=False,  # keys are unique, and numbers rarely repeat
        write_statistics=["key"],
        write_page_checksum=True,
    ) as writer:
        for file in cache.files:
            for batch in _batches(file, schema):
                writer.write_batch(batch, row_group_size=len(batch))
                progress.advance(len(batch))


def _schema(cache: EmbeddingCache) -> Any:
    arrow = pyarrow()
    value = arrow.float16() if cache.files[0].dtype == np.float16 else arrow.float32()
    sources = {file.source for file in cache.files}
    state = ExportedState(
        encoder=cache.encoder.to_json(),
        source=sources.pop() if len(sources) == 1 else "",
        failures=_failures(cache),
    )
    types = {
        "key": arrow.string(),
        "embedding": arrow.list_(arrow.field("element", value, nullable=False), cache.encoder.dim),
        **dict(zip(EXTRA, (arrow.binary(32), arrow.int64(), arrow.int64()), strict=True)),
    }
    fields = [arrow.field(name, kind, nullable=False) for name, kind in types.items()]
    return arrow.schema(fields, metadata={METADATA: state.to_json().encode()})


def _failures(cache: EmbeddingCache) -> dict[str, str]:
    """Failures whose key has no row in another file."""
    failures = cache.failures
    if not failures or len(cache.files) == 1:
        return failures
    rows = cache.keys.rows(list(failures))
    return {key: reason for (key, reason), row in zip(failures.items(), rows.tolist(), strict=True) if row < 0}


def _batches(file: CacheFile, schema: Any) -> Iterator[Any]:
    """Read a file in batches of about `_GROUP_BYTES`; damage raises `CacheError`."""
    arrow = pyarrow()
    file.check("keys", "digests", "size_mtime")
    waiting: list[np.ndarray] = []
    start = 0
    for rows, X in file.blocks(check=True):
        waiting.append(X.copy())  # the block is valid until the next one is read
        stop = rows.stop
        if sum(map(len, waiting)) * X.itemsize * X.shape[1] < _GROUP_BYTES and stop < len(file):
            continue
        numbers = np.arange(start, stop)
        digests, size_mtime = file.take("digests", numbers), file.take("size_mtime", numbers)
        values = arrow.array(np.concatenate(waiting).reshape(-1))
        yield arrow.RecordBatch.from_arrays(
            [
                arrow.array(decode_texts(file.take("keys", numbers).tolist()), arrow.string()),
                arrow.FixedSizeListArray.from_arrays(values, type=schema.field("embedding").type),
                arrow.Array.from_buffers(arrow.binary(32), len(digests), [None, arrow.py_buffer(digests)]),
                arrow.array(size_mtime[:, 0]),
                arrow.array(size_mtime[:, 1]),
            ],
            schema=schema,
        )
        waiting, start = [], stop
