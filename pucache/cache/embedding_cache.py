"""`EmbeddingCache`: one or several immutable cache files of one encoder, read as one.

docs/cache-format.md specifies the files; `pucache.cache.reader` reads one of them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing, suppress
from functools import cached_property
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from ..devices import cores
from ..errors import CacheError, PUCacheError, counted
from ..storage.atomic import CACHE_FORMAT, format_of
from ..storage.rows import RowMatrix, StackedRows, finite_rows
from ..storage.urls import is_url, path_or_url, without_secrets
from ..threads import prefetch
from .keys import Keys, decode_text, find_duplicate
from .layout import COLUMNS, FAILURES
from .local_copies import folder_of, url_of_copy
from .reader import CacheFile, CacheHeader, Check, reopened, rows_per_read
from .remote import is_remote_cache, local_copies

log = logging.getLogger("pucache")
_MAX_AHEAD = 4  # blocks that are hashed at once: more do not, as reading them takes as long


class EmbeddingCache:
    """One or more cache files of one encoder, read as one, in the state in which they were opened.

    Parameters
    ----------
    *caches : str, path, EmbeddingCache or CacheFile
        Cache files, folders of them (``*.h5``), URLs of either, which are downloaded first, or what is opened.

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

    def __init__(self, *caches: str | Path | EmbeddingCache | CacheFile):
        self.files = [file for cache in caches for file in _open_files(cache)]
        if not self.files:
            raise CacheError("no cache given")
        for other in self.files[1:]:
            check_same_encoder(self.files[0].header, other.header)
        self.encoder = self.files[0].encoder
        self._starts = np.cumsum([0, *map(len, self.files)])
        key = find_duplicate([file.raw_keys for file in self.files]) if len(self.files) > 1 else None
        if key is not None:
            raise duplicate_error(key, self.files)

    @cached_property
    def keys(self) -> Keys:
        """Keys in row order."""
        return Keys([file.raw_keys for file in self.files])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __repr__(self) -> str:
        return f"EmbeddingCache({self.name!r}, {counted(len(self), 'row')} of {self.encoder}, {self.files[0].dtype})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle where the files are; they are opened again, or fetched again, and must still be the same."""
        files = [(os.path.abspath(file.path), file.checksum, url_of_copy(file.path)) for file in self.files]
        return _reopened_cache, (files,)

    @property
    def name(self) -> str:
        """Name in messages."""
        return str(self.files[0].path) + (f" and {len(self.files) - 1} more" if len(self.files) > 1 else "")

    @property
    def checksums(self) -> list[str]:
        """Checksums of the files, in their order; they identify the content."""
        return [file.checksum for file in self.files]

    @property
    def reordered(self) -> bool:
        """Whether rows were sorted by key out of the order of the import or the table of images they came from."""
        return any(file.reordered for file in self.files)

    @property
    def failures(self) -> dict[str, str]:
        """Reason by key of every image of the files that could not be read."""
        return {key: reason for file in self.files for key, reason in file.failures.items()}

    @property
    def partial(self) -> dict[str, str]:
        """What was not read, by key of every image that has a row all the same."""
        return {key: reason for file in self.files for key, reason in file.partial.items()}

    def check(self, *names: str) -> None:
        """Check datasets of all files against the checksums; damage raises `CacheError`.

        Parameters
        ----------
        *names : str
            Datasets of the format: "embeddings", "keys", "digests", "size_mtime".
        """
        for file in self.files:
            file.check(*names)

    def blocks(self, *, check: bool = False) -> Iterator[tuple[slice, np.ndarray]]:
        """Read the embeddings in row order, in bounded memory.

        The blocks are those of one file with the same rows, so that results do not depend on the files. The next ones
        are read and hashed, in threads, while the caller works on the present one.

        Parameters
        ----------
        check : bool
            Check the embeddings against the checksums; damage raises `CacheError` at its block, at the latest in place
            of the last one.

        Yields
        ------
        rows : slice
        X : ndarray of float16 or float32, (b, d)
            Valid until the next block is requested.
        """
        ahead = min(cores(), _MAX_AHEAD) if check else 1
        with ThreadPoolExecutor(ahead) as pool:
            read = self._read_blocks(pool if check else None, ahead + 1)
            with closing(prefetch(read, ahead)) as blocks:
                for rows, X, checks in blocks:
                    for wait in checks:
                        wait()
                    yield rows, X

    def _read_blocks(self, pool: Executor | None, buffer_count: int) -> Iterator[tuple[slice, np.ndarray, list[Check]]]:
        """Yield blocks in `buffer_count` buffers in turn, with what to wait for before each is used."""
        n, dim, dtype = len(self), self.encoder.dim, self.files[0].dtype
        step = min(rows_per_read(dim * dtype.itemsize), n)
        # one more than wait: `prefetch` begins a further block only when the caller is done with the present one
        buffers = cycle([np.empty((step, dim), dtype) for _ in range(buffer_count)])
        first, filled, buffer, checks = 0, 0, next(buffers), []
        for file in self.files:
            row = 0
            with file.embedding_reader(pool) as read:
                while row < len(file):
                    count = min(step - filled, len(file) - row)
                    checks.append(read(buffer[filled : filled + count], row))
                    row, filled = row + count, filled + count
                    if filled == step or first + filled == n:
                        yield slice(first, first + filled), buffer[:filled], checks
                        first, filled, buffer, checks = first + filled, 0, next(buffers), []

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
        taken = []
        for file, start, stop in zip(self.files, self._starts[:-1], self._starts[1:], strict=True):
            begin, end = np.searchsorted(rows, (start, stop))
            if end > begin or file is self.files[-1]:
                taken.append(file.take("embeddings", rows[begin:end] - start))
        return taken[0] if len(taken) == 1 else np.concatenate(taken)

    def not_finite_error(self, rows: np.ndarray) -> CacheError:
        """Return the error for rows (int64, ascending) that are not finite; it names the file of the first."""
        number = int(np.searchsorted(self._starts, rows[0], "right")) - 1
        inside = rows[rows < self._starts[number + 1]][:3] - self._starts[number]
        keys = ", ".join(repr(decode_text(bytes(key))) for key in self.files[number].raw_keys[inside])
        path = self.files[number].path
        return CacheError(f"{path} holds NaN or infinite embeddings ({keys}); import or embed these anew")

    @cached_property
    def matrix(self) -> RowMatrix:
        """Embeddings, (n, d) float16 or float32, mapped read-only.

        An array for one file; `StackedRows` for several files, which take slices and row numbers as an array does.
        """
        return self.files[0].X if len(self.files) == 1 else StackedRows([file.X for file in self.files])

    @cached_property
    def digest_matrix(self) -> RowMatrix:
        """sha256 of each image's bytes, (n, 32) uint8, mapped read-only, as `matrix`."""
        return self.files[0].digests if len(self.files) == 1 else StackedRows([file.digests for file in self.files])

    @cached_property
    def X(self) -> np.ndarray:
        """Embeddings as one array, (n, d) float16 or float32, read-only.

        The mapped array of one file. Of several files, a copy in memory that is made once; to read these in bounded
        memory use `matrix`, `blocks` or `take`, as all commands do.
        """
        return self.files[0].X if len(self.files) == 1 else _read_only_copy(self.matrix)

    @cached_property
    def digests(self) -> np.ndarray:
        """sha256 of each image's bytes, (n, 32) uint8, read-only; mapped or copied as `X`."""
        return self.files[0].digests if len(self.files) == 1 else _read_only_copy(self.digest_matrix)

    def verify(self) -> None:
        """Check every byte of every file against the checksums, and the rules of the format.

        Raises
        ------
        CacheError
            A byte has changed since it was written, a file cannot be read, or its writer broke the rules: keys that are
            not sorted or not UTF-8, embeddings that are not finite.
        """
        for _ in self.verified_blocks():
            pass

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
            file.check(*set(COLUMNS) - {"embeddings"}, *FAILURES)
        for rows, X in self.blocks(check=True):
            not_finite = np.flatnonzero(~finite_rows(X)) + rows.start
            if len(not_finite):
                raise self.not_finite_error(not_finite)
            yield rows, X
        for file in self.files:
            file.check_texts()


