"""The verb `info`: what a cache contains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..encoders.spec import EncoderSpec
from ..errors import counted
from ..storage.urls import is_url, path_or_url
from .embedding_cache import CacheLike, EmbeddingCache, check_same_encoder, list_caches, open_cache
from .layout import PARTIAL
from .reader import CacheHeader
from .remote import remote_headers


@dataclass(frozen=True)
class CacheFileInfo:
    """One file of a cache.

    Attributes
    ----------
    path : Path or str
        A file of this machine, or a URL without passwords and tokens.
    rows : int
    dtype : str
        Type of the embeddings, "float16" or "float32".
    created : str
        UTC time of writing.
    pucache_version : str
        Version of the writer.
    source : str
        Path or URL of the images; empty for imported embeddings.
    shard : str
        ``I/N`` where the file holds the I-th of N shares of the images, else "".
    checksum : str
        sha256 that identifies the content of the file, hexadecimal.
    """

    path: Path | str
    rows: int
    dtype: str
    created: str
    pucache_version: str
    source: str
    shard: str
    checksum: str


@dataclass(frozen=True)
class CacheInfo:
    """Content of a cache.

    Attributes
    ----------
    rows : int
    encoder : EncoderSpec
    files : tuple of CacheFileInfo
    failures : dict of str to str
        Reason by key of every image that could not be read.
    partial : dict of str to str
        What was not read, by key of every image that has a row all the same (`pucache.Decoding`).
    """

    rows: int
    encoder: EncoderSpec
    files: tuple[CacheFileInfo, ...]
    failures: dict[str, str]
    partial: dict[str, str]

    def __repr__(self) -> str:
        files, failures = counted(len(self.files), "file"), counted(len(self.failures), "failure")
        return f"CacheInfo({counted(self.rows, 'row')} of {self.encoder} in {files}, {failures})"


def info(cache: CacheLike) -> CacheInfo:
    """Describe a cache.

    From a URL only a small part of each file is read, and its keys are not compared with those of other files.

    Parameters
    ----------
    cache : str, path, EmbeddingCache, or a sequence of these
        A cache file, a folder of them, or a URL of either; several are read as one.

    Returns
    -------
    CacheInfo

    Raises
    ------
    CacheError
        The cache cannot be opened.
    """
    named = [one if isinstance(one, EmbeddingCache) else path_or_url(one) for one in list_caches(cache)]
    urls = [one for one in named if isinstance(one, str) and is_url(one)]
    described = [pair for url in urls for pair in remote_headers(url)]
    if len(urls) < len(named) or not named:
        opened = open_cache([one for one in named if one not in urls])
        described += [(file.header, file.records) for file in opened.files]
    headers = [header for header, _ in described]
    for other in headers[1:]:
        check_same_encoder(headers[0], other)
    records = {key: reason for _, of_file in described for key, reason in of_file.items()}
    return CacheInfo(
        rows=sum(header.rows for header in headers),
        encoder=headers[0].attributes.encoder,
        files=tuple(map(_describe, headers)),
        failures={key: reason for key, reason in records.items() if not reason.startswith(PARTIAL)},
        partial={key: reason for key, reason in records.items() if reason.startswith(PARTIAL)},
    )


def _describe(header: CacheHeader) -> CacheFileInfo:
    attributes = header.attributes
    return CacheFileInfo(
        path=header.name if is_url(header.name) else Path(header.name),
        rows=header.rows,
        dtype=str(header.dtype),
        created=attributes.created,
        pucache_version=attributes.pucache_version,
        source=attributes.source,
        shard=attributes.shard,
        checksum=header.checksums.checksum,
    )
