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
from .folder import LocalFolder
from .listing import Listing, is_special_file
from .manifest import MANIFESTS, ManifestSource
from .remote import RemoteFolder
from .tar import TarSource

_EXPECTED = "expected a folder, a manifest (.txt, .csv, .tsv) or .tar shards"
_COMPRESSED_TARS = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


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
    if not remote and is_special_file(where):
        raise SourceError(f"{where} is not a regular file; {_EXPECTED}")
    if extension == ".tar":
        return TarSource(location)
    if name.lower().endswith(_COMPRESSED_TARS):
        raise SourceError(
            f"{name} is a compressed tar, which cannot be read at random; decompress it to .tar (images hardly shrink)"
        )
    if extension in MANIFESTS:
        return ManifestSource(location)
    if remote:
        return RemoteFolder(location)
    if not os.path.exists(where):
        raise SourceError(f"no such source: {where}; {_EXPECTED}")
    raise SourceError(f"{where} is not a source; {_EXPECTED}")


def image_digest(data: bytes) -> bytes:
    """Content digest of encoded image bytes: SHA-256, 32 bytes."""
    return hashlib.sha256(data).digest()
