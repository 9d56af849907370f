"""The cache: one or several immutable files of one encoder, read as one.

docs/cache-format.md specifies the files, `pucache.cache.reader` reads one of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ..errors import CacheError
from ..storage.urls import is_url
from .hdf5 import begins_as_hdf5
from .keys import Keys, duplicated, find
from .reader import CacheFile


class EmbeddingCache:
    """One or more cache files of one encoder, read as one, and as they were when they were opened.

    Parameters
    ----------
    *paths : str or path
        Cache files, folders of them (``*.h5``), or URLs of either, which are fetched first.

    Attributes
    ----------
    files : list of CacheFile
    encoder : EncoderSpec
    keys : Keys
        In row order; sorted within a file.

    Raises
    ------
    CacheError
        As `CacheFile`; also when encoders differ or a key stands in two files.
    """

    def __init__(self, *paths: str | Path):
        self.files = [CacheFile(path, hold=True) for path in expand(paths)]
        first = self.files[0]
        for other in self.files[1:]:
            check_same_encoder(first, other)
        self.encoder = first.encoder
        self.keys = Keys([file.raw_keys for file in self.files])
        self._check_disjoint()

    def _check_disjoint(self) -> None:
        twice = duplicated([file.raw_keys for file in self.files]) if len(self.files) > 1 else None
        if twice is not None:
            here = [str(file.path) for file in self.files if find(file.raw_keys, np.array([twice]))[0] >= 0]
            raise CacheError(
                f"the key {twice.decode()!r} stands both in {here[0]} and in {here[1]}; open one of the two, or embed "
                "with --shard I/N"
            )

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def name(self) -> str:
        """What to call this cache in a message."""
        return str(self.files[0].path) + (f" and {len(self.files) - 1} more" if len(self.files) > 1 else "")

    @property
    def X(self) -> np.ndarray:
        """Embeddings (n, d), float16 or float32: mapped for one file, gathered in memory for several."""
        if len(self.files) == 1:
            return self.files[0].X
        return np.concatenate([file.X for file in self.files])

    @property
    def digests(self) -> np.ndarray:
        """sha256 of each image's bytes, (n, 32) uint8."""
        if len(self.files) == 1:
            return self.files[0].digests
        return np.concatenate([file.digests for file in self.files])

    @property
    def failures(self) -> dict[str, str]:
        """Key to reason of every image that could not be read."""
        return {key: reason for file in self.files for key, reason in file.failures.items()}

    def blocks(self, *, check: bool = False) -> Iterator[tuple[slice, np.ndarray]]:
        """Go through the embeddings in row order, in bounded memory: (row slice, (b, d)), each valid until the next.

        With `check`, what is read is held against the seal; damage raises `CacheError`.

        Parameters
        ----------
        check : bool
            Hold what is read against the seal.

        Yields
        ------
        rows : slice
            Of the cache.
        X : ndarray of float16 or float32, (b, d)
        """
        offset = 0
        for file in self.files:
            for rows, block in file.blocks(check=check):
                yield slice(offset + rows.start, offset + rows.stop), block
            offset += len(file)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Copy the embeddings of some rows, (m, d); `rows` rise.

        Parameters
        ----------
        rows : ndarray of int, (m,)
            Rising.

        Returns
        -------
        ndarray of float16 or float32, (m, d)
        """
        starts = np.cumsum([0, *map(len, self.files)])
        parts = [
            file.take("embeddings", rows[slice(*np.searchsorted(rows, (start, start + len(file))))] - start)
            for file, start in zip(self.files, starts.tolist(), strict=False)
        ]
        return np.concatenate(parts)

    def not_finite(self, rows: np.ndarray) -> CacheError:
        """What to raise where some rows are NaN or infinite, which pucache itself never writes.

        Parameters
        ----------
        rows : ndarray of int
            At least one; rising.

        Returns
        -------
        CacheError
            It names the file and the first of its rows.
        """
        starts = np.cumsum([0, *map(len, self.files)])
        number = int(np.searchsorted(starts, rows[0], "right")) - 1
        return self.files[number].not_finite(rows[rows < starts[number + 1]] - starts[number])

    def check(self, *names: str) -> None:
        """Hold some columns of every file (such as "keys") against its seal; damage raises `CacheError`.

        Parameters
        ----------
        *names : str
            Datasets of the format: "embeddings", "keys", "digests", "size_mtime".
        """
        for file in self.files:
            file.check(*names)

    def verify(self) -> None:
        """Hold every byte of every file against its seal; damage raises `CacheError`."""
        for file in self.files:
            file.verify()


def open_cache(cache: EmbeddingCache | str | Path | Sequence[str | Path]) -> EmbeddingCache:
    """Open a cache unless it is open already.

    Parameters
    ----------
    cache : EmbeddingCache, path, or sequence of paths

    Returns
    -------
    EmbeddingCache
    """
    if isinstance(cache, EmbeddingCache):
        return cache
    return EmbeddingCache(cache) if isinstance(cache, str | Path) else EmbeddingCache(*cache)


def expand(paths: Iterable[str | Path]) -> list[Path]:
    """Replace folders by the cache files in them, in name order, and URLs by copies on this machine."""
    found: list[Path] = []
    for path in map(_here, paths):
        if path.is_dir():
            inside = sorted(child for child in path.glob("*.h5") if not child.name.startswith("."))
            if not inside:
                raise CacheError(f"no cache in folder {path}; expected *.h5 files")
            found += inside
        else:
            found.append(path)
    if not found:
        raise CacheError("no cache given")
    return found


def _here(path: str | Path) -> Path:
    if not is_url(path):
        return Path(path)
    from .remote import local_copy  # which speaks to stores: most caches lie here

    return local_copy(os.fspath(path))


def is_cache(path: str | Path) -> bool:
    """Whether `path` is meant as a cache rather than as images: an HDF5 or ``.h5`` file, or a folder of these."""
    if is_url(path):
        return os.fspath(path).endswith(".h5")
    path = Path(path)
    return path.suffix == ".h5" or begins_as_hdf5(path) or (path.is_dir() and any(path.glob("*.h5")))


def check_same_encoder(expected: CacheFile, got: CacheFile) -> None:
    """Raise `CacheError` unless two files hold embeddings of one encoder in one type."""
    differing = expected.encoder.differences(got.encoder)
    if differing:
        raise CacheError(
            f"{expected.path} holds embeddings of {expected.encoder}; {got.path} of {got.encoder} "
            f"(they differ in {', '.join(differing)}): caches of different encoders cannot be mixed"
        )
    if expected.dtype != got.dtype:
        raise CacheError(f"{expected.path} holds {expected.dtype}, {got.path} {got.dtype}: pack one of them anew")
