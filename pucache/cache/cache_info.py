"""The verb `info`: what a cache contains."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ..encoders.spec import EncoderSpec
from ..storage.urls import is_url
from .embedding_cache import CacheLike, EmbeddingCache, check_same_encoder, open_cache, open_files
from .reader import CacheFile


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
    checksum : str
        sha256 that identifies the content of the file, hexadecimal.
    """

    path: Path | str
    rows: int
    dtype: str
    created: str
    pucache_version: str
    source: str
    checksum: str

    @classmethod
    def of(cls, file: CacheFile, url: str = "") -> CacheFileInfo:
        """Describe an opened file.

        Parameters
        ----------
        file : CacheFile
        url : str
            Where the file was read from, without secrets; "" for a file of this machine.

        Returns
        -------
        CacheFileInfo
        """
        return cls(
            path=url or file.path,
            rows=len(file),
            dtype=str(file.dtype),
            created=file.created,
            pucache_version=file.pucache_version,
            source=file.source,
            checksum=file.checksum,
        )


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
    """

    rows: int
    encoder: EncoderSpec
    files: tuple[CacheFileInfo, ...]
    failures: dict[str, str]


def info(cache: CacheLike) -> CacheInfo:
    """Describe a cache.

    From a URL only a small part of each file is read, and keys of several files are then not compared with each other.

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
    caches = [cache] if isinstance(cache, EmbeddingCache | str | os.PathLike) else list(cache)
    if any(is_url(one) for one in caches if not isinstance(one, EmbeddingCache)):
        from .remote_outline import OutlineError, remote_outlines  # imports fsspec

        with ExitStack() as opened_urls:
            try:
                files: list[tuple[str, CacheFile]] = []
                for one in caches:
                    if isinstance(one, EmbeddingCache) or not is_url(one):
                        files += [("", file) for file in open_files(one)]
                    else:
                        files += opened_urls.enter_context(remote_outlines(os.fspath(one)))
                return _describe(files)
            except OutlineError:
                pass  # the cache is fetched whole
    return _describe(("", file) for file in open_cache(cache).files)


def _describe(named_files: Iterable[tuple[str, CacheFile]]) -> CacheInfo:
    """Describe files and, for those that are read from a URL, their URLs."""
    urls, files = zip(*named_files, strict=True)
    for other in files[1:]:
        check_same_encoder(files[0], other)
    return CacheInfo(
        rows=sum(map(len, files)),
        encoder=files[0].encoder,
        files=tuple(map(CacheFileInfo.of, files, urls)),
        failures={key: reason for file in files for key, reason in file.failures.items()},
    )
