"""Search for a key that two cache files hold.

Keys are sorted within a file, so a range of keys is one run of each file. Range after range, the keys that
lie in more than one file are hashed, and keys of equal hash are compared. Every key is read once at most, and
memory is bounded by the size of a range.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from ..storage.mapped_arrays import drop_pages

_RANGE_KEYS = 1 << 16  # keys of a range, about; hashes of so many have few collisions in 32 bits
_RANGE_KEYS_PER_FILE = 1 << 11  # at least, because every run of a file takes some calls
_SAMPLES_PER_RANGE = 64  # keys that the bounds of ranges are chosen from
_HASHED_KEYS = 1 << 14  # hashed at once: they stay in the processor's cache
_BUCKET_BITS, _MOST_BUCKET_BITS = 3, 24  # eight to sixteen times more buckets than keys, and at most 64 MB
_RANGES_PER_RELEASE = 4  # pages of the files are released at such intervals


def find_duplicate(parts: list[np.ndarray]) -> bytes | None:
    """Return a key that occurs in two of several arrays, or None.

    Parameters
    ----------
    parts : list of ndarray of bytes (dtype S)
        Each sorted, without duplicates. They may be memory maps, whose pages are released.

    Returns
    -------
    bytes or None
    """
    parts = [part for part in parts if len(part)]
    duplicate = None
    bits = min(_range_size(parts).bit_length() + _BUCKET_BITS, _MOST_BUCKET_BITS)
    last_rows = np.empty(1 << bits, np.int32)  # allocated once
    for number, pieces in enumerate(_ranges(parts)):
        duplicate = None if _follow_one_another(pieces) else _duplicate_in(pieces, last_rows)
        if duplicate is not None:
            break
        if number % _RANGES_PER_RELEASE == 0:
            _release(parts)
    _release(parts)
    return duplicate


def _release(parts: list[np.ndarray]) -> None:
    for part in parts:
        drop_pages(part)


def _ranges(parts: list[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Runs of the parts within one range of keys after the other; together they are all keys."""
    if _follow_one_another(parts):
        yield parts
        return
    size = _range_size(parts)
    count = -(-sum(map(len, parts)) // size)
    sample = np.sort(np.concatenate([_sampled(part, max(1, size // _SAMPLES_PER_RANGE)) for part in parts]))
    narrowest = min(part.itemsize for part in parts)  # a bound that a part would cut were another bound there
    bounds = sample[np.linspace(0, len(sample), count + 1).astype(np.int64)[1:-1]].astype(f"S{narrowest}")
    ends = [_run_ends(part, bounds) for part in parts]
    for number in range(count):
        runs = [part[begin[number] : begin[number + 1]] for part, begin in zip(parts, ends, strict=True)]
        yield [run for run in runs if len(run)]


def _range_size(parts: list[np.ndarray]) -> int:
    return max(_RANGE_KEYS, _RANGE_KEYS_PER_FILE * len(parts))


def _sampled(part: np.ndarray, step: int) -> np.ndarray:
    sample = part[::step].copy()
    drop_pages(part)  # reading a key maps its neighbourhood, so all of the keys
    return sample


def _run_ends(part: np.ndarray, bounds: np.ndarray) -> list[int]:
    ends = np.searchsorted(part, bounds.astype(part.dtype))
    drop_pages(part)  # as in `_sampled`
    return [0, *np.maximum.accumulate(ends).tolist(), len(part)]  # every key once, even if a file is not sorted


def _follow_one_another(pieces: list[np.ndarray]) -> bool:
    """Whether each piece ends before the next one begins, as shards do that were cut by range."""
    in_order = sorted(pieces, key=lambda piece: bytes(piece[0]))
    return all(bytes(one[-1]) < bytes(other[0]) for one, other in pairwise(in_order))


def _duplicate_in(pieces: list[np.ndarray], last_rows: np.ndarray) -> bytes | None:
    keys = np.concatenate(pieces)
    hashes = _hashes(keys)
    rows = _rows_of_shared_buckets(hashes, last_rows)
    hashes = hashes[rows]
    in_order = np.sort(hashes)
    repeated = in_order[1:][in_order[1:] == in_order[:-1]]
    if not len(repeated):
        return None
    seen = set()
    for key in keys[rows[np.isin(hashes, repeated)]].tolist():
        if key in seen:
            return bytes(key)
        seen.add(key)
    return None


def _rows_of_shared_buckets(hashes: np.ndarray, last_rows: np.ndarray) -> np.ndarray:
    """Find rows whose hash begins as that of another row; sorting these few is faster than sorting all.

    Parameters
    ----------
    hashes : ndarray of uint32, (n,)
    last_rows : ndarray of int32, (a power of two,)
        Overwritten: the last row of each bucket.

    Returns
    -------
    ndarray of int64, (m,)
    """
    bits = len(last_rows).bit_length() - 1
    buckets, rows = (hashes >> np.uint32(32 - bits)).astype(np.int64), np.arange(len(hashes), dtype=np.int32)
    last_rows[buckets] = rows
    earlier = np.flatnonzero(last_rows[buckets] != rows)
    shared = np.zeros(len(hashes), bool)
    shared[earlier] = shared[last_rows[buckets[earlier]]] = True
    return np.flatnonzero(shared)


def _hashes(keys: np.ndarray) -> np.ndarray:
    """32-bit hash of each key, uint32 (n,)."""
    if keys.itemsize < 8:
        keys = keys.astype("S8")
    words = -(-keys.itemsize // 8)
    factors = np.random.default_rng(0).integers(1 << 63, size=(words, 2), dtype=np.uint64) * 2 + 1  # odd
    hashes = np.empty(len(keys), np.uint32)
    for start in range(0, len(keys), _HASHED_KEYS):
        block = keys[start : start + _HASHED_KEYS]
        total = np.zeros(len(block), np.uint64)
        for number in range(words):
            total += _mixed(_word(block, number), *factors[number])
        hashes[start : start + len(block)] = total >> np.uint64(32)
    return hashes


def _word(keys: np.ndarray, number: int) -> np.ndarray:
    """Eight bytes of each key, uint64 (n,); beyond the end of a key there are zeros."""
    width, offset = keys.itemsize, min(8 * number, keys.itemsize - 8)
    word = np.ndarray(len(keys), "<u8", keys.view(np.uint8), offset, (width,))
    return word >> np.uint64(8 * (8 * number - offset))


def _mixed(word: np.ndarray, first: np.uint64, second: np.uint64) -> np.ndarray:
    word *= first
    word ^= word >> np.uint64(32)
    word *= second
    return word
