"""Images inside Parquet files, as Hugging Face writes them: a struct of bytes and path, or a binary column."""

from __future__ import annotations

import json
import logging
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ImageError, SourceError, one_line
from ..storage.arrow import is_bytes, is_cell, open_parquet, texts
from ..storage.filesystem import object_info, object_stamp, open_filesystem, open_object
from ..storage.table_formats import require_exact
from .folders import size_mtime
from .listing import UNKNOWN, ListingBuilder, check_size, source_name
from .shards import ShardSource

EXTENSIONS = (".parquet", ".pq")
_IMAGE_NAMES = ("image", "img", "images", "jpg", "png", "webp", "picture", "photo", "image_bytes", "bytes")
_BATCH_BYTES = 8 << 20  # images that are read together
_MOST_ROWS = 1024
_KEPT_BYTES = 256 << 20  # of the latest batches
_ROWS = 40  # bits of a member that number the row; those above number the file

log = logging.getLogger("pucache")


@dataclass
class _File:
    """A Parquet file: the column of the images' bytes, and its row groups."""

    path: str
    stamp: str
    column: str
    ends: np.ndarray  # row after each row group
    batch_rows: list[int]  # of each row group
    hash: int


class ParquetSource(ShardSource):
    """Images inside a column of Parquet files, each row group of which is read forward.

    The key of an image is the ``path`` beside its bytes; where paths of a file are missing or repeated, the number of
    the row in the file, of nine digits; or the value of the column `key`, which must be unique in all files.
    """

    kind, sequential, is_table = "Parquet", True, True
    _unpickled = ("_lock", "_batches", "_reading")

    def __init__(self, where: str, *, key: str | None = None, image: str | None = None):
        super().__init__(where)
        self.name, self._key, self._image = source_name(where, key=key, image=image), key, image
        self._files: list[_File] = []

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._batches: OrderedDict[tuple[int, int, int], Any] = OrderedDict()  # file, group, number: bytes, or a reason
        self._reading: tuple[int, int, int, Iterator[Any]] | None = None  # file, group, next number, batches

    # --- listing ----------------------------------------------------------------------------------

    def _add_members(self, fs: Any, shard: str, key_prefix: str, builder: ListingBuilder) -> None:
        info = object_info(fs, shard) or {}
        with _opened(fs, shard) as file:
            column = _image_column(file.schema_arrow, self._image)
            groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
            at = _leaves(file).index(column)
            keys = self._keys(file, shard, key_prefix, column)
        means = [max(1, group.column(at).total_uncompressed_size // max(1, group.num_rows)) for group in groups]
        ends = np.cumsum([group.num_rows for group in groups], dtype=np.int64)
        batch_rows = [max(1, min(_MOST_ROWS, _BATCH_BYTES // mean)) for mean in means]
        hashed = zlib.crc32((key_prefix or "").encode())
        first = len(self._files) << _ROWS
        self._files.append(_File(shard, object_stamp(info), column, ends, batch_rows, hashed))
        _, mtime = size_mtime(info)
        failed = 0
        for row, key in enumerate(keys):
            if key and key not in self._members:
                builder.add(key, UNKNOWN, mtime)
                self._members[key] = first + row
                continue
            problem = f"another row has the value {key!r} too" if key else "no value"
            builder.add_failure(f"row {row} of {shard}", f"{problem} in the column {self._key!r}")
            failed += 1
            if 2 * failed > len(keys):
                where = f"in the column {self._key!r}, row {row}"
                raise SourceError(f"{shard}: {problem} {where}; name a column of unique keys")

    def _keys(self, file: Any, shard: str, key_prefix: str, column: str) -> Sequence[str | None]:
        """Key of each row; raises `ImageError` where the column of keys does not fit."""
        rows = file.metadata.num_rows
        if self._key is not None and self._key == column:
            raise ImageError(f"has bytes in the column {self._key!r}; expected text or numbers")
        if self._key is not None:
            keys = _texts(file, self._key)
            require_exact(keys, f"the column {self._key!r} of {shard}")
            return keys
        path = column.rpartition(".")[0] + ".path"
        if column.endswith(".bytes") and path in _leaves(file):
            paths = _texts(file, path)
            if all(paths) and len(set(paths)) == rows:
                return [key_prefix + name.removeprefix("./") for name in paths if name]
            if any(paths):
                log.warning("%s: paths are missing or repeated; its keys are the numbers of its rows", shard)
        return [f"{key_prefix}{row:09}" for row in range(rows)]

    def _group(self, member: int) -> int:
        file = self._files[member >> _ROWS]
        return file.hash + int(np.searchsorted(file.ends, member & ((1 << _ROWS) - 1), "right"))

    def files(self) -> list[str]:
        """Paths of the Parquet files, which are listed first."""
        self.index()
        return [file.path for file in self._files]

    def labels(self, column: str) -> Iterator[tuple[str, str]]:
        """Key and text of a column of each image, in the order of the files; classes of Hugging Face by their name.

        Raises `SourceError` where a file has no such column.
        """
        self.index()
        fs, _ = open_filesystem(self._where)
        texts: dict[int, list[str | None]] = {}
        for key, member in self._members.items():
            number, row = member >> _ROWS, member & ((1 << _ROWS) - 1)
            if number not in texts:
                path = self._files[number].path
                try:
                    with _opened(fs, path) as file:
                        texts = {number: _class_names(file, column, _texts(file, column))}
                except ImageError as error:
                    raise SourceError(f"{path} {error}") from error
                except Exception as error:  # every file system has exceptions of its own
                    raise SourceError(f"cannot read {path} as Parquet: {one_line(error)}") from error
            yield key, texts[number][row] or ""

    # --- reading ----------------------------------------------------------------------------------

    def _read(self, member: int) -> bytes:
        number, row = member >> _ROWS, member & ((1 << _ROWS) - 1)
        file = self._files[number]
        group = int(np.searchsorted(file.ends, row, "right"))
        row -= int(file.ends[group - 1]) if group else 0
        rows = file.batch_rows[group]
        with self._lock:
            batch = self._batch(number, group, row // rows)
        if isinstance(batch, str):
            raise ImageError(batch)
        value = batch[row % rows]
        if not value.is_valid:
            raise ImageError("the row holds no bytes of an image (null); a path alone is not followed")
        check_size(value.as_buffer().size)
        return value.as_buffer().to_pybytes()

    def _batch(self, number: int, group: int, batch: int) -> Any:
        """Bytes of some rows of a row group, or why they cannot be read; a row group is read forward, if it can be."""
        wanted = (number, group, batch)
        while wanted not in self._batches:
            if self._reading is None or self._reading[:2] != (number, group) or self._reading[2] > batch:
                self._reading = (number, group, 0, self._iterate(self._files[number], group))
            *_, at, batches = self._reading
            try:
                values = next(batches, "the row group ends before this row; restore the file from a copy")
            except Exception as error:  # damage makes pyarrow raise almost anything
                reason = f"row group {group} of the Parquet file cannot be read: {one_line(error)}"
                values = str(error) if isinstance(error, ImageError) else reason
            self._reading = (number, group, at + 1, batches)
            if isinstance(values, str):  # nor can those after it
                at, self._reading = batch, None
            self._batches[number, group, at] = values
            size = sum(each.nbytes for each in self._batches.values() if not isinstance(each, str))
            while len(self._batches) > 2 and size > _KEPT_BYTES:
                _, oldest = self._batches.popitem(last=False)
                size -= 0 if isinstance(oldest, str) else oldest.nbytes
        self._batches.move_to_end(wanted)
        return self._batches[wanted]

    def _iterate(self, file: _File, group: int) -> Iterator[Any]:
        fs, _ = open_filesystem(self._where)
        if object_stamp(object_info(fs, file.path)) != file.stamp:
            raise ImageError("the Parquet file has changed since it was listed; embed again")
        with _opened(fs, file.path) as opened:
            rows, left = file.batch_rows[group], opened.metadata.row_group(group).num_rows
            for batch in opened.iter_batches(rows, row_groups=[group], columns=[file.column], use_threads=False):
                values = batch.column(0)
                left -= len(values)
                if len(values) != rows and left:
                    raise ImageError(f"pyarrow read {len(values)} rows in place of {rows}")
                yield values.field("bytes") if file.column.endswith(".bytes") else values


@contextmanager
def _opened(fs: Any, path: str) -> Iterator[Any]:
    with open_object(fs, path) as stream, open_parquet(stream) as file:
        yield file


def _leaves(file: Any) -> list[str]:
    return [file.metadata.schema.column(at).path for at in range(len(file.metadata.schema))]


def _image_column(schema: Any, name: str | None) -> str:
    """Path of the column of the images' bytes; raises `ImageError` where there is none, or more than one."""
    fitting = _columns_of_bytes(schema)
    names = ", ".join(f"{field.name} ({str(field.type)[:40]})" for field in schema) or "none"
    if name is not None and name not in fitting:
        raise ImageError(f"has no column {name!r} of image bytes; its columns are {names}")
    usual = [each for each in _IMAGE_NAMES if each in fitting]
    chosen = name or (usual[0] if usual else next(iter(fitting), None) if len(fitting) == 1 else None)
    if chosen is None and fitting:
        raise ImageError(
            f"has several columns of bytes, {', '.join(fitting)}; name one: 'FILE#image={next(iter(fitting))}'"
        )
    if chosen is None:
        raise ImageError(f"has no column of image bytes (binary, or a struct with bytes); its columns are {names}")
    return fitting[chosen]


def _columns_of_bytes(schema: Any) -> dict[str, str]:
    """Path of the bytes of each column that may hold images, by its name."""
    fitting = {}
    for field in schema:
        kind = getattr(field.type, "storage_type", field.type)
        if is_bytes(kind):
            fitting[field.name] = field.name
        elif str(kind).startswith("struct") and any(
            kind.field(at).name == "bytes" and is_bytes(kind.field(at).type) for at in range(kind.num_fields)
        ):
            fitting[field.name] = f"{field.name}.bytes"
    return fitting


def may_hold_images(path: str) -> bool:
    """Whether a file of this machine has a column of bytes, or cannot be read as Parquet."""
    try:
        with _opened(*open_filesystem(path)) as file:
            return bool(_columns_of_bytes(file.schema_arrow))
    except Exception:  # its own listing reports it
        return True


def _texts(file: Any, column: str) -> list[str | None]:
    """Values of a column, or of a field such as ``image.path``, as text; raises `ImageError` where it has none."""
    if column not in _leaves(file):
        raise ImageError(f"has no column {column!r} of text or numbers; it has {', '.join(_leaves(file))}")
    cells: list[str | None] = []
    for batch in file.iter_batches(1 << 16, columns=[column], use_threads=False):
        values = batch.column(0)
        for name in column.split(".")[1:] if hasattr(values, "field") else []:
            values = values.field(name)
        if not is_cell(values.type):
            raise ImageError(f"has the column {column!r} of {values.type}; expected text or numbers")
        try:
            cells += texts(values)
        except ValueError as error:
            raise ImageError(f"has bytes in the column {column!r}; expected text or numbers") from error
    return cells


def _class_names(file: Any, column: str, texts: list[str | None]) -> list[str | None]:
    """Names of classes in place of their numbers, where Hugging Face has written these into the schema."""
    try:
        features = json.loads(file.schema_arrow.metadata[b"huggingface"])["info"]["features"]
        names = dict(enumerate(features[column]["names"]))
    except (TypeError, KeyError, ValueError):
        return texts
    return [names.get(int(text), text) if text and text.isdecimal() else text for text in texts]
