"""Further columns of an exported cache: scores, decisions of a review, thumbnails."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from ..cache.embedding_cache import EmbeddingCache
from ..cache.exporting import Column
from ..errors import LabelError
from ..labels.label_files import name_first
from ..pages.thumbnails import QUALITY, THREADS, RowImages, encoded
from ..scoring.score_tables import read_scores, unique_keys
from .session import read_session

_PICTURE = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])  # as Hugging Face has images


def pile_columns(
    cache: EmbeddingCache,
    *,
    scores: str | Path | None = None,
    session: str | Path | None = None,
    thumbnails: int = 0,
    images: str | Path | None = None,
) -> list[Column]:
    """Columns for `pucache.cache.exporting.export`; cells of images that have none are null.

    `scores`, a table of `score`, gives ``margin`` and ``posterior``, float32; `session`, the folder of a review,
    ``decision``, int8, 1 positive and 0 negative, labels from before it included; `thumbnails`, the greatest side in
    pixels, 0 for none, ``thumbnail``, a struct of a JPEG's bytes and a path, of `images` where these have moved.

    Raises `LabelError` where the table is none of scores, or names keys that the cache does not hold, and
    `SessionError` or `SourceError` where the session, or the source of the images, cannot be opened.
    """
    columns: list[Column] = []
    if scores is not None:
        table = read_scores(scores)
        rows = cache.keys.rows(unique_keys(table, scores))
        if len(unknown := table["key"][rows < 0]):
            shown = name_first(unknown.tolist())
            raise LabelError(f"{len(unknown)} of {len(rows)} keys in {scores} are not in {cache.name} ({shown})")
        for name in ("margin", "posterior"):
            values = np.full(len(cache), np.nan, np.float32)
            values[rows] = table[name]
            columns.append(_numbers(name, pyarrow.float32(), values, np.isnan(values)))
    if session is not None:
        s, reviewed = read_session(cache, session).state.labels()
        decision = ((s == 1) | (reviewed == 1)).astype(np.int8)
        columns.append(_numbers("decision", pyarrow.int8(), decision, (s == 0) & (reviewed == 0)))
    if thumbnails:
        columns.append((pyarrow.field("thumbnail", _PICTURE), _pictures(cache, images, thumbnails)))
    return columns


def _numbers(name: str, kind: Any, values: np.ndarray, missing: np.ndarray) -> Column:
    return pyarrow.field(name, kind), lambda rows: pyarrow.array(values[rows], kind, mask=missing[rows])


def _pictures(cache: EmbeddingCache, images: str | Path | None, side: int) -> Callable[[np.ndarray], Any]:
    pictures = RowImages(cache, images)

    def picture(row: int) -> dict[str, Any] | None:
        pixels = pictures.read(row, side).pixels
        return None if pixels is None else {"bytes": encoded(pixels, "JPEG", quality=QUALITY), "path": cache.keys[row]}

    def of(rows: np.ndarray) -> Any:
        with ThreadPoolExecutor(THREADS) as pool:
            return pyarrow.array(list(pool.map(picture, rows.tolist())), _PICTURE)

    return of
