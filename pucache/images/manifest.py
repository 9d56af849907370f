"""Images named one by one in a text file or a table."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from ..errors import MissingExtraError, SourceError
from ..storage.filesystem import open_filesystem, source_errors
from ..storage.retries import error_text, is_permanent, remedy_for, with_retries
from ..storage.urls import has_password, is_url, without_secrets
from .folder import read_local
from .listing import Listing, ListingBuilder
from .remote_folder import read_image, size_mtime

MANIFESTS = {".txt": None, ".lst": None, ".csv": ",", ".tsv": "\t"}
_AT_ONCE = 10_000  # images that are looked up
_NAMED = "add a 'key' column (in a .csv or .tsv)"
_PATH_COLUMNS = ("path", "image", "file", "filename", "url", "key")


class ManifestSource:
    """Images named one by one in a text file (a path a line) or a CSV/TSV with a header.

    Paths are relative to the manifest, absolute, or URLs. The key is the path as written, the query of a
    URL included, unless the table has a ``key`` column beside its ``path`` column. A key holds no password.
    """

    def __init__(self, manifest: str):
        self.name = without_secrets(manifest) if is_url(manifest) else manifest
        self._place = manifest
        self._paths: dict[str, str] | None = None

    @property
    def paths(self) -> dict[str, str]:
        """Key to the full path or URL of each image."""
        if self._paths is None:
            self._paths = self._load()
        return self._paths

    def _load(self) -> dict[str, str]:
        base = self._place.rsplit("/", 1)[0]
        paths: dict[str, str] = {}
        for key, path in self._rows():
            if has_password(key):
                shown = without_secrets(key)
                raise SourceError(f"{self.name} names {shown} with its password, which a key must not hold; {_NAMED}")
            if key in paths:
                raise SourceError(f"{self.name} names {key!r} twice; keys must be unique (add a 'key' column)")
            paths[key] = path if is_url(path) or os.path.isabs(path) else f"{base}/{path}"
        if not paths:
            raise SourceError(f"{self.name} names no image")
        return paths

    def _rows(self) -> Iterator[tuple[str, str]]:
        with source_errors(self.name):
            data = _read_list(self._place)
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise SourceError(f"{self.name} is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
        delimiter = MANIFESTS[os.path.splitext(self.name)[1].lower()]
        if delimiter is None:
            lines = (line.rstrip("\n") for line in io.StringIO(text, newline=None))
            yield from ((line, line) for line in lines if line.strip())
            return
        table = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        try:
            columns = table.fieldnames or []
            path_column = next((name for name in _PATH_COLUMNS if name in columns), None)
            if path_column is None:
                named = " ".join(", ".join(columns).split()) or "(none)"
                raise SourceError(f"{self.name} has columns {named}; expected one called 'path'")
            key_column = "key" if "key" in columns else path_column
            for row in table:
                if row[path_column]:
                    yield row[key_column] or row[path_column], row[path_column]
        except csv.Error as error:
            raise SourceError(f"{self.name} line {table.reader.line_num}: {error}") from error

    def scan(self) -> Listing:
        """Look up size and time of every named image; a missing one becomes a failure.

        Raises
        ------
        SourceError
            A store does not tell of some whether they are there.
        """
        found = ListingBuilder()
        untold: list[_Untold] = []
        remote = any(is_url(path) for path in self.paths.values())
        items = iter(self.paths.items())
        with ThreadPoolExecutor(16 if remote else 1) as pool:
            while some := list(islice(items, _AT_ONCE)):  # a pool keeps two kilobytes for each that waits
                for (key, _), result in zip(some, pool.map(_look_up, [path for _, path in some]), strict=True):
                    if isinstance(result, _Untold):
                        untold.append(result)
                    elif isinstance(result, str):
                        found.fail(key, result)
                    else:
                        found.add(key, *result)
        if untold:
            count = f"{len(untold)} of the {len(self.paths)} images"
            raise SourceError(f"cannot look up {count} that {self.name} names; {untold[0]}")
        return found.listing()

    def read(self, key: str) -> bytes:
        """Read the file or URL behind a key; raises `ImageError`."""
        path = self.paths[key]
        if is_url(path):
            return read_image(*open_filesystem(path))
        return read_local(path)


def _read_list(place: str) -> bytes:
    if not is_url(place):
        return Path(place).read_bytes()
    fs, path = open_filesystem(place, retry_each_request=True)
    return bytes(with_retries(lambda: fs.cat_file(path)))


class _Untold(str):
    """Why a store did not say whether an image is there: it failed, or refused."""


def _look_up(path: str) -> tuple[int, int] | str | _Untold:
    """Size and time of one image, or why they cannot be told."""
    try:
        if is_url(path):
            fs, inner = open_filesystem(path)
            return size_mtime(with_retries(lambda: fs.info(inner)))
        info = os.stat(path)
        return info.st_size, info.st_mtime_ns
    except MissingExtraError:  # of all images of this kind
        raise
    except Exception as error:  # a remote file system raises almost anything
        if is_url(path) and (remedy_for(error) or not is_permanent(error)):
            way_out = remedy_for(error) or "; run again when the store answers"
            return _Untold(f"first {without_secrets(path)}: {error_text(error)}{way_out}, or leave it out")
        return f"cannot be read: {error_text(error)}"
