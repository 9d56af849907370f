"""Images named one by one in a text file or a table."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from ..errors import LabelError, MissingExtraError, SourceError
from ..storage.filesystem import open_filesystem
from ..storage.retries import error_text, is_permanent, remedy_for, with_retries
from ..storage.table_columns import BOX_COLUMNS, KEY_COLUMNS, MANIFEST_COLUMNS
from ..storage.tables import TABLES, Row, read_rows
from ..storage.urls import has_password, is_url, without_secrets
from .folder import read_local
from .listing import Listing, ListingBuilder, source_name
from .regions import Region
from .remote import read_image, size_mtime

MANIFESTS = (".txt", ".lst", *TABLES)  # endings; Parquet is a source of images of its own
_REMOTE_THREADS = 16
_MOST_SIDE = 10**9  # pixels
_BATCH = 10_000  # images looked up at a time, because a pool keeps two kilobytes for each that is pending


class ManifestSource:
    """Images named one by one in a text file (one path a line) or a table.

    Paths are relative to the manifest, absolute, or URLs. The key is the path as written, including the
    query of a URL, unless the table has a ``key`` column beside its ``path`` column, or `key` names one. A key must not
    hold a password. A table with columns ``x``, ``y``, ``w`` and ``h`` names parts of images, in pixels.
    """

    def __init__(self, manifest: str, *, key: str | None = None, encoding: str | None = None):
        self.name = source_name(manifest, key=key, encoding=encoding)
        self._location, self._key, self._encoding = manifest, key, encoding
        self._paths: dict[str, str] = {}
        self._boxes: dict[str, list[Region]] = {}

    @property
    def paths(self) -> dict[str, str]:
        """Key to the full path or URL of each image."""
        if not self._paths:
            self._load()
        return self._paths

    @property
    def boxes(self) -> dict[str, list[Region]]:
        """Key to the parts of each image; empty where the manifest names whole images."""
        return self._boxes if self.paths else {}

    def _load(self) -> None:
        folder = self._location.rsplit("/", 1)[0]
        paths: dict[str, str] = {}
        boxes: dict[str, list[Region]] = {}
        for key, path, box in self._rows():
            if has_password(key):
                raise SourceError(
                    f"{self.name} names {without_secrets(key)} with its password, which a key must not hold; "
                    "add a 'key' column (in a .csv or .tsv)"
                )
            full = path if is_url(path) or os.path.isabs(path) else f"{folder}/{path}"
            if box is not None and paths.get(key, full) != full:
                raise SourceError(f"{self.name} names two files as {key!r}; keys must be unique (add a 'key' column)")
            if key in paths and box in boxes.get(key, [None]):
                what = repr(key) if box is None else f"the box {box} of {key!r}"
                raise SourceError(f"{self.name} names {what} twice; keys must be unique (add a 'key' column)")
            paths[key] = full
            if box is not None:
                boxes.setdefault(key, []).append(box)
        if not paths:
            raise SourceError(f"{self.name} names no image")
        self._boxes, self._paths = boxes, paths

    def _rows(self) -> Iterator[tuple[str, str, Region | None]]:
        """Yield key, path and box of each row."""
        named = {"key": self._key} if self._key is not None else {}
        columns = {**(KEY_COLUMNS if named else {}), **MANIFEST_COLUMNS, **BOX_COLUMNS}
        try:
            table = read_rows(self._location, columns, named, encoding=self._encoding)
        except LabelError as error:
            raise SourceError(str(error)) from error
        path = table.found.get("path") or table.found["key"]
        key = table.found.get("key", path)
        sides = [table.found[side] for side in BOX_COLUMNS if side in table.found]
        for row in table.rows:
            if row[path]:
                yield (
                    row[key] or row[path],
                    row[path],
                    self._box(row, sides) if len(sides) == len(BOX_COLUMNS) else None,
                )

    def _box(self, row: Row, sides: list[str]) -> Region:
        """The box of a row, of whole pixels: fractions are rounded outwards."""
        try:
            x, y, w, h = (float(row[side] or "nan") for side in sides)
            box = Region(math.floor(x), math.floor(y), math.ceil(x + w), math.ceil(y + h))
            box = box._replace(w=box.w - box.x, h=box.h - box.y)
        except (ValueError, OverflowError):
            box = Region(-1, 0, 0, 0)
        if min(box) < 0 or max(box) >= _MOST_SIDE or not (box.w and box.h):
            given = ", ".join(f"{side} = {row[side] or 'nothing'}" for side in sides)
            raise SourceError(
                f"{self.name} names a box that is none in row {row.line} ({given}); expected the left and upper edge "
                "from 0, and a width and a height above 0, in pixels"
            )
        return box

    def scan(self) -> Listing:
        """Look up size and modification time of every image; a missing image becomes a failure.

        Raises `SourceError` where the manifest cannot be read, or a store does not answer whether images exist.
        """
        builder = ListingBuilder()
        unanswered: list[SourceError] = []
        remote = any(is_url(path) for path in self.paths.values())
        keys = iter(self.paths)
        with ThreadPoolExecutor(_REMOTE_THREADS if remote else 1) as pool:
            while batch := list(islice(keys, _BATCH)):
                for key, result in zip(batch, pool.map(_look_up, [self.paths[key] for key in batch]), strict=True):
                    if isinstance(result, SourceError):
                        unanswered.append(result)
                    elif isinstance(result, str):
                        builder.add_failure(key, result)
                    else:
                        builder.add(key, *result)
        if unanswered:
            count = f"{len(unanswered)} of the {len(self.paths)} images"
            raise SourceError(f"cannot look up {count} that {self.name} names; first {unanswered[0]}")
        listing = builder.build()
        listing.reordered = listing.keys != list(builder.images)
        return listing

    def read(self, key: str) -> bytes:
        """Read the file or URL of one image; raises `ImageError`."""
        path = self.paths[key]
        return read_image(*open_filesystem(path)) if is_url(path) else read_local(path)


def _look_up(path: str) -> tuple[int, int] | str | SourceError:
    """Size and modification time of one image, why it cannot be read, or why its store did not say."""
    try:
        if is_url(path):
            fs, remote_path = open_filesystem(path)
            return size_mtime(with_retries(lambda: fs.info(remote_path)))
        info = os.stat(path)
        return info.st_size, info.st_mtime_ns
    except MissingExtraError:  # concerns every image of this protocol
        raise
    except Exception as error:  # a remote file system raises almost anything
        if is_url(path) and (remedy_for(error) or not is_permanent(error)):
            remedy = remedy_for(error) or "; run again when the store answers"
            return SourceError(f"{without_secrets(path)}: {error_text(error)}{remedy}, or leave it out")
        return f"cannot be read: {error_text(error)}"
