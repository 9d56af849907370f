"""The verb `import_embeddings`: embeddings that another program made, as one cache file.

First the keys are read and sorted on disk, then rows are written in key order, in place, with a
checkpoint after each segment. Memory holds neither the keys nor the rows.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ...encoders.spec import EncoderSpec
from ...errors import CacheError, OutputError, one_line
from ...progress import Progress, Silent
from ...storage.atomic import check_writable, make_folder, replacing
from ...version import __version__
from ..keys import decode_text, encode_keys, find_sorted
from ..layout import DTYPES
from ..paths import writer_lock
from .key_order import DuplicateKeyError, KeyOrder, RowNumbers, SortedKeys, sort_keys
from .key_sources import checked_keys
from .parts import SourceLostError
from .resumable_file import FileContent, ResumableFile
from .row_blocks import OrderedRows, RowTable, spill
from .sources import ImportOptions, OpenedSource, open_import

_KEYS_PER_STEP = 1 << 18
_PLAN = "plan.json"


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
    resumed_rows : int
        Rows that an earlier, interrupted run had written already.
    """

    cache: Path
    rows: int
    parts: int
    dtype: str
    encoder: EncoderSpec
    keys: str
    resumed_rows: int


def import_embeddings(
    source: str | Path | np.ndarray,
    out: str | Path,
    *,
    keys: str | Path | Sequence[str] | None = None,
    key_column: str | None = None,
    row_numbers: bool = False,
    embedding_column: str | None = None,
    metadata: str | Path | None = None,
    name: str | None = None,
    dtype: str | None = None,
    normalize: bool = False,
    progress: Progress | None = None,
) -> ImportReport:
    """Write embeddings that were computed elsewhere, of any modality, as a cache file.

    Needs less than 500 MB of memory for any number of rows. A run that was interrupted goes on where it was when
    it is started again with the same arguments, and ends in the same bytes. Until then its work lies in
    ``OUT.import/``.

    Parameters
    ----------
    source : path, str or ndarray of float, (n, d)
        A ``.npy``, ``.safetensors`` or ``.parquet`` file, or a folder of them in the order of the numbers in their
        names: also the folder that clip-retrieval writes (``img_emb``, ``metadata``). Or an array.
    out : path or str
        The file to write.
    keys : path, str or sequence of str, optional
        One for each row, unique, in any order. A path: a text file, or a CSV with a ``key`` column.
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
    progress : Progress, optional

    Returns
    -------
    ImportReport

    Raises
    ------
    CacheError
        A part cannot be read, or has another length or type of rows than the first; metadata and rows disagree; a row
        holds NaN or infinity; a key occurs twice; there is no such column.
    LabelError
        The file of keys cannot be read.
    MissingExtraError
        A file is Parquet, and pyarrow is not installed.
    OutputError
        `out` cannot be written.
    CacheLockedError
        Another process writes `out`.
    """
    out = check_writable(out)
    options = ImportOptions(keys, key_column, row_numbers, embedding_column, metadata, name, dtype, normalize)
    opened = open_import(source, options)
    _check_not_input(out, opened)
    with writer_lock(out), _work_folder(out, _plan(opened, options)) as folder, progress or Silent() as progress:
        order = _key_order(opened, folder, progress)
        rows = OrderedRows(_readable(opened.table, order, folder), order, _stored(opened, options), normalize)
        content = FileContent(
            encoder=opened.encoder,
            source=opened.image_source,
            failures=_failures(opened, order),
            n=len(order),
            key_bytes=order.width,
            dtype=rows.stored,
        )
        resumed = _write(out, folder, content, rows, progress)
    return ImportReport(
        cache=out,
        rows=len(order),
        parts=len(opened.table.parts),
        dtype=str(rows.stored),
        encoder=opened.encoder,
        keys=opened.keys_taken,
        resumed_rows=resumed,
    )


def _check_not_input(out: Path, opened: OpenedSource) -> None:
    check_writable(out, inputs=[state.path for state in opened.states or []])


def _stored(opened: OpenedSource, options: ImportOptions) -> np.dtype:
    return DTYPES[options.dtype or ("float16" if opened.table.dtype == np.float16 else "float32")]


