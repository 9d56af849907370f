"""The pile of a session as it was, kept in its folder, to go on with it where images have come to the cache.

The log names only the images that were labelled, decided or drawn; which others were in which urn, and which of them
show the same picture, is kept here: for each row a hash of key and digest, its urn and its group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..storage.atomic import replacing
from .twins import Groups


@dataclass(frozen=True)
class GrownPile:
    """A pile in the rows of the present cache."""

    old: np.ndarray  # rows that the cache had before, bool (n,)
    urn_of: np.ndarray  # urn of each row, int8 (n,); -1 outside the pile, and for images that came since
    groups: Groups  # those of before; an image that came since joins one, or is in one with others like it


def pile_path(folder: Path, checksums: Sequence[str]) -> Path:
    """Where the pile of a cache with such checksums is kept."""
    identity = hashlib.sha256("\0".join(checksums).encode()).hexdigest()
    return folder / f"pile-{identity[:16]}.npz"


def keep_pile(path: Path, cache: EmbeddingCache, urn_of: np.ndarray, groups: Groups) -> None:
    """Write the pile of a session, atomically; raises `OutputError` where the file system refuses."""
    with replacing(path) as temporary, open(temporary, "wb") as stream:
        np.savez_compressed(stream, image=_hashes(cache), urn=urn_of, group=groups.group)


def grown_pile(path: Path, cache: EmbeddingCache, group: np.ndarray) -> GrownPile | None:
    """The pile that was kept, in the rows of a cache; None where it is not there whole, or the file is damaged.

    Parameters
    ----------
    path : Path
    cache : EmbeddingCache
    group : ndarray of int64, (n,)
        Smallest row of the images that show the same picture, in this cache.
    """
    try:
        with np.load(path, allow_pickle=False) as kept:
            image, urn, before = kept["image"], kept["urn"].astype(np.int8), kept["group"].astype(np.int64)
    except Exception:  # no file, or no such file: numpy and zipfile raise a dozen kinds of errors
        return None
    n = len(image)
    if not n == len(urn) == len(before) or ((before < 0) | (before >= n)).any():
        return None
    present = _hashes(cache)
    order = np.argsort(present, kind="stable")
    found = np.minimum(np.searchsorted(present[order], image), max(len(order) - 1, 0))
    rows = order[found] if len(order) else np.zeros(len(image), np.int64)
    is_there = present[rows] == image if len(order) else np.zeros(len(image), bool)
    if not is_there[urn >= 0].all():
        return None
    n, rows, before, urn = len(cache), rows[is_there], before[is_there], urn[is_there]
    old, urn_of, joined = np.zeros(n, bool), np.full(n, -1, np.int8), np.arange(n)
    old[rows], urn_of[rows] = True, urn
    first = np.full(len(image), n)
    np.minimum.at(first, before, rows)
    joined[rows] = first[before]
    home = np.full(n, n)  # group of the old images among those that show the same picture, by that picture
    np.minimum.at(home, group[rows], joined[rows])
    came = np.flatnonzero(~old)
    joined[came] = np.where(home[group[came]] < n, home[group[came]], group[came])
    smallest = np.full(n, n)
    np.minimum.at(smallest, joined, np.arange(n))
    return GrownPile(old, urn_of, Groups(smallest[joined]))


def _hashes(cache: EmbeddingCache) -> np.ndarray:
    """Hash of key and digest of each row, uint64 (n,)."""
    digests, hashed = cache.digest_matrix, bytearray()
    for row, key in enumerate(cache.keys):
        hashed += hashlib.blake2b(
            key.encode("utf-8", "surrogateescape") + digests[row].tobytes(), digest_size=8
        ).digest()
    return np.frombuffer(bytes(hashed), np.uint64)
