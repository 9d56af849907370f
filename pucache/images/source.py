"""Sources of images: a folder, a manifest or tar shards, on this machine or behind an fsspec URL.

A source lists keys with size and modification time, and reads the bytes of one image. Each kind of source
is a module of `pucache.images`. Downstream of the cache only the pages use sources, to show images.
"""

from __future__ import annotations

import hashlib
import os
from typing import Protocol

from ..errors import SourceError
from ..storage.urls import is_url, without_secrets
from .folder import LocalFolder, read_local
from .listing import EXTENSIONS, MAX_BYTES, MAX_KEY_BYTES, UNKNOWN, Listing
from .manifest import MANIFESTS, ManifestSource
from .remote_folder import RemoteFolder
from .tar_shards import TarSource

__all__ = [
    "EXTENSIONS",
    "MAX_BYTES",
    "MAX_KEY_BYTES",
    "UNKNOWN",
    "Listing",
    "LocalFolder",
    "ManifestSource",
    "RemoteFolder",
    "Source",
    "TarSource",
    "image_digest",
    "open_source",
    "read_local",
]


class Source(Protocol):
    """A collection of images that lists and reads them; picklable, so that worker processes can read too."""

    name: str

    def scan(self) -> Listing:
        """List every image."""

    def read(self, key: str) -> bytes:
        """Return the encoded bytes of one image.

        Parameters
        ----------
        key : str
            One of the keys that `scan` lists.

        Returns
        -------
        bytes

        Raises
        ------
        ImageError
            The image cannot be read.
        """


def open_source(where: str | os.PathLike[str]) -> Source:
    """Open a folder, manifest (``.txt .lst .csv .tsv``) or tar shard(s), local or behind a URL.

    Parameters
    ----------
    where : str or path
        A folder, a manifest, a ``.tar`` file, a glob of ``.tar`` files, or an fsspec URL of any of these.
        Reads behind a URL are retried a few times where the store fails. The source's `name` holds no
        password and no token of the URL.

    Returns
    -------
    Source
        Not listed yet.

    Raises
    ------
    SourceError
        The path does not exist, or is not a source of a known kind.
    """
    where = os.fspath(where)
    remote = is_url(where)
    name = without_secrets(where) if remote else where
    extension = os.path.splitext(name.rstrip("/"))[1].lower()
    location = where if remote else os.path.abspath(where)
    if not remote and os.path.isdir(where):
        return LocalFolder(location)
    if extension == ".tar":
        return TarSource(location)
    if name.lower().endswith((".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")):
        raise SourceError(
            f"{name} is a compressed tar, which cannot be read at random; decompress it to .tar (images hardly shrink)"
        )
    if extension in MANIFESTS:
        return ManifestSource(location)
    if remote:
        return RemoteFolder(location)
    if not os.path.exists(where):
        raise SourceError(f"no such source: {where}; expected a folder, a manifest (.txt, .csv) or .tar shards")
    raise SourceError(f"{where} is not a source; expected a folder, a manifest (.txt, .csv, .tsv) or .tar shards")


def image_digest(data: bytes) -> bytes:
    """Content digest of encoded image bytes: SHA-256, 32 bytes."""
    return hashlib.sha256(data).digest()
