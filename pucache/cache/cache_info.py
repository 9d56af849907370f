"""The verb `info`: what a cache contains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..encoders.spec import EncoderSpec
from .embedding_cache import CacheLike, open_cache
from .reader import CacheFile


@dataclass(frozen=True)
class CacheFileInfo:
    """One file of a cache.

    Attributes
    ----------
    path : Path
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

    path: Path
    rows: int
    dtype: str
    created: str
    pucache_version: str
    source: str
    checksum: str

    @classmethod
    def of(cls, file: CacheFile) -> CacheFileInfo:
        """Describe an opened file.

        Parameters
        ----------
        file : CacheFile

        Returns
        -------
        CacheFileInfo
        """
        return cls(
            path=file.path,
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
    opened = open_cache(cache)
    return CacheInfo(
        rows=len(opened),
        encoder=opened.encoder,
        files=tuple(map(CacheFileInfo.of, opened.files)),
        failures=opened.failures,
    )
