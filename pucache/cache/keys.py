"""Keys: the names of images, which join images, rows and labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np

from ..errors import CacheError
from ..storage.rows import drop_pages

_KEYS_PER_STEP = 1 << 16  # keys decoded at once
_KEYS_NUMBERED = 1 << 14  # keys numbered at once: they stay in the processor's cache
_ODD = 0x9E3779B97F4A7C15  # 2^64 / golden ratio
_BITS = (1 << 64) - 1


class Keys(Sequence[str]):
    """Keys in row order: a sequence of str over fixed-width UTF-8, (n_i,) of dtype S per file, decoded on demand.

    Within a file they are sorted and unique.
    """

    def __init__(self, parts: list[np.ndarray]):
        self._parts = parts
        self._starts = np.cumsum([0, *(len(part) for part in parts)])

    def __repr__(self) -> str:
        shown = self[:3] + ["..."] * (len(self) > 3)
        return f"Keys({len(self):,}: {', '.join(shown)})"

    def __len__(self) -> int:
        return int(self._starts[-1])

    @overload
    def __getitem__(self, item: int) -> str: ...
    @overload
    def __getitem__(self, item: slice | np.ndarray) -> list[str]: ...  # type: ignore[override]
    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, int | np.integer):
            return self._key(int(item))
        if isinstance(item, slice) and item.step in (None, 1):
            return decode_texts(self.encoded(item).tolist())
        rows = np.arange(*item.indices(len(self))) if isinstance(item, slice) else np.arange(len(self))[item]
        keys, part = np.empty(len(rows), object), np.searchsorted(self._starts, rows, "right") - 1
        for number in np.unique(part):
            chosen = part == number
            keys[chosen] = decode_texts(self._parts[number][rows[chosen] - self._starts[number]].tolist())
        return keys.tolist()

    def encoded(self, rows: slice) -> np.ndarray:
        """Keys of consecutive rows, a slice with step 1, as they are stored: UTF-8, (b,) of dtype S.

        They are as wide as the widest of the files, and a view where one file holds all of the rows.
        """
        start, stop, _ = rows.indices(len(self))
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        end = int(np.searchsorted(self._starts, stop, side="left"))
        parts = range(first, min(end, len(self._parts)))
        pieces = [self._parts[part][max(start - self._starts[part], 0) : stop - self._starts[part]] for part in parts]
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, "S1"), *pieces])

    def _key(self, item: int) -> str:
        row = item + (len(self) if item < 0 else 0)
        if not 0 <= row < len(self):
            raise IndexError(f"row {item} of {len(self)}")
        part = int(np.searchsorted(self._starts, row, "right")) - 1
        return decode_text(bytes(self._parts[part][row - self._starts[part]]))

    def __iter__(self) -> Iterator[str]:
        for part in self._parts:
            for start in range(0, len(part), _KEYS_PER_STEP):
                yield from decode_texts(part[start : start + _KEYS_PER_STEP].tolist())

    def rows(self, keys: Sequence[str]) -> np.ndarray:
        """Look up the row of each key by binary search: int64, (len(keys),); -1 for a key that is not present."""
        wanted = encode_keys(keys)
        rows = np.full(len(keys), -1, np.int64)
        for part, start in zip(self._parts, self._starts[:-1], strict=True):
            positions = find_sorted(part, wanted)
            rows[positions >= 0] = positions[positions >= 0] + start
        rows[["\0" in key for key in keys]] = -1  # no key contains NUL, and numpy ignores one at the end
        return rows


def decode_text(stored: bytes) -> str:
    """Decode a key or another text of a cache; raises `CacheError` if it is not UTF-8."""
    try:
        return stored.decode()
    except UnicodeDecodeError as error:
        raise CacheError(
            f"the cache is damaged: {stored[:80]!r} in it is not UTF-8; run pucache verify on it"
        ) from error


def decode_texts(stored: list[bytes]) -> list[str]:
    """Decode a list of texts as `decode_text` does, in one call if none of them contains NUL."""
    try:
        decoded = b"\0".join(stored).decode().split("\0") if stored else []
    except UnicodeDecodeError:
        decoded = []
    return decoded if len(decoded) == len(stored) else [decode_text(text) for text in stored]


def encode_keys(keys: Sequence[str] | np.ndarray) -> np.ndarray:
    """Encode keys as fixed-width UTF-8, (n,) of dtype S; keys that are so encoded are returned as they are."""
    if isinstance(keys, np.ndarray) and keys.dtype.kind == "S":
        return keys
    return np.array([key.encode() for key in keys], dtype="S") if len(keys) else np.empty(0, "S1")


def find_sorted(sorted_keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the position of each wanted key among sorted ones, int64 (len(wanted),); -1 if it is not present."""
    if not len(sorted_keys) or not len(wanted):
        return np.full(len(wanted), -1, np.int64)
    fits = np.char.str_len(wanted) <= sorted_keys.itemsize  # a longer key would be cut, or widen a mapped array
    narrow = wanted.astype(sorted_keys.dtype)
    positions = np.minimum(np.searchsorted(sorted_keys, narrow), len(sorted_keys) - 1)
    return np.where(fits & (sorted_keys[positions] == narrow), positions, -1)


def find_duplicate(parts: Sequence[np.ndarray]) -> bytes | None:
    """Return a key that occurs in two of several sorted arrays, or None; pages of memory maps are released.

    Keys are compared by 64-bit hashes, and only where two of these are equal themselves.
    """
    parts = [part for part in parts if len(part)]
    in_order = sorted((bytes(part[0]), bytes(part[-1])) for part in parts)
    if all(one[1] < other[0] for one, other in pairwise(in_order)):  # as shards do that were cut by range
        return None
    of_parts = [_all_numbers(part) for part in parts]
    hashes = np.sort(np.concatenate(of_parts))
    repeated = hashes[1:][hashes[1:] == hashes[:-1]]
    seen: set[bytes] = set()
    for part, numbers in zip(parts, of_parts, strict=True) if len(repeated) else []:
        for key in part[np.isin(numbers, repeated)].tolist():
            if key in seen:
                return bytes(key)
            seen.add(key)
    return None


def _all_numbers(keys: np.ndarray) -> np.ndarray:
    """Numbers of all keys of a part, whose pages are released."""
    blocks = [keys[start : start + _KEYS_NUMBERED] for start in range(0, len(keys), _KEYS_NUMBERED)]
    numbers = np.concatenate([key_numbers(block, 0) for block in blocks])
    drop_pages(keys)
    return numbers


def key_numbers(keys: np.ndarray, seed: int) -> np.ndarray:
    """A number for each key (n,) of dtype S, even over 64 bits: uint64 (n,), by the key's bytes and the seed alone."""
    width = -(-keys.itemsize // 8)
    words = keys.astype(f"S{8 * width}").view("<u8").reshape(len(keys), width)
    total = np.zeros(len(keys), np.uint64)
    for number in range(width):
        factor = np.uint64(_ODD * (2 * number + 1) & _BITS)
        total += split_mix(words[:, number] * factor)  # zero for words of padding, as 0 is mixed to 0
    return split_mix(total + np.uint64(_ODD * (seed + 1) & _BITS))


def split_mix(words: np.ndarray) -> np.ndarray:
    """Finaliser of SplitMix64 (Steele, Lea and Flood 2014), in place: each bit depends on all bits."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words
