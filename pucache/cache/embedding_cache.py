"""`EmbeddingCache`: one or several immutable cache files of one encoder, read as one.

docs/cache-format.md specifies the files; `pucache.cache.reader` reads one of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from ..errors import CacheError
from ..storage.stacked_rows import RowMatrix, StackedRows
from ..storage.urls import is_url
from .duplicate_keys import find_duplicate
from .hdf5 import begins_as_hdf5
from .keys import Keys, find_sorted
from .reader import CacheFile, read_blocks


class EmbeddingCache:
    """One or more cache files of one encoder, read as one, in the state in which they were opened.

    Parameters
    ----------
    *caches : str, path or EmbeddingCache
        Cache files, folders of them (``*.h5``), URLs of either, which are downloaded first, or opened caches.

    Attributes
    ----------
    files : list of CacheFile
    encoder : EncoderSpec
    keys : Keys
        In row order; sorted within a file.

    Raises
    ------
    CacheError
        See `pucache.cache.reader.CacheFile`; also if encoders differ or a key occurs in two files.
    """

    def __init__(self, *caches: str | Path | EmbeddingCache):
        self.files = [file for cache in caches for file in _open_files(cache)]
        if not self.files:
            raise CacheError("no cache given")
        first = self.files[0]
        for other in self.files[1:]:
            check_same_encoder(first, other)
        self.encoder = first.encoder
        self.keys = Keys([file.raw_keys for file in self.files])
        self._check_disjoint()

    def _check_disjoint(self) -> None:
        key = find_duplicate([file.raw_keys for file in self.files]) if len(self.files) > 1 else None
        if key is not None:
            paths = [file.path for file in self.files if find_sorted(file.raw_keys, np.array([key]))[0] >= 0]
            raise CacheError(
                f"the key {key.decode()!r} stands both in {paths[0]} and in {paths[1]}; open one of the two, or embed "
                "with --shard I/N"
            )

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def name(self) -> str:
        """Name of this cache in messages."""
        return str(self.files[0].path) + (f" and {len(self.files) - 1} more" if len(self.files) > 1 else "")

    @property
    def matrix(self) -> RowMatrix:
        """Embeddings, (n, d) float16 or float32, read-only and never copied as a whole.

        The mapped array of one file; `StackedRows` of several files, which take slices and row numbers as an
        array does.
        """
        return self.files[0].X if len(self.files) == 1 else self._stacked_embeddings

    @property
    def digest_matrix(self) -> RowMatrix:
        """sha256 of each image's bytes, (n, 32) uint8, read-only and never copied as a whole, as `matrix`."""
        return self.files[0].digests if len(self.files) == 1 else self._stacked_digests

    @property
    def X(self) -> np.ndarray:
        """Embeddings, (n, d) float16 or float32, read-only: the same array as `load_embeddings` returns."""
        return self.load_embeddings()

    @property
    def digests(self) -> np.ndarray:
        """sha256 of each image's bytes, (n, 32) uint8, read-only; mapped or copied as `load_embeddings` says."""
        return self.files[0].digests if len(self.files) == 1 else self._joined_digests

    def load_embeddings(self) -> np.ndarray:
        """Return all embeddings as one array.

        For one file the array is mapped, and nothing is copied. For several files the embeddings are
        copied into memory at the first call; the copy is kept, and every later call and `X` return it.
        To read a cache in bounded memory use `matrix`, `blocks` or `take`, as all commands do.

        Returns
        -------
        ndarray of float16 or float32, (n, d)
            Read-only.
        """
        return self.files[0].X if len(self.files) == 1 else self._joined_embeddings

    @cached_property
    def _stacked_embeddings(self) -> StackedRows:
        return StackedRows([file.X for file in self.files])

    @cached_property
    def _stacked_digests(self) -> StackedRows:
        return StackedRows([file.digests for file in self.files])

    @cached_property
    def _joined_embeddings(self) -> np.ndarray:
        return _read_only_copy(self._stacked_embeddings)

    @cached_property
    def _joined_digests(self) -> np.ndarray:
        return _read_only_copy(self._stacked_digests)

    @property
    def failures(self) -> dict[str, str]:
        """Reason by key of every image that could not be read."""
        return {key: reason for file in self.files for key, reason in file.failures.items()}

    def blocks(self, *, check: bool = False) -> Iterator[tuple[slice, np.ndarray]]:
        """Read the embeddings in row order, in bounded memory.

        The blocks are those of one file with the same rows, so that results do not depend on the files.

        Parameters
        ----------
        check : bool
            Check the embeddings against the checksums; damage raises `CacheError`.

        Yields
        ------
        rows : slice
            Of the cache.
        X : ndarray of float16 or float32, (b, d)
            Valid until the next block is requested.
        """
        yield from read_blocks(self.files, check=check)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Copy the embeddings of some rows.

        Parameters
        ----------
        rows : ndarray of int, (m,)
            Ascending.

        Returns
        -------
        ndarray of float16 or float32, (m, d)
        """
        taken, starts = [], self._starts.tolist()
        for file, start in zip(self.files, starts, strict=False):
            begin, end = np.searchsorted(rows, (start, start + len(file)))
            if end > begin or file is self.files[-1]:
                taken.append(file.take("embeddings", rows[begin:end] - start))
        return taken[0] if len(taken) == 1 else np.concatenate(taken)

    @property
    def _starts(self) -> np.ndarray:
        """First row of each file, and the number of rows."""
        return np.cumsum([0, *map(len, self.files)])

    def not_finite_error(self, rows: np.ndarray) -> CacheError:
        """Return the error for rows that are NaN or infinite, which pucache itself never writes.

        Parameters
        ----------
        rows : ndarray of int
            At least one; ascending.

        Returns
        -------
        CacheError
            Names the file of the first row, and rows of that file.
        """
        number = int(np.searchsorted(self._starts, rows[0], "right")) - 1
        start, stop = self._starts[number : number + 2]
        return self.files[number].not_finite_error(rows[rows < stop] - start)

    def check(self, *names: str) -> None:
        """Check columns of every file against the checksums; damage raises `CacheError`.

        Parameters
        ----------
        *names : str
            Datasets of the format: "embeddings", "keys", "digests", "size_mtime".
        """
        for file in self.files:
            file.check(*names)

    def verify(self) -> None:
        """Check every byte of every file against the checksums; damage raises `CacheError`."""
        for file in self.files:
            file.verify()

    def verified_blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Verify every file as `verify` does, and yield the embeddings in blocks meanwhile: one read for both.

        Yields
        ------
        rows : slice
            Rows of the cache.
        X : ndarray of float16 or float32, (b, d)
            Finite; valid until the next block is requested.
        """
        for file in self.files:
            file.check_beside_embeddings()
        for rows, X in self.blocks(check=True):
            not_finite = np.flatnonzero(~np.isfinite(X).all(1))
            if len(not_finite):
                raise self.not_finite_error(not_finite + rows.start)
            yield rows, X
        for file in self.files:
            file.check_texts()


