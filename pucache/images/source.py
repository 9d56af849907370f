"""Where images come from.

A *source* is a folder, a manifest (text or CSV) or tar shards, on this machine or behind any
fsspec URL. It lists keys with size and modification time, and reads the bytes of one key.
Nothing here knows about encoders; downstream of the cache only the pages use this module, to show images.
Each kind of source is a module of `pucache.images`.
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
    """A place that lists and reads images; picklable, so that worker processes can read too."""

    name: str

    def scan(self) -> Listing:
        """List every image."""

    def read(self, key: str) -> bytes:
        """Return the encoded bytes of one listed image; raise `ImageError` if that fails.

        Parameters
        ----------
        key : str
            One that `scan` lists.

        Returns
        -------
        bytes
            As they are stored.
        """


def open_source(where: str | os.PathLike[str]) -> Source:
    """Open a folder, manifest (``.txt .lst .csv .tsv``) or tar shard(s), local or behind a URL.

    Parameters
    ----------
    where : str or path
        A folder, a manifest, a ``.tar`` file, a glob of ``.tar`` files, or an fsspec URL of any
        of these. What is read behind a URL is tried again a few times where the store fails. The
        source's `name` holds no password and no token of the URL.

    Returns
    -------
    Source
        Opened, and not listed yet.

    Raises
    ------
    SourceError
        Nothing is there, or the kind of source cannot be told.
    """
    where = os.fspath(where)
    remote = is_url(where)
    shown = without_secrets(where) if remote else where
    suffix = os.path.splitext(shown.rstrip("/"))[1].lower()
    place = where if remote else os.path.abspath(where)
    if not remote and os.path.isdir(where):
        return LocalFolder(place)
    if suffix == ".tar":
        return TarSource(place)
    if shown.lower().endswith((".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")):
        raise SourceError(
            f"{shown} is a compressed tar, which cannot be read at random; decompress it to .tar (images hardly shrink)"
        )
    if suffix in MANIFESTS:
        return ManifestSource(place)
    if remote:
        return RemoteFolder(place)
    if not os.path.exists(where):
        raise SourceError(f"no such source: {where}; expected a folder, a manifest (.txt, .csv) or .tar shards")
    raise SourceError(f"{where} is not a source; expected a folder, a manifest (.txt, .csv, .tsv) or .tar shards")


def image_digest(data: bytes) -> bytes:
    """Content digest of encoded image bytes: sha256, 32 bytes."""
    return hashlib.sha256(data).digest()
