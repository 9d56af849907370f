"""Embeddings looked up by the digest of an image's bytes."""

from __future__ import annotations

import numpy as np

from ..cache.reader import CacheFile


class ContentLookup:
    """Embeddings by content digest, over any number of cache files.

    Parameters
    ----------
    picks : list of (CacheFile, ndarray of int)
        Undamaged rows of each file. A damaged row must not be copied, as it would get a new checksum.

    Attributes
    ----------
    sorted_digests : ndarray of S32, (n,)
        sha256 digests for which there is an embedding.
    """

    def __init__(self, picks: list[tuple[CacheFile, np.ndarray]]):
        self._files = [file for file, _ in picks]
        per_file = [file.take("digests", rows).reshape(-1).view("S32") for file, rows in picks]
        digests = np.concatenate(per_file) if per_file else np.empty(0, "S32")
        self._order = np.argsort(digests)
        self.sorted_digests = digests[self._order]
        self._starts = np.cumsum([0, *(len(rows) for _, rows in picks)])
        self._rows = np.concatenate([rows for _, rows in picks]) if picks else np.empty(0, np.int64)

    def __getitem__(self, digest: bytes) -> np.ndarray:
        """Embedding of the image with this digest, which must be among `sorted_digests`; (d,)."""
        position = self._order[np.searchsorted(self.sorted_digests, np.bytes_(digest))]
        file = int(np.searchsorted(self._starts, position, "right")) - 1
        return self._files[file].X[self._rows[position]]
