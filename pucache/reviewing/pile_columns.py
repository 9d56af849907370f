"""Further columns of an exported cache: decisions of a review, thumbnails."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from ..cache.embedding_cache import EmbeddingCache
from ..cache.exporting import Column
from ..pages.thumbnails import QUALITY, THREADS, RowImages, encoded
from .session import read_session

_PICTURE = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])  # as Hugging Face has images


def pile_columns(
    cache: EmbeddingCache,
    *,
    session: str | Path | None = None,
    thumbnails: int = 0,
    images: str | Path | None = None,
) -> list[Column]:
    """Columns for `pucache.cache.exporting.export`; cells of images that have none are null.

    `session`, the folder of a review, gives ``decision``, int8, 1 positive and 0 negative, labels from before it
    included; `thumbnails`, the greatest side in pixels, 0 for none, ``thumbnail``, a struct of a JPEG's bytes and a
    path, of `images` where these have moved.

    Raises `SessionError` or `SourceError` where the session, or the source of the images, cannot be opened.
    """
    columns: list[Column] = []
    if session is not None:
        s, reviewed = read_session(cache, session).state.labels()
        decision = ((s == 1) | (reviewed == 1)).astype(np.int8)
        undecided = (s == 0) & (reviewed == 0)
        column = pyarrow.field("decision", pyarrow.int8())
        columns.append((column, lambda rows: pyarrow.array(decision[rows], mask=undecided[rows])))
    if thumbnails:
        columns.append((pyarrow.field("thumbnail", _PICTURE), _pictures(cache, images, thumbnails)))
    return columns


def _pictures(cache: EmbeddingCache, images: str | Path | None, side: int) -> Callable[[np.ndarray], Any]:
    pictures = RowImages(cache, images)

    def picture(row: int) -> dict[str, Any] | None:
        pixels = pictures.read(row, side).pixels
        return None if pixels is None else {"bytes": encoded(pixels, "JPEG", quality=QUALITY), "path": cache.keys[row]}

    def of(rows: np.ndarray) -> Any:
        with ThreadPoolExecutor(THREADS) as pool:
            return pyarrow.array(list(pool.map(picture, rows.tolist())), _PICTURE)

    return of
