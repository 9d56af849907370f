"""The verb `import_embeddings`: embeddings that another program made, as one cache file.

All keys are read first. Then each block of consecutive rows becomes a part of the cache, sorted by key, and the parts
are merged, as `embed` does it. An import that was interrupted begins again.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..encoders.spec import EncoderSpec
from ..errors import CacheError, OutputError
from ..progress import Progress, Silent
from ..storage.atomic import check_writable
from ..storage.file_kinds import CACHE
from ..storage.outputs import check_output
from ..storage.rows import rows_not_finite
from ..storage.tables import LabelTable
from ..threads import prefetch
from .embedding_cache import EmbeddingCache
from .import_files import Columns
from .import_sources import ImportOptions, ImportSource
from .keys import decode_text
from .layout import DTYPES
from .merging import check_replaces, merge, without_embedded
from .parts import Parts, part_files, parts_folder, writer_lock
from .writer import Rows

BLOCK_BYTES = 32 << 20  # of embeddings in a part


@dataclass(frozen=True)
class ImportReport:
    """Result of an import.

    Attributes
    ----------
    cache : Path
    rows, parts : int
    dtype : str
        Type of the stored embeddings, "float16" or "float32".
    encoder : EncoderSpec
        Name, length, normalisation and origin of the embeddings.
    keys : str
        What was taken as keys, such as ``column 'image_path'``.
    left_out : int
        Rows that cannot be stored, which are among the failures.
    """

    cache: Path
    rows: int
    parts: int
    dtype: str
    encoder: EncoderSpec
    keys: str
    left_out: int = 0


def import_embeddings(
    source: str | Path | np.ndarray,
    out: str | Path,
    keys: str | Path | LabelTable | Sequence[str] | None = None,
    *,
    key_column: str | None = None,
    row_numbers: bool = False,
    embedding_column: str | None = None,
    metadata: str | Path | None = None,
    name: str | None = None,
    dtype: str | None = None,
    normalize: bool = False,
    skip_invalid: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> ImportReport:
    """Write embeddings that were computed elsewhere, of any modality, as a cache file.

    Memory holds all keys, 20 bytes of each row, and a few blocks of 32 MB. Until it ends its work lies in
    ``OUT.parts/``; a run that was killed begins again.

    Parameters
    ----------
    source : path, str or ndarray of float, (n, d)
        A ``.npy``, ``.safetensors`` or ``.parquet`` file, or a folder of them in the order of the numbers in their
        names: also the folder that clip-retrieval writes (``img_emb``, ``metadata``). Or an array, or what numpy
        makes one of: a tensor, a DataFrame, whose index stands for `keys` unless it is 0 to n - 1.
    out : path or str
        The file to write.
    keys : path, LabelTable, or sequence of str or int, optional
        One for each row, unique, in any order: the rows are sorted by them, and labels by position are refused where
        that changed their order. A path: a text file, or a CSV with a ``key`` column.
    key_column : str, optional
        Column of the metadata, or of the Parquet file, to take as keys: text or integers. Default: the first
        of ``key``, ``image_path``, ``path``, ``file_name``, ``filename``, ``url``, ``id``, ``image_id``, ``uid``
        that exists; without any, `row_numbers`.
    row_numbers : bool
        Take the numbers of the rows over all parts as keys, as ten digits: ``0000000000``.
    embedding_column : str, optional
        List column of a Parquet file, or tensor of a ``.safetensors`` file. Default: ``embedding`` and other usual
        names, or the only one that fits.
    metadata : path or str, optional
        Parquet file or folder of them, one for each ``.npy`` or ``.safetensors`` file, matched by the last number in
        the names. Default: those in `source`, or in a folder ``metadata`` in it or beside it.
    name : str, optional
        Name of the encoder; default: the name of the file or folder, and ``array`` for an array. What `export`
        wrote keeps its encoder unless a name is passed.
    dtype : {"float16", "float32"}, optional
        Type of the stored embeddings; default: float16 if the source has it, else float32.
    normalize : bool
        Scale each row to length 1. The encoder then states it, and differs from that of rows as they were.
    skip_invalid : bool
        Record rows that cannot be stored (missing, of another length, NaN, infinity, overflow, zeros to normalize,
        without a valid key) among the failures, and import the others. By default the first of them ends the import.
    force : bool
        Replace a file at `out` that is no cache of this encoder, or that holds keys which the new one lacks.
    progress : Progress, optional

    Returns
    -------
    ImportReport

    Raises
    ------
    CacheError
        A part cannot be read, or has another length or type of rows than the first; metadata and rows disagree; a row
        holds NaN or infinity, or all do; a key occurs twice; there is no such column.
    LabelError
        The file of keys is no text, or has no column ``key``.
    SourceError
        A file is gone, or changed while it was read.
    OutputError
        `out` cannot be written, or would lose keys.
    CacheLockedError
        Another process writes `out`.
    """
    if not isinstance(out, str | os.PathLike):
        raise ValueError(f"expected a path or URL, got {type(out).__name__}: import_embeddings(X, 'cache.h5', keys)")
    out = check_writable(out)
    options = ImportOptions(
        keys, key_column, row_numbers, embedding_column, metadata, name, dtype, normalize, skip_invalid
    )
    opened = ImportSource(source, options)
    check_output(out, CACHE, inputs=[state.path for state in opened.states], force=force)
    stored = DTYPES[dtype or ("float16" if opened.inputs[0].dtype == np.float16 else "float32")]
    with writer_lock(out), progress or Silent() as progress:
        progress.start(opened.rows, "keys")
        row_keys = opened.read_keys(progress)
        sorted_keys = _sorted_unique(row_keys, opened)
        check_replaces(out, opened.encoder, sorted_keys, force=force)
        failures = without_embedded(opened.failures, [sorted_keys])
        reordered = opened.reordered or not (opened.is_export or sorted_keys is row_keys)
        del sorted_keys
        parts = _new_parts(out, opened, stored)
        try:
            progress.start(opened.rows, "rows")
            left_out = _write_parts(parts, opened, row_keys, options, progress)
            del row_keys
            progress.start(opened.rows, "merging")
            merge(
                out,
                [(part, np.arange(len(part))) for part in parts.files],
                encoder=opened.encoder,
                dtype=stored,
                source=opened.image_source,
                failures=failures | left_out,
                reordered=reordered,
                advance=progress.advance,
            )
        finally:
            parts.remove()
    return ImportReport(
        cache=out,
        rows=opened.rows - len(left_out),
        left_out=len(left_out),
        parts=len(opened.inputs),
        dtype=str(stored),
        encoder=opened.encoder,
        keys=opened.keys,
    )


def _sorted_unique(keys: np.ndarray, opened: ImportSource) -> np.ndarray:
    """Sort keys, without empty ones; raises `CacheError` with both rows of one that is given twice."""
    if keys[0] != b"" and np.all(keys[1:] > keys[:-1]):
        return keys
    order = np.argsort(keys, kind="stable")[np.count_nonzero(keys == b"") :]
    ordered = keys[order]
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(same):
        first, second = (opened.position(int(row)) for row in order[same[0] : same[0] + 2])
        raise CacheError(
            f"the key {decode_text(bytes(ordered[same[0]]))!r} is given twice ({first} and {second}); keys must be "
            "unique: correct them, name another --key-column, or number the rows: row_numbers=True in Python"
        )
    return ordered


def _new_parts(out: Path, opened: ImportSource, stored: np.dtype) -> Parts:
    """A folder for the parts; those of an import that was killed are removed, unfinished work of `embed` is refused."""
    if any(not re.fullmatch(r"part-\w+-[0-9]+", path.stem) for path in part_files(out)):
        problem = f"{parts_folder(out)} holds unfinished work of embed"
        raise OutputError(f"{problem}; finish it with that command, or remove the folder")
    shutil.rmtree(parts_folder(out), ignore_errors=True)
    return Parts(out, opened.encoder, stored)


def _write_parts(
    parts: Parts, opened: ImportSource, keys: np.ndarray, options: ImportOptions, progress: Progress
) -> dict[str, str]:
    """Write each block as a part, while the next one is read; returns why rows were left out, by key.

    Raises `CacheError` where no row can be stored.
    """
    left_out: dict[str, str] = {}
    with closing(prefetch(_blocks(opened, keys, parts.dtype, options, left_out))) as ahead:
        for number, rows in enumerate(ahead):
            if len(rows.keys):
                parts.add(rows, {}, opened.image_source, name=f"import-{number:012d}")
            progress.advance(len(rows.keys))
    if not parts.files:
        raise CacheError(f"no row can be stored ({next(iter(left_out.values()))})")
    return left_out


def _blocks(
    opened: ImportSource, keys: np.ndarray, stored: np.dtype, options: ImportOptions, left_out: dict[str, str]
) -> Iterator[Rows]:
    """Yield blocks sorted by key; `keys` are in row order.

    A row that cannot be stored raises `CacheError`, or is entered into `left_out` where the options say so.
    """
    step, first = max(1, BLOCK_BYTES // (opened.inputs[0].dim * opened.inputs[0].dtype.itemsize)), 0
    for each in opened.inputs:
        for columns in each.blocks(step):
            of_block = keys[first : first + len(columns.X)]
            with np.errstate(all="ignore"):  # what cannot be stored is not finite
                values = np.ascontiguousarray(_normalized(columns.X) if options.normalize else columns.X, stored)
            wrong = np.union1d(rows_not_finite(values), np.flatnonzero(of_block == b""))
            for row in wrong.tolist():
                where, key = opened.position(first + row), decode_text(bytes(of_block[row]))
                problem, remedy = _problem(columns, row, stored, opened.keys if not key else "")
                if not options.skip_invalid:
                    record = "record such rows as failures: --skip-invalid"
                    raise CacheError(f"{where} ({key!r}) {problem}; {remedy}, or {record}")
                left_out[key or where] = f"{where} {problem}"
            kept = np.delete(np.arange(len(values)), wrong)
            order = kept[np.argsort(of_block[kept], kind="stable")]
            if np.array_equal(order, np.arange(len(values))):
                yield Rows(of_block, values, columns.digests, columns.size_mtime)
            else:
                yield Rows(of_block[order], values[order], columns.digests[order], columns.size_mtime[order])
            first += len(values)


def _problem(columns: Columns, row: int, stored: np.dtype, lacks_key: str) -> tuple[str, str]:
    """Why a row cannot be stored, and a remedy; `lacks_key` says in which keys it has none.

    Zeros can be stored, unless they are normalized.
    """
    if row in columns.problems:
        return columns.problems[row], "correct it"
    if lacks_key:
        return f"has no valid key in {lacks_key}", "correct it"
    values = columns.X[row]
    if not values.any():
        return "is all zeros and has no direction to normalize", "correct it"
    fits_wider = stored == np.float16 and bool(np.isfinite(values).all())
    return f"is NaN, infinite or overflows {stored}", "pass dtype='float32'" if fits_wider else "correct it"


def _normalized(X: np.ndarray) -> np.ndarray:
    """Rows at length 1, in float32 or wider; a row without a direction becomes NaN."""
    X = X.astype(np.float64) if X.dtype.itemsize > 8 else X  # einsum does not narrow
    norms = np.sqrt(np.einsum("ij,ij->i", X, X, dtype=np.float64))
    scaled = X.astype(np.float32 if X.dtype.itemsize < 8 else np.float64)
    divisors = norms.astype(scaled.dtype)
    divisors[~np.isfinite(divisors)] = np.nan  # finite values over an infinite norm would be zeros
    return np.divide(scaled, divisors[:, None], out=scaled)


# --- rows in memory -----------------------------------------------------------------------------


def are_rows(given: Any) -> bool:
    """Whether an object is a matrix of rows: an array, a tensor, a table, or a list of lists of numbers."""
    if isinstance(given, list | tuple):
        return bool(given) and isinstance(given[0], list | tuple | np.ndarray)
    return len(getattr(given, "shape", ())) == 2


def cache_of_rows(rows: Any, encoder: EncoderSpec | None) -> EmbeddingCache:
    """A cache of rows that an encoder is said to have made, None: of no known one.

    Keys are the index of a table, or the numbers of the rows as ten digits. Raises `CacheError` as
    `pucache.import_embeddings`, and for rows of another length than the encoder's.
    """
    folder = Path(tempfile.mkdtemp(prefix="pucache-rows-"))
    try:
        path = folder / "rows.h5"
        import_embeddings(rows, path)
        if encoder is not None:
            imported = EmbeddingCache(path)
            if imported.encoder.dim != encoder.dim:
                raise CacheError(f"expected rows of {encoder.dim} numbers, of {encoder}; got {imported.encoder.dim}")
            (file,), path = imported.files, folder / "of_encoder.h5"
            merge(path, [(file, np.arange(len(file)))], encoder=encoder, dtype=file.dtype, source="", failures={})
        cache = EmbeddingCache(path)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(cache, shutil.rmtree, folder, ignore_errors=True)
    return cache
