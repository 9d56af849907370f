"""Keys: what joins images, rows and labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from ..errors import CacheError

_DECODED_AT_ONCE = 1 << 16


class Keys(Sequence[str]):
    """Keys in cache order: a sequence of str over fixed-width UTF-8, decoded on demand.

    Parameters
    ----------
    parts : list of ndarray of bytes (dtype S)
        Each sorted and unique.
    """

    def __init__(self, parts: list[np.ndarray]):
        self._parts = parts
        self._starts = np.cumsum([0, *(len(part) for part in parts)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @overload
    def __getitem__(self, item: int) -> str: ...
    @overload
    def __getitem__(self, item: slice | np.ndarray) -> list[str]: ...  # type: ignore[override]
    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, int | np.integer):
            row = int(item) + (len(self) if item < 0 else 0)
            if not 0 <= row < len(self):
                raise IndexError(f"row {item} of {len(self)}")
            part = int(np.searchsorted(self._starts, row, "right")) - 1
            return text(bytes(self._parts[part][row - self._starts[part]]))
        if isinstance(item, slice) and len(self._parts) == 1:
            return texts(self._parts[0][item].tolist())
        rows = np.arange(*item.indices(len(self))) if isinstance(item, slice) else np.arange(len(self))[item]
        found, at = np.empty(len(rows), object), np.searchsorted(self._starts, rows, "right") - 1
        for number in np.unique(at):
            here = at == number
            found[here] = texts(self._parts[number][rows[here] - self._starts[number]].tolist())
        return found.tolist()

    def __iter__(self) -> Iterator[str]:
        for part in self._parts:
            for start in range(0, len(part), _DECODED_AT_ONCE):
                yield from texts(part[start : start + _DECODED_AT_ONCE].tolist())

    def rows(self, keys: Sequence[str]) -> np.ndarray:
        """Return the row of each key by binary search, -1 where it is absent; int64, (len(keys),).

        Parameters
        ----------
        keys : sequence of str
            In any order.

        Returns
        -------
        ndarray of int64, (len(keys),)
        """
        wanted = encode_keys(keys)
        found = np.full(len(keys), -1, np.int64)
        for part, start in zip(self._parts, self._starts[:-1], strict=True):
            at = find(part, wanted)
            found[at >= 0] = at[at >= 0] + start
        found[["\0" in key for key in keys]] = -1  # no key has one, and at its end it would not count
        return found


def texts(stored: list[bytes]) -> list[str]:
    """Decode many as `text` does, at once."""
    try:
        found = b"\0".join(stored).decode().split("\0") if stored else []
    except UnicodeDecodeError:
        found = []
    return found if len(found) == len(stored) else [text(key) for key in stored]


def text(stored: bytes) -> str:
    """Decode a key, or another text of a cache; raises `CacheError` where it is not UTF-8."""
    try:
        return stored.decode()
    except UnicodeDecodeError as error:
        raise CacheError(
            f"the cache is damaged: {stored[:80]!r} in it is not UTF-8; run pucache verify on it"
        ) from error


def encode_keys(keys: Sequence[str]) -> np.ndarray:
    """Encode keys as fixed-width UTF-8, (n,) of dtype S."""
    return np.array([key.encode() for key in keys], dtype="S") if len(keys) else np.empty(0, "S1")


def duplicated(parts: list[np.ndarray]) -> bytes | None:
    """Return a key that stands in two of several arrays of keys, or None; in time n log n, and 16 bytes a key."""
    hashes = np.concatenate([_hashes(part) for part in parts])
    order = np.argsort(hashes)
    same = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
    if not len(same):
        return None
    keys, seen = Keys(parts), set()
    for row in order[np.union1d(same, same + 1)]:  # equal in 64 bits, so almost surely equal
        key = keys[int(row)].encode()
        if key in seen:
            return key
        seen.add(key)
    return None


def _hashes(keys: np.ndarray) -> np.ndarray:
    """64 bits of each key, whatever the width of the array; uint64, (n,)."""
    width = -(-keys.itemsize // 8)
    odd = np.random.default_rng(0).integers(1 << 63, size=(2, width), dtype=np.uint64) * 2 + 1
    hashes = np.empty(len(keys), np.uint64)
    for start in range(0, len(keys), _DECODED_AT_ONCE):
        words = keys[start : start + _DECODED_AT_ONCE].astype(f"S{8 * width}").view(np.uint64).reshape(-1, width)
        words = words * odd[0]  # words of padding stay zero, and add nothing
        words ^= words >> np.uint64(32)
        hashes[start : start + len(words)] = (words * odd[1]).sum(1)
    return hashes


def find(sorted_keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the position of each wanted key among the sorted ones, -1 where it is absent; int64."""
    if not len(sorted_keys) or not len(wanted):
        return np.full(len(wanted), -1, np.int64)
    fits = np.char.str_len(wanted) <= sorted_keys.itemsize  # a longer one would be cut, or widen a mapped array
    narrow = wanted.astype(sorted_keys.dtype)
    at = np.minimum(np.searchsorted(sorted_keys, narrow), len(sorted_keys) - 1)
    return np.where(fits & (sorted_keys[at] == narrow), at, -1)
