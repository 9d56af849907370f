"""What a cache would hold: rows of the one that is there, rows of parts, failures; and what is missing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..cache.keys import encode_keys, find_sorted
from ..cache.reader import CacheFile
from ..images.source import Listing
from .parts import Parts
from .resume import Earlier


@dataclass(frozen=True)
class Outcome:
    """What the cache would hold if nothing more were embedded.

    Attributes
    ----------
    picks : list of (CacheFile, ndarray of int)
        Rows of the earlier cache and of parts.
    failures : dict of str to str
    missing : ndarray of int64
        Positions in the listing that have neither a row nor a failure.
    earlier : Earlier
    """

    picks: list[tuple[CacheFile, np.ndarray]]
    failures: dict[str, str]
    missing: np.ndarray
    earlier: Earlier

    @classmethod
    def of(cls, listing: Listing, earlier: Earlier, parts: Parts, prune: bool, *, again: bool = False) -> Outcome:
        """Put together what there is.

        With `again`, what has failed counts as missing: it may have been a store that was out of reach.
        """
        keys, kept = encode_keys(listing.keys), earlier.keys
        picks, failed = parts.current(listing, kept)
        todo = np.ones(len(keys), bool)
        todo[find_sorted(keys, kept)] = False
        if not again:
            todo[find_sorted(keys, encode_keys(list(failed)))] = False
        for file, rows in picks:
            todo[find_sorted(keys, file.take("keys", rows))] = False
        if earlier.file is not None:
            picks.append((earlier.file, earlier.rows(prune)))
        return cls(picks, {**listing.failures, **failed}, np.flatnonzero(todo), earlier)

    @property
    def rows(self) -> int:
        """How many rows it would hold."""
        return sum(len(rows) for _, rows in self.picks)

    def differs(self, source: str) -> bool:
        """Whether that is another cache than the one there is."""
        from_parts = any(file is not self.earlier.file for file, _ in self.picks)
        return from_parts or self.earlier.differs(self.failures, self.rows, source)
