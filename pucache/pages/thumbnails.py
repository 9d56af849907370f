"""Small pictures of cached images, to stand inside a page; what cannot be shown says why.

Beside reading an image to embed it, this is the only place where one is opened.
"""

from __future__ import annotations

import base64
import io
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from ..cache.embedding_cache import EmbeddingCache
from ..errors import PUCacheError, SourceError, one_line
from ..images.decoding import FORMATS, decode
from ..images.source import LocalFolder, ManifestSource, Source, TarSource, image_digest, open_source
from ..progress import Progress, Silent

QUALITY = 75  # of WebP: 160 pixels of a photograph then take 3 to 6 kB
THREADS = 4
LARGE = 20_000_000  # pixels, from which on one image is decoded at a time
NO_SOURCE = "the cache does not say where its images are"
CHANGED = "the file has changed since it was embedded"
_one_large = threading.Lock()


@dataclass(frozen=True)
class Thumbnail:
    """A small picture, or the reason why there is none.

    Attributes
    ----------
    uri : str
        ``data:image/webp;base64,...``, or "" where there is no picture.
    width, height : int
        Of the original, upright, in pixels; 0 where unknown.
    problem : str
        "", or one line: why there is no picture, or that the file has changed since it was embedded.
    place : str
        Absolute path of the original where it is a file of this machine, else "".
    """

    uri: str = ""
    width: int = 0
    height: int = 0
    problem: str = ""
    place: str = ""


def thumbnails(
    cache: EmbeddingCache,
    rows: np.ndarray,
    *,
    images: str | Path | None = None,
    side: int = 160,
    progress: Progress | None = None,
) -> list[Thumbnail]:
    """Make a thumbnail of each row; an image that cannot be shown never raises.

    Parameters
    ----------
    cache : EmbeddingCache
    rows : ndarray of int, (m,)
        In any order.
    images : str or path, optional
        Where the images are by now, as for `open_source`; else each cache file's own source is read.
    side : int
        Of the square in pixels that a thumbnail fits into; what is smaller stays as it is.
    progress : Progress, optional

    Returns
    -------
    list of Thumbnail, (m,)

    Raises
    ------
    SourceError
        `images` cannot be opened.
    ValueError
        `side` is below 1.
    """
    if side < 1:
        raise ValueError(f"side must be at least 1 pixel, got {side}")
    rows = np.asarray(rows, np.int64)
    starts = np.cumsum([0, *map(len, cache.files)])
    numbers = np.searchsorted(starts, rows, "right") - 1
    shelves = _shelves(cache, set(numbers.tolist()), images)

    def draw(row: int, number: int) -> Thumbnail:
        expected = cache.files[number].digests[row - starts[number]]
        return _thumbnail(shelves[number], cache.keys[row], expected.tobytes(), side)

    found = []
    with progress or Silent() as shown, ThreadPoolExecutor(THREADS) as pool:
        shown.start(len(rows), "pictures")
        for thumbnail in pool.map(draw, rows.tolist(), numbers.tolist()):
            found.append(thumbnail)
            shown.advance(1)
    return found


def _shelves(cache: EmbeddingCache, numbers: set[int], images: str | Path | None) -> dict[int, Source | str]:
    """The source of each cache file, or why it has none."""
    if images is not None:
        return dict.fromkeys(numbers, _opened(images))
    names = {cache.files[number].source for number in numbers}
    opened = {name: _opened_or_why(name) for name in names}
    return {number: opened[cache.files[number].source] for number in numbers}


def _opened_or_why(name: str) -> Source | str:
    try:
        return _opened(name) if name else NO_SOURCE
    except SourceError as error:
        return one_line(error)


def _opened(where: str | Path) -> Source:
    """Open a source and have it read its own index now, before several threads ask it at once."""
    source = open_source(where)
    if isinstance(source, TarSource):
        source.scan()
    elif isinstance(source, ManifestSource):
        _ = source.paths
    return source


def _thumbnail(source: Source | str, key: str, expected: bytes, side: int) -> Thumbnail:
    if isinstance(source, str):
        return Thumbnail(problem=source)
    place = _place(source, key)
    try:
        data = source.read(key)
    except KeyError:
        return Thumbnail(problem=f"{source.name} does not hold it")
    except Exception as error:  # a file system behind a URL raises almost anything
        return Thumbnail(problem=one_line(error))
    width, height = _size(data)
    try:
        picture = _picture(data, side, large=width * height > LARGE)
    except PUCacheError as error:
        return Thumbnail("", width, height, one_line(error), place)
    if (width - height) * (picture.width - picture.height) < 0:  # the header's are not upright, the picture is
        width, height = height, width
    changed = any(expected) and image_digest(data) != expected
    return Thumbnail(_uri(picture), width, height, CHANGED if changed else "", place)


def _place(source: Source, key: str) -> str:
    if isinstance(source, LocalFolder):
        return os.path.abspath(os.path.join(source.name, key))
    path = source.paths.get(key, "://") if isinstance(source, ManifestSource) else "://"
    return "" if "://" in path else os.path.abspath(path)


def _size(data: bytes) -> tuple[int, int]:
    """Width and height as the header has them, before EXIF turns the picture; zeros where it does not tell."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return image.size
    except Exception:  # Pillow's plugins raise almost anything; `decode` says what is wrong
        return 0, 0


def _picture(data: bytes, side: int, *, large: bool) -> Image.Image:
    with _one_large if large else nullcontext():
        picture = decode(data, sufficient_side=side)
        picture.thumbnail((side, side), reducing_gap=3)
    return picture


def _uri(picture: Image.Image) -> str:
    stream = io.BytesIO()
    # a profile or EXIF taken along would weigh more than the picture
    picture.save(stream, "WEBP", quality=QUALITY, method=4, icc_profile=b"", exif=b"", xmp=b"")
    return "data:image/webp;base64," + base64.b64encode(stream.getvalue()).decode()