CacheLike = EmbeddingCache | str | Path | Sequence[EmbeddingCache | str | Path]


def open_cache(cache: CacheLike) -> EmbeddingCache:
    """Open a cache; an opened one is returned as it is.

    Parameters
    ----------
    cache : EmbeddingCache, str, path, or a sequence of these
        A cache file, a folder of them, a URL of either, or an opened cache; several are read as one.

    Returns
    -------
    EmbeddingCache

    Raises
    ------
    CacheError
        See `EmbeddingCache`.
    """
    return cache if isinstance(cache, EmbeddingCache) else EmbeddingCache(*_as_list(cache))


def expand_paths(caches: CacheLike | Iterable[EmbeddingCache | str | Path]) -> list[Path]:
    """List cache files: those of opened caches, those in folders in name order, and local copies of URLs.

    Raises
    ------
    CacheError
        A folder holds no cache, or nothing was given.
    """
    paths: list[Path] = []
    for cache in _as_list(caches):
        if isinstance(cache, EmbeddingCache):
            paths += [file.path for file in cache.files]
        elif (path := _local_path(cache)).is_dir():
            paths += _folder_files(path)
        else:
            paths.append(path)
    if not paths:
        raise CacheError("no cache given")
    return paths


def open_files(caches: CacheLike | Iterable[EmbeddingCache | str | Path], *, map_now: bool = False) -> list[CacheFile]:
    """Open the files of `expand_paths`; a file of a folder that vanishes meanwhile is named with its folder.

    Parameters
    ----------
    caches : as for `expand_paths`
    map_now : bool
        Of `CacheFile`.

    Raises
    ------
    CacheError
        As `expand_paths` and `CacheFile`.
    """
    caches = _as_list(caches)
    named = {Path(cache) for cache in caches if not isinstance(cache, EmbeddingCache)}
    return [CacheFile(path, map_now=map_now, was_listed=path not in named) for path in expand_paths(caches)]


def _as_list(caches: CacheLike | Iterable[EmbeddingCache | str | Path]) -> list[EmbeddingCache | str | Path]:
    return [caches] if isinstance(caches, EmbeddingCache | str | Path) else list(caches)


def _open_files(cache: str | Path | EmbeddingCache) -> list[CacheFile]:
    if isinstance(cache, EmbeddingCache):
        return cache.files
    return open_files(cache, map_now=True)


def _folder_files(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.glob("*.h5") if not path.name.startswith("."))
    if not files:
        raise CacheError(f"no cache in folder {folder}; expected *.h5 files")
    return files


def _local_path(path: str | Path) -> Path:
    if not is_url(path):
        return Path(path)
    from .remote import local_copy  # imports fsspec, which most caches do not need

    return local_copy(os.fspath(path))


def _read_only_copy(rows: StackedRows) -> np.ndarray:
    array = np.array(rows)
    array.setflags(write=False)  # shared by all callers, like a mapped file
    return array


def is_cache(path: str | Path) -> bool:
    """Whether `path` names a cache rather than images: an HDF5 or ``.h5`` file, or a folder of these; or their URL."""
    if is_url(path):
        from .remote_files import is_remote_cache  # imports fsspec, which most caches do not need

        return is_remote_cache(os.fspath(path))
    path = Path(path)
    return path.suffix == ".h5" or begins_as_hdf5(path) or (path.is_dir() and any(path.glob("*.h5")))


def check_same_encoder(expected: CacheFile, got: CacheFile) -> None:
    """Raise `CacheError` unless two files hold embeddings of one encoder and one type."""
    differing = expected.encoder.differences(got.encoder)
    if differing:
        raise CacheError(
            f"{expected.path} holds embeddings of {expected.encoder}; {got.path} of {got.encoder} "
            f"(they differ in {', '.join(differing)}): caches of different encoders cannot be mixed"
        )
    if expected.dtype != got.dtype:
        raise CacheError(
            f"{expected.path} holds {expected.dtype}, {got.path} {got.dtype}; expected one type: export one, and "
            "import it again with the --dtype of the other"
        )