def _plan(opened: OpenedSource, options: ImportOptions) -> str | None:
    """Text that is the same for two runs only if they read the same files in the same way; None: cannot go on."""
    if opened.states is None:
        return None
    chosen = {name: value if value is None else str(value) for name, value in asdict(options).items()}
    files = [[str(state.path.absolute()), state.size, state.mtime_ns] for state in opened.states]
    content = {"pucache": __version__, "options": chosen, "files": files, "encoder": opened.encoder.to_json()}
    return json.dumps(content, sort_keys=True)


@contextmanager
def _work_folder(out: Path, plan: str | None) -> Iterator[Path]:
    """Folder of an unfinished import; one of another plan is removed first.

    It stays where the same command may go on: after a kill, a lost source or a full disk.
    """
    folder = out.with_name(out.name + ".import")
    recorded = folder / _PLAN
    try:
        if plan is None or not recorded.is_file() or recorded.read_text() != plan:
            _remove(folder)
            make_folder(folder)
            if plan is not None:
                with replacing(recorded) as temporary:
                    temporary.write_text(plan)
        yield folder
        _remove(folder)
    except (SourceLostError, OutputError):
        raise
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {one_line(error)}; run the same command to go on") from error
    except Exception:
        _remove(folder)
        raise


def _remove(folder: Path) -> None:
    """Remove a work folder, the plan first: without it, what a kill leaves of the rest is never taken up."""
    if folder.exists():
        (folder / _PLAN).unlink(missing_ok=True)
        shutil.rmtree(folder)


def _key_order(opened: OpenedSource, folder: Path, progress: Progress) -> KeyOrder:
    """Sort the keys, or take up the order that an earlier run left."""
    table = opened.table
    if opened.keys is None:
        return RowNumbers(len(table))
    recorded = folder / "keys.json"
    if recorded.is_file():
        described = json.loads(recorded.read_text())
        if (folder / described["path"]).is_file():
            return SortedKeys(**(described | {"path": folder / described["path"]}))
    progress.start(len(table), "keys")
    try:
        order = sort_keys(_counted(opened, progress), folder)
    except DuplicateKeyError as error:
        first, second = map(table.position, error.rows)
        raise CacheError(
            f"the key {decode_text(error.key)!r} is given twice ({first} and {second}); keys must be unique: correct "
            "them, name another column with --key-column, or pass --row-numbers"
        ) from error
    with replacing(recorded) as temporary:
        temporary.write_text(json.dumps(asdict(order) | {"path": order.path.name}))
    return order


def _counted(opened: OpenedSource, progress: Progress) -> Iterator[np.ndarray]:
    """Keys in blocks; raises `CacheError` at the end unless there is one for each row."""
    assert opened.keys is not None
    n, count = len(opened.table), 0
    for block in checked_keys(opened.keys):
        count += len(block)
        yield block
        progress.advance(len(block))
    if count != n:
        parts = opened.table.parts
        holder = f"{parts[0].name} has" if len(parts) == 1 else f"{len(parts)} parts have"
        number = "1 key" if count == 1 else f"{count} keys"
        raise CacheError(f"{holder} {n} rows, and {opened.keys.name} {number}; expected one key for each row")


def _readable(table: RowTable, order: KeyOrder, folder: Path) -> RowTable:
    """The rows in a form that can be read in key order: Parquet is copied first unless it is in that order."""
    if order.is_row_order or not table.sequential:
        return table
    return RowTable([spill(part, folder / f"rows-{number:06}") for number, part in enumerate(table.parts)])


def _failures(opened: OpenedSource, order: KeyOrder) -> dict[str, str]:
    """Failures of an export, sorted, without those whose key has a row in another part."""
    failures = dict(sorted(opened.failures.items()))
    if not failures or len(opened.table.parts) == 1:
        return failures
    keys = encode_keys(list(failures))
    embedded = np.zeros(len(keys), bool)
    for start in range(0, len(order), _KEYS_PER_STEP):
        embedded |= find_sorted(order.read(start, start + _KEYS_PER_STEP)[0], keys) >= 0
    return {key: reason for (key, reason), drop in zip(failures.items(), embedded, strict=True) if not drop}


def _write(out: Path, folder: Path, content: FileContent, rows: OrderedRows, progress: Progress) -> int:
    """Write what is missing of the cache file and publish it; returns how many rows were there."""
    file = ResumableFile(folder, content)
    resumed = file.rows_done
    progress.start(content.n, "rows")
    progress.advance(resumed)
    file.fill(rows.blocks, progress.advance)
    file.publish(out)
    return resumed