def _reopened_cache(files: list[tuple[str, str, str]]) -> EmbeddingCache:
    """Open files again, given their paths, checksums, and the URLs that they were fetched from, or ""."""
    paths = [local_copies(url)[0] if url and not os.path.exists(path) else path for path, _, url in files]
    return EmbeddingCache(*(reopened(str(path), file[1]) for path, file in zip(paths, files, strict=True)))


CacheLike = EmbeddingCache | str | Path | Sequence[EmbeddingCache | str | Path]


def open_cache(cache: CacheLike) -> EmbeddingCache:
    """Open a cache file, a folder of them, a URL of either, or several as one; an opened cache is returned as it is."""
    return cache if isinstance(cache, EmbeddingCache) else EmbeddingCache(*list_caches(cache))


def expand_paths(caches: CacheLike | Iterable[EmbeddingCache | str | Path]) -> list[Path]:
    """List cache files, at least one: those of opened caches, those in folders by name, and local copies of URLs."""
    paths: list[Path] = []
    for cache in list_caches(caches):
        if isinstance(cache, EmbeddingCache):
            paths += [file.path for file in cache.files]
        elif is_url(where := path_or_url(cache)):
            paths += local_copies(where)
        else:
            paths += _folder_files(Path(where)) if Path(where).is_dir() else [Path(where)]
    if not paths:
        raise CacheError("no cache given")
    return paths


def open_files(caches: CacheLike | Iterable[EmbeddingCache | str | Path], *, map_now: bool = False) -> list[CacheFile]:
    """Open the files of `expand_paths`; a file of a folder that vanishes meanwhile is named with its folder."""
    caches = list_caches(caches)
    named = {Path(path_or_url(cache)) for cache in caches if not isinstance(cache, EmbeddingCache)}
    files = [CacheFile(path, map_now=map_now, was_listed=path not in named) for path in expand_paths(caches)]
    if len(files) > 1 or files[0].path not in named:
        _warn_of_missing_shards(files)
    return files


