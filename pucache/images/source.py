"""Sources of images: a folder, a manifest, or tar, ZIP or Parquet files, on this machine or behind an fsspec URL.

A source lists keys with size and modification time, and reads the bytes of one image. Each kind of source
is a module of `pucache.images`. Downstream of the cache only the pages use sources, to show images.
"""

from __future__ import annotations

import codecs
import hashlib
import os
from collections.abc import Sequence
from typing import Protocol

from ..errors import SourceError
from ..storage.tables import table_ending
from ..storage.urls import is_url, without_secrets
from .folders import EXPECTED, LocalFolder, RemoteFolder
from .listing import Listing, is_image, is_special_file, quoted, split_options
from .manifest import MANIFESTS, ManifestSource
from .parquet import EXTENSIONS as PARQUET
from .parquet import ParquetSource, may_hold_images
from .regions import Region
from .tar import COMPRESSED, CompressedTarSource, TarSource
from .zip import ZipSource


class Source(Protocol):
    """A collection of images that lists and reads them; picklable, so that worker processes can read too."""

    name: str

    def scan(self) -> Listing:
        """List every image."""

    def read(self, key: str) -> bytes:
        """Return the bytes of one image by its key, as `scan` lists it; raise `ImageError` where it cannot be read."""


def open_source(
    where: str | os.PathLike[str] | Source,
    *,
    key_column: str | None = None,
    encoding: str | None = None,
    images: str | os.PathLike[str] | None = None,
    category: str | Sequence[str] | None = None,
    min_confidence: float | None = None,
) -> Source:
    """Open a folder, manifest (a list or a table), or tar, ZIP or Parquet file(s), local or behind a URL.

    Parameters
    ----------
    where : str, path or Source
        A folder, a manifest, a ``.tar``, ``.tar.gz``, ``.zip`` or ``.parquet`` file, a glob of such files, or an
        fsspec URL of any of these. A local folder with such Parquet files and no images at its top stands for these.
        ``FILE.parquet#key=COLUMN&image=COLUMN`` names the columns of keys and of image bytes, and
        ``FILE.zip#encoding=cp932`` the encoding of names that do not tell theirs. ``{00000..00009}`` and ``{a,b}`` in
        the names of such files stand for each of these.
        Reads behind a URL are retried a few times where the store fails. The source's `name` holds no
        password and no token of the URL. A Source is returned as it is.
    key_column : str, optional
        Column of the keys of a manifest, or of a Parquet source, as ``#key=COLUMN`` names it.
    encoding : str, optional
        Encoding of a manifest, or of names in an archive, as ``#encoding=NAME`` names it; by default UTF-8, or else
        cp1252 for a manifest, and cp437 in a ZIP, which a line says.
    images : path or URL, optional
        Folder of the images that a manifest names, or the JSON of COCO or MegaDetector; by default that of the file.
    category : str or sequence of str, optional
        Categories of the detections that are taken; by default all.
    min_confidence : float, optional
        Detections of less confidence are left out.

    Returns
    -------
    Source
        Not listed yet.

    Raises
    ------
    SourceError
        The path does not exist, or is not a source of a known kind.
    ValueError
        `where` is neither a path nor a Source; a column of keys is named, and the source is neither Parquet nor a
        manifest; an encoding is, and it is neither a manifest nor an archive; or the encoding is unknown.
    """
    if not isinstance(where, str | os.PathLike):
        if not hasattr(where, "scan"):
            raise ValueError(
                f"expected a source of images (a folder, a list in a file, an archive), got {type(where).__name__}; "
                "write paths of images to a text file, one a line, and give its path"
            )
        return where
    path, options = split_options(os.fspath(where))
    named = {"key": key_column, "encoding": encoding, "images": images, "confidence": min_confidence}
    categories = [category] if isinstance(category, str) else category or ()
    named["category"] = ",".join(quoted(name, "%,") for name in categories) or None
    options |= {name: str(value) for name, value in named.items() if value is not None}
    if "images" in options and not is_url(options["images"]):
        options["images"] = os.path.abspath(options["images"])
    if "encoding" in options:
        options["encoding"] = _encoding(options["encoding"])
    remote = is_url(path)
    if not remote and _holds_parquet(path):
        path = f"{path.rstrip('/')}/*.parquet"
    if not remote and not os.path.isdir(path) and is_special_file(path):
        raise SourceError(f"{path} is not a regular file; {EXPECTED}")
    location = path if remote else os.path.abspath(path)
    return _of_kind(path, location, options)


