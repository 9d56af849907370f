"""Merging cache files of one encoder into one, in key order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..encoders.spec import EncoderSpec
from ..errors import CacheError
from ..storage.atomic import check_writable
from .embedding_cache import CacheLike, EmbeddingCache, check_same_encoder, open_files
from .keys import encode_keys, find_sorted
from .reader import CacheFile, rows_per_read
from .writer import Rows, write_file


def pack(caches: CacheLike | Iterable[EmbeddingCache | str | Path], out: str | Path) -> int:
    """Merge cache files of one encoder into one.

    Parameters
    ----------
    caches : str, path, EmbeddingCache, or an iterable of these
        Cache files, folders of them, or URLs of either; an opened cache stands for its files.
    out : path or str
        The file to write.

    Returns
    -------
    int
        Number of rows written.

    Raises
    ------
    CacheError
        A file is damaged, encoders differ, or a key occurs in two files.
    OutputError
        `out` cannot be written.
    """
    out = check_writable(out)
    files = open_files(caches)
    for other in files[1:]:
        check_same_encoder(files[0], other)
    failures: dict[str, str] = {}
    for file in files:
        file.verify()
        failures.update(file.failures)
        file.release()
    sources = sorted({file.source for file in files})
    origins = {file.encoder.origin for file in files}
    return merge(
        out,
        [(file, np.arange(len(file))) for file in files],
        encoder=replace(files[0].encoder, origin=files[0].encoder.origin if len(origins) == 1 else ""),
        dtype=files[0].dtype,
        source=sources[0] if len(sources) == 1 else "",
        failures=_without_embedded(failures, files),
    )


def _without_embedded(failures: dict[str, str], files: list[CacheFile]) -> dict[str, str]:
    """Drop failures whose key has a row in one of the files."""
    keys = encode_keys(list(failures))
    embedded = np.zeros(len(keys), bool)
    for file in files:
        embedded |= find_sorted(file.raw_keys, keys) >= 0
        file.release()
    return {key: reason for (key, reason), drop in zip(failures.items(), embedded, strict=True) if not drop}


def merge(
    out: str | Path,
    picks: list[tuple[CacheFile, np.ndarray]],
    *,
    encoder: EncoderSpec,
    dtype: np.dtype,
    source: str,
    failures: dict[str, str],
) -> int:
    """Write chosen rows of several files, sorted by key, as one file.

    Memory holds the keys, 20 bytes of each row, and a block of the other columns.

    Parameters
    ----------
    out : path or str
    picks : list of (CacheFile, ndarray of int)
        Row numbers to take from each file, ascending; no key may be chosen twice.
    encoder : EncoderSpec
    dtype : numpy.dtype
        Type of the embeddings in every file.
    source : str
        Path or URL of the images.
    failures : dict of str to str
        Reason by key.

    Returns
    -------
    int
        Number of rows written.

    Raises
    ------
    CacheError
        A key is chosen twice, or a file cannot be read.
    """
    chosen = _ChosenRows.of(picks)
    longest = chosen.longest_key()
    order = np.argsort(chosen.keys, kind="stable")
    step = rows_per_read(encoder.dim * dtype.itemsize)

    def blocks() -> Iterator[Rows]:
        previous = chosen.keys[:0]  # the last key of the block before
        for start in range(0, len(order), step):
            block = chosen.take(order[start : start + step])
            run = np.concatenate([previous, block.keys])
            duplicates = run[1:][run[1:] == run[:-1]]
            if len(duplicates):
                raise CacheError(f"the key {duplicates[0].decode()!r} stands in more than one of the files")
            previous = block.keys[-1:]
            yield block.read(picks, encoder.dim, dtype)

    shape = (len(order), longest, dtype)
    write_file(out, encoder, source, blocks(), shape=shape, failures=dict(sorted(failures.items())))
    return len(order)


@dataclass(frozen=True)
class _ChosenRows:
    """Chosen rows of several files.

    Attributes
    ----------
    keys : ndarray of bytes (dtype S), (n,)
    file : ndarray of int32, (n,)
        Number of the file that holds the row.
    row : ndarray of int64, (n,)
        Row number in that file.
    """

    keys: np.ndarray
    file: np.ndarray
    row: np.ndarray

    @classmethod
    def of(cls, picks: list[tuple[CacheFile, np.ndarray]]) -> _ChosenRows:
        n = sum(len(rows) for _, rows in picks)
        width = max((file.raw_key_bytes for file, _ in picks), default=1)
        chosen = cls(np.empty(n, f"S{width}"), np.empty(n, np.int32), np.empty(n, np.int64))
        begin = 0
        for number, (file, rows) in enumerate(picks):
            part = slice(begin, begin + len(rows))
            chosen.keys[part], chosen.file[part], chosen.row[part] = file.take("keys", rows), number, rows
            begin = part.stop
        return chosen

    def longest_key(self) -> int:
        """Bytes of the longest key, at least 1."""
        return max(1, int(np.char.str_len(self.keys).max(initial=0)))

    def take(self, order: np.ndarray) -> _ChosenRows:
        return _ChosenRows(self.keys[order], self.file[order], self.row[order])

    def read(self, picks: list[tuple[CacheFile, np.ndarray]], dim: int, dtype: np.dtype) -> Rows:
        """Read all columns; within a file the row numbers must be ascending."""
        n = len(self.keys)
        block = Rows(
            keys=self.keys,
            X=np.empty((n, dim), dtype),
            digests=np.empty((n, 32), np.uint8),
            size_mtime=np.empty((n, 2), np.int64),
        )
        for number in np.unique(self.file):
            part = np.flatnonzero(self.file == number)
            file, rows = picks[number][0], self.row[part]
            block.X[part], block.digests[part] = file.take("embeddings", rows), file.take("digests", rows)
            block.size_mtime[part] = file.take("size_mtime", rows)
        return block
