"""Images named one by one in a text file or a table."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from urllib.parse import unquote

from ..errors import LabelError, MissingExtraError, SourceError
from ..storage.filesystem import open_filesystem
from ..storage.retries import error_text, is_permanent, remedy_for, with_retries
from ..storage.table_columns import KEY_COLUMNS, MANIFEST_COLUMNS
from ..storage.table_formats import COCO, MEGADETECTOR, annotation_kind, decode, parse_json
from ..storage.tables import TABLES, open_table, read_rows, table_ending
from ..storage.urls import has_password, is_url, without_secrets
from .boxes import Boxed, are_shares, box_columns, detections, edges_of, region_of
from .folders import read_image, read_local, size_mtime
from .listing import Listing, ListingBuilder, source_name
from .regions import MARK, Region, part_key

MANIFESTS = (".txt", ".lst", *TABLES)  # endings; Parquet is a source of images of its own
_REMOTE_THREADS = 16
log = logging.getLogger("pucache")
_BATCH = 10_000  # images looked up at a time, because a pool keeps two kilobytes for each that is pending


class ManifestSource:
    """Images named one by one in a text file (one path a line), a table, or the JSON of COCO or MegaDetector.

    Paths are relative to the manifest, or to `images`, absolute, or URLs. The key is the path as written, including the
    query of a URL, unless the table has a ``key`` column beside its ``path`` column, or `key` names one. A key must not
    hold a password. Columns of boxes (`pucache.images.boxes`) name parts of images, in pixels, or in shares of the
    sides where no number of the table is above 1. Of detections those of the `category` (several between commas) and
    of at least a `confidence` are taken.
    """

    def __init__(self, manifest: str, **options: str):
        self.name = source_name(manifest, **options)
        self._location, self._options = manifest, options
        self._paths: dict[str, str] = {}
        self._boxes: dict[str, list[Region]] = {}
        self.box_failures: dict[str, str] = {}  # of rows whose box is none, or that a detector failed at
        self._repeated: dict[str, str] = {}  # why rows fail whose key another row has for another file
        self.concepts: list[tuple[str, str]] = []  # key and category of each part of detections

    @property
    def paths(self) -> dict[str, str]:
        """Key to the full path or URL of each image."""
        if not self._paths and not self.box_failures:
            self._load()
        return self._paths

    @property
    def boxes(self) -> dict[str, list[Region]]:
        """Key to the parts of each image; empty where the manifest names whole images."""
        return self._boxes if self.paths else {}

    def _load(self) -> None:
        folder = self._options.get("images", self._location.rpartition("/")[0] or ".")
        rows, shares = self._rows()
        twice = 0
        paths: dict[str, str] = {}
        regions: dict[str, dict[Region, None]] = {}  # a dict keeps their order
        for row in rows:
            key, path = row.key, row.path
            if has_password(key):
                raise SourceError(
                    f"{self.name} names {without_secrets(key)} with its password, which a key must not hold; "
                    "add a 'key' column (in a .csv or .tsv)"
                )
            full = path if is_url(path) or os.path.isabs(path) else f"{folder.rstrip('/')}/{path}"
            if paths.get(key, full) != full:
                self._repeated[f"{key} ({without_secrets(path)})"] = f"{without_secrets(paths[key])} has this key too"
                continue
            if shares is None:
                twice += key in paths
                paths[key] = full
                continue
            region, problem = region_of(row.edges, shares)
            if region is None:
                self.box_failures[key if row.problem else f"{key}{MARK}{row.given}"] = row.problem or problem
                continue
            paths[key] = full
            regions.setdefault(key, {})[region] = None
            if row.category:
                self.concepts.append((part_key(key, region), row.category))
        if len(self._repeated) >= max(1, len(paths)):
            raise SourceError(
                f"{self.name} names many files by few keys, such as {next(iter(paths))!r}; keys must be unique: name "
                "another column of keys"
            )
        if twice:
            log.warning("%s names %s images again; each is taken once", self.name, twice)
        if not paths:
            is_narrowed = {"category", "confidence"} & self._options.keys()
            first = next((f": {key!r}, {why}" for key, why in self.box_failures.items()), "")
            what = "has no box of the category and confidence asked for" if is_narrowed else "names no image"
            raise SourceError(f"{self.name} {what}{first}")
        self._boxes, self._paths = {key: [*its] for key, its in regions.items()}, paths

    def _rows(self) -> tuple[list[Boxed], bool | None]:
        """Every row, and whether its boxes are shares of the sides; None where it names whole images."""
        try:
            if table_ending(self._location) == ".json":
                with open_table(self._location, self.name) as stream:
                    text = decode(stream.read(), self.name, self._options.get("encoding"))
                content, _ = parse_json(text, self.name)
                if (kind := annotation_kind(content)) in (COCO, MEGADETECTOR):
                    categories = [unquote(name) for name in self._options.get("category", "").split(",") if name]
                    confidence = float(self._options.get("confidence", 0))
                    found = detections(kind, content, self.name, categories, confidence)
                    return list(found), kind == MEGADETECTOR
            named = {"key": self._options["key"]} if "key" in self._options else {}
            columns = {**(KEY_COLUMNS if named else {}), **MANIFEST_COLUMNS}
            table = read_rows(self._location, columns, named, encoding=self._options.get("encoding"))
        except LabelError as error:
            raise SourceError(str(error)) from error
        except OSError as error:
            raise SourceError(f"cannot read {self.name}: {error.strerror or error}") from error
        if odd := next((name for name in ("category", "confidence") if name in self._options), None):
            raise ValueError(
                f"a {odd} is of detections of COCO or MegaDetector, and {self.name} holds none; leave it out"
            )
        path = table.found.get("path") or table.found["key"]
        key = table.found.get("key", path)
        names = [name for name in table.columns if name not in (path, key)]
        sides, are_corners = box_columns(names, table.unreadable, self.name)
        rows = []
        for row in table.rows:
            if row[path]:
                cells = [row[side] for side in sides]
                given = ",".join(cell or "" for cell in cells)
                edges = edges_of(cells, are_corners) if sides else None
                rows.append(Boxed(row[path], row[key] or row[path], edges, given))
        return rows, are_shares(rows) if sides else None

    def scan(self) -> Listing:
        """Look up size and modification time of every image; a missing image becomes a failure.

        Raises `SourceError` where the manifest cannot be read, or a store does not answer whether images exist.
        """
        builder = ListingBuilder()
        unanswered: dict[str, SourceError] = {}
        for key, reason in (self._repeated if self.paths else {}).items():
            builder.add_failure(key, reason)
        keys = iter(self.paths)
        with ThreadPoolExecutor(_REMOTE_THREADS if any(map(is_url, self.paths.values())) else 1) as pool:
            while batch := list(islice(keys, _BATCH)):
                for key, result in zip(batch, pool.map(_look_up, [self.paths[key] for key in batch]), strict=True):
                    if isinstance(result, SourceError):
                        unanswered[key] = result
                        builder.add_failure(key, f"cannot be read: {result}")
                    elif isinstance(result, str):
                        builder.add_failure(key, result)
                    else:
                        builder.add(key, *result)
        if unanswered:
            count = f"{len(unanswered):,} of the {len(self.paths):,} images that {self.name} names"
            missing, why = next(iter(unanswered.items()))
            first = f"{without_secrets(self.paths[missing])}: {why}"
            if len(unanswered) == len(self.paths):
                raise SourceError(f"cannot look up {count}; first {first}")
            log.warning("%s gave no answer; the next run tries them again (first %s)", count, first)
        listing = builder.build()
        listing.unanswered = frozenset(unanswered)
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
    except MissingExtraError as error:
        return SourceError(str(error))
    except Exception as error:  # a remote file system raises almost anything
        if is_url(path) and (remedy_for(error) or not is_permanent(error)):
            remedy = remedy_for(error) or "; run again when the store answers"
            return SourceError(f"{error_text(error)}{remedy}, or leave it out")
        remedy = "; separate its folders by slashes" * ("\\" in path)
        return f"cannot be read: {error_text(error)}{remedy}"