def _of_kind(path: str, location: str, options: dict[str, str]) -> Source:
    """Source of the kind that the ending of a path tells; `options` are those of `split_options`."""
    remote = is_url(path)
    name = without_secrets(path) if remote else path
    ending = os.path.splitext(name.rstrip("/"))[1].lower()
    if not remote and os.path.isdir(path):
        _check_options(options, (), name)
        return LocalFolder(location)
    if path.lower().endswith(PARQUET):
        _check_options(options, ("key", "image"), name)
        return ParquetSource(location, **options)
    if table_ending(name.rstrip("/")) in MANIFESTS:
        _check_options(options, ("key", "encoding", "images", "category", "confidence"), name)
        return ManifestSource(location, **options)
    archives = {".tar": TarSource, ".zip": ZipSource}
    # a chain such as zip://::FILE is a folder of fsspec's
    archive = CompressedTarSource if name.lower().endswith(COMPRESSED) else archives.get(ending)
    if archive is not None and not (archive is ZipSource and "::" in name):
        _check_options(options, ("encoding",), name)
        return archive(location, options.get("encoding", ""))
    _check_options(options, (), name)
    if remote:
        return RemoteFolder(location)
    if not os.path.exists(path):
        raise SourceError(f"no such source: {path}; {EXPECTED}")
    raise SourceError(f"{path} is not a source; {EXPECTED}")


def _encoding(name: str) -> str:
    """Python's name of an encoding; raises `ValueError` where it has none."""
    try:
        return codecs.lookup(name).name
    except LookupError as error:
        raise ValueError(f"unknown encoding {name!r}; use one of Python's, such as cp932, gbk or latin-1") from error


def _check_options(options: dict[str, str], allowed: tuple[str, ...], name: str) -> None:
    """Raise `ValueError` for an option that a source of its kind does not have."""
    odd = next((option for option in options if option not in allowed), None)
    if odd is not None:
        what, kinds = {
            "encoding": ("an encoding", "a list of images, or a tar or ZIP file"),
            "image": ("a column of images", "a Parquet file"),
            "key": ("a column of keys", "a Parquet file or a list of images"),
            "images": ("a folder of images", "a list of images, or the JSON of COCO or MegaDetector"),
        }.get(odd, (f"a {odd} of detections", "the JSON of COCO or MegaDetector"))
        raise ValueError(
            f"{what} is named, which is for {kinds}; {name} is none: leave it out, or give such a file as the source"
        )


def local_path(source: Source, key: str) -> str:
    """Absolute path of an image file of this machine; "" for any other."""
    if isinstance(source, LocalFolder):
        return os.path.abspath(os.path.join(source.name, key))
    path = source.paths.get(key, "://") if isinstance(source, ManifestSource) else "://"
    return "" if "://" in path else os.path.abspath(path)


def _holds_parquet(folder: str) -> bool:
    """Whether a local folder holds Parquet files with images, and no images, at its top; ends at the first image."""
    first = ""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if is_image(entry.name):
                    return False
                if entry.name.lower().endswith(".parquet"):
                    first = min(first or entry.path, entry.path)
    except OSError:  # no folder, or one that its own listing reports
        return False
    return bool(first) and may_hold_images(first)


def image_digest(data: bytes) -> bytes:
    """Content digest of encoded image bytes: SHA-256, 32 bytes."""
    return hashlib.sha256(data).digest()


def part_digest(digest: bytes, region: Region | None) -> bytes:
    """Digest of a part of the image with this digest, which covers the region too; that of the image for None."""
    return digest if region is None else hashlib.sha256(digest + str(region).encode()).digest()