def _warn_of_missing_shards(files: list[CacheFile]) -> None:
    """Name the shares that are missing, where files of a folder record theirs."""
    shares: dict[tuple[str, str, str], set[int]] = {}
    for file in files:
        number, _, count = file.shard.partition("/")
        if number.isdecimal() and count.isdecimal():
            shares.setdefault((folder_of(file.path), file.source, count), set()).add(int(number))
    several = len({source for _, source, _ in shares}) > 1
    for (folder, source, count), present in shares.items():
        missing = sorted(set(range(1, int(count) + 1)) - present)
        if missing:
            names = ", ".join(f"{number}/{count}" for number in missing[:5]) + (", ..." if len(missing) > 5 else "")
            of = f" of {without_secrets(source)}" if several else ""
            log.warning("%s lacks %d of %s shares%s: embed %s with --shard", folder, len(missing), count, of, names)


def list_caches(caches: CacheLike | Iterable[EmbeddingCache | str | Path]) -> list[EmbeddingCache | str | Path]:
    """List caches that are named or open, as they are; raises `CacheError` for anything else."""
    if isinstance(caches, EmbeddingCache | str | Path):
        return [caches]
    listed: list[Any] = list(caches) if isinstance(caches, Iterable) else [None]
    if not all(isinstance(one, EmbeddingCache | str | Path) for one in listed):
        rows = f"{type(caches).__name__}: import_embeddings(X, 'cache.h5', keys) makes one of rows in memory"
        got = rows if hasattr(caches, "shape") else f"{caches!r:.80}"
        raise CacheError(f"expected a cache: a file, a folder, a URL, an opened cache, or a list of these; got {got}")
    return listed


def _open_files(cache: str | Path | EmbeddingCache | CacheFile) -> list[CacheFile]:
    if isinstance(cache, EmbeddingCache):
        return cache.files
    if isinstance(cache, CacheFile):
        return [cache]
    return open_files(cache, map_now=True)


def _folder_files(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.glob("*.h5") if not path.name.startswith("."))
    if not files:
        raise CacheError(f"no cache in folder {folder}; expected *.h5 files, as embed writes")
    return files


def _read_only_copy(rows: RowMatrix) -> np.ndarray:
    array = np.array(rows)
    array.setflags(write=False)  # shared by all callers, like a mapped file
    return array


def is_cache(path: str | Path) -> bool:
    """Whether `path` names a cache rather than images: an HDF5 or ``.h5`` file, or a folder of these; or their URL."""
    if is_url(where := path_or_url(path)):
        return is_remote_cache(where)
    path = Path(where)
    return path.suffix == ".h5" or format_of(path) == CACHE_FORMAT or (path.is_dir() and any(path.glob("*.h5")))


def duplicate_error(key: bytes, files: Iterable[CacheFile]) -> CacheError:
    """The error for a key that stands in two of the files; reads their keys without mapping them."""
    holders = (str(file.path) for file in files if key in file.take("keys", np.arange(len(file))))
    return CacheError(
        f"the key {key.decode()!r} stands both in {' and in '.join(islice(holders, 2))}; open one of the two, or embed "
        "with --shard I/N"
    )


def check_same_encoder(expected: CacheHeader, got: CacheHeader) -> None:
    """Raise `CacheError` unless two files hold embeddings of one encoder and one type."""
    encoder, other = expected.attributes.encoder, got.attributes.encoder
    differing = encoder.differences(other)
    if differing:
        raise CacheError(
            f"{expected.name} holds embeddings of {encoder}; {got.name} of {other} "
            f"(they differ in {', '.join(differing)}): caches of different encoders cannot be mixed"
        )
    if expected.dtype != got.dtype:
        raise CacheError(
            f"{expected.name} holds {expected.dtype}, {got.name} {got.dtype}; expected one type: export one, and "
            "import it again in Python with the dtype of the other"
        )


def files_read(*inputs: object) -> Iterator[str]:
    """Paths and URLs among the inputs of a verb, and of each cache its sources and the files beside it.

    Inputs that are no paths, caches or sequences of these give nothing. This is an iterator, as a cache is opened only
    where `pucache.storage.outputs` asks for it: where something would be replaced. A file that cannot be read gives
    nothing more; whoever reads it says why.
    """
    for one in inputs:
        if isinstance(one, EmbeddingCache):
            yield from _of_caches([file.path for file in one.files])
        elif isinstance(one, str | os.PathLike):
            yield os.fspath(one)
            with suppress(PUCacheError):
                if not is_url(path_or_url(one)) and is_cache(os.fspath(one)):
                    yield from _of_caches(expand_paths(os.fspath(one)))
        elif isinstance(one, Sequence):
            yield from files_read(*one)


def _of_caches(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        yield from (str(path), f"{path}.*", f"{path}.review")  # such as cache.h5.neighbours
        with suppress(PUCacheError):
            if source := CacheFile(path).source:
                yield source
