"""Matching what a log names with the rows of a cache, by key and digest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from .log_records import LoggedImage, Record

_LISTED = 256  # images that a cache is recognised by
_UNKNOWN = bytes(32)


def rows_of(cache: EmbeddingCache, images: Sequence[LoggedImage | Record]) -> np.ndarray:
    """Row of each image, int64 (len(images),); -1 where the key is gone or names another image now.

    A digest that is unknown on either side agrees with any other.
    """
    rows = cache.keys.rows([image.key for image in images])
    digests = cache.digest_matrix
    for position, image in enumerate(images):
        row = int(rows[position])
        if row >= 0 and image.digest != _UNKNOWN:
            present = digests[row].tobytes()
            if present not in (image.digest, _UNKNOWN):
                rows[position] = -1
    return rows


def listed_images(cache: EmbeddingCache, s: np.ndarray, reviewed: np.ndarray) -> list[LoggedImage]:
    """Labelled images of a cache, and a few others by which it can be recognised."""
    labelled = np.flatnonzero((s == 1) | (reviewed != 0))
    others = np.setdiff1d(np.linspace(0, max(len(cache) - 1, 0), min(len(cache), _LISTED)).astype(np.int64), labelled)
    images = []
    for row in labelled.tolist():
        label = int(s[row] == 1 or reviewed[row] == 1)
        images.append(image_of(cache, row, label=label, reviewed=int(reviewed[row] != 0)))
    return images + [image_of(cache, row) for row in others.tolist()]


def image_of(cache: EmbeddingCache, row: int, *, label: int | None = None, reviewed: int | None = None) -> LoggedImage:
    """Key and digest of a row."""
    return LoggedImage(cache.keys[row], cache.digest_matrix[row].tobytes(), label, reviewed)
