"""Sources of images: a folder, a manifest, or tar, ZIP or Parquet files, on this machine or behind an fsspec URL.

A source lists keys with size and modification time, and reads the bytes of one image. Each kind of source
is a module of `pucache.images`. Downstream of the cache only the pages use sources, to show images.
"""

from __future__ import annotations

import hashlib
import os
from typing import Protocol

from ..errors import SourceError
from ..storage.urls import is_url, without_secrets
from .folder import LocalFolder
from .listing import Listing, is_image, is_special_file
from .manifest import MANIFESTS, ManifestSource
from .parquet import EXTENSIONS as PARQUET
from .parquet import ParquetSource, split_options
from .remote import EXPECTED, RemoteFolder
from .tar import COMPRESSED, CompressedTarSource, TarSource
from .zip import ZipSource


class Source(Protocol):
    """A collection of images that lists and reads them; picklable, so that worker processes can read too."""

    name: str

    def scan(self) -> Listing:
        """List every image."""

    def read(self, key: str) -> bytes:
        """Return the encoded bytes of one image; raise `ImageError` where it cannot be read.

        Parameters
        ----------
        key : str
            As `scan` lists it.

        Returns
        -------
        bytes
        """


def open_source(where: str | os.PathLike[str], *, key_column: str | None = None, encoding: str | None = None) -> Source:
    """Open a folder, manifest (a list or a table), or tar, ZIP or Parquet file(s), local or behind a URL.

    Parameters
    ----------
    where : str or path
        A folder, a manifest, a ``.tar``, ``.tar.gz``, ``.zip`` or ``.parquet`` file, a glob of such files, or an
        fsspec URL of any of these. A local folder with Parquet files and no images at its top stands for these.
        ``FILE.parquet#key=COLUMN&image=COLUMN`` names the columns of keys and of image bytes.
        Reads behind a URL are retried a few times where the store fails. The source's `name` holds no
        password and no token of the URL.
    key_column : str, optional
        Column of the keys of a manifest, or of a Parquet source, as ``#key=COLUMN`` names it.
    encoding : str, optional
        Encoding of a manifest, as ``#encoding=NAME`` names it; by default UTF-8, or else cp1252, which a line says.

    Returns
    -------
    Source
        Not listed yet.

    Raises
    ------
    SourceError
        The path does not exist, or is not a source of a known kind.
    ValueError
        A column of keys is named, and the source is neither Parquet nor a manifest; or an encoding is, and it is no
        manifest.
    """
    where = os.fspath(where)
    chosen = {name: value for name, value in (("key", key_column), ("encoding", encoding)) if value is not None}
    if chosen:
        path, options = split_options(where)
        where = f"{path}#" + "&".join(f"{name}={value}" for name, value in {**options, **chosen}.items())
    path, columns = split_options(where)
    if not is_url(path) and _holds_parquet(path):
        where = where.replace(path, f"{path.rstrip('/')}/*.parquet", 1)
        path = split_options(where)[0]
    if path.lower().endswith(PARQUET) and not os.path.isdir(path):
        if not is_url(path) and is_special_file(path):
            raise SourceError(f"{path} is not a regular file; {EXPECTED}")
        if "encoding" in columns:
            raise ValueError(f"an encoding is that of a manifest; {path} is Parquet: leave it out")
        return ParquetSource(where if is_url(where) else os.path.abspath(where))
    if _ending(path) in MANIFESTS and not os.path.isdir(path) and "image" not in columns:
        if not is_url(path) and is_special_file(path):
            raise SourceError(f"{path} is not a regular file; {EXPECTED}")
        return ManifestSource(path if is_url(path) else os.path.abspath(path), **columns)
    if columns:
        raise ValueError(
            f"columns are named for Parquet files and manifests, encodings for manifests alone; {path} is none: leave "
            "them out"
        )
    remote = is_url(where)
    name = without_secrets(where) if remote else where
    extension = _ending(where)
    location = where if remote else os.path.abspath(where)
    if not remote and os.path.isdir(where):
        return LocalFolder(location)
    if not remote and is_special_file(where):
        raise SourceError(f"{where} is not a regular file; {EXPECTED}")
    if extension == ".tar":
        return TarSource(location)
    if name.lower().endswith(COMPRESSED):
        return CompressedTarSource(location)
    if extension == ".zip" and "::" not in name:  # a chain such as zip://::FILE is a folder of fsspec's
        return ZipSource(location)
    if remote:
        return RemoteFolder(location)
    if not os.path.exists(where):
        raise SourceError(f"no such source: {where}; {EXPECTED}")
    raise SourceError(f"{where} is not a source; {EXPECTED}")


def _ending(where: str) -> str:
    name = without_secrets(where) if is_url(where) else where
    return os.path.splitext(name.rstrip("/"))[1].lower()


def _holds_parquet(folder: str) -> bool:
    """Whether a local folder holds Parquet files and no images at its top; ends at the first image."""
    found = False
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if is_image(entry.name):
                    return False
                found = found or entry.name.lower().endswith(".parquet")
    except OSError:  # no folder, or one that its own listing reports
        return False
    return found


def image_digest(data: bytes) -> bytes:
    """Content digest of encoded image bytes: SHA-256, 32 bytes."""
    return hashlib.sha256(data).digest()
