"""The pile of a session: groups of images that show the same picture, and the urn of each image.

Near duplicates are searched where that takes seconds; larger caches are grouped by the digests of the image bytes
alone, which reads no embeddings. The log names only the images that were labelled, decided or drawn; which others are
in which urn and group is kept beside it, for each row under a hash of key and digest, to go on where images have come.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..cache.keys import split_mix
from ..labels import near_duplicates
from ..labels.labels import PULabels
from ..storage.atomic import replacing
from ..storage.rows import row_slices
from .log import Entry, EpochFacts

NEAR_DUPLICATES = "near duplicates and equal bytes"
EQUAL_BYTES = "equal bytes"
_SCANNED_VALUES = 1 << 27  # embedding values up to which near duplicates are searched
_LONGEST_KEY = 1 << 13  # bytes
_SEARCHED = 1 << 12  # rows at once


class Twins:
    """Images of a cache that show the same picture; searched when they are first asked for.

    `cosine` is the least one of twins; None, or above 1: equal bytes only.
    """

    def __init__(self, cache: EmbeddingCache, cosine: float | None):
        self._cache, self.cosine = cache, cosine
        small = len(cache) * cache.encoder.dim <= _SCANNED_VALUES
        self.kind = NEAR_DUPLICATES if small and cosine is not None and cosine <= 1 else EQUAL_BYTES

    @cached_property
    def group(self) -> np.ndarray:
        """Smallest row of the group that each row is in, int64 (n,)."""
        if self.kind == NEAR_DUPLICATES:
            return near_duplicates.groups(self._cache.matrix, self._cache.digest_matrix, cosine=self.cosine)
        return near_duplicates.equal_digests(self._cache.digest_matrix)


class Groups:
    """Groups of twins, and the rows of each.

    Parameters
    ----------
    group : ndarray of int64, (n,)
        The smallest row of the group that each row is in.
    """

    def __init__(self, group: np.ndarray):
        self.group = group
        in_group = np.flatnonzero(np.bincount(group, minlength=len(group))[group] > 1)
        order = np.argsort(group[in_group], kind="stable")
        self._rows = in_group[order]  # of the groups of two and more, group by group
        self._groups = group[self._rows]

    def rows(self, group: int) -> np.ndarray:
        """Rows of one group, int64, ascending."""
        first, last = np.searchsorted(self._groups, (group, group + 1))
        return self._rows[first:last] if last > first else np.array([group])

    def spread(self, chosen: np.ndarray) -> np.ndarray:
        """Mark all rows of the groups of chosen rows; bool (n,) to bool (n,)."""
        marked = chosen.copy()
        rows = self._rows
        marked[rows] = np.isin(self._groups, self._groups[chosen[rows]])
        return marked


def inherited(labels: PULabels, groups: Groups) -> PULabels:
    """PULabels in which unlabelled twins of labelled rows are reviewed.

    Twins of positives become confirmed positives, twins of negatives alone known negatives.
    """
    reviewed, undecided = labels.reviewed.copy(), labels.unlabelled
    positive, negative = groups.spread(labels.positive), groups.spread(labels.negative)
    reviewed[undecided & negative] = -1
    reviewed[undecided & positive] = 1
    return PULabels(labels.s, reviewed)


def rows_of_urns(urn_of: np.ndarray) -> list[int]:
    """Rows of each urn, of which there is one at least."""
    return np.bincount(urn_of[urn_of >= 0], minlength=1).tolist()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Pile:
    """What the entries of a session are replayed on: the rows of the present cache, and what they were before."""

    facts: EpochFacts  # of the present epoch
    before: PULabels  # from before the session, without what twins inherit
    groups: Groups
    urn_of: np.ndarray  # number of the urn of each row, int8 (n,); -1 outside the pile
    epoch: int  # number of the present epoch, which is yet to begin where the cache has changed
    carried: tuple[Entry, ...] = ()  # decisions in force from earlier epochs, by the rows of the cache
    note: str = ""  # what has changed in the cache
    is_kept: bool = False  # whether it is kept beside the log

    @property
    def urns(self) -> tuple[int, ...]:
        """Rows of each urn; together the rows neither labelled nor twins of labelled ones when the epoch began."""
        return self.facts.urns

    @property
    def first(self) -> int:
        """First epoch of the log that the present one goes on with."""
        return self.facts.continued[0] if self.facts.continued else self.epoch


# --- kept in the folder of a session -----------------------------------------------------------


@dataclass(frozen=True)
class KeptPile:
    """A pile that was kept, in the rows of the present cache."""

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


def kept_pile(path: Path, cache: EmbeddingCache, twins: Twins) -> KeptPile | None:
    """The pile that was kept, in the rows of a cache; None where it is not there whole, or the file is damaged.

    Twins are searched where images have come.
    """
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as kept:
            image, urn, before = kept["image"], kept["urn"].astype(np.int8), kept["group"].astype(np.int64)
    except Exception:  # no file, or no such file: numpy and zipfile raise a dozen kinds of errors
        return None
    if not len(image) == len(urn) == len(before) or ((before < 0) | (before >= len(image))).any():
        return None
    n, present = len(cache), _hashes(cache)
    order = np.argsort(present, kind="stable")
    found = np.minimum(np.searchsorted(present, image, sorter=order), n - 1)
    rows = order[found] if n else np.zeros(len(image), np.int64)
    is_there = present[rows] == image if n else np.zeros(len(image), bool)
    if not is_there[urn >= 0].all():
        return None
    rows, before, urn = rows[is_there], before[is_there], urn[is_there]
    old, urn_of, joined = np.zeros(n, bool), np.full(n, -1, np.int8), np.arange(n)
    old[rows], urn_of[rows] = True, urn
    first = np.full(len(image), n)
    np.minimum.at(first, before, rows)
    joined[rows] = first[before]
    came = np.flatnonzero(~old)
    if len(came):
        group, home = twins.group, np.full(n, n)  # group of the old images among those of the same picture
        np.minimum.at(home, group[rows], joined[rows])
        joined[came] = np.where(home[group[came]] < n, home[group[came]], group[came])
    smallest = np.full(n, n)
    np.minimum.at(smallest, joined, np.arange(n))
    return KeptPile(old, urn_of, Groups(smallest[joined]))


def random_numbers(cache: EmbeddingCache, urn_of: np.ndarray) -> np.ndarray:
    """A number of each row, uint64 (n,), that depends on its key and digest, and on the first urn, in no visible way.

    The rows of least number that are left are a random sample of them, the same for all readers of a pile (permanent
    random numbers, as in survey sampling). What an earlier review labelled is in no urn, so that its random images,
    which are looked at already, do not come first again. `mixed` makes second, independent numbers of these.
    """
    hashes = _hashes(cache)
    return mixed(hashes + mixed(hashes[urn_of == 0].sum(keepdims=True)))


def mixed(numbers: np.ndarray) -> np.ndarray:
    """SplitMix64 of uint64 numbers: hashes of keys that count up differ in few bits."""
    return split_mix(numbers + np.uint64(0x9E3779B97F4A7C15))


class NumberedRows:
    """Rows in the order of their numbers, of which the first that is left is found from where the last one was."""

    def __init__(self, numbers: np.ndarray):
        self._order, self._begin = np.argsort(numbers, kind="stable"), 0

    def restart(self) -> None:
        """Begin with the least number again, as rows before the last one found have become eligible."""
        self._begin = 0

    def first(self, is_left: Callable[[np.ndarray], np.ndarray]) -> int | None:
        """The first row of which a function of rows, int64 (m,) to bool (m,), is true; None where there is none."""
        for begin in range(self._begin, len(self._order), _SEARCHED):
            rows = self._order[begin : begin + _SEARCHED]
            hits = np.flatnonzero(is_left(rows))
            if len(hits):
                self._begin = begin
                return int(rows[hits[0]])
        return None


def _hashes(cache: EmbeddingCache) -> np.ndarray:
    """Hash of key and digest of each row, uint64 (n,): the bytes times fixed random numbers, summed."""
    factors = np.random.default_rng(0).integers(1 << 63, size=4 + _LONGEST_KEY, dtype=np.uint64) * 2 + 1
    hashed = np.empty(len(cache), np.uint64)
    for rows in row_slices(len(cache), cache.keys.encoded(slice(0)).itemsize):
        keys = np.ascontiguousarray(cache.keys.encoded(rows))
        letters = keys.view(np.uint8).reshape(len(keys), -1).astype(np.uint64)
        digests = np.ascontiguousarray(cache.digest_matrix[rows]).view(np.uint64)
        hashed[rows] = digests @ factors[:4] + letters @ factors[4 : 4 + letters.shape[1]]
    return hashed
