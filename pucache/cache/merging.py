"""Merges cache files of one encoder into one, in the order of keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from ..encoders.spec import EncoderSpec
from ..errors import CacheError
from ..storage.atomic import check_writable
from .embedding_cache import check_same_encoder, expand
from .keys import encode_keys, find
from .reader import CacheFile, rows_per_block
from .writer import Rows, write_file


def pack(paths: Iterable[str | Path], out: str | Path) -> int:
    """Merge cache files of one encoder into one; returns the number of rows.

    Parameters
    ----------
    paths : iterable of path or str
        Cache files, folders of them, or URLs of either.
    out : path or str
        The file to write.

    Returns
    -------
    int
        Rows written.

    Raises
    ------
    CacheError
        A file is unusable, encoders differ, or a key stands in two files.
    """
    out = check_writable(out)
    files = [CacheFile(path) for path in expand(paths)]
    for other in files[1:]:
        check_same_encoder(files[0], other)
    failures: dict[str, str] = {}
    for file in files:
        file.verify()
        failures.update(file.failures)
        file.release()
    for file in files:
        rows = find(file.raw_keys, encode_keys(list(failures)))
        failures = {key: reason for (key, reason), row in zip(failures.items(), rows, strict=True) if row < 0}
        file.release()
    picks = [(file, np.arange(len(file))) for file in files]
    sources = sorted({file.source for file in files})
    source = sources[0] if len(sources) == 1 else ""
    return merge(out, picks, encoder=files[0].encoder, dtype=files[0].dtype, source=source, failures=failures)


def merge(
    out: str | Path,
    picks: list[tuple[CacheFile, np.ndarray]],
    *,
    encoder: EncoderSpec,
    dtype: np.dtype,
    source: str,
    failures: dict[str, str],
) -> int:
    """Write the picked rows of several files, sorted by key, as one file.

    In memory are the keys and 20 bytes of each row, and a block of the rest.

    Parameters
    ----------
    picks : list of (CacheFile, ndarray of int)
        Row numbers to take from each file, rising; no key may be picked twice.

    Returns
    -------
    int
        Rows written.

    Raises
    ------
    CacheError
        A key is picked twice, or a file cannot be read.
    """
    keys, piece, row, longest = _collect(picks)
    order = np.argsort(keys, kind="stable")
    step = rows_per_block(np.empty((0, encoder.dim), dtype))

    def blocks() -> Iterator[Rows]:
        previous = keys[:0]
        for start in range(0, len(order), step):
            part = order[start : start + step]
            here = keys[part]
            run = np.concatenate([previous, here])
            twice = run[1:][run[1:] == run[:-1]]
            if len(twice):
                raise CacheError(f"the key {twice[0].decode()!r} stands in more than one of the files")
            previous = here[-1:]
            yield _gather(picks, piece[part], row[part], here, encoder.dim, dtype)

    shape = (len(order), longest, dtype)
    write_file(out, encoder, source, blocks(), shape=shape, failures=dict(sorted(failures.items())))
    return len(order)


def _collect(picks: list[tuple[CacheFile, np.ndarray]]) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Of every picked row the key, the number of its file, and its row there; and the length of the longest key."""
    total = sum(len(rows) for _, rows in picks)
    width = max((file.raw_key_bytes for file, _ in picks), default=1)
    keys, piece, row = np.empty(total, f"S{width}"), np.empty(total, np.int32), np.empty(total, np.int64)
    begin, longest = 0, 1
    for number, (file, rows) in enumerate(picks):
        here = slice(begin, begin + len(rows))
        keys[here], piece[here], row[here] = file.take("keys", rows), number, rows
        if len(rows):
            longest = max(longest, int(np.char.str_len(keys[here]).max()))
        begin += len(rows)
    return keys, piece, row, longest


def _gather(
    picks: list[tuple[CacheFile, np.ndarray]],
    piece: np.ndarray,
    row: np.ndarray,
    keys: np.ndarray,
    dim: int,
    dtype: np.dtype,
) -> Rows:
    n = len(keys)
    rows = Rows(keys, np.empty((n, dim), dtype), np.empty((n, 32), np.uint8), np.empty((n, 2), np.int64))
    for number in np.unique(piece):
        here = np.flatnonzero(piece == number)
        file, at = picks[number][0], row[here]
        rows.X[here], rows.digests[here] = file.take("embeddings", at), file.take("digests", at)
        rows.size_mtime[here] = file.take("size_mtime", at)
    return rows
