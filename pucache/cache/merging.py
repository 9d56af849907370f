"""Merging cache files of one encoder into one, in key order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..encoders.spec import EncoderSpec
from ..errors import CacheError, OutputError
from ..storage.atomic import check_writable
from ..storage.file_kinds import CACHE
from ..storage.outputs import check_output
from ..threads import prefetch
from .embedding_cache import CacheLike, EmbeddingCache, check_same_encoder, duplicate_error, open_files
from .keys import decode_text, encode_keys, find_sorted
from .layout import PARTIAL
from .parts import writer_lock
from .reader import CacheFile
from .writer import Rows, write_file

BLOCK_BYTES = 32 << 20  # of embeddings; a smaller block reads fewer rows at once from each of many files
Picks = list[tuple[CacheFile, np.ndarray]]  # row numbers to take from each file, ascending


def pack(caches: CacheLike | Iterable[EmbeddingCache | str | Path], out: str | Path, *, force: bool = False) -> int:
    """Merge cache files of one encoder into one.

    Parameters
    ----------
    caches : str, path, EmbeddingCache, or an iterable of these
        Cache files, folders of them, or URLs of either; an opened cache stands for its files.
    out : path or str
        The file to write.
    force : bool
        Replace a file at `out` that is no cache of this encoder, or that holds keys which the new one lacks.

    Returns
    -------
    int
        Number of rows written.

    Raises
    ------
    CacheError
        A file is damaged, encoders differ, or a key occurs in two files.
    OutputError
        `out` cannot be written, or would lose keys.
    CacheLockedError
        Another process writes `out`.
    """
    check_writable(out)
    files = open_files(caches)
    out = check_output(out, CACHE, inputs=[file.source for file in files if file.source], force=force)
    for other in files[1:]:
        check_same_encoder(files[0].header, other.header)
    with writer_lock(out):
        if out.exists():
            check_replaces(out, files[0].encoder, np.sort(np.concatenate([*map(_keys, files)])), force=force)
        failures: dict[str, str] = {}
        for file in files:
            EmbeddingCache(file).verify()
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
            failures=without_embedded(failures, map(_keys, files)),
            created=max(file.created for file in files),
            reordered=any(file.reordered for file in files),
        )


def _keys(file: CacheFile) -> np.ndarray:
    return file.take("keys", np.arange(len(file)))


def check_replaces(out: Path, encoder: EncoderSpec, sorted_keys: np.ndarray, *, force: bool) -> None:
    """Raise `OutputError` if a file at `out` is no cache of this encoder, or holds keys that the new file lacks."""
    if force or not out.exists():
        return
    remedy = "name another file, or pass --force to replace it"
    try:
        existing = CacheFile(out)
        keys = _keys(existing)
    except CacheError as error:
        raise OutputError(f"{str(error).split(';')[0]}; {remedy}") from error
    if existing.encoder.differences(encoder):
        raise OutputError(f"{out} holds embeddings of {existing.encoder}, the new file those of {encoder}; {remedy}")
    lost = keys[find_sorted(sorted_keys, keys) < 0]
    if len(lost):
        number = f"{len(lost)} keys" if len(lost) > 1 else "a key"
        raise OutputError(
            f"{out} holds {number} that the new file lacks, such as {decode_text(bytes(lost[0]))!r}; {remedy}"
        )


def without_embedded(failures: dict[str, str], sorted_columns: Iterable[np.ndarray]) -> dict[str, str]:
    """Drop failures whose key has a row in one of several files, whose sorted keys are given.

    Of images that were read in part those are dropped that have none.
    """
    keys = encode_keys(list(failures))
    embedded = np.zeros(len(keys), bool)
    for column in sorted_columns:
        embedded |= find_sorted(column, keys) >= 0
    return {
        key: reason
        for (key, reason), has_row in zip(failures.items(), embedded, strict=True)
        if has_row == reason.startswith(PARTIAL)
    }


def partial_rows(picks: Picks) -> dict[str, str]:
    """What was not read of the images of chosen rows, by key."""
    partial: dict[str, str] = {}
    for file, rows in picks:
        if of_file := file.partial:
            partial |= without_embedded(of_file, [file.take("keys", rows)])
    return partial


def merge(
    out: str | Path,
    picks: Picks,
    *,
    encoder: EncoderSpec,
    dtype: np.dtype,
    source: str,
    failures: dict[str, str],
    created: str = "",
    shard: str = "",
    reordered: bool = False,
    advance: Callable[[int], object] = lambda rows: None,
) -> int:
    """Write chosen rows of several files, sorted by key, as one file; returns the number of rows.

    Memory holds the keys, 20 bytes of each row, and three blocks of the other columns. `advance` is called with the
    number of rows of each block before it is read. Raises `CacheError` where a key is chosen twice or a file cannot be
    read.
    """
    keys = np.concatenate([np.empty(0, "S1"), *(file.take("keys", rows) for file, rows in picks)])
    longest = max(1, int(np.char.str_len(keys).max(initial=0)))
    shape = (len(keys), longest, dtype)
    failures = dict(sorted({**failures, **partial_rows(picks)}.items()))
    with closing(prefetch(_blocks(picks, keys, encoder.dim, dtype, advance))) as blocks:
        write_file(
            out,
            encoder,
            source,
            blocks,
            shape=shape,
            failures=failures,
            created=created,
            shard=shard,
            reordered=reordered,
        )
    return len(keys)


def _blocks(
    picks: Picks, keys: np.ndarray, dim: int, dtype: np.dtype, advance: Callable[[int], object]
) -> Iterator[Rows]:
    """Read the chosen rows, whose keys are given, in key order; raises `CacheError` if a key is chosen twice."""
    order = np.argsort(keys, kind="stable")
    file_numbers = np.repeat(np.arange(len(picks), dtype=np.int32), [len(rows) for _, rows in picks])
    row_numbers = np.concatenate([np.empty(0, np.int64), *(rows for _, rows in picks)])
    step = max(1, BLOCK_BYTES // (dim * dtype.itemsize))
    for start in range(0, len(order), step):
        run = keys[order[max(0, start - 1) : start + step]]  # with the last key of the block before
        duplicates = run[1:][run[1:] == run[:-1]]
        if len(duplicates):
            raise duplicate_error(duplicates[0], [file for file, _ in picks])
        chosen = order[start : start + step]
        advance(len(chosen))
        yield _read_rows(picks, keys[chosen], file_numbers[chosen], row_numbers[chosen], dim, dtype)


def _read_rows(
    picks: Picks, keys: np.ndarray, file_numbers: np.ndarray, row_numbers: np.ndarray, dim: int, dtype: np.dtype
) -> Rows:
    """Read all columns of rows; within a file the row numbers must be ascending."""
    n = len(keys)
    block = Rows(keys, np.empty((n, dim), dtype), np.empty((n, 32), np.uint8), np.empty((n, 2), np.int64))
    for number in np.unique(file_numbers):
        part = np.flatnonzero(file_numbers == number)
        file, rows = picks[number][0], row_numbers[part]
        block.X[part], block.digests[part] = file.take("embeddings", rows), file.take("digests", rows)
        block.size_mtime[part] = file.take("size_mtime", rows)
    return block
